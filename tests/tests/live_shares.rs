//! Shares that change while clients run: their kernels say on which SMs they run, before and after,
//! and that none was lost or out of order.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use openmps_tests::process::{self, Finished, Running};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

/// SMs of the software GPU.
const ALL: usize = 84;
const OUT_OF_MEMORY: &str = "error 2";

/// What `live_shares` says to `seen`.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    told: usize,
    /// On how many SMs each way to launch ran in the primary context.
    ways: Vec<usize>,
    /// What the context with affinity was told, and saw.
    affinity: Option<(usize, usize)>,
    /// All SMs that were seen.
    on: BTreeSet<usize>,
}

impl Seen {
    fn parse(line: &str) -> Option<Self> {
        let (counts, on) = line.split_once(" on")?;
        let numbers = |text: &str| -> Vec<usize> {
            text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let (primary, affinity) = match counts.split_once(" affinity ") {
            Some((primary, affinity)) => (primary, numbers(affinity)),
            None => (counts, Vec::new()),
        };
        let primary = numbers(primary);
        Some(Self {
            told: *primary.first()?,
            ways: primary[1..].to_vec(),
            affinity: affinity.first().copied().zip(affinity.get(1).copied()),
            on: numbers(on).into_iter().collect(),
        })
    }

    /// Told so many, and seen on exactly as many in every way.
    fn must_be(&self, count: usize) -> Result<()> {
        let right = self.told == count && self.ways == [count; 6] && self.on.len() >= count;
        ensure!(right, "{count} SMs were promised: {self:?}");
        Ok(())
    }
}

/// A client of the program `live_shares`.
struct Client(Puppet);

impl Client {
    fn start(daemon: &Daemon, variables: &[(&str, &str)], arguments: &[&str]) -> Result<Self> {
        let sandbox = daemon.sandbox();
        let program = sandbox.installation.program("process", "live_shares");
        let mut command = sandbox.command(program, Runtime::OpenMps);
        command.envs(variables.iter().copied()).args(arguments);
        Ok(Self(Puppet::spawn(&mut command)?))
    }

    fn seen(&mut self) -> Result<Seen> {
        let answer = self.0.ask("seen")?;
        Seen::parse(&answer).with_context(|| format!("not understood: {answer}"))
    }

    fn pid(&self) -> String {
        self.0.pid().to_string()
    }
}

fn openmps(daemon: &Daemon, arguments: &[&str]) -> Result<Finished> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(arguments), PATIENCE)
}

/// A command that must succeed.
fn must(daemon: &Daemon, arguments: &[&str]) -> Result<()> {
    let finished = openmps(daemon, arguments)?;
    let printed = finished.success()?;
    ensure!(!printed.contains("as soon as"), "{arguments:?} was not in force: {printed}");
    Ok(())
}

fn limit_sms(daemon: &Daemon, client: &Client, percent: &str) -> Result<()> {
    must(daemon, &["limit", "--client", &client.pid(), "--sm-percent", percent])
}

#[test]
fn a_running_clients_kernels_move_to_fewer_sms_and_back() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = Client::start(&daemon, &[], &["affinity", "48"])?;
    let mut other = Client::start(&daemon, &[], &[])?;
    client.seen()?.must_be(ALL)?;
    for (percent, count) in [("100", ALL), ("25", 20), ("50", 42), ("1", 8), ("100", ALL)] {
        limit_sms(&daemon, &client, percent)?;
        let seen = client.seen()?;
        seen.must_be(count)?;
        let few = count.min(48);
        ensure!(seen.affinity == Some((few, few)), "{percent} %: {seen:?}");
        ensure!(seen.on.len() == count, "the context lies within the share: {seen:?}");
        client.0.expect("cooperate", "0 720")?;
    }
    other.seen()?.must_be(ALL)?;
    client.0.dismiss()?;
    other.0.dismiss()
}

