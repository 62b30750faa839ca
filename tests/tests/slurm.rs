//! Jobs of a real Slurm get the shares that they ask for, and nothing of them stays: slurmctld and
//! two slurmd on loopback, the software GPU.

use std::fs;

use anyhow::{Context, Result, ensure};
use openmps_tests::slurm::{Bed, JOBS_LIMIT, User, as_root};
use openmps_tests::wait;

/// SMs of the software GPU.
const ALL: u32 = 84;

/// Prints the SMs that the program was told of and those that kernels ran on, the memory that is
/// free, and whether results are right.
const SHARED: &str = "BED/multiprocessors && printf 'open\\nfree-bytes\\nwork 5\\n' | BED/puppet";
/// The same without OpenMPS, which the job's environment must not mention.
const NATIVE: &str = "export LD_LIBRARY_PATH=BED/openmps/lib/softcuda OPENMPS_SOFT_DEVICES=2; \
     [ -z \"$CUDA_MPS_PIPE_DIRECTORY\" ] && BED/multiprocessors && printf 'open\\nfree-bytes\\nwork 5\\n' | BED/puppet";
/// A client that says when it is one, and stays.
const STAYS: &str = "(echo open; exec sleep 600) | BED/puppet";

/// What a job with a GPU printed.
#[derive(Debug, PartialEq)]
struct Report {
    /// The SMs that it was told of, and on how many its kernels ran.
    multiprocessors: Vec<u32>,
    free_bytes: u64,
}

impl Report {
    fn parse(output: &str) -> Result<Self> {
        let read = || {
            let mut lines = output.lines();
            let numbers = lines.next()?.split(|c: char| !c.is_ascii_digit());
            let multiprocessors = numbers.filter_map(|number| number.parse().ok()).collect();
            let [said, opened, free_bytes, right] =
                [(); 4].map(|()| lines.next().unwrap_or_default());
            let is_right =
                said.starts_with("multiprocessors: ok") && (opened, right) == ("ok", "ok");
            is_right.then_some(Report { multiprocessors, free_bytes: free_bytes.parse().ok()? })
        };
        read().with_context(|| format!("a job wrote: {output}"))
    }

    /// How many SMs it had, if it saw the same number everywhere: told once, and in seven ways to
    /// launch.
    fn share(&self) -> Option<u32> {
        let first = *self.multiprocessors.first()?;
        (self.multiprocessors == vec![first; 8]).then_some(first)
    }
}

