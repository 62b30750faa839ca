//! Clients that stand idle cost nothing: no thread of theirs, of their executor or of the server
//! looks again and again whether there is something to do.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use openmps_tests::wait;
use openmps_tests::{Daemon, Sandbox};

const CLIENTS: usize = 8;
/// For what takes seconds, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(180);

/// How long processes are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// So many in a row must find everybody idle.
const LOOKS: usize = 3;

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Client,
    Executor,
    Server,
    Daemon,
}

impl Role {
    /// How often all its threads may wake up in a second: some times what was seen, and less than
    /// one that looks each ten milliseconds.
    fn most_waits_per_s(self) -> f64 {
        match self {
            // None was seen.
            Self::Client | Self::Daemon => 20.0,
            // 16: each session's thread, and each worker of the software GPU, once.
            Self::Executor => 70.0,
            // 4.
            Self::Server => 30.0,
        }
    }
}

/// Of the time that a look takes. Who looks without sleeping between does not wait, but takes a
/// processor.
const MOST_PROCESSOR_TIME: f64 = 0.25;

/// What processes of a role have done since they began.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    /// How often a thread gave up its processor to wait for something.
    waits: u64,
    processor_time: Duration,
}

type Everybody = BTreeMap<Role, Done>;

#[test]
fn clients_that_stand_idle_cost_nothing() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut clients = (0..CLIENTS).map(|_| daemon.puppet()).collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        client.must("open")?;
        client.must("allocate 1048576")?;
        client.must("work 3")?;
    }
    let mut server = daemon.server()?;
    // It is started when clients have stayed for a while.
    wait::until("an executor stands by", LIMIT, || {
        server = daemon.server().unwrap_or_else(|_| server.clone());
        server.snapshot.devices[0].standby_pid != 0
    })?;
    let device = &server.snapshot.devices[0];
    let mut processes = vec![
        (Role::Daemon, daemon.pid()),
        (Role::Server, server.pid),
        (Role::Executor, device.executor_pid),
        (Role::Executor, device.standby_pid),
    ];
    processes.extend(clients.iter().map(|client| (Role::Client, client.pid())));
    quiet_looks(&processes)?;
    // What is counted is counted.
    let before = everybody(&processes)?[&Role::Client].waits;
    for client in &mut clients {
        client.must("work 20")?;
    }
    let after = everybody(&processes)?[&Role::Client].waits;
    ensure!(after > before, "clients at work have waited {before} times, and then {after}");
    quiet_looks(&processes)?;
    for client in clients {
        client.dismiss()?;
    }
    Ok(())
}

/// Looks until everybody was idle [`LOOKS`] times in a row. What clients have just done may be seen
/// to for a while.
fn quiet_looks(processes: &[(Role, u32)]) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut in_a_row = 0;
    while in_a_row < LOOKS {
        ensure!(Instant::now() < deadline, "not idle after {LIMIT:?}: the looks are above");
        let (start, before) = (Instant::now(), everybody(processes)?);
        thread::sleep(LOOK);
        let (now, elapsed) = (everybody(processes)?, start.elapsed());
        let mut is_quiet = true;
        for (role, was) in before {
            let is = now[&role];
            let waits_per_s = is.waits.saturating_sub(was.waits) as f64 / elapsed.as_secs_f64();
            let worked = is.processor_time.saturating_sub(was.processor_time);
            let share = worked.as_secs_f64() / elapsed.as_secs_f64();
            is_quiet &= waits_per_s <= role.most_waits_per_s() && share <= MOST_PROCESSOR_TIME;
            println!("{role:?}: {waits_per_s:.1} waits/s, {share:.2} processors");
        }
        in_a_row = if is_quiet { in_a_row + 1 } else { 0 };
    }
    Ok(())
}

/// Reads what all processes have done.
fn everybody(processes: &[(Role, u32)]) -> Result<Everybody> {
    let mut found = Everybody::new();
    for (role, pid) in processes {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let of_role = found.entry(*role).or_default();
        for thread in directory.join("task").read_dir()? {
            // A thread may end meanwhile.
            let status = fs::read_to_string(thread?.path().join("status"));
            of_role.waits += status.map_or(Ok(0), |status| waits(&status))?;
        }
        of_role.processor_time += processor_time(&directory)?;
    }
    Ok(found)
}

fn waits(status: &str) -> Result<u64> {
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(count.context("no count of switches")?.trim().parse()?)
}

fn processor_time(process: &Path) -> Result<Duration> {
    let stat = fs::read_to_string(process.join("stat"))?;
    // The name before may have spaces in it.
    let (_, numbers) = stat.rsplit_once(") ").context("no name")?;
    let ticks = numbers.split(' ').skip(11).take(2).map(str::parse::<u64>);
    let ticks = ticks.sum::<Result<u64, _>>()?;
    Ok(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second())?)
}
