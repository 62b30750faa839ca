//! Trust domains: clients that are set apart have an executor, and so a context, of their own; and
//! what compute modes make of that.

use anyhow::{Context, Result, ensure};
use link::wire::daemon::ClientSnapshot;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

const DEVICE_UNAVAILABLE: &str = "error 46";
const ILLEGAL_ADDRESS: &str = "error 700";

/// A puppet in the domain of that name, with a context.
fn isolated(daemon: &Daemon, name: &str) -> Result<Puppet> {
    let mut puppet = daemon.puppet_with(&[("OPENMPS_ISOLATE", name)])?;
    puppet.must("open")?;
    Ok(puppet)
}

fn shared(daemon: &Daemon) -> Result<Puppet> {
    let mut puppet = daemon.puppet()?;
    puppet.must("open")?;
    Ok(puppet)
}

fn listed(daemon: &Daemon, puppet: &Puppet) -> Result<ClientSnapshot> {
    let clients = daemon.snapshot()?.clients;
    let found = clients.into_iter().find(|client| client.pid == puppet.pid());
    found.with_context(|| format!("puppet {} is not listed", puppet.pid()))
}

fn address(puppet: &mut Puppet) -> Result<u64> {
    puppet.must("allocate 4096")?;
    Ok(puppet.ask("address")?.parse()?)
}

#[test]
fn a_domain_has_an_executor_of_its_own_and_its_faults_stay_there() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut outside = shared(&daemon)?;
    let (mut one, mut other) = (isolated(&daemon, "job")?, isolated(&daemon, "job")?);
    let mut stranger = isolated(&daemon, "stranger")?;
    let device = daemon.snapshot()?.devices.remove(0);
    let mut domains: Vec<_> = device.domains.iter().map(|d| (d.name.as_str(), d.clients)).collect();
    domains.sort_unstable();
    ensure!(domains == [("job", 2), ("stranger", 1)], "{domains:?}");
    let mut executors: Vec<u32> = device.domains.iter().map(|d| d.executor_pid).collect();
    executors.push(device.executor_pid);
    executors.sort_unstable();
    executors.dedup();
    ensure!(executors.len() == 3 && !executors.contains(&0), "{executors:?}");
    ensure!(listed(&daemon, &outside)?.domain.is_none());
    ensure!(listed(&daemon, &one)?.domain.as_deref() == Some("job"));

    // A kernel reaches what is in its own context, and nothing else.
    let (in_job, in_stranger) = (address(&mut one)?, address(&mut stranger)?);
    let outer = address(&mut outside)?;
    other.must(&format!("poke {in_job}"))?;
    stranger.expect(&format!("poke {in_job}"), ILLEGAL_ADDRESS)?;
    for (puppet, there) in [(&mut outside, outer), (&mut one, in_job), (&mut other, in_job)] {
        ensure!(there != in_stranger);
        puppet.must("work 3")?;
    }
    // Whoever comes into the failed domain once it is empty finds it well again.
    stranger.kill()?;
    let mut again = isolated(&daemon, "stranger")?;
    again.must("work 2")?;
    for puppet in [again, one, other] {
        puppet.dismiss()?;
    }
    wait::until("the domains' executors end", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| snapshot.devices[0].domains.is_empty())
    })?;
    outside.must("work 1")
}

#[test]
fn every_process_can_have_an_executor_by_configuration() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_ISOLATION", "process")])?;
    let (mut one, mut other) = (shared(&daemon)?, shared(&daemon)?);
    let device = daemon.snapshot()?.devices.remove(0);
    ensure!(device.domains.len() == 2, "{:?}", device.domains);
    one.expect("fault", ILLEGAL_ADDRESS)?;
    other.must("work 3")
}

#[test]
fn a_control_group_is_a_domain_by_configuration() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_ISOLATION", "cgroup")])?;
    let (one, _other) = (shared(&daemon)?, shared(&daemon)?);
    let _apart = isolated(&daemon, "apart")?;
    let device = daemon.snapshot()?.devices.remove(0);
    let group = listed(&daemon, &one)?.domain.context("no domain")?;
    let mut domains: Vec<_> = device.domains.iter().map(|d| (d.name.clone(), d.clients)).collect();
    domains.sort_unstable();
    let mut expected = [(group.clone(), 2), (format!("apart@{group}"), 1)];
    expected.sort_unstable();
    ensure!(domains == expected, "{domains:?}");
    Ok(())
}

