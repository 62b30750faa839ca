//! As many clients as a device takes, and one more.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Sandbox};

/// Contexts per device, as the original has it since Volta.
const MAX_CLIENTS: usize = 48;
const MPS_MAX_CLIENTS_REACHED: &str = "error 808";

/// Far more than the original serves.
const MANY_CLIENTS: usize = 200;
/// What the server's processes may grow by for one more client, in KiB.
const MOST_KIB_PER_CLIENT: u64 = 1536;

#[test]
fn clients_up_to_the_limit_work_at_once_and_the_next_is_refused() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppets = (0..MAX_CLIENTS).map(|_| daemon.puppet()).collect::<Result<Vec<Puppet>>>()?;
    all(&mut puppets, "open")?;
    all(&mut puppets, "work 4")?;
    let snapshot = daemon.snapshot()?;
    for puppet in &puppets {
        let listed = snapshot.clients.iter().find(|client| client.pid == puppet.pid());
        ensure!(listed.is_some_and(|client| client.kernels == 4), "{listed:?}");
    }

    let mut refused = daemon.puppet()?;
    refused.expect("open", MPS_MAX_CLIENTS_REACHED)?;
    let named = format!("Client {} gets no context on device 0", refused.pid());
    wait::until("the log names the refused process", PATIENCE, || {
        daemon.sandbox().logs().contains(&named)
    })?;
    let lines = daemon.sandbox().logs();
    ensure!(lines.lines().filter(|line| line.contains(&named)).count() == 1, "{lines}");
    ensure!(daemon.snapshot()?.devices[0].refused_contexts == 1, "the refusal is counted");
    refused.dismiss()?;
    all(&mut puppets, "work 1")?;

    // Whoever leaves makes room.
    if let Some(leaver) = puppets.pop() {
        let pid = leaver.pid();
        leaver.dismiss()?;
        daemon.wait_gone(pid)?;
    }
    let mut next = daemon.puppet()?;
    next.must("open")?;
    next.must("work 1")?;
    Ok(())
}

#[test]
fn a_device_serves_200_clients_where_that_is_allowed() -> Result<()> {
    let many = MANY_CLIENTS.to_string();
    let allowed = [("OPENMPS_CONTEXTS_PER_DEVICE", many.as_str())];
    let daemon = Daemon::start_with(Sandbox::new()?, &allowed)?;
    let mut first = daemon.puppet()?;
    first.must("open")?;
    first.must("work 4")?;
    let before = memory_kib(&daemon)?;
    let mut puppets =
        (1..MANY_CLIENTS).map(|_| daemon.puppet()).collect::<Result<Vec<Puppet>>>()?;
    all(&mut puppets, "open")?;
    all(&mut puppets, "work 4")?;
    let per_client = (memory_kib(&daemon)? - before) / (MANY_CLIENTS as u64 - 1);
    println!("{per_client} KiB of the server's memory per client");
    ensure!(per_client <= MOST_KIB_PER_CLIENT, "{per_client} KiB per client");
    puppets.push(first);
    let snapshot = daemon.snapshot()?;
    for puppet in &puppets {
        let listed = snapshot.clients.iter().find(|client| client.pid == puppet.pid());
        ensure!(listed.is_some_and(|client| client.kernels == 4), "{listed:?}");
    }
    daemon.puppet()?.expect("open", MPS_MAX_CLIENTS_REACHED)?;
    all(&mut puppets, "work 1")
}

/// Resident memory of the server and its executor that is theirs or shared with clients.
fn memory_kib(daemon: &Daemon) -> Result<u64> {
    let server = daemon.server()?;
    let executors = server.snapshot.devices.iter().map(|device| device.executor_pid);
    let mut sum = 0;
    for pid in std::iter::once(server.pid).chain(executors) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        sum += number.context("a process without memory")?.parse::<u64>()?;
    }
    Ok(sum)
}

/// Gives all an order at once and wants `ok` of each.
fn all(puppets: &mut [Puppet], order: &str) -> Result<()> {
    for puppet in puppets.iter_mut() {
        puppet.tell(order)?;
    }
    for puppet in puppets {
        let answer = puppet.answer_within(4 * PATIENCE)?;
        ensure!(answer == "ok", "{order:?} was answered {answer:?}");
    }
    Ok(())
}
