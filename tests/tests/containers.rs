//! Containers as clients: what `openmps cdi` gives them is all that they need, and what is in them
//! reaches nothing else.
//!
//! Where this machine allows no containers, or no control groups, the tests say so on standard
//! error and try what remains.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use link::wire::daemon::{ClientSnapshot, ServerSnapshot};
use openmps_tests::container::{self, Container, Engine, FIRST_USER, Plan, Processes, User};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};
use rustix::process::geteuid;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "error 2";
const ILLEGAL_ADDRESS: &str = "error 700";
const SECOND_USER: u32 = FIRST_USER + 100_000;
/// What a container's programs may say, to no avail.
const WISHES: [(&str, &str); 4] = [
    ("OPENMPS_GROUP", "free"),
    ("OPENMPS_WEIGHT", "1000"),
    ("OPENMPS_LATENCY", "1"),
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
];
const PROFILES: (&str, &str) = ("OPENMPS_PROFILES", "half memory=64M sm-percent=50");

/// Says what could not be tried, past the runner, which hides what tests print.
fn not_tried(what: &str) {
    let _ = writeln!(std::io::stderr(), "containers: NOT TRIED: {what}");
}

/// A daemon for several users, whose directories they can enter.
fn daemon(environment: &[(&str, &str)]) -> Result<Daemon> {
    let sandbox = Sandbox::new()?;
    let directory = sandbox.pipe_directory().join("..");
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    let mut all = vec![("OPENMPS_PROVISIONING", "concurrent"), PROFILES];
    all.extend(environment);
    Daemon::start_with(sandbox, &all)
}

fn engine(daemon: &Daemon) -> Result<Option<Engine>> {
    let installation = &daemon.sandbox().installation;
    let programs =
        [installation.puppet()?, installation.own_program("intruder")?, installation.openmps()];
    match Engine::find(installation, &programs) {
        Ok(engine) => {
            if !engine.has_groups() {
                not_tried("limits by control group: no unified hierarchy here can be written");
            }
            Ok(Some(engine))
        }
        Err(error) => {
            not_tried(&format!("containers: {error:#}"));
            Ok(None)
        }
    }
}

fn specification(daemon: &Daemon) -> Result<Value> {
    container::specification(daemon.sandbox(), &[PROFILES])
}

fn opened(mut puppet: Puppet, daemon: &Daemon) -> Result<Puppet> {
    puppet.must("open").with_context(|| daemon.sandbox().last_log_lines())?;
    Ok(puppet)
}

fn snapshots(daemon: &Daemon) -> Result<Vec<ServerSnapshot>> {
    Ok(daemon.state()?.servers.into_iter().map(|server| server.snapshot).collect())
}

fn clients(daemon: &Daemon) -> Result<Vec<ClientSnapshot>> {
    Ok(snapshots(daemon)?.into_iter().flat_map(|snapshot| snapshot.clients).collect())
}

/// Servers and executors of a user.
fn processes_of(daemon: &Daemon, uid: u32) -> Result<Vec<u32>> {
    let servers = daemon.state()?.servers.into_iter().filter(|server| server.uid == uid);
    let mut found = Vec::new();
    for server in servers {
        found.push(server.pid);
        for device in &server.snapshot.devices {
            found.push(device.executor_pid);
            found.extend(device.domains.iter().map(|domain| domain.executor_pid));
        }
    }
    found.retain(|pid| *pid != 0);
    Ok(found)
}

fn user(wanted: u32) -> u32 {
    if geteuid().is_root() { wanted } else { geteuid().as_raw() }
}

