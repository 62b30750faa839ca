//! Finding F10: neither the socket of one group nor one user of a server for all takes every place
//! that a server has for attached programs.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};
use std::path::Path;

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("f10_one_groups_socket_leaves_room_for_others", by_socket),
    Test::new("f10_one_user_of_a_server_for_all_leaves_room_for_others", by_user),
    Test::new("f10_a_user_alone_has_all_places_of_his_server", alone),
];

/// Programs that a server takes.
const PLACES: usize = 1024;
/// Enough for all these.
const MANY: &str = "2000";

/// Attaches as often as it may; how often that is.
fn attached(sandbox: &Sandbox, uid: u32, directory: &Path) -> Result<(Puppet, usize)> {
    let program = sandbox.installation.own_program("stranger")?;
    let mut command = sandbox.command_as(uid, program, Runtime::OpenMps);
    let mut stranger = Puppet::spawn(command.arg("attach").arg(directory).arg(MANY))?;
    let count = stranger.answer_within(PATIENCE * 2).with_context(|| sandbox.last_log_lines())?;
    Ok((stranger, count.parse()?))
}

fn works(sandbox: &Sandbox, uid: u32, directory: &Path) -> Result<Puppet> {
    let mut command = sandbox.command_as(uid, sandbox.installation.puppet()?, Runtime::OpenMps);
    let mut puppet = Puppet::spawn(command.env("CUDA_MPS_PIPE_DIRECTORY", directory))?;
    puppet.must("open").with_context(|| format!("{uid} at {}", directory.display()))?;
    puppet.must("work 2")?;
    Ok(puppet)
}

fn by_socket() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let open = |name: &str| {
        let directory = sandbox.directory().join(name);
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        command.arg("socket").arg(&directory).args(["--group", name]);
        process::run(&mut command, PATIENCE)?.success()?;
        anyhow::Ok(directory)
    };
    let (greedy, other) = (open("greedy")?, open("other")?);
    let (_stranger, count) = attached(sandbox, ATTACKER, &greedy)?;
    ensure!((1..PLACES).contains(&count), "{count} attachments by one socket");
    // A program of the same user, as in another container whose programs are root's; and one
    // without a container.
    let _beside = works(sandbox, ATTACKER, &other)?;
    let _outside = works(sandbox, ATTACKER, &sandbox.pipe_directory())?;
    Ok(())
}

fn by_user() -> Result<()> {
    let daemon =
        Daemon::start_with(Sandbox::of_several_users()?, &[("OPENMPS_PROVISIONING", "multiuser")])?;
    let sandbox = daemon.sandbox();
    let (_stranger, count) = attached(sandbox, ATTACKER, &sandbox.pipe_directory())?;
    ensure!((1..PLACES).contains(&count), "{count} attachments of one user");
    let _victim = works(sandbox, VICTIM, &sandbox.pipe_directory())?;
    let _root = works(sandbox, 0, &sandbox.pipe_directory())?;
    Ok(())
}

fn alone() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let (_stranger, count) = attached(sandbox, VICTIM, &sandbox.pipe_directory())?;
    ensure!(count == PLACES, "{count} attachments of the only user");
    Ok(())
}