/// A job of the mix: where, what it asks for, its script, and how it is to end.
struct Wanted {
    node: &'static str,
    gres: Option<&'static str>,
    script: &'static str,
    end: End,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    /// With a report of so many SMs, of so many per cent of the memory.
    Report(u32, u64),
    /// With this exit status.
    Status(&'static str),
    /// Killed once it is a client.
    Killed,
}

fn wanted() -> Vec<Wanted> {
    let job = |node, gres, script, end| Wanted { node, gres, script, end };
    let shared =
        |node, gres, share, percent| job(node, Some(gres), SHARED, End::Report(share, percent));
    let whole = |node| job(node, Some("gpu:1"), NATIVE, End::Report(ALL, 100));
    vec![
        shared("node0", "mps:10", 8, 10),
        job("node0", Some("mps:25"), STAYS, End::Killed),
        shared("node0", "mps:50", 42, 50),
        whole("node0"),
        shared("node0", "mps:25", 20, 25),
        job("node0", Some("mps:25"), "exit 3", End::Status("3:0")),
        shared("node0", "mps:75", 62, 75),
        shared("node0", "mps:50", 42, 50),
        job("node0", None, "[ -z \"$CUDA_MPS_PIPE_DIRECTORY\" ]", End::Status("0:0")),
        whole("node0"),
        shared("node0", "mps:10", 8, 10),
        shared("node1", "shard:1", 20, 25),
        job("node1", Some("shard:1"), STAYS, End::Killed),
        shared("node1", "shard:2", 42, 50),
        whole("node1"),
        shared("node1", "shard:3", 62, 75),
        job(
            "node1",
            Some("shard:1"),
            "BED/multiprocessors > /dev/null && exit 4",
            End::Status("4:0"),
        ),
        shared("node1", "shard:1", 20, 25),
        job("node1", None, "exit 5", End::Status("5:0")),
        whole("node1"),
    ]
}

#[test]
fn twenty_jobs_of_two_users_get_their_shares_and_leave_nothing() -> Result<()> {
    as_root("twenty_jobs_of_two_users_get_their_shares_and_leave_nothing", || {
        let Some(bed) = Bed::start()? else { return Ok(()) };
        let mut jobs = Vec::new();
        for (number, wanted) in wanted().into_iter().enumerate() {
            let (node, gres) = (format!("--nodelist={}", wanted.node), wanted.gres);
            let gres = gres.map(|gres| format!("--gres={gres}"));
            let options: Vec<&str> =
                [Some(&node), gres.as_ref()].into_iter().flatten().map(String::as_str).collect();
            let job = bed.submit(&bed.users[number % 2], &options, wanted.script)?;
            jobs.push((job, wanted));
        }
        ensure!(jobs.len() == 20);
        for (job, _) in jobs.iter().filter(|(_, wanted)| wanted.end == End::Killed) {
            bed.wait_for_output(job, "ok")?;
            bed.slurm(None, &["scancel", job])?;
        }
        bed.wait_for_jobs()?;
        // Of the whole device, by the jobs that had it.
        let mut all_bytes = 0;
        for (job, wanted) in jobs.iter().rev() {
            let ended = bed.ended(job)?;
            let gres = wanted.gres.unwrap_or("no GPU");
            match wanted.end {
                End::Report(share, percent) => {
                    ensure!(ended.state == "COMPLETED", "{gres}: {ended:?}\n{}", bed.logs());
                    let report = Report::parse(&ended.output)?;
                    ensure!(report.share() == Some(share), "{gres}: {report:?}");
                    if share == ALL {
                        all_bytes = report.free_bytes;
                    }
                    // What a context takes counts, too.
                    let has = all_bytes * percent / 150..=all_bytes * percent / 95;
                    ensure!(has.contains(&report.free_bytes), "{gres}: {report:?}, not {has:?}");
                }
                End::Status(status) => ensure!(ended.status == status, "{gres}: {ended:?}"),
                End::Killed => ensure!(ended.state == "CANCELLED", "{gres}: {ended:?}"),
            }
        }
        // A job that asks for no GPU is nobody's business, and Slurm has called its prolog all the
        // same.
        ensure!(bed.hooks("prolog").len() == 20 && bed.hooks("epilog").len() == 20);
        bed.nothing_is_left()
    })
}

/// A hundred short jobs, eight at a time, beside one that keeps the daemon.
#[test]
fn a_job_array_costs_a_prolog_each_and_no_daemon() -> Result<()> {
    as_root("a_job_array_costs_a_prolog_each_and_no_daemon", || {
        let Some(bed) = Bed::start()? else { return Ok(()) };
        let [one, other] = &bed.users;
        let keeper = bed.submit(other, &["--nodelist=node0", "--gres=mps:20"], STAYS)?;
        bed.wait_for_output(&keeper, "ok")?;
        ensure!(bed.daemons_started("node0") == 1);
        let array = ["--nodelist=node0", "--gres=mps:10", "--array=1-100"];
        let script = "[ \"$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\" = 10 ] && [ -S \"$CUDA_MPS_PIPE_DIRECTORY/openmps-control\" ]";
        let job = bed.submit(one, &array, script)?;
        let of_array = |said: String| said.lines().any(|line| line.trim() == job);
        wait::until("the array has ended", JOBS_LIMIT, || {
            bed.slurm(None, &["squeue", "-h", "-o", "%F"]).is_ok_and(|said| !of_array(said))
        })
        .with_context(|| bed.logs())?;
        let said = bed.slurm(None, &["scontrol", "-o", "show", "job", &job])?;
        let completed = said.lines().filter(|line| line.contains("JobState=COMPLETED")).count();
        ensure!(completed == 100, "{completed} completed: {said}");
        // What a prolog costs is what it starts: itself, once for each job, no daemon, no call of
        // the controller.
        let prologs = bed.hooks("prolog");
        ensure!(prologs.len() == 101, "{}", prologs.len());
        ensure!(bed.daemons_started("node0") == 1 && bed.hooks("scontrol").is_empty());
        let mut times_ms: Vec<u64> = Vec::new();
        for words in &prologs[1..] {
            let time_ns: u64 = words.get(3).context("no time")?.parse()?;
            times_ms.push(time_ns / 1_000_000);
        }
        times_ms.sort_unstable();
        let at = |percent: usize| times_ms[(times_ms.len() - 1) * percent / 100];
        println!(
            "prologs of 100 jobs, eight at a time: median {} ms, 95 % {} ms, longest {} ms",
            at(50),
            at(95),
            at(100)
        );
        bed.slurm(None, &["scancel", &keeper])?;
        bed.wait_for_jobs()?;
        bed.nothing_is_left()
    })
}

/// Processes that leave their job are ended by the epilog; broken GPUs drain their node, with a
/// reason, and no job without a GPU fails.
#[test]
fn what_stays_is_ended_and_what_is_broken_drains_the_node() -> Result<()> {
    as_root("what_stays_is_ended_and_what_is_broken_drains_the_node", || {
        let Some(bed) = Bed::start()? else { return Ok(()) };
        let user = &bed.users[0];
        let escape = format!(
            "setsid sh -c '{STAYS}' > escaped.$SLURM_JOB_ID 2>&1 & \
             until grep -q ok escaped.$SLURM_JOB_ID; do sleep 0.1; done"
        );
        bed.submit(user, &["--gres=mps:25", "--nodelist=node0"], &escape)?;
        bed.wait_for_jobs()?;
        bed.nothing_is_left()?;

        let (driver, away) = (bed.driver(), bed.path().join("away"));
        fs::rename(&driver, &away)?;
        fs::write(&driver, "no library")?;
        let cpu = bed.submit(user, &["--nodelist=node0"], "true")?;
        let gpu = bed.submit(user, &["--gres=gpu:1", "--nodelist=node1"], "true")?;
        bed.wait_for_jobs()?;
        for job in [cpu, gpu] {
            ensure!(bed.ended(&job)?.state == "COMPLETED", "{}", bed.logs());
        }
        ensure!(bed.drained("node0")?.is_empty());
        let reason = bed.drained("node1")?;
        ensure!(reason.contains("OpenMPS epilog: GPU check failed"), "{reason}");

        // Without a driver the prolog of a share fails; Slurm holds its job.
        fs::remove_file(&driver)?;
        let shared = bed.submit(user, &["--gres=mps:25", "--nodelist=node0"], SHARED)?;
        wait::until("the job is held, since its prolog failed", JOBS_LIMIT, || {
            let reason = bed.slurm(None, &["squeue", "-h", "-j", &shared, "-o", "%r"]);
            reason.is_ok_and(|reason| reason.contains("held"))
        })
        .with_context(|| bed.logs())?;
        // Its epilog fails, too, and leaves the reason that the prolog gave.
        wait::until("the held job's epilog has run", JOBS_LIMIT, || {
            bed.hooks("epilog").iter().any(|words| words.get(1) == Some(&shared))
        })?;
        let reason = bed.drained("node0")?;
        ensure!(reason.contains("OpenMPS prolog"), "{reason}");
        fs::rename(&away, &driver)?;
        for node in ["node0", "node1"] {
            bed.resume(node)?;
        }
        // Slurm would wait two minutes before it tries again.
        bed.slurm(None, &["scancel", &shared])?;
        let again = bed.submit(user, &["--gres=mps:25", "--nodelist=node0"], SHARED)?;
        bed.wait_for_jobs()?;
        let ended = bed.ended(&again)?;
        ensure!(Report::parse(&ended.output)?.share() == Some(20), "{ended:?}");
        bed.nothing_is_left()
    })
}

/// Steps have shares of their own, and the options of the SPANK plugin do what they say.
#[test]
fn steps_and_options_have_their_shares() -> Result<()> {
    as_root("steps_and_options_have_their_shares", || {
        let Some(bed) = Bed::start()? else { return Ok(()) };
        let [one, other] = &bed.users;
        let run = |user: &User, options: &[&str], script: &str| -> Result<String> {
            let job = bed.submit(user, options, script)?;
            bed.wait_for_jobs()?;
            let ended = bed.ended(&job)?;
            ensure!(ended.state == "COMPLETED", "{options:?}: {ended:?}\n{}", bed.logs());
            Ok(ended.output)
        };
        let shares = |output: &str| -> Vec<u32> {
            let told = output.lines().filter_map(|line| line.strip_prefix("primary: "));
            told.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
        };
        // A step that asks for less has less, one that asks for nothing has the job's.
        let steps = "srun --exact --gres=mps:25 BED/multiprocessors; srun BED/multiprocessors";
        let output = run(one, &["--nodelist=node0", "--gres=mps:50"], steps)?;
        ensure!(shares(&output) == [20, 42], "{output}");
        let steps = "srun --exact --gres=shard:1 BED/multiprocessors; srun --gres=shard:3 BED/multiprocessors";
        let output = run(other, &["--nodelist=node1", "--gres=shard:3"], steps)?;
        ensure!(shares(&output) == [20, 62], "{output}");

        // A whole GPU, cut by the options; then a step, cut further.
        let options = [
            "--nodelist=node0",
            "--gres=gpu:1",
            "--openmps-sm-percent=50",
            "--openmps-memory=512M",
        ];
        let script = format!("{SHARED}; srun --openmps-sm=25 BED/multiprocessors");
        let output = run(one, &options, &script)?;
        ensure!(shares(&output) == [42, 20], "{output}");
        let free: u64 = output.lines().nth(3).context("no number")?.parse()?;
        ensure!((256 << 20..=512 << 20).contains(&free), "{output}");
        let refused = bed.submit(one, &["--gres=mps:10", "--openmps-memory=much"], "true");
        ensure!(refused.is_err_and(|error| format!("{error:#}").contains("much")));

        // What a program says of itself is worth nothing: its socket is its job's.
        let loud =
            "export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 OPENMPS_GROUP=other; BED/multiprocessors";
        let output = run(other, &["--nodelist=node0", "--gres=mps:25"], loud)?;
        ensure!(shares(&output) == [20], "{output}");
        bed.nothing_is_left()
    })
}