#[test]
fn two_containers_of_two_users_share_a_gpu_and_one_is_killed() -> Result<()> {
    let daemon = daemon(&[])?;
    let Some(engine) = engine(&daemon)? else { return two_users_without_containers(&daemon) };
    if !geteuid().is_root() {
        not_tried("two users: only root can give containers users of their own");
    }
    let specification = specification(&daemon)?;
    let plan = |uid| Plan {
        user: User::Mapped(uid),
        processes: Processes::Own,
        specification: &specification,
        device: "half",
        variables: &WISHES,
    };
    let (first, second) = (plan(FIRST_USER), plan(SECOND_USER));
    let first = engine.container(&first, "/bin/puppet")?;
    let second = engine.container(&second, "/bin/puppet")?;
    let mut one = opened(first.puppet()?, &daemon)?;
    let mut other = opened(second.puppet()?, &daemon)?;
    let mut sibling = opened(Puppet::spawn(&mut first.exec(&["/bin/puppet"]))?, &daemon)?;
    for puppet in [&mut one, &mut other, &mut sibling] {
        puppet.must("work 3")?;
    }

    // All processes of a container have one limit, each container its own, whatever their variables
    // say.
    one.must(&format!("allocate {}", 40 * MIB))?;
    if engine.has_groups() {
        sibling.expect(&format!("allocate {}", 40 * MIB), OUT_OF_MEMORY)?;
        other.must(&format!("allocate {}", 40 * MIB))?;
    }
    let all = clients(&daemon)?;
    ensure!(all.len() == 3, "{all:?}");
    for client in &all {
        let group = client.group.as_deref().context("a client without a group")?;
        ensure!(group.starts_with("profile:half@/"), "{group}");
        ensure!(client.weight == 1 && !client.latency_class, "{client:?}");
        let share = client.devices.first().context("no device")?.multiprocessors;
        let whole = snapshots(&daemon)?[0].devices[0].multiprocessors;
        ensure!(share * 2 <= whole, "{share} of {whole} SMs");
    }
    if let (Some(of_first), Some(of_second)) = (first.group(), second.group()) {
        let members = |of: &str| {
            let group = format!("profile:half@{of}");
            all.iter().filter(|client| client.group.as_deref() == Some(&group)).count()
        };
        ensure!((members(&of_first), members(&of_second)) == (2, 1), "{all:?}");
    }
    if geteuid().is_root() {
        let (of_first, of_second) =
            (processes_of(&daemon, FIRST_USER)?, processes_of(&daemon, SECOND_USER)?);
        ensure!(!of_first.is_empty() && !of_second.is_empty(), "no server for each user");
        ensure!(of_first.iter().all(|pid| !of_second.contains(pid)), "executors are shared");
    }

    // One is killed while it works; the other does not notice.
    one.must("churn")?;
    other.tell("work 50")?;
    first.kill()?;
    ensure!(other.answer_within(PATIENCE)? == "ok", "the other container's results are wrong");
    wait::until("the killed container's clients are gone", PATIENCE, || {
        clients(&daemon).is_ok_and(|all| all.len() == 1 && all[0].uid == user(SECOND_USER))
    })
    .with_context(|| daemon.sandbox().last_log_lines())?;
    other.must("work 3")?;
    other.dismiss()
}

/// What remains where no container can be made: clients of two users by the profile's socket.
fn two_users_without_containers(daemon: &Daemon) -> Result<()> {
    if !geteuid().is_root() {
        not_tried("two users without containers: only root can become two users");
        return Ok(());
    }
    let sandbox = daemon.sandbox();
    let directory = sandbox.pipe_directory().join("profiles/half");
    let start = |uid: u32| -> Result<Puppet> {
        let mut command = sandbox.command(sandbox.installation.puppet()?, Runtime::OpenMps);
        command.env("CUDA_MPS_PIPE_DIRECTORY", &directory).envs(WISHES).uid(uid).gid(uid);
        opened(Puppet::spawn(&mut command)?, daemon)
    };
    let (mut one, mut other) = (start(FIRST_USER)?, start(SECOND_USER)?);
    one.must("churn")?;
    other.tell("work 50")?;
    one.kill()?;
    ensure!(other.answer_within(PATIENCE)? == "ok");
    let all = clients(daemon)?;
    ensure!(all.iter().all(|client| client.group.is_some()), "{all:?}");
    other.dismiss()
}

/// A program in a container, to its end.
fn run(container: &Container<'_>, program: &[&str]) -> Result<process::Finished> {
    process::run(&mut container.exec(program), PATIENCE)
}

