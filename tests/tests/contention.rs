//! Clients that want the same device: they get equal time, or time by their weights, and one of the
//! latency class does not wait behind the others.
//!
//! By the software GPU's virtual clock, on which an SM does one instruction per cycle: what a
//! kernel takes by itself is known to the cycle, and the host's load changes nothing. The device
//! has one SM, which two blocks of a kernel fill, where nothing else is said.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use link::wire::daemon::WaitReason;
use openmps_tests::process::Running;
use openmps_tests::{Daemon, Runtime, Sandbox};

/// A long run on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Of `OPENMPS_SOFT_SMS=1`: what one block asks for, so that two fill the SM.
const SHARED_BYTES: u32 = 48 << 10;
const BLOCKS: u32 = 2;
/// Warp instructions of one iteration of the kernel's loop.
const INSTRUCTIONS: u64 = 4;
/// Cycles in a thousand microseconds.
const CYCLES_PER_MS: u64 = 1_500_000;

/// What kernels cost is not known in the beginning, and one that was there before the others had
/// some queued.
const LEARNING_MS: u64 = 60;

/// When a kernel ran, in nanoseconds of the device's clock.
#[derive(Clone, Copy, Debug)]
struct Ran {
    from: u64,
    to: u64,
}

#[derive(Clone, Copy, Debug)]
struct Client {
    kernel_us: u64,
    streams: u32,
    weight: u32,
    standing: Standing,
}

/// `CUDA_MPS_CLIENT_PRIORITY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Normal = 0,
    BelowNormal = 1,
}

const CLIENT: Client =
    Client { kernel_us: 1000, streams: 1, weight: 1, standing: Standing::Normal };

impl Client {
    fn iterations(self) -> u64 {
        self.kernel_us * CYCLES_PER_MS / 1000 / INSTRUCTIONS / u64::from(BLOCKS)
    }

    /// What its share is to others' shares as.
    fn due(self) -> f64 {
        f64::from(self.weight) / if self.standing == Standing::BelowNormal { 8.0 } else { 1.0 }
    }

    /// Keeps the device busy, `when` saying from when and until when.
    fn start(self, sandbox: &Sandbox, when: &[&str]) -> Result<Running> {
        let program = sandbox.installation.program("driver-api", "contenders");
        let mut command = sandbox.command(program, Runtime::OpenMps);
        // Enough is queued for a while in which its process does not run, at any length.
        let depth = (100_000 / self.kernel_us).clamp(20, 1000);
        let numbers =
            [self.iterations(), BLOCKS.into(), SHARED_BYTES.into(), self.streams.into(), depth];
        command.arg("busy").args(numbers.map(|number| number.to_string())).args(when);
        command.env("OPENMPS_WEIGHT", self.weight.to_string());
        command.env("CUDA_MPS_CLIENT_PRIORITY", (self.standing as u32).to_string());
        Running::start(&mut command)
    }
}

fn daemon() -> Result<Daemon> {
    daemon_with(&[("OPENMPS_SOFT_SMS", "1"), ("OPENMPS_SOFT_WORKERS", "1")])
}

fn daemon_with(machine: &[(&str, &str)]) -> Result<Daemon> {
    let clock = ("OPENMPS_SOFT_CLOCK", "virtual");
    Daemon::start_with(Sandbox::new()?, &[&[clock], machine].concat())
}

/// The kernels that a client said it ran; its server must have counted as many, and those that it
/// did not speak of.
fn kernels(daemon: &Daemon, running: Running, unsaid: u64) -> Result<Vec<Ran>> {
    let finished = running.finish(LIMIT)?;
    let printed = finished.success().with_context(|| daemon.sandbox().last_log_lines())?;
    let numbers = |line: &str| -> Option<Ran> {
        let (from, to) = line.split_once(' ')?;
        Some(Ran { from: from.parse().ok()?, to: to.parse().ok()? })
    };
    let ran: Vec<Ran> = printed.lines().filter_map(numbers).collect();
    let counted = daemon.departed(finished.pid)?.kernels;
    ensure!(
        counted == ran.len() as u64 + unsaid,
        "{} kernels ran, {counted} were counted",
        ran.len()
    );
    Ok(ran)
}

