//! Finding F11: whatever other users hold of the daemon's connections, root still gets in.

use anyhow::{Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[Test::new("f11_two_users_do_not_keep_root_out", root_gets_in)];

/// More than the daemon has for all.
const MANY: &str = "4096";

fn root_gets_in() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program("stranger")?;
    let mut held = Vec::new();
    for uid in [ATTACKER, VICTIM] {
        let mut command = sandbox.command_as(uid, &program, Runtime::OpenMps);
        let mut stranger =
            Puppet::spawn(command.arg("frontends").arg(sandbox.pipe_directory()).arg(MANY))?;
        let count: usize = stranger.answer_within(PATIENCE * 2)?.parse()?;
        ensure!(count > 0, "user {uid} is not served at all");
        held.push(stranger);
    }
    let ask = |line: &str| {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        process::run(command.arg("control").args(line.split(' ')), PATIENCE)
    };
    ask("get_server_list")?.success()?;
    // All at once, as a script and a monitor and an administrator may be.
    let program = sandbox.installation.own_program("stranger")?;
    let mut command = sandbox.command(&program, Runtime::OpenMps);
    let mut root = Puppet::spawn(command.arg("frontends").arg(sandbox.pipe_directory()).arg("50"))?;
    let count: usize = root.answer_within(PATIENCE)?.parse()?;
    ensure!(count == 50, "{count} of root's 50 front ends are served");
    ask("quit -t 1")?.success()?;
    Ok(())
}