#[test]
fn kernels_stay_in_order_while_shares_change() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = Client::start(&daemon, &[], &[])?;
    client.0.must("graph 40")?;
    client.seen()?.must_be(ALL)?;
    for round in 0..3 {
        client.0.tell("chain 4000")?;
        for percent in ["10", "100", "75", "20", "50"] {
            let arguments = ["limit", "--client", &client.pid(), "--sm-percent", percent];
            openmps(&daemon, &arguments)?.success()?;
        }
        let answer = client.0.answer_within(4 * PATIENCE)?;
        ensure!(answer == "ok", "round {round}: {answer}");
    }
    client.seen()?.must_be(42)?;
    client.0.dismiss()
}

/// Also if it is asked for once more while it waits for kernels that run.
#[test]
fn a_change_is_in_force_when_it_is_said_to_be() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "faults");
    let mut client = Puppet::spawn(&mut sandbox.command(program, Runtime::OpenMps))?;
    for order in ["make", "ready", "begin"] {
        client.must(order)?;
    }
    let pid = client.pid().to_string();
    let half = ["limit", "--client", &pid, "--sm-percent", "50"];
    let ask = || {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        Running::start(command.args(half))
    };
    for asked in [ask()?, ask()?] {
        let finished = asked.finish(PATIENCE)?;
        ensure!(finished.success()?.contains("as soon as"), "{finished:?}");
    }
    client.expect("end", "runs 1 ticks 1")?;
    must(&daemon, &half)?;
    client.dismiss()
}

#[test]
fn cooperative_grids_that_no_longer_fit_are_refused() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = Client::start(&daemon, &[], &[])?;
    client.0.expect("occupy 84", "0")?;
    limit_sms(&daemon, &client, "25")?;
    client.0.expect("occupy 84", "720")?;
    client.0.expect("occupy 20", "0")?;
    limit_sms(&daemon, &client, "100")?;
    client.0.expect("occupy 84", "0")?;
    client.0.dismiss()
}

#[test]
fn a_servers_limit_is_for_running_and_later_clients() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut early = Client::start(&daemon, &[], &[])?;
    early.seen()?.must_be(ALL)?;
    let server = daemon.server()?;
    daemon.shell(&format!("set_active_thread_percentage {} 10", server.pid))?;
    early.seen()?.must_be(ALL)?;
    must(&daemon, &["limit", "--server", &server.pid.to_string(), "--sm-percent", "50"])?;
    let mut late = Client::start(&daemon, &[], &[])?;
    early.seen()?.must_be(42)?;
    late.seen()?.must_be(42)?;
    must(&daemon, &["limit", "--user", &server.uid.to_string(), "--sm-percent", "25"])?;
    early.seen()?.must_be(20)?;
    late.seen()?.must_be(20)?;
    let shown = openmps(&daemon, &["limit", "--client", &early.pid()])?;
    ensure!(shown.success()?.contains("25.0"), "{}", shown.stdout);
    early.0.dismiss()?;
    late.0.dismiss()
}

#[test]
fn memory_limits_are_lowered_and_raised() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    client.must(&format!("allocate {}", 96 << 20))?;
    let pid = client.pid().to_string();
    must(&daemon, &["limit", "--client", &pid, "--memory", "64M"])?;
    client.expect(&format!("allocate {}", 48 << 20), OUT_OF_MEMORY)?;
    client.expect("free-bytes", "0")?;
    client.must("work 3").or_else(|_| client.expect("work 3", OUT_OF_MEMORY))?;
    client.must("free")?;
    client.must(&format!("allocate {}", 48 << 20))?;
    must(&daemon, &["limit", "--client", &pid, "--memory", "256M", "--device", "0"])?;
    client.must(&format!("allocate {}", 128 << 20))?;
    must(&daemon, &["limit", "--client", &pid, "--memory", "0"])?;
    client.must(&format!("allocate {}", 256 << 20))?;
    client.must("work 3")?;
    client.dismiss()
}

