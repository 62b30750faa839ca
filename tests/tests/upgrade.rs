//! Files of another build take the place of those that run, as an upgrade does it: by renaming.
//!
//! The other build is this one with another version of the protocol in it.

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Result, ensure};
use link::wire::PROTOCOL_VERSION;
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Installation, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

/// Puts the other build in the place of an installation.
fn upgrade(installation: &Installation) -> Result<()> {
    let library = installation.client_directory().join("libcuda.so.1");
    for file in [installation.openmps(), library] {
        let mut bytes = fs::read(&file)?;
        let (ours, theirs) = (PROTOCOL_VERSION.to_le_bytes(), (!PROTOCOL_VERSION).to_le_bytes());
        let mut changed = 0;
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(4).position(|window| window == ours) {
            at += found;
            bytes[at..at + 4].copy_from_slice(&theirs);
            changed += 1;
        }
        ensure!(changed > 0, "{} has no version of the protocol", file.display());
        let fresh = file.with_extension("fresh");
        fs::write(&fresh, bytes)?;
        fs::set_permissions(&fresh, fs::metadata(&file)?.permissions())?;
        fs::rename(&fresh, &file)?;
    }
    Ok(())
}

/// The processes that run this file.
fn running(file: u64) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let process = entry?.path();
        // What is no process, has ended meanwhile or is another user's is none of ours.
        if fs::metadata(process.join("exe")).is_ok_and(|metadata| metadata.ino() == file) {
            let words = fs::read(process.join("cmdline")).unwrap_or_default();
            found.push(String::from_utf8_lossy(&words).replace('\0', " "));
        }
    }
    Ok(found)
}

fn openmps(sandbox: &Sandbox, words: &[&str]) -> Result<Finished> {
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(words), PATIENCE)
}

#[test]
fn what_runs_goes_on_and_what_is_new_is_told_to_have_the_daemon_restarted() -> Result<()> {
    let mut sandbox = Sandbox::new()?;
    let before = sandbox.installation.clone();
    sandbox.installation = before.published(sandbox.directory())?;
    let mut daemon = Daemon::start(sandbox)?;
    let mut running_client = daemon.puppet()?;
    running_client.must("open")?;
    running_client.must("work 3")?;
    let server = daemon.server()?;
    let executor = server.snapshot.devices[0].executor_pid;

    let installation = daemon.sandbox().installation.clone();
    upgrade(&installation)?;
    let new = fs::metadata(installation.openmps())?.ino();
    running_client.must("work 3")?;

    // A program and a command of the new build hear what to do, at once.
    let sandbox = daemon.sandbox();
    let program = installation.program("cudart-12.9-shared", "vector_add");
    let told = process::run(&mut sandbox.command(&program, Runtime::OpenMps), PATIENCE)?;
    ensure!(!told.status.success(), "{told:?}");
    let words = format!("another build of OpenMPS (protocol {PROTOCOL_VERSION:08x}");
    ensure!(told.stderr.contains(&words) && told.stderr.contains("restart it"), "{told:?}");
    let name = program.display().to_string();
    let commands = [
        &["ps"][..],
        &["limit"],
        &["control", "get_server_list"],
        &["run", "--", &name],
        &["trace", "--client", "1"],
    ];
    for command in commands {
        let told = openmps(sandbox, command)?;
        ensure!(!told.status.success() && told.stderr.contains(&words), "{command:?}: {told:?}");
    }
    let told = openmps(sandbox, &["doctor"])?;
    ensure!(told.status.code() == Some(1) && told.stdout.contains(&words), "{told:?}");

    // Servers and executors that start now speak as the daemon does: they are of its build.
    let of_old_build = || {
        let libraries = before.client_directory();
        let mut command = sandbox.command(installation.puppet()?, Runtime::OpenMps);
        Puppet::spawn(command.env("LD_LIBRARY_PATH", libraries))
    };
    let mut other_client = of_old_build()?;
    other_client.must("open")?;
    kill_process(Pid::from_raw(executor.cast_signed()).expect("a pid"), Signal::KILL)?;
    for client in [&mut running_client, &mut other_client] {
        // Told of the executor's end, or moved to the next one: both are answers.
        client.ask("work 3")?;
    }
    running_client.dismiss()?;
    other_client.dismiss()?;
    let mut shell = sandbox.command(before.openmps(), Runtime::OpenMps);
    shell.args(["control", "shutdown_server", &server.pid.to_string()]);
    process::run(&mut shell, PATIENCE)?.success()?;
    let mut late_client = of_old_build()?;
    late_client.must("open")?;
    late_client.must("work 3")?;
    let new_ones = running(new)?;
    ensure!(new_ones.is_empty(), "the daemon started what is not of its build: {new_ones:?}");
    late_client.dismiss()?;

    // As it was said.
    daemon.kill()?;
    daemon.start_again()?;
    let sandbox = daemon.sandbox();
    let ran = process::run(&mut sandbox.command(&program, Runtime::OpenMps), PATIENCE)?;
    ensure!(ran.success()?.contains("vector_add: ok"), "{ran:?}");
    let mut client = daemon.puppet()?;
    client.must("open")?;
    client.must("work 3")?;
    let new_ones = running(new)?;
    ensure!(new_ones.len() >= 3, "of daemon, server and executor: {new_ones:?}");
    client.dismiss()
}
