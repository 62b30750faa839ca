//! Settings at each level that NVIDIA's MPS guide names (section 4.2): the daemon's environment,
//! the shell, the client's environment.

use anyhow::{Context, Result, ensure};
use link::wire::daemon::ClientSnapshot;
use openmps_tests::process;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "error 2";

/// A client with these variables, and what the server says of it.
fn client(daemon: &Daemon, variables: &[(&str, &str)]) -> Result<(Puppet, ClientSnapshot)> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.puppet()?, Runtime::OpenMps);
    let mut puppet = Puppet::spawn(command.envs(variables.iter().copied()))?;
    puppet.must("open")?;
    let clients = daemon.snapshot()?.clients;
    let found = clients.into_iter().find(|client| client.pid == puppet.pid());
    Ok((puppet, found.context("the client is not listed")?))
}

#[test]
fn the_daemons_environment_is_every_clients_limit_and_a_client_asks_for_less() -> Result<()> {
    let daemon = Daemon::start_with(
        Sandbox::new()?,
        &[
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "''0=512M''"),
            ("CUDA_MPS_CLIENT_PRIORITY", "1"),
        ],
    )?;
    let (_plain, plain) = client(&daemon, &[])?;
    ensure!(plain.active_thread_percentage == 50.0 && plain.priority == 1, "{plain:?}");
    ensure!(plain.devices[0].memory_limit_bytes == Some(512 * MIB), "{plain:?}");
    // The client's own variables, by both names of the guide; more than the daemon's is no more.
    let uuid = daemon.snapshot()?.devices[0].uuid.clone();
    let by_uuid = format!("{}=128MB", &uuid[..12]);
    for (variables, percentage, priority, memory) in [
        (
            [
                ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20"),
                ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=256M"),
                ("CUDA_MPS_CLIENT_PRIORITY", "0"),
            ],
            20.0,
            0,
            256,
        ),
        (
            [
                ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "80"),
                ("CUDA_MPS_DEVICE_MEM_LIMIT", "0=64M"),
                ("CUDA_MPS_CLIENT_PRIORITY", "7"),
            ],
            50.0,
            1,
            64,
        ),
        (
            [
                ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "x"),
                ("CUDA_MPS_DEVICE_MEM_LIMIT", by_uuid.as_str()),
                ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G"),
            ],
            50.0,
            1,
            128,
        ),
    ] {
        let (mut puppet, client) = client(&daemon, &variables)?;
        ensure!(client.active_thread_percentage == percentage, "{variables:?}: {client:?}");
        ensure!(client.priority == priority, "{variables:?}: {client:?}");
        let limit = client.devices[0].memory_limit_bytes;
        ensure!(limit == Some(memory * MIB), "{variables:?}: {client:?}");
        puppet.expect(&format!("allocate {}", (memory + 1) * MIB), OUT_OF_MEMORY)?;
        puppet.must(&format!("allocate {}", memory / 2 * MIB))?;
        puppet.dismiss()?;
    }
    Ok(())
}