#[test]
fn a_groups_clients_share_one_limit_of_memory() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    // Before there is a server, too.
    must(&daemon, &["limit", "--group", "tenant", "--memory", "64M"])?;
    let member = || -> Result<Puppet> {
        let sandbox = daemon.sandbox();
        let mut command = sandbox.command(sandbox.installation.puppet()?, Runtime::OpenMps);
        let mut puppet = Puppet::spawn(command.env("OPENMPS_GROUP", "tenant"))?;
        puppet.must("open")?;
        Ok(puppet)
    };
    let (mut one, mut two, mut stranger) = (member()?, member()?, daemon.puppet()?);
    stranger.must("open")?;
    one.must(&format!("allocate {}", 40 << 20))?;
    two.expect(&format!("allocate {}", 40 << 20), OUT_OF_MEMORY)?;
    two.must(&format!("allocate {}", 16 << 20))?;
    stranger.must(&format!("allocate {}", 80 << 20))?;
    let groups = daemon.snapshot()?.devices[0].groups.clone();
    ensure!(groups.len() == 1 && groups[0].clients == 2, "{groups:?}");
    ensure!(groups[0].memory_limit_bytes == Some(64 << 20), "{groups:?}");
    must(&daemon, &["limit", "--group", "tenant", "--memory", "128M"])?;
    two.must(&format!("allocate {}", 40 << 20))?;
    // What a member had is the others' once it has left.
    two.expect(&format!("allocate {}", 64 << 20), OUT_OF_MEMORY)?;
    let left = one.pid();
    one.dismiss()?;
    daemon.wait_gone(left)?;
    openmps_tests::wait::until("the memory is the group's again", PATIENCE, || {
        two.ask(&format!("allocate {}", 64 << 20)).is_ok_and(|answer| answer == "ok")
    })?;
    two.dismiss()?;
    stranger.dismiss()
}

#[test]
fn a_groups_clients_run_on_the_same_sms() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let group = [("OPENMPS_GROUP", "tenant")];
    let (mut one, mut two) = (
        Client::start(&daemon, &group, &[])?,
        Client::start(&daemon, &group, &["affinity", "48"])?,
    );
    let mut stranger = Client::start(&daemon, &[], &[])?;
    one.seen()?.must_be(ALL)?;
    for (percent, count) in [("30", 24), ("50", 42), ("100", ALL)] {
        must(&daemon, &["limit", "--group", "tenant", "--sm-percent", percent])?;
        let (first, second) = (one.seen()?, two.seen()?);
        first.must_be(count)?;
        second.must_be(count)?;
        ensure!(first.on == second.on, "{percent} %: {first:?} {second:?}");
    }
    must(&daemon, &["limit", "--group", "tenant", "--sm-percent", "50"])?;
    limit_sms(&daemon, &one, "25")?;
    let (first, second) = (one.seen()?, two.seen()?);
    first.must_be(20)?;
    ensure!(first.on.is_subset(&second.on), "{first:?} {second:?}");
    stranger.seen()?.must_be(ALL)?;
    Ok(())
}

#[test]
fn run_puts_programs_into_groups() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    command.args(["run", "--group", "job", "--group-memory", "64M", "--group-sm-percent", "25"]);
    let program = sandbox.installation.program("process", "live_shares");
    let mut client = Client(Puppet::spawn(command.arg("--").arg(program))?);
    client.seen()?.must_be(20)?;
    let snapshot = daemon.snapshot()?;
    ensure!(snapshot.clients[0].group.as_deref() == Some("job"), "{snapshot:?}");
    ensure!(snapshot.clients[0].devices[0].multiprocessors == 20, "{snapshot:?}");
    ensure!(snapshot.devices[0].groups[0].memory_limit_bytes == Some(64 << 20), "{snapshot:?}");
    let listed = openmps(&daemon, &["ps"])?;
    ensure!(listed.success()?.contains("job"), "{}", listed.stdout);
    client.0.dismiss()
}

