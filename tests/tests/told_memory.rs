//! What programs are told of a device's memory under a limit: `cuMemGetInfo` and
//! `cuDeviceTotalMem`, by which frameworks divide it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

const MIB: u64 = 1 << 20;
/// Of the software GPU, unless a test says otherwise.
const DEVICE_MIB: u64 = 8192;
const OUT_OF_MEMORY: &str = "error 2";

/// What a program is told, in MiB, rounded down.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    free: u64,
    total: u64,
    device: u64,
}

fn told(puppet: &mut Puppet) -> Result<Told> {
    let answer = puppet.ask("memory")?;
    let numbers: Vec<u64> = answer.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [free, total, device] = numbers[..] else { anyhow::bail!("not understood: {answer}") };
    Ok(Told { free: free / MIB, total: total / MIB, device: device / MIB })
}

/// A puppet is told this total by both calls, and a little less as free; and can have three
/// quarters of it, but not more than it.
fn is_whole_memory(puppet: &mut Puppet, mib: u64) -> Result<()> {
    let seen = told(puppet)?;
    ensure!((seen.total, seen.device) == (mib, mib), "{mib} MiB were promised: {seen:?}");
    ensure!(seen.free <= mib && seen.free >= mib - 8, "{mib} MiB were promised: {seen:?}");
    puppet.expect(&format!("allocate {}", (mib + 1) * MIB), OUT_OF_MEMORY)?;
    puppet.must(&format!("allocate {}", mib * 3 / 4 * MIB))?;
    let left = told(puppet)?;
    ensure!(left.total == mib && left.free <= mib / 4 && left.free + 8 >= mib / 4, "{left:?}");
    puppet.must("free")
}

fn opened(daemon: &Daemon, variables: &[(&str, &str)]) -> Result<Puppet> {
    let mut puppet = daemon.puppet_with(variables)?;
    puppet.must("open")?;
    Ok(puppet)
}

fn openmps(daemon: &Daemon, arguments: &[&str]) -> Result<()> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(arguments), PATIENCE)?.success()?;
    Ok(())
}

fn at(directory: &Path) -> Result<[(&'static str, &str); 1]> {
    Ok([("CUDA_MPS_PIPE_DIRECTORY", directory.to_str().context("a path of text")?)])
}

#[test]
fn a_program_of_openmps_run_is_told_its_limit() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    command.args(["run", "--memory", "512M", "--"]).arg(sandbox.installation.puppet()?);
    let mut puppet = Puppet::spawn(&mut command)?;
    puppet.must("open")?;
    is_whole_memory(&mut puppet, 512)?;
    puppet.must("work 3")?;
    puppet.dismiss()?;
    // The lowest of several counts, whoever set it.
    openmps(&daemon, &["limit", "--group", "small", "--memory", "256M"])?;
    let mut both =
        opened(&daemon, &[("OPENMPS_MEMORY_LIMIT", "512M"), ("OPENMPS_GROUP", "small")])?;
    is_whole_memory(&mut both, 256)?;
    let pinned = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=128M");
    let mut three = opened(&daemon, &[("OPENMPS_MEMORY_LIMIT", "512M"), pinned])?;
    is_whole_memory(&mut three, 128)?;
    // More than there is, is no limit.
    let mut large = opened(&daemon, &[("OPENMPS_MEMORY_LIMIT", "1T")])?;
    let seen = told(&mut large)?;
    ensure!((seen.total, seen.device) == (DEVICE_MIB, DEVICE_MIB), "{seen:?}");
    Ok(())
}

#[test]
fn the_originals_limit_leaves_the_total_as_it_is() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    daemon.shell("set_default_device_pinned_mem_limit 0 1G")?;
    let of_client = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=512M")];
    for (variables, limit) in [(&of_client[..], 512), (&[], 1024)] {
        let mut puppet = opened(&daemon, variables)?;
        let seen = told(&mut puppet)?;
        ensure!((seen.total, seen.device) == (DEVICE_MIB, DEVICE_MIB), "{variables:?}: {seen:?}");
        ensure!(seen.free <= limit && seen.free >= limit - 8, "{variables:?}: {seen:?}");
        puppet.dismiss()?;
    }
    Ok(())
}