#[test]
fn shares_by_context_and_connections_are_passed_on() -> Result<()> {
    let daemon = Daemon::start_with(
        Sandbox::new()?,
        &[("CUDA_DEVICE_MAX_CONNECTIONS", "8"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "60")],
    )?;
    let (_first, first) = client(
        &daemon,
        &[
            ("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "1"),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30"),
            ("CUDA_DEVICE_MAX_CONNECTIONS", "4"),
        ],
    )?;
    // What was said when the process started is the process's, and bounds what its contexts ask
    // for.
    ensure!(first.active_thread_percentage == 30.0, "{first:?}");
    ensure!(first.contexts[0].active_thread_percentage == 30.0, "{first:?}");
    ensure!(first.wanted_connections == Some(4), "{first:?}");
    let (_second, second) = client(&daemon, &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")])?;
    ensure!(second.active_thread_percentage == 30.0, "{second:?}");
    ensure!(second.contexts[0].active_thread_percentage == 30.0, "{second:?}");
    ensure!(second.wanted_connections.is_none(), "{second:?}");
    Ok(())
}

/// The guide's example of section 4.2.7, command by command.
#[test]
fn the_guides_hierarchy_of_memory_limits() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let alias = sandbox.installation.openmps().with_file_name("nvidia-cuda-mps-control");
    let mut before = sandbox.command(&alias, Runtime::OpenMps);
    let words = ["set_default_device_pinned_mem_limit", "0", "300M"];
    process::run(before.args(words), PATIENCE)?.success()?;
    let daemon = Daemon::start(sandbox)?;
    ensure!(daemon.shell("get_default_device_pinned_mem_limit 0")? == "300M\n");
    let limit = |client: &ClientSnapshot| client.devices[0].memory_limit_bytes.unwrap_or(0) / MIB;
    let (_first, first) = client(&daemon, &[])?;
    ensure!(limit(&first) == 300, "{first:?}");
    let server = daemon.server()?.pid;
    // More than the default is allowed for a server.
    for (typed, held) in [("2G", 2048), ("200M", 200)] {
        daemon.shell(&format!("set_device_pinned_mem_limit {server} 0 {typed}"))?;
        let printed = daemon.shell(&format!("get_device_pinned_mem_limit {server} 0"))?;
        ensure!(printed.trim() == typed, "{printed}");
        let (puppet, now) = client(&daemon, &[])?;
        ensure!(limit(&now) == held, "{now:?}");
        puppet.dismiss()?;
    }
    let (_last, last) = client(&daemon, &[("CUDA_MPS_DEVICE_MEM_LIMIT", "0=100M")])?;
    ensure!(limit(&last) == 100, "{last:?}");
    let clients = daemon.snapshot()?.clients;
    ensure!(limit(&clients[0]) == 300, "existing clients are not affected: {clients:?}");
    Ok(())
}

#[test]
fn servers_inherit_the_daemons_processors() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let openmps = sandbox.installation.openmps();
    let mut start = sandbox.command("taskset", Runtime::OpenMps);
    start.args(["-c", "0"]).arg(&openmps).args(["control", "-d"]);
    let started = process::run(&mut start, PATIENCE);
    if !started.as_ref().is_ok_and(|started| started.status.success()) {
        eprintln!("skipped: no taskset, or processor 0 is not ours: {started:?}");
        return Ok(());
    }
    let mut puppet = Puppet::start(&sandbox, Runtime::OpenMps)?;
    puppet.must("open")?;
    for pid in sandbox.processes() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let ours = pid.as_raw_nonzero().get() as u32 == puppet.pid();
        ensure!(ours || allowed.is_some_and(|list| list.trim() == "0"), "{pid:?}: {allowed:?}");
    }
    puppet.dismiss()?;
    let mut quit = sandbox.command(&openmps, Runtime::OpenMps);
    process::run(quit.args(["control", "quit"]), PATIENCE)?.success()?;
    Ok(())
}

#[test]
fn devices_below_what_mps_serves_are_refused_with_the_documented_words() -> Result<()> {
    let old = [("OPENMPS_SOFT_COMPUTE_CAPABILITY", "3.0")];
    let daemon = Daemon::start_with(Sandbox::new()?, &old)?;
    let mut client = daemon.puppet()?;
    let refused = client.ask("open")?;
    ensure!(refused.starts_with("error "), "{refused}");
    for line in [
        "MPS server failed to start",
        "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU.",
    ] {
        daemon.sandbox().wait_for_log(line)?;
    }
    wait::until("the failed server is gone", PATIENCE, || {
        daemon.state().is_ok_and(|state| state.servers.is_empty())
    })
}

#[test]
fn doctor_names_the_compute_mode() -> Result<()> {
    let sandbox = Sandbox::new()?;
    for (mode, code, words) in [
        ("default", 0, "compute capability"),
        ("exclusive_process", 0, "EXCLUSIVE_PROCESS"),
        ("prohibited", 1, "PROHIBITED"),
    ] {
        let mut doctor = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        let looked =
            process::run(doctor.arg("doctor").env("OPENMPS_SOFT_COMPUTE_MODE", mode), PATIENCE)?;
        let line = looked.stdout.lines().find(|line| line.contains(" device "));
        ensure!(line.is_some_and(|line| line.contains(words)), "{mode}: {looked:?}");
        ensure!(looked.status.code() == Some(code), "{mode}: {looked:?}");
    }
    Ok(())
}