#[test]
fn a_cgroup_is_a_group_where_that_is_configured() -> Result<()> {
    let limits = "/* memory=512M sm-percent=50";
    let daemon = Daemon::start_with(
        Sandbox::new()?,
        &[("OPENMPS_GROUP_BY_CGROUP", "1"), ("OPENMPS_GROUPS", limits)],
    )?;
    let mut client = Client::start(&daemon, &[("OPENMPS_GROUP", "chosen")], &[])?;
    let seen = client.seen()?;
    let text = std::fs::read_to_string("/proc/self/cgroup")?;
    let snapshot = daemon.snapshot()?;
    match &snapshot.clients[0].group {
        Some(path) => {
            ensure!(path != "chosen" && text.contains(path.as_str()), "{path}: {text}");
            seen.must_be(42)?;
            let limit = snapshot.devices[0].groups[0].memory_limit_bytes;
            ensure!(limit == Some(512 << 20), "{limit:?}");
        }
        // The root is no group.
        None => seen.must_be(ALL)?,
    }
    client.0.dismiss()
}

#[test]
fn reserved_sms_are_used_by_nobody_else() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut free = Client::start(&daemon, &[], &["affinity", "80"])?;
    let quarter = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "75")];
    let mut limited = Client::start(&daemon, &quarter, &[])?;
    free.seen()?.must_be(ALL)?;
    limited.seen()?.must_be(62)?;
    free.0.must("graph 40")?;
    free.0.tell("chain 1000")?;
    must(&daemon, &["reserve", "night", "--sms", "16"])?;
    let answer = free.0.answer_within(4 * PATIENCE)?;
    ensure!(answer == "ok", "{answer}");
    let member = [("OPENMPS_RESERVATION", "night")];
    let mut night = Client::start(&daemon, &member, &[])?;
    let reserved = night.seen()?;
    reserved.must_be(16)?;
    must(&daemon, &["reserve", "day", "--sms", "3"])?;
    let day = [("OPENMPS_RESERVATION", "day"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1")];
    let mut day = Client::start(&daemon, &day, &[])?;
    let of_day = day.seen()?;
    // The smallest set of SMs that takes clusters.
    of_day.must_be(8)?;
    ensure!(night.seen()?.on == reserved.on, "a reservation stays where it is");
    let others = free.seen()?;
    others.must_be(ALL - 16 - 8)?;
    ensure!(others.affinity == Some((60, 60)), "{others:?}");
    let share = limited.seen()?;
    share.must_be(60)?;
    let mut late = Client::start(&daemon, &[], &[])?;
    let late_seen = late.seen()?;
    late_seen.must_be(60)?;
    for seen in [&others, &share, &late_seen] {
        ensure!(seen.on.is_disjoint(&reserved.on), "{seen:?} {reserved:?}");
        ensure!(seen.on.is_disjoint(&of_day.on), "{seen:?} {of_day:?}");
    }
    ensure!(reserved.on.is_disjoint(&of_day.on), "{of_day:?}");
    let listed = openmps(&daemon, &["reserve"])?;
    let lines = listed.success()?.lines().count();
    ensure!(lines == 3, "{}", listed.stdout);
    must(&daemon, &["reserve", "--release", "day"])?;
    must(&daemon, &["reserve", "--release", "night"])?;
    for client in [&mut free, &mut night, &mut late] {
        client.seen()?.must_be(ALL)?;
    }
    limited.seen()?.must_be(62)
}

#[test]
fn sms_are_kept_for_the_latency_class_while_it_is_there() -> Result<()> {
    const KEPT: usize = 16;
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_LATENCY_SMS", "16")])?;
    let mut other = Client::start(&daemon, &[], &["affinity", "80"])?;
    other.seen()?.must_be(ALL)?;
    must(&daemon, &["reserve", "night", "--sms", "8"])?;
    let mut request = Client::start(&daemon, &[("OPENMPS_LATENCY", "1")], &[])?;
    request.seen()?.must_be(ALL - 8)?;
    openmps_tests::wait::until("the other leaves SMs free", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| {
            let pid = other.0.pid();
            let found = snapshot.clients.iter().find(|client| client.pid == pid);
            found.is_some_and(|one| one.devices[0].multiprocessors as usize == ALL - 8 - KEPT)
        })
    })?;
    let seen = other.seen()?;
    seen.must_be(ALL - 8 - KEPT)?;
    ensure!(seen.affinity == Some((ALL - 8 - KEPT, ALL - 8 - KEPT)), "{seen:?}");
    ensure!(request.seen()?.on.is_superset(&seen.on), "the class has the others' SMs, too");
    let too_many = openmps(&daemon, &["reserve", "day", "--sms", "56"])?;
    ensure!(too_many.stderr.contains("at most 52"), "{}", too_many.stderr);
    request.0.dismiss()?;
    openmps_tests::wait::until("the SMs are everybody's again", PATIENCE, || {
        other.seen().is_ok_and(|seen| seen.told == ALL - 8)
    })?;
    other.seen()?.must_be(ALL - 8)?;
    other.0.dismiss()
}

