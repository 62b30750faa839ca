//! Files of another build take the place of those that run, as an upgrade does it: by renaming.
//!
//! The other build is this one with another number of the protocol in it, or with other versions of
//! the client wire.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Result, ensure};
use link::wire::PROTOCOL_VERSION;
use link::wire::version::{MARK, Versions};
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Installation, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

/// Renames a changed file over the one that is there; `at` finds what is to be changed.
fn replace(file: &Path, at: impl Fn(&[u8]) -> Option<usize>, by: &[u8]) -> Result<()> {
    let mut bytes = fs::read(file)?;
    let (mut changed, mut from) = (0, 0);
    while let Some(found) = at(&bytes[from..]) {
        from += found;
        bytes[from..from + by.len()].copy_from_slice(by);
        from += by.len();
        changed += 1;
    }
    ensure!(changed > 0, "{} has nothing to change", file.display());
    let fresh = file.with_extension("fresh");
    fs::write(&fresh, bytes)?;
    fs::set_permissions(&fresh, fs::metadata(file)?.permissions())?;
    Ok(fs::rename(&fresh, file)?)
}

/// Makes it another build: front ends and daemons no longer understand it.
fn upgrade(file: &Path) -> Result<()> {
    let ours = PROTOCOL_VERSION.to_le_bytes();
    let find = |bytes: &[u8]| bytes.windows(4).position(|window| window == ours);
    replace(file, find, &(!PROTOCOL_VERSION).to_le_bytes())
}

/// Makes it a build that speaks other versions of the client wire.
fn speak(file: &Path, versions: Versions) -> Result<()> {
    let find = |bytes: &[u8]| {
        let mark = bytes.windows(MARK.len()).position(|window| window == MARK)?;
        Some(mark + MARK.len())
    };
    let numbers = [versions.oldest.to_le_bytes(), versions.newest.to_le_bytes()].concat();
    replace(file, find, &numbers)
}

fn library(installation: &Installation) -> std::path::PathBuf {
    installation.client_directory().join("libcuda.so.1")
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
    upgrade(&installation.openmps())?;
    // As files of an upgrade are: new ones, also where nothing in them has changed.
    speak(&library(&installation), Versions::ours())?;
    let new = fs::metadata(installation.openmps())?.ino();
    running_client.must("work 3")?;

    // A command of the new build hears what to do, at once.
    let sandbox = daemon.sandbox();
    let program = installation.program("cudart-12.9-shared", "vector_add");
    let words = format!("another build of OpenMPS (protocol {PROTOCOL_VERSION:08x}");
    let commands =
        [&["ps"][..], &["limit"], &["control", "get_server_list"], &["trace", "--client", "1"]];
    for command in commands {
        let told = openmps(sandbox, command)?;
        let is_told = told.stderr.contains(&words) && told.stderr.contains("restart it");
        ensure!(!told.status.success() && is_told, "{command:?}: {told:?}");
    }
    // A program is served: the versions of the client wire are the same.
    let name = program.display().to_string();
    let ran = process::run(&mut sandbox.command(&program, Runtime::OpenMps), PATIENCE)?;
    ensure!(ran.success()?.contains("vector_add: ok"), "{ran:?}");
    let ran = openmps(sandbox, &["run", "--", &name])?;
    ensure!(ran.success()?.contains("vector_add: ok"), "{ran:?}");
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
    client.dismiss()?;

    // The library of an image that was built before: its daemon's number was another one.
    let mut sandboxed = daemon.sandbox().command(installation.puppet()?, Runtime::OpenMps);
    let mut old = Puppet::spawn(sandboxed.env("LD_LIBRARY_PATH", before.client_directory()))?;
    old.must("open")?;
    old.must("work 3")?;
    ensure!(daemon.server()?.snapshot.clients.len() == 1, "it ran natively");
    old.dismiss()
}

/// What a program says that cannot attach.
fn refusal(sandbox: &Sandbox) -> Result<String> {
    let program = sandbox.installation.program("cudart-12.9-shared", "vector_add");
    let told = process::run(&mut sandbox.command(&program, Runtime::OpenMps), PATIENCE)?;
    ensure!(!told.status.success(), "{told:?}");
    Ok(told.stderr)
}

#[test]
fn a_library_without_a_version_in_common_is_told_what_to_update() -> Result<()> {
    let mut sandbox = Sandbox::new()?;
    sandbox.installation = sandbox.installation.published(sandbox.directory())?;
    let mut daemon = Daemon::start(sandbox)?;
    let installation = daemon.sandbox().installation.clone();
    let ours = Versions::ours();
    let later = Versions { oldest: ours.newest + 1, newest: ours.newest + 2 };

    // A library that is newer than the daemon.
    speak(&library(&installation), later)?;
    let told = refusal(daemon.sandbox())?;
    let words = format!("speaks {later} of the client wire, and the daemon {ours}: update OpenMPS");
    ensure!(told.contains(&words) && told.contains("restart the daemon"), "{told}");
    let running = format!("the daemon is process {}", daemon.state()?.daemon_pid);
    ensure!(told.contains(&running), "{running} not in {told}");

    // One that speaks the daemon's version as well.
    speak(&library(&installation), Versions { oldest: ours.oldest, ..later })?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    client.must("work 3")?;
    client.dismiss()?;

    // A library that is older than a daemon that has dropped its versions.
    daemon.kill()?;
    speak(&library(&installation), ours)?;
    speak(&installation.openmps(), later)?;
    daemon.start_again()?;
    let told = refusal(daemon.sandbox())?;
    let words =
        format!("speaks {ours} of the client wire, and the daemon {later}: update the library");
    ensure!(told.contains(&words) && told.contains("start the program again"), "{told}");
    Ok(())
}