/// Runs clients at once, each with as many kernels as its due of so much of the device's time
/// holds; gives, of the time that all of them were there, what each one's kernels took. They begin
/// together, and never look at what they have done: that would empty their queues, and who has
/// nothing queued because its process is not run is owed nothing.
fn shares(clients: &[Client], duration_ms: u64) -> Result<Vec<f64>> {
    let daemon = daemon()?;
    let go = daemon.sandbox().log_directory().join("go");
    let go_path = go.to_str().context("a path of other bytes")?;
    let dues: f64 = clients.iter().map(|client| client.due()).sum();
    let started: Vec<Running> = clients
        .iter()
        .map(|client| {
            let busy_us = duration_ms as f64 * 1000.0 * client.due() / dues;
            let count = (busy_us / client.kernel_us as f64).ceil() as u64;
            client.start(daemon.sandbox(), &["count", &count.to_string(), "after", go_path])
        })
        .collect::<Result<_>>()?;
    openmps_tests::wait::until("all have launched their first kernel", LIMIT, || {
        let snapshot = daemon.snapshot().unwrap_or_default();
        snapshot.clients.iter().filter(|client| client.kernels == 1).count() == clients.len()
    })?;
    std::fs::write(&go, "")?;
    let ran: Vec<Vec<Ran>> =
        started.into_iter().map(|running| kernels(&daemon, running, 1)).collect::<Result<_>>()?;
    let first = |ran: &Vec<Ran>| ran.iter().map(|kernel| kernel.from).min();
    let last = |ran: &Vec<Ran>| ran.iter().map(|kernel| kernel.to).max();
    let met = ran.iter().filter_map(first).max().context("a client without kernels")?;
    let from = met + LEARNING_MS * 1_000_000;
    let to = ran.iter().filter_map(last).min().context("a client without kernels")?;
    ensure!(
        to > from + duration_ms * 1_000_000 / 2,
        "they met for {} ns only",
        to.saturating_sub(from)
    );
    Ok(ran
        .iter()
        .zip(clients)
        .map(|(ran, client)| {
            let within = ran.iter().filter(|kernel| kernel.to > from && kernel.to <= to).count();
            within as f64 * client.kernel_us as f64 / 1000.0
        })
        .collect())
}

/// Each got what its weight gives it, within 10 per cent.
fn ensure_fair(clients: &[Client], got_ms: &[f64]) -> Result<()> {
    let total: f64 = got_ms.iter().sum();
    let weights: u32 = clients.iter().map(|client| client.weight).sum();
    for (client, got) in clients.iter().zip(got_ms) {
        let fair = total * f64::from(client.weight) / f64::from(weights);
        ensure!(
            (got - fair).abs() <= fair / 10.0,
            "{got} ms, {fair} would be fair: {clients:?} got {got_ms:?}"
        );
    }
    Ok(())
}

#[test]
fn kernels_of_very_different_lengths_get_equal_time() -> Result<()> {
    let clients = [Client { kernel_us: 100, ..CLIENT }, Client { kernel_us: 5000, ..CLIENT }];
    ensure_fair(&clients, &shares(&clients, 400)?)
}

#[test]
fn four_clients_get_equal_time_however_many_streams_they_use() -> Result<()> {
    let clients = [
        Client { kernel_us: 100, ..CLIENT },
        Client { kernel_us: 2000, ..CLIENT },
        Client { kernel_us: 300, streams: 4, ..CLIENT },
        Client { kernel_us: 1000, streams: 2, ..CLIENT },
    ];
    ensure_fair(&clients, &shares(&clients, 600)?)
}

#[test]
fn time_goes_by_weight() -> Result<()> {
    let clients = [Client { kernel_us: 200, ..CLIENT }, Client { weight: 3, ..CLIENT }];
    ensure_fair(&clients, &shares(&clients, 400)?)
}

#[test]
fn a_client_below_normal_gets_what_others_leave_it() -> Result<()> {
    let clients = [CLIENT, Client { standing: Standing::BelowNormal, ..CLIENT }];
    let got_ms = shares(&clients, 500)?;
    // A ninth is its due.
    ensure!(got_ms[1] > 0.0 && got_ms[0] >= 6.0 * got_ms[1], "{clients:?} got {got_ms:?}");
    Ok(())
}