#[test]
fn the_originals_limit_is_told_where_the_administrator_wants_it() -> Result<()> {
    let wanted = [("OPENMPS_MEMORY_TOTAL", "limit")];
    let daemon = Daemon::start_with(Sandbox::new()?, &wanted)?;
    daemon.shell("set_default_device_pinned_mem_limit 0 1G")?;
    is_whole_memory(&mut opened(&daemon, &[])?, 1024)?;
    let of_client = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=512M")];
    is_whole_memory(&mut opened(&daemon, &of_client)?, 512)
}

#[test]
fn members_of_a_group_are_told_its_limit_and_what_it_has_left() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    openmps(&daemon, &["limit", "--group", "tenant", "--memory", "1G"])?;
    let group = [("OPENMPS_GROUP", "tenant")];
    let (mut one, mut other) = (opened(&daemon, &group)?, opened(&daemon, &group)?);
    one.must(&format!("allocate {}", 768 * MIB))?;
    let seen = told(&mut other)?;
    ensure!((seen.total, seen.device) == (1024, 1024), "{seen:?}");
    ensure!(seen.free <= 256 && seen.free >= 240, "what the other has is not free: {seen:?}");
    other.expect(&format!("allocate {}", 300 * MIB), OUT_OF_MEMORY)?;
    let mut none = opened(&daemon, &[])?;
    ensure!(told(&mut none)?.total == DEVICE_MIB);
    Ok(())
}

#[test]
fn who_comes_by_a_socket_or_a_profile_is_told_its_limit() -> Result<()> {
    let profiles = [("OPENMPS_PROFILES", "half memory=2G")];
    let daemon = Daemon::start_with(Sandbox::new()?, &profiles)?;
    let directory = daemon.sandbox().log_directory().join("tenant");
    let path = directory.to_str().context("a path of text")?;
    openmps(&daemon, &["socket", path, "--group", "tenant", "--memory", "1G"])?;
    is_whole_memory(&mut opened(&daemon, &at(&directory)?)?, 1024)?;
    let profile = daemon.sandbox().pipe_directory().join("profiles/half");
    is_whole_memory(&mut opened(&daemon, &at(&profile)?)?, 2048)
}

#[test]
fn a_change_while_it_runs_is_what_may_be_had() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet = opened(&daemon, &[("OPENMPS_MEMORY_LIMIT", "512M")])?;
    let pid = puppet.pid().to_string();
    for (limit, mib) in [("1G", 1024), ("64M", 64), ("0", DEVICE_MIB)] {
        openmps(&daemon, &["limit", "--client", &pid, "--memory", limit])?;
        let seen = told(&mut puppet)?;
        ensure!((seen.total, seen.device) == (mib, 512), "{limit}: {seen:?}");
        ensure!(seen.free <= mib, "{limit}: {seen:?}");
        if mib < DEVICE_MIB {
            puppet.expect(&format!("allocate {}", (mib + 1) * MIB), OUT_OF_MEMORY)?;
        }
        // Beyond what it was told when it attached, too.
        puppet.must(&format!("allocate {}", mib * 3 / 4 * MIB))?;
        puppet.must("free")?;
    }
    // The original's limit is replaced by one that is told; and so it is for later clients of a
    // server.
    let mut pinned = opened(&daemon, &[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=512M")])?;
    let server = daemon.server()?.pid.to_string();
    openmps(&daemon, &["limit", "--server", &server, "--memory", "1G"])?;
    let seen = told(&mut pinned)?;
    ensure!((seen.total, seen.device) == (1024, DEVICE_MIB), "{seen:?}");
    is_whole_memory(&mut opened(&daemon, &[])?, 1024)
}

#[test]
fn each_device_has_its_limit() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_DEVICES", "2")])?;
    for (device, limit, mib) in [
        ("0", "1G", 1024),
        ("1", "1G", 1024),
        ("0", "1=512M", DEVICE_MIB),
        ("1", "1=512M", 512),
        ("1", "1G,1=512M", 512),
    ] {
        let mut puppet = daemon.puppet_with(&[("OPENMPS_MEMORY_LIMIT", limit)])?;
        puppet.must(&format!("open {device}"))?;
        let seen = told(&mut puppet)?;
        ensure!((seen.total, seen.device) == (mib, mib), "{limit} on {device}: {seen:?}");
        puppet.dismiss()?;
    }
    Ok(())
}

