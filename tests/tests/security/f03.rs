//! Finding F3: descriptors whose closing blocks, sent to whoever has to close them.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};
use rustix::process::{Pid, Signal, kill_process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("f03_lingering_sockets_to_the_daemon", || daemon_by_its_own_socket(Kernel::This)),
    Test::new("f03_lingering_sockets_to_the_daemon_of_an_old_kernel", || {
        daemon_by_its_own_socket(Kernel::Old)
    }),
    Test::new("f03_lingering_sockets_to_the_daemon_by_a_groups_socket", || {
        daemon_by_a_groups_socket(Kernel::This)
    }),
    Test::new("f03_lingering_sockets_to_the_daemon_by_a_groups_socket_of_an_old_kernel", || {
        daemon_by_a_groups_socket(Kernel::Old)
    }),
    Test::new("f03_lingering_sockets_to_the_server_of_the_same_user", || {
        server(Kernel::This, VICTIM)
    }),
    Test::new("f03_lingering_sockets_to_the_server_of_the_same_user_of_an_old_kernel", || {
        server(Kernel::Old, VICTIM)
    }),
    Test::new("f03_lingering_sockets_to_the_server_of_several_users", || {
        server(Kernel::This, ATTACKER)
    }),
    Test::new("f03_lingering_sockets_to_the_server_of_several_users_of_an_old_kernel", || {
        server(Kernel::Old, ATTACKER)
    }),
    Test::new("f03_a_thousand_lingering_sockets_of_one_user", a_thousand),
    Test::new("f03_lingering_sockets_and_the_end_of_the_daemon", the_end),
];

/// Whether the daemon and its servers can have descriptors refused by the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// As it is.
    This,
    /// They cannot.
    Old,
}

fn start(kernel: Kernel, environment: &[(&str, &str)]) -> Result<Daemon> {
    let sandbox = Sandbox::of_several_users()?;
    let attacker = sandbox.installation.own_program("attacker")?;
    let words = [attacker.as_os_str(), OsStr::new("old-kernel")];
    match kernel {
        Kernel::This => Daemon::start_with(sandbox, environment),
        Kernel::Old => Daemon::start_by(sandbox, &words, environment),
    }
}

/// A program of the tests as a user, before the socket in this directory.
fn program(daemon: &Daemon, name: &str, uid: u32, directory: &Path) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program(name)?;
    let mut command = sandbox.command_as(uid, program, Runtime::OpenMps);
    Puppet::spawn(command.env("CUDA_MPS_PIPE_DIRECTORY", directory))
}

/// New programs of this user, by each of these sockets, are served; root commands.
fn all_goes_on(daemon: &Daemon, uid: u32, directories: &[&Path]) -> Result<()> {
    for directory in directories {
        let mut puppet = program(daemon, "puppet", uid, directory)?;
        puppet.must("open").with_context(|| daemon.sandbox().last_log_lines())?;
        puppet.must("work 1")?;
    }
    // In its own words, as the shell of the tests has no time limit.
    let list = daemon.start_shell("get_server_list")?.finish(PATIENCE)?;
    ensure!(!list.success()?.is_empty(), "a server runs");
    Ok(())
}

fn daemon_by_its_own_socket(kernel: Kernel) -> Result<()> {
    let mut daemon = start(kernel, &[])?;
    let pipe = daemon.sandbox().pipe_directory();
    let mut attacker = program(&daemon, "attacker", ATTACKER, &pipe)?;
    attacker.expect("greet 16", "greeted 16")?;
    all_goes_on(&daemon, VICTIM, &[&pipe])?;
    attacker.must("leave")?;
    all_goes_on(&daemon, VICTIM, &[&pipe])?;
    daemon.quit(PATIENCE)
}

fn daemon_by_a_groups_socket(kernel: Kernel) -> Result<()> {
    let daemon = start(kernel, &[])?;
    let sandbox = daemon.sandbox();
    let open = |name: &str| -> Result<_> {
        let directory = sandbox.directory().join(name);
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        let finished =
            process::run(command.arg("socket").arg(&directory).args(["--group", name]), PATIENCE)?;
        finished.success()?;
        Ok(directory)
    };
    let (one, other) = (open("one")?, open("other")?);
    // Root of a container is root to the kernel, too, where users are not mapped.
    let mut attacker = program(&daemon, "attacker", 0, &one)?;
    attacker.expect("greet 16", "greeted 16")?;
    let pipe = sandbox.pipe_directory();
    all_goes_on(&daemon, 0, &[&other, &pipe])?;
    attacker.must("leave")?;
    all_goes_on(&daemon, 0, &[&other, &pipe])
}

/// To the keeper, which wants no descriptors, and over the session's socket, where they are wanted.
fn server(kernel: Kernel, attacker: u32) -> Result<()> {
    let daemon = start(kernel, &[("OPENMPS_PROVISIONING", "multiuser")])?;
    let pipe = daemon.sandbox().pipe_directory();
    let mut victim = program(&daemon, "puppet", VICTIM, &pipe)?;
    victim.must("open")?;
    for order in ["request 3", "stuff 3"] {
        let mut attacker = program(&daemon, "attacker", attacker, &pipe)?;
        attacker.must("attach")?;
        let sent = attacker.ask(order)?;
        ensure!(sent.starts_with("sent "), "{sent}");
        ensure!(kernel == Kernel::This || sent != "sent 0", "{order}: {sent}");
        ensure!(order != "stuff 3" || sent == "sent 3", "{order}: {sent}");
        all_goes_on(&daemon, VICTIM, &[&pipe])?;
        attacker.must("leave")?;
        daemon.wait_gone(attacker.pid())?;
        all_goes_on(&daemon, VICTIM, &[&pipe])?;
    }
    victim.must("work 2")
}

/// However many there are, the daemon keeps room for others, and none stays for good.
fn a_thousand() -> Result<()> {
    let mut daemon = start(Kernel::Old, &[])?;
    let pipe = daemon.sandbox().pipe_directory();
    let mut attacker = program(&daemon, "attacker", ATTACKER, &pipe)?;
    attacker.tell("greet 1000")?;
    all_goes_on(&daemon, VICTIM, &[&pipe])?;
    let answer = attacker.answer_within(4 * PATIENCE)?;
    ensure!(answer.starts_with("greeted "), "{answer}");
    attacker.must("leave")?;
    all_goes_on(&daemon, VICTIM, &[&pipe])?;
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid()))?.count();
    ensure!(threads < 16, "the daemon has {threads} threads");
    let folder = format!("/proc/{}/fd", daemon.pid());
    openmps_tests::wait::until("the daemon has closed all", 2 * PATIENCE, || {
        std::fs::read_dir(&folder).is_ok_and(|open| open.count() < 64)
    })?;
    daemon.quit(PATIENCE)
}

fn the_end() -> Result<()> {
    for kernel in [Kernel::This, Kernel::Old] {
        let mut daemon = start(kernel, &[])?;
        let pipe = daemon.sandbox().pipe_directory();
        let mut attacker = program(&daemon, "attacker", ATTACKER, &pipe)?;
        attacker.must("attach")?;
        drop(attacker.ask("stuff 8")?);
        drop(attacker.ask("request 8")?);
        drop(attacker.ask("greet 32")?);
        let pid = i32::try_from(daemon.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a process id")?, Signal::TERM)?;
        daemon.wait_for_exit(PATIENCE)?;
    }
    Ok(())
}