#[test]
fn a_weight_changes_while_clients_run() -> Result<()> {
    const WINDOW_NS: u64 = 200_000_000;
    let daemon = daemon()?;
    let sandbox = daemon.sandbox();
    let stop = sandbox.log_directory().join("stop");
    let end = ["until", stop.to_str().context("a path of other bytes")?];
    let clients = [CLIENT, Client { weight: 3, ..CLIENT }];
    // Both begin with the same weight.
    let started = [CLIENT.start(sandbox, &end)?, CLIENT.start(sandbox, &end)?];
    let counted = || -> u64 {
        let snapshot = daemon.snapshot().unwrap_or_default();
        let fewest = snapshot.clients.iter().map(|client| client.kernels).min();
        if snapshot.clients.len() == 2 { fewest.unwrap_or(0) } else { 0 }
    };
    let runs_on = |what: &str, kernels: u64| {
        let most = counted() + kernels;
        openmps_tests::wait::until(what, LIMIT, || counted() >= most)
    };
    runs_on("both are at work", 50)?;
    openmps_tests::wait::until("one is seen to wait for its turn", LIMIT, || {
        let clients = daemon.snapshot().unwrap_or_default().clients;
        let mut shares = clients.iter().flat_map(|client| &client.devices);
        shares.any(|share| share.waits_for == Some(WaitReason::Turn))
    })?;
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    let pid = started[1].pid().to_string();
    command.args(["limit", "--client", &pid, "--weight", "3"]);
    openmps_tests::process::run(&mut command, LIMIT)?.success()?;
    let snapshot = daemon.snapshot()?;
    let weights = |pid| snapshot.clients.iter().find(|client| client.pid == pid);
    ensure!(weights(started[1].pid()).map(|client| client.weight) == Some(3), "{snapshot:?}");
    // The lighter one's: of the other run three times as many.
    runs_on("both go on", 150)?;
    std::fs::write(Path::new(end[1]), "")?;
    let ran: Vec<Vec<Ran>> =
        started.into_iter().map(|running| kernels(&daemon, running, 0)).collect::<Result<_>>()?;
    let last = |ran: &Vec<Ran>| ran.iter().map(|kernel| kernel.to).max();
    let to = ran.iter().filter_map(last).min().context("a client without kernels")?;
    let of = |ran: &Vec<Ran>| {
        ran.iter().filter(|kernel| kernel.to > to - WINDOW_NS && kernel.to <= to).count() as f64
    };
    ensure_fair(&clients, &ran.iter().map(of).collect::<Vec<_>>())
}

#[test]
fn a_client_of_the_latency_class_does_not_wait_behind_the_others() -> Result<()> {
    const REQUESTS: usize = 20;
    const REQUEST_US: u64 = 200;
    let daemon = daemon()?;
    let sandbox = daemon.sandbox();
    let stop = sandbox.log_directory().join("stop");
    let end = ["until", stop.to_str().context("a path of other bytes")?];
    let others = [Client { kernel_us: 2000, ..CLIENT }, Client { streams: 4, ..CLIENT }];
    let started: Vec<Running> =
        others.iter().map(|client| client.start(sandbox, &end)).collect::<Result<_>>()?;
    openmps_tests::wait::until("the others are at work", LIMIT, || {
        let snapshot = daemon.snapshot().unwrap_or_default();
        snapshot.clients.iter().filter(|client| client.kernels > 8).count() == others.len()
    })?;
    let requests = Requests { kernel_us: REQUEST_US, blocks: BLOCKS, count: REQUESTS };
    let asks = requests.start(&daemon, &[])?;
    let requests = requests.finish(&daemon, asks)?;
    std::fs::write(Path::new(end[1]), "")?;
    let ran: Vec<Vec<Ran>> =
        started.into_iter().map(|running| kernels(&daemon, running, 0)).collect::<Result<_>>()?;
    let alone_ns = REQUEST_US * 1000;
    for (before, request) in requests {
        // It goes ahead of blocks that are there already; the SM was not shared while it ran.
        let took_ns = request.to - request.from;
        ensure!(
            took_ns < alone_ns * 5 / 4,
            "a kernel of {alone_ns} ns took {took_ns} ns in company"
        );
        for (client, ran) in others.iter().zip(&ran) {
            // What ran when it was launched may end, and what was submitted while its process made
            // up its mind.
            let ended =
                ran.iter().filter(|kernel| kernel.to > request.from && kernel.to < request.to);
            ensure!(
                ended.count() <= client.streams as usize,
                "kernels of {client:?} ended while it waited"
            );
        }
        ensure!(request.from >= before, "a request before its launch");
    }
    Ok(())
}

