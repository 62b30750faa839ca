//! Shares of SMs hold: kernels of real processes say on which SMs they ran, launched directly and
//! in graphs, at each level at which a share can be set.

use anyhow::{Context, Result, ensure};
use openmps_tests::process;
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Runtime, Sandbox};

/// SMs of the software GPU.
const ALL: u32 = 84;
/// Shares in per cent, and what they are of [`ALL`] SMs.
const SHARES: [(&str, u32); 5] = [("1", 8), ("10", 8), ("25", 20), ("50", 42), ("75", 62)];

/// Kernels that the program launches in each context, at least: in company it launches until it has
/// seen all SMs.
const KERNELS: u64 = 8;

/// What the program `multiprocessors` prints of a context: the SMs that it was told of, and on how
/// many each kind of launch ran.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    of: String,
    told: u32,
    seen: Vec<u32>,
}

impl Report {
    fn parse(line: &str) -> Option<Self> {
        let (of, rest) = line.split_once(": ")?;
        let (told, rest) = rest.split_once(" SMs; ")?;
        let numbers = rest.split(|character: char| !character.is_ascii_digit());
        let seen = numbers.filter_map(|number| number.parse().ok()).collect();
        Some(Self { of: of.into(), told: told.parse().ok()?, seen })
    }

    /// The same number in all of them: four ways to launch, and three graphs.
    fn all(of: &str, count: u32) -> Self {
        Self { of: of.into(), told: count, seen: vec![count; 7] }
    }
}

/// Runs the program attached, with these variables and arguments; its server must have counted its
/// kernels.
fn reports(daemon: &Daemon, variables: &[(&str, &str)], arguments: &[&str]) -> Result<Vec<Report>> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("driver-api", "multiprocessors");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    command.envs(variables.iter().copied()).args(arguments);
    let finished = process::run(&mut command, PATIENCE)?;
    let printed = finished.success().with_context(|| sandbox.last_log_lines())?;
    let reports: Vec<Report> = printed.lines().filter_map(Report::parse).collect();
    let counted = daemon.departed(finished.pid)?.kernels;
    let launched = KERNELS * reports.len() as u64;
    ensure!(counted >= launched, "{launched} kernels ran, {counted} were counted:\n{printed}");
    Ok(reports)
}

#[test]
fn a_clients_kernels_run_on_no_more_than_its_share() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    for (percentage, share) in SHARES {
        let printed = reports(&daemon, &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage)], &[])?;
        ensure!(printed == [Report::all("primary", share)], "{percentage} %: {printed:?}");
    }
    let printed = reports(&daemon, &[], &[])?;
    ensure!(printed == [Report::all("primary", ALL)], "{printed:?}");
    Ok(())
}

#[test]
fn clients_in_company_keep_to_their_shares() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let shares = [("10", 8), ("25", 20), ("50", 42), ("75", 62)];
    std::thread::scope(|scope| {
        let running = shares.map(|(percentage, share)| {
            let variables = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage)];
            let daemon = &daemon;
            (share, scope.spawn(move || reports(daemon, &variables, &[])))
        });
        for (share, thread) in running {
            let printed = thread.join().map_err(|_| anyhow::anyhow!("a run panicked"))??;
            ensure!(printed == [Report::all("primary", share)], "{printed:?}");
        }
        Ok(())
    })
}