#[test]
fn root_of_a_container_reaches_nothing_of_others() -> Result<()> {
    let daemon = daemon(&[("OPENMPS_ISOLATION", "cgroup")])?;
    let Some(engine) = engine(&daemon)? else { return Ok(()) };
    let specification = specification(&daemon)?;
    let plan = |uid, processes| Plan {
        user: User::Mapped(uid),
        processes,
        specification: &specification,
        device: "all",
        variables: &[],
    };
    // A neighbour of the same user, and one of another.
    let (same, other) = (plan(FIRST_USER, Processes::Own), plan(SECOND_USER, Processes::Own));
    let (same, other) =
        (engine.container(&same, "/bin/puppet")?, engine.container(&other, "/bin/puppet")?);
    let mut victims = [opened(same.puppet()?, &daemon)?, opened(other.puppet()?, &daemon)?];
    let mut addresses = Vec::new();
    for victim in &mut victims {
        victim.must(&format!("allocate {MIB}"))?;
        addresses.push(victim.ask("address")?);
    }
    let mut targets = processes_of(&daemon, user(FIRST_USER))?;
    targets.extend(processes_of(&daemon, user(SECOND_USER))?);
    targets.push(daemon.pid());
    targets.extend(clients(&daemon)?.iter().map(|client| client.pid));
    targets.sort_unstable();
    targets.dedup();

    // The worst case: it is root in its user namespace, of a neighbour's user outside, and sees all
    // processes.
    let attack = engine.container(&plan(FIRST_USER, Processes::All), "/bin/puppet")?;
    let mut attacker = opened(attack.puppet()?, &daemon)?;
    let targets: Vec<String> = targets.iter().map(u32::to_string).collect();
    let mut words = vec!["/bin/intruder"];
    words.extend(targets.iter().map(String::as_str));
    let tried = run(&attack, &words)?;
    let lines: Vec<&str> = tried.success()?.lines().collect();
    ensure!(lines.len() > 10 * targets.len(), "{lines:?}");
    let (last, tries) = lines.split_last().context("the intruder said nothing")?;
    ensure!(*last == "end: done", "{last}");
    let done: Vec<_> = tries.iter().filter(|line| !line.contains(": refused")).collect();
    ensure!(done.is_empty(), "the intruder did {done:?}");

    // Addresses of others, in copies and kernels.
    if engine.has_groups() || geteuid().is_root() {
        let foreign = if engine.has_groups() { &addresses[..] } else { &addresses[1..] };
        for address in foreign {
            for call in ["read-foreign", "write-foreign", "set-foreign", "free-foreign"] {
                let answer = attacker.ask(&format!("bad {call} {address}"))?;
                ensure!(answer.starts_with("error "), "{call}: {answer}");
            }
        }
        let foreign = foreign.last().context("no address")?;
        attacker.expect(&format!("poke {foreign}"), ILLEGAL_ADDRESS)?;
    }
    for victim in &mut victims {
        victim.must("work 3")?;
    }
    ensure!(clients(&daemon)?.len() >= 2);
    Ok(())
}

#[test]
fn root_of_a_container_commands_nothing() -> Result<()> {
    let daemon = daemon(&[])?;
    let Some(engine) = engine(&daemon)? else { return Ok(()) };
    if !geteuid().is_root() {
        not_tried("containers whose root is root: only root can make them");
        return Ok(());
    }
    let specification = specification(&daemon)?;
    // Who speaks first meets a closed connection, who listens first is told why.
    let of_group = ["closed the connection", "the clients of one group"];
    for (device, reasons) in [("all", ["PID and user namespace"; 2]), ("half", of_group)] {
        let plan = Plan {
            user: User::Root,
            processes: Processes::Own,
            specification: &specification,
            device,
            variables: &[],
        };
        let container = engine.container(&plan, "/bin/puppet")?;
        let mut puppet = opened(container.puppet()?, &daemon)?;
        let command = ["/bin/openmps", "limit", "--group", "free", "--memory", "1G"];
        let refused = run(&container, &command)?;
        let is_told = reasons.iter().any(|reason| refused.stderr.contains(reason));
        ensure!(!refused.status.success() && is_told, "{refused:?}");
        let quit = run(&container, &["/bin/openmps", "control", "quit"])?;
        ensure!(!quit.status.success(), "{quit:?}");
        puppet.must("work 1")?;
        puppet.dismiss()?;
    }
    // The same command outside.
    let sandbox = daemon.sandbox();
    let mut command: Command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(["limit", "--group", "free", "--memory", "1G"]), PATIENCE)?
        .success()?;
    ensure!(daemon.state()?.groups.iter().any(|group| group.name == "free"));
    Ok(())
}

#[test]
fn a_profiles_socket_outlives_the_daemon_for_containers() -> Result<()> {
    let mut daemon = daemon(&[])?;
    let Some(engine) = engine(&daemon)? else { return Ok(()) };
    let specification = specification(&daemon)?;
    let plan = Plan {
        user: User::Mapped(FIRST_USER),
        processes: Processes::Own,
        specification: &specification,
        device: "half",
        variables: &[],
    };
    let container = engine.container(&plan, "/bin/puppet")?;
    // It runs, and is no client yet.
    let mut puppet = container.puppet()?;
    puppet.expect("address", "failed: nothing was allocated")?;
    daemon.quit(PATIENCE)?;
    let answer = puppet.ask("open")?;
    ensure!(answer.starts_with("error "), "without a daemon: {answer}");
    daemon.start_again_with(&[("OPENMPS_PROVISIONING", "concurrent"), PROFILES])?;
    let mut late = opened(Puppet::spawn(&mut container.exec(&["/bin/puppet"]))?, &daemon)?;
    late.must("work 2")?;
    late.dismiss()
}