#[test]
fn the_latency_class_does_not_wait_at_all_where_sms_are_kept_for_it() -> Result<()> {
    const ALL: u32 = 12;
    const KEPT: u32 = 4;
    const REQUESTS: usize = 5;
    // Long against the steps in which the software GPU's SMs go on.
    const REQUEST_US: u64 = 1000;
    let daemon = daemon_with(&[
        ("OPENMPS_SOFT_SMS", "12"),
        ("OPENMPS_SOFT_WORKERS", "2"),
        ("OPENMPS_LATENCY_SMS", "4"),
    ])?;
    let sandbox = daemon.sandbox();
    // They fill what is kept, and wait for their time.
    let go = sandbox.log_directory().join("go");
    let go = go.to_str().context("a path of other bytes")?;
    let requests = Requests { kernel_us: REQUEST_US, blocks: KEPT * BLOCKS, count: REQUESTS };
    let asks = requests.start(&daemon, &["after", go])?;
    let kept = || {
        let snapshot = daemon.snapshot().unwrap_or_default();
        let reservations = snapshot.devices.iter().flat_map(|device| &device.reservations);
        let is_there = snapshot.clients.iter().any(|client| client.kernels > 0);
        is_there && reservations.map(|one| one.multiprocessors).sum::<u32>() == KEPT
    };
    openmps_tests::wait::until("SMs are kept for the latency class", LIMIT, kept)?;
    // No block of theirs ends before the test does.
    let program = sandbox.installation.program("driver-api", "contenders");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    let forever = [u32::MAX, (ALL - KEPT) * BLOCKS * 2, SHARED_BYTES, 1, 1];
    command.arg("busy").args(forever.map(|number| number.to_string())).args(["for", "1"]);
    let other = Running::start(&mut command)?;
    openmps_tests::wait::until("the other's kernel is there", LIMIT, || {
        let snapshot = daemon.snapshot().unwrap_or_default();
        let found = snapshot.clients.iter().find(|client| client.pid == other.pid());
        found.is_some_and(|client| {
            client.kernels == 1 && client.devices.iter().all(|on| on.multiprocessors == ALL - KEPT)
        })
    })?;
    std::fs::write(go, "")?;
    let took = requests.finish(&daemon, asks)?;
    for (_, request) in took {
        let took_ns = request.to - request.from;
        let alone_ns = REQUEST_US * 1000;
        ensure!(took_ns < alone_ns * 5 / 4, "a kernel of {alone_ns} ns took {took_ns} ns");
    }
    Ok(())
}

/// What a client of the latency class asks for.
#[derive(Clone, Copy, Debug)]
struct Requests {
    kernel_us: u64,
    blocks: u32,
    count: usize,
}

impl Requests {
    fn start(self, daemon: &Daemon, rest: &[&str]) -> Result<Running> {
        let sandbox = daemon.sandbox();
        let program = sandbox.installation.program("driver-api", "contenders");
        let mut command = sandbox.command(program, Runtime::OpenMps);
        // Of as many SMs as `BLOCKS` of its blocks fill each.
        let iterations = Client { kernel_us: self.kernel_us, ..CLIENT }.iterations();
        let numbers = [iterations, self.blocks.into(), SHARED_BYTES.into(), self.count as u64];
        command.arg("ask").args(numbers.map(|number| number.to_string())).args(rest);
        Running::start(command.env("OPENMPS_LATENCY", "1"))
    }

    /// The device's time before each launch, and when its kernel ran.
    fn finish(self, daemon: &Daemon, running: Running) -> Result<Vec<(u64, Ran)>> {
        let finished = running.finish(LIMIT)?;
        let printed = finished.success().with_context(|| daemon.sandbox().last_log_lines())?;
        let parsed = |line: &str| -> Option<(u64, Ran)> {
            let mut numbers = line.split(' ').map_while(|number| number.parse().ok());
            Some((numbers.next()?, Ran { from: numbers.next()?, to: numbers.next()? }))
        };
        let asked: Vec<_> = printed.lines().filter_map(parsed).collect();
        ensure!(asked.len() == self.count, "{} requests, {} lines", self.count, asked.len());
        ensure!(daemon.departed(finished.pid)?.latency_class, "it was not of the latency class");
        Ok(asked)
    }
}