#[test]
fn the_lower_of_daemon_server_and_client_holds() -> Result<()> {
    let daemon =
        Daemon::start_with(Sandbox::new()?, &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")])?;
    let seen = |percentage: Option<&'static str>| -> Result<u32> {
        let variables: Vec<_> = percentage
            .map(|value| ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", value))
            .into_iter()
            .collect();
        let printed = reports(&daemon, &variables, &[])?;
        let told = printed.first().context("nothing was printed")?.told;
        ensure!(printed == [Report::all("primary", told)], "{printed:?}");
        Ok(told)
    };
    ensure!([seen(None)?, seen(Some("25"))?, seen(Some("75"))?] == [42, 20, 42]);
    let server = daemon.server()?.pid;
    daemon.shell(&format!("set_active_thread_percentage {server} 10"))?;
    ensure!([seen(None)?, seen(Some("25"))?] == [8, 8]);
    daemon.shell(&format!("set_active_thread_percentage {server} 75"))?;
    ensure!([seen(None)?, seen(Some("25"))?] == [62, 20]);
    Ok(())
}

#[test]
fn contexts_have_shares_of_their_own() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let opted_in = ("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "1");
    let contexts = ["percentage", "25", "percentage", "50"];
    let printed = reports(&daemon, &[opted_in], &contexts)?;
    let expected = [("primary", ALL), ("percentage", 20), ("percentage", 42)];
    ensure!(printed == expected.map(|(of, count)| Report::all(of, count)), "{printed:?}");
    // What the process had when it started bounds them.
    let of_process = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25");
    let printed =
        reports(&daemon, &[opted_in, of_process], &["percentage", "50", "percentage", "10"])?;
    let expected = [("primary", 20), ("percentage", 20), ("percentage", 8)];
    ensure!(printed == expected.map(|(of, count)| Report::all(of, count)), "{printed:?}");
    // Not opted in, the variable is read once, when the process starts.
    let printed = reports(&daemon, &[], &contexts[..2])?;
    let expected = [("primary", ALL), ("percentage", ALL)];
    ensure!(printed == expected.map(|(of, count)| Report::all(of, count)), "{printed:?}");
    Ok(())
}

#[test]
fn execution_affinity_lies_within_the_clients_share() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    // Rounded up to what the device can set apart: a set of SMs that takes clusters, or pairs.
    let affinities = ["affinity", "6", "affinity", "47"];
    let printed = reports(&daemon, &[], &affinities)?;
    let expected = [("primary", ALL), ("affinity", 8), ("affinity", 48)];
    ensure!(printed == expected.map(|(of, count)| Report::all(of, count)), "{printed:?}");
    let share = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25");
    let printed = reports(&daemon, &[share], &affinities)?;
    let expected = [("primary", 20), ("affinity", 8), ("affinity", 20)];
    ensure!(printed == expected.map(|(of, count)| Report::all(of, count)), "{printed:?}");
    Ok(())
}

/// What the program `clusters` prints: the SMs that it was told of, and how many clusters of 1, 2,
/// 4 and 8 blocks fit.
fn clusters(daemon: &Daemon, variables: &[(&str, &str)]) -> Result<(u32, Vec<u32>)> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("driver-api", "clusters");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    let finished = process::run(command.envs(variables.iter().copied()), PATIENCE)?;
    let printed = finished.success().with_context(|| sandbox.last_log_lines())?;
    let counted = daemon.departed(finished.pid)?.kernels;
    let (_, launches) = printed.trim_end().rsplit_once(" launches=").context("no launches")?;
    ensure!(counted >= launches.parse()?, "{counted} kernels were counted:\n{printed}");
    let (told, fit) = printed.split_once(" SMs; ").context("no SMs")?;
    let words = fit.lines().next().unwrap_or_default().split(' ');
    Ok((told.parse()?, words.filter_map(|word| word.parse().ok()).collect()))
}

#[test]
fn every_share_takes_clusters() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    for (percentage, share) in SHARES {
        let (told, fit) = clusters(&daemon, &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percentage)])?;
        ensure!(told == share, "{percentage} %: {told} SMs");
        ensure!(fit.len() == 4 && fit.iter().all(|&count| count > 0), "{percentage} %: {fit:?}");
        // An SM has room for 12 such blocks. The share may lack one of the sets of 8 SMs that it
        // could have.
        let (fewest, most) = (12 * (share / 8 - 1).max(1), 12 * share / 8);
        ensure!((fewest..=most).contains(&fit[3]), "{percentage} %: {fit:?}");
    }
    Ok(())
}

#[test]
fn groups_reservations_and_the_latency_class_take_clusters() -> Result<()> {
    let settings = [("OPENMPS_LATENCY_SMS", "8"), ("OPENMPS_GROUPS", "tenant sm-percent=25")];
    let daemon = Daemon::start_with(Sandbox::new()?, &settings)?;
    let _holder = daemon.puppet()?;
    let sandbox = daemon.sandbox();
    let mut reserve = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(reserve.args(["reserve", "night", "--sms", "12"]), PATIENCE)?.success()?;
    for (variables, most) in [
        (&[("OPENMPS_GROUP", "tenant")][..], 20),
        (&[("OPENMPS_GROUP", "tenant"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")][..], 8),
        (&[("OPENMPS_RESERVATION", "night")][..], 12),
        (&[("OPENMPS_LATENCY", "1")][..], ALL),
        (&[][..], ALL - 12),
    ] {
        let (told, fit) = clusters(&daemon, variables)?;
        ensure!(
            told <= most && fit.iter().all(|&count| count > 0),
            "{variables:?}: {told}, {fit:?}"
        );
    }
    Ok(())
}