#[test]
fn reservations_wait_for_the_server_and_outlive_it() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    must(&daemon, &["reserve", "night", "--sms", "20"])?;
    let mut first = Client::start(&daemon, &[], &[])?;
    first.seen()?.must_be(64)?;
    first.0.dismiss()?;
    let server = daemon.server()?.pid;
    daemon.shell(&format!("shutdown_server {server}"))?;
    openmps_tests::wait::until("the server is gone", PATIENCE, || {
        daemon.state().is_ok_and(|state| state.servers.is_empty())
    })?;
    let mut second = Client::start(&daemon, &[("OPENMPS_RESERVATION", "night")], &[])?;
    second.seen()?.must_be(20)?;
    second.0.dismiss()?;
    daemon.quit(PATIENCE)
}

#[test]
fn what_is_wrong_is_named() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = Client::start(&daemon, &[], &[])?;
    client.seen()?;
    let pid = client.pid();
    must(&daemon, &["reserve", "night", "--sms", "16"])?;
    for (arguments, named) in [
        (&["limit", "--client", "1", "--sm-percent", "50"][..], "no client 1"),
        (&["limit", "--client", "x", "--sm-percent", "50"], "'x'"),
        (&["limit", "--client", &pid, "--sm-percent", "0"], "percentage"),
        (&["limit", "--client", &pid, "--sm-percent", "101"], "percentage"),
        (&["limit", "--client", &pid, "--memory", "3X"], "3X"),
        (&["limit", "--client", &pid, "--memory", "1G", "--device", "7"], "device 7"),
        (&["limit", "--client", &pid, "--device", "0"], "--memory"),
        (&["limit", "--client", &pid, "--server", "1", "--memory", "1G"], "cannot be used with"),
        (&["limit", "--server", "1", "--sm-percent", "50"], "no server 1"),
        (&["limit", "--user", "4294967294", "--memory", "1G"], "user 4294967294"),
        (&["limit", "--group", "a b", "--memory", "1G"], "a b"),
        (&["limit", "--group", "nobody"], "nobody"),
        (&["limit", "--sm-percent", "50"], "whose"),
        (&["reserve", "night", "--sms", "2"], "already"),
        (&["reserve", "day", "--sms", "61"], "at most 60"),
        (&["reserve", "day", "--sms", "0"], "at least one"),
        (&["reserve", "day", "--sms", "2", "--device", "5"], "device 5"),
        (&["reserve", "day"], "--sms"),
        (&["reserve", "--release", "day"], "no reservation day"),
        (&["run", "--reservation", "day", "--", "true"], "no reservation day"),
        (&["run", "--group-memory", "1G", "--", "true"], "--group"),
    ] {
        let finished = openmps(&daemon, arguments)?;
        ensure!(!finished.status.success(), "{arguments:?} succeeded: {}", finished.stdout);
        ensure!(finished.stderr.contains(named), "{arguments:?}: {}", finished.stderr);
    }
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "live_shares");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    let refused = process::run(command.env("OPENMPS_RESERVATION", "unknown"), PATIENCE)?;
    ensure!(!refused.status.success(), "a client of no reservation was attached");
    ensure!(sandbox.logs().contains("no reservation unknown"), "{}", sandbox.logs());
    client.seen()?.must_be(ALL - 16)?;
    client.0.dismiss()
}