#[test]
fn names_that_are_none_are_refused() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut puppet = daemon.puppet_with(&[("OPENMPS_ISOLATE", "a/b")])?;
    puppet.expect("open", "error 1")?;
    daemon.sandbox().wait_for_log("a name of isolation has")
}

#[test]
fn run_gives_a_name_of_its_own_or_the_one_it_is_given() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let name = |option: &str| -> Result<String> {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        command.args(["run", option, "--", "sh", "-c", "echo $OPENMPS_ISOLATE"]);
        Ok(process::run(&mut command, PATIENCE)?.success()?.trim().to_owned())
    };
    ensure!(name("--isolate=job")? == "job");
    let (one, other) = (name("--isolate")?, name("--isolate")?);
    ensure!(one.starts_with("run-") && other.starts_with("run-") && one != other, "{one} {other}");
    Ok(())
}

/// A daemon on a machine of its own, in a compute mode; and what puts others on that machine.
fn on_a_machine(mode: &'static str) -> Result<(Daemon, [(&'static str, String); 2])> {
    let sandbox = Sandbox::new()?;
    let machine = sandbox.log_directory().join("machine").display().to_string();
    let variables =
        [("OPENMPS_SOFT_MACHINE", machine), ("OPENMPS_SOFT_COMPUTE_MODE", mode.to_owned())];
    let environment = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    Ok((Daemon::start_with(sandbox, &environment)?, variables))
}

#[test]
fn an_exclusive_device_serves_one_domain_at_a_time() -> Result<()> {
    let (daemon, machine) = on_a_machine("exclusive_process")?;
    // The server is the one process; it serves many.
    let (mut one, mut other) = (shared(&daemon)?, shared(&daemon)?);
    one.must("work 2")?;
    other.must("work 2")?;
    let sandbox = daemon.sandbox();
    let mut native = sandbox.command(sandbox.installation.puppet()?, Runtime::Softcuda);
    let mut native = Puppet::spawn(native.envs(machine))?;
    native.expect("open", DEVICE_UNAVAILABLE)?;

    let mut apart = daemon.puppet_with(&[("OPENMPS_ISOLATE", "apart")])?;
    apart.expect("open", DEVICE_UNAVAILABLE)?;
    sandbox.wait_for_log("EXCLUSIVE_PROCESS")?;
    sandbox.wait_for_log("without isolation")?;
    one.must("work 2")?;

    // Nobody needs the one executor any more, so another can be.
    for puppet in [one, other] {
        let pid = puppet.pid();
        puppet.dismiss()?;
        daemon.wait_gone(pid)?;
    }
    wait::until("the other domain gets the device", PATIENCE, || {
        apart.ask("open").is_ok_and(|answer| answer == "ok")
    })
    .with_context(|| sandbox.last_log_lines())?;
    apart.must("work 2")?;
    let mut late = daemon.puppet()?;
    late.expect("open", DEVICE_UNAVAILABLE)?;
    apart.dismiss()?;
    wait::until("the device is free again", PATIENCE, || {
        late.ask("open").is_ok_and(|answer| answer == "ok")
    })
    .with_context(|| sandbox.last_log_lines())?;
    late.must("work 2")
}

#[test]
fn a_shared_device_serves_domains_and_native_processes() -> Result<()> {
    let (daemon, machine) = on_a_machine("default")?;
    let mut one = shared(&daemon)?;
    let mut apart = isolated(&daemon, "apart")?;
    let sandbox = daemon.sandbox();
    let mut native = sandbox.command(sandbox.installation.puppet()?, Runtime::Softcuda);
    let mut native = Puppet::spawn(native.envs(machine))?;
    native.must("open")?;
    for puppet in [&mut one, &mut apart, &mut native] {
        puppet.must("work 2")?;
    }
    Ok(())
}

#[test]
fn a_prohibited_device_keeps_the_server_from_starting_and_the_log_says_so() -> Result<()> {
    let (daemon, _) = on_a_machine("prohibited")?;
    let answer = daemon.puppet()?.ask("open")?;
    ensure!(answer.starts_with("error "), "{answer}");
    daemon.sandbox().wait_for_log("PROHIBITED")?;
    daemon.sandbox().wait_for_log("CUDA_VISIBLE_DEVICES")
}