/// What is free is no more than what the device has left.
#[test]
fn free_memory_is_the_devices_where_that_is_less() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_MEMORY_MIB", "1024")])?;
    let mut large = opened(&daemon, &[])?;
    large.must(&format!("allocate {}", 640 * MIB))?;
    let mut limited = opened(&daemon, &[("OPENMPS_MEMORY_LIMIT", "512M")])?;
    let seen = told(&mut limited)?;
    ensure!((seen.total, seen.device) == (512, 512), "{seen:?}");
    ensure!(seen.free <= 1024 - 640, "{seen:?}");
    Ok(())
}

/// By either name, with each unit, the daemon's and a client's limits are read alike; 0 is none.
#[test]
fn daemon_and_client_read_the_same_limits_alike() -> Result<()> {
    const VARIABLE: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
    for (text, mib) in [
        ("0=262144K", Some(256)),
        ("0 = 256 M", Some(256)),
        ("'0=256MB'", Some(256)),
        ("0=0", None),
        ("0=1T", Some(1 << 20)),
        ("0=3X", None),
    ] {
        let of_daemon = Daemon::start_with(Sandbox::new()?, &[(VARIABLE, text)])?;
        let plain = Daemon::start(Sandbox::new()?)?;
        for (who, mut puppet, daemon) in [
            ("daemon", opened(&of_daemon, &[])?, &of_daemon),
            ("client", opened(&plain, &[(VARIABLE, text)])?, &plain),
        ] {
            puppet.must("work 1")?;
            let clients = daemon.snapshot()?.clients;
            let found = clients.iter().find(|client| client.pid == puppet.pid());
            let limit = found.context("not listed")?.devices[0].memory_limit_bytes;
            ensure!(limit == mib.map(|mib| mib * MIB), "{text} of the {who}: {limit:?}");
            puppet.dismiss()?;
        }
    }
    Ok(())
}

/// A context always opens. What `openmps run` refuses is a limit with which it is all there is.
#[test]
fn the_least_limit_has_room_for_a_context_and_an_allocation() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let mut poor = opened(&daemon, &[("OPENMPS_MEMORY_LIMIT", "2M")])?;
    poor.expect("allocate 1", OUT_OF_MEMORY)?;
    poor.dismiss()?;
    let mut modest = opened(&daemon, &[("OPENMPS_MEMORY_LIMIT", "3M")])?;
    modest.must("allocate 1")?;
    modest.dismiss()?;
    for (limit, status) in [("0", 2), ("2M", 2), ("3M", 0)] {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        let finished = process::run(command.args(["run", "--memory", limit, "true"]), PATIENCE)?;
        ensure!(finished.status.code() == Some(status), "{limit}: {finished:?}");
        ensure!(status == 0 || finished.stderr.contains("give 3M at least"), "{finished:?}");
    }
    Ok(())
}

/// The program's longest chain has six allocations of 64 MiB, one after the other.
#[test]
fn allocations_of_a_graph_that_follow_each_other_count_once() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let under = |limit| {
        let program = sandbox.installation.program("driver-api", "graph_memory");
        let mut command = sandbox.command(program, Runtime::OpenMps);
        process::run(command.env("OPENMPS_MEMORY_LIMIT", limit), PATIENCE)
    };
    under("128M")?.success()?;
    let refused = under("60M")?;
    ensure!(refused.stderr.contains("cuGraphAddMemAllocNode"), "{refused:?}");
    ensure!(refused.stderr.contains("returned 2"), "{refused:?}");
    Ok(())
}
