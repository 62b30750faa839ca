//! No finding's: what stands behind other defences, and what no other one counts on.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

use crate::{Test, VICTIM};

pub(crate) const TESTS: &[Test] =
    &[Test::new("second_line_a_user_cannot_look_into_his_server", look)];

/// What a process of the user sees of a process: its environment, its descriptors.
fn seen(sandbox: &Sandbox, pid: u32) -> Result<[bool; 2]> {
    let can = |program: &str, file: &str| {
        let mut command = sandbox.command_as(VICTIM, program, Runtime::Softcuda);
        let command = command.arg(format!("/proc/{pid}/{file}"));
        anyhow::Ok(process::run(command, PATIENCE)?.status.success())
    };
    Ok([can("cat", "environ")?, can("ls", "fd")?])
}

/// A process has every id of the user's, no further group and no capability.
fn is_all_the_users(pid: u32) -> Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let ids = [VICTIM.to_string().as_str(); 4].join("\t");
    let none = "0".repeat(16);
    for line in [
        format!("Uid:\t{ids}\n"),
        format!("Gid:\t{ids}\n"),
        "Groups:\t \n".to_owned(),
        format!("CapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\n"),
    ] {
        ensure!(status.contains(&line), "{pid}: not {line:?}: {status}");
    }
    Ok(())
}

fn look() -> Result<()> {
    for (debuggable, expected) in [("0", [false; 2]), ("1", [true; 2])] {
        let daemon = Daemon::start_with(
            Sandbox::of_several_users()?,
            &[("OPENMPS_PROVISIONING", "concurrent"), ("OPENMPS_DEBUGGABLE", debuggable)],
        )?;
        let sandbox = daemon.sandbox();
        let mut command =
            sandbox.command_as(VICTIM, sandbox.installation.puppet()?, Runtime::OpenMps);
        let mut puppet = Puppet::spawn(&mut command)?;
        puppet.must("open").with_context(|| sandbox.last_log_lines())?;
        puppet.must("work 3")?;
        let server = daemon.server()?;
        ensure!(server.uid == VICTIM, "{server:?}");
        let executor = server.snapshot.devices[0].executor_pid;
        for pid in [server.pid, executor] {
            is_all_the_users(pid)?;
            let seen = seen(sandbox, pid)?;
            ensure!(seen == expected, "OPENMPS_DEBUGGABLE={debuggable}: process {pid}: {seen:?}");
        }
        // Its own program is as open as ever.
        ensure!(seen(sandbox, puppet.pid())? == [true; 2]);
    }
    Ok(())
}
