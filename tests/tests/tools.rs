//! Tools that look into programs: under a CUDA debugger a program runs natively once no client is
//! left, with a library to be injected into the driver at once; other tracers change nothing.
//!
//! The debugger is `programs/process/tracer`, which traces as debuggers do, under the name of
//! NVIDIA's.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use openmps_tests::executable;
use openmps_tests::process::{self, Running};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Runtime, Sandbox};

/// A traced program is slow.
const LIMIT: Duration = Duration::from_secs(120);

/// The tracer under a name of a debugger.
fn tracer_called(sandbox: &Sandbox, name: &str) -> Result<PathBuf> {
    let (tracer, link) =
        (sandbox.installation.program("process", "tracer"), sandbox.log_directory().join(name));
    executable::copy(&tracer, &link)?;
    Ok(link)
}

/// Starts a program that forks, works and says who worked, under the tracer of that name.
fn start_traced(sandbox: &Sandbox, tracer: &str) -> Result<Running> {
    let mut command = sandbox.command(tracer_called(sandbox, tracer)?, Runtime::OpenMps);
    Running::start(command.arg(sandbox.installation.program("process", "endings")).arg("return"))
}

/// The process that worked, as it says.
fn worker(printed: &str) -> Result<u32> {
    let word = printed.lines().find_map(|line| line.strip_prefix("ran ")?.split(' ').next());
    Ok(word.with_context(|| format!("nobody worked: {printed:?}"))?.parse()?)
}

fn was_attached(daemon: &Daemon, pid: u32) -> Result<bool> {
    let servers = daemon.state()?.servers;
    Ok(servers.iter().any(|server| {
        let ServerClients { clients, departed } = clients_of(&server.snapshot);
        clients.contains(&pid) || departed.contains(&pid)
    }))
}

struct ServerClients {
    clients: Vec<u32>,
    departed: Vec<u32>,
}

fn clients_of(snapshot: &link::wire::daemon::ServerSnapshot) -> ServerClients {
    ServerClients {
        clients: snapshot.clients.iter().map(|client| client.pid).collect(),
        departed: snapshot.departed.iter().map(|client| client.pid).collect(),
    }
}

#[test]
fn without_a_daemon_a_debugged_program_runs_natively() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let finished = start_traced(&sandbox, "cuda-gdb")?.finish(LIMIT)?;
    worker(finished.success()?).map(drop)
}

#[test]
fn where_nobody_is_attached_a_debugged_program_runs_at_once_and_without_a_server() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let finished = start_traced(daemon.sandbox(), "cuda-gdb")?.finish(LIMIT)?;
    worker(finished.success()?)?;
    ensure!(daemon.state()?.servers.is_empty(), "a server was started");
    let log = daemon.sandbox().logs();
    ensure!(log.contains("under cuda-gdb"), "{log}");
    Ok(())
}

#[test]
fn a_debugged_program_waits_for_all_clients_and_others_get_a_server_again() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    client.must("work 2")?;
    let server = daemon.server()?.pid;
    let debugged = start_traced(daemon.sandbox(), "cuda-gdb")?;
    wait::until("it waits for its turn", PATIENCE, || {
        daemon.sandbox().logs().contains(&format!("Try shutting down server {server}"))
    })?;
    // It waits, and the client notices nothing.
    client.must("work 20")?;
    ensure!(daemon.server()?.pid == server, "the server is another one");
    ensure!(!daemon.sandbox().logs().contains("goes on without a server"));
    // Who comes now is served when the debugged program has had its turn.
    let mut next = daemon.puppet()?;
    next.tell("open")?;
    client.must("work 2")?;
    client.dismiss()?;

    let finished = debugged.finish(LIMIT)?;
    let pid = worker(finished.success()?)?;
    ensure!(daemon.sandbox().logs().contains("goes on without a server"));
    ensure!(next.answer_within(PATIENCE)? == "ok");
    next.must("work 2")?;
    ensure!(!was_attached(&daemon, pid)?, "the debugged program was attached");
    next.dismiss()
}

#[test]
fn another_tracer_changes_nothing() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let finished = start_traced(daemon.sandbox(), "strace")?.finish(LIMIT)?;
    let pid = worker(finished.success()?)?;
    ensure!(daemon.departed(pid)?.kernels >= 3);
    Ok(())
}

#[test]
fn a_program_with_an_injected_library_runs_natively_beside_clients() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("process", "endings");
    let mut command = sandbox.command(program, Runtime::OpenMps);
    command.arg("return").env("CUDA_INJECTION64_PATH", "/opt/profiler/libprofiler.so");
    let finished = process::run(&mut command, LIMIT)?;
    let pid = worker(finished.success()?)?;
    ensure!(!was_attached(&daemon, pid)?, "it was attached");
    client.must("work 2")?;
    client.dismiss()
}

#[test]
fn a_program_is_native_when_that_is_asked_for() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    command.args(["run", "--native", "--"]);
    command.arg(sandbox.installation.program("process", "endings")).arg("return");
    let finished = process::run(&mut command, LIMIT)?;
    let pid = worker(finished.success()?)?;
    ensure!(!was_attached(&daemon, pid)?, "it was attached");
    client.must("work 2")?;
    client.dismiss()
}
