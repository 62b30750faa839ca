//! What kernels print reaches the program that launched them, and no other.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

const PRINTS: &str = "device_printf";
const AT_ONCE: usize = 6;

#[test]
fn programs_that_print_at_once_get_their_own_text() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("cudart-13.0-static", PRINTS);
    let run = |runtime| process::run(&mut sandbox.command(program.clone(), runtime), PATIENCE);
    let native = run(Runtime::Softcuda)?;
    ensure!(native.success()?.lines().count() > 1, "natively nothing was printed: {native:?}");
    let attached: Vec<Finished> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| run(Runtime::OpenMps))).collect();
        started.into_iter().map(|run| run.join().expect("no panic")).collect::<Result<_>>()
    })?;
    for finished in attached {
        let text = finished.success().with_context(|| sandbox.last_log_lines())?;
        ensure!(text == native.stdout, "natively\n{}under OpenMPS\n{text}", native.stdout);
        ensure!(daemon.departed(finished.pid)?.kernels > 0, "its kernels ran elsewhere");
    }
    Ok(())
}

/// A program that is told to fail an assertion: `programs/process/faults.c`. Says also where its
/// standard error goes.
fn client(sandbox: &Sandbox, name: &str, runtime: Runtime) -> Result<(Puppet, PathBuf)> {
    let errors = sandbox.directory().join(name);
    let mut command = sandbox.command(sandbox.installation.program("process", "faults"), runtime);
    let mut client = Puppet::spawn(command.stderr(File::create(&errors)?))?;
    client.must("make")?;
    Ok((client, errors))
}

/// The lines of failed assertions.
fn assertions(errors: &PathBuf) -> Result<Vec<String>> {
    let text = fs::read_to_string(errors)?;
    Ok(text.lines().filter(|line| line.contains("Assertion")).map(str::to_owned).collect())
}

#[test]
fn what_a_failed_assertion_says_reaches_its_program_alone() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let failed = |client: &mut Puppet| client.expect("fault assert", "error 710");
    let (mut native, native_errors) = client(sandbox, "native", Runtime::Softcuda)?;
    failed(&mut native)?;
    let (mut other, other_errors) = client(sandbox, "other", Runtime::OpenMps)?;
    let (mut culprit, errors) = client(sandbox, "culprit", Runtime::OpenMps)?;
    failed(&mut culprit)?;
    // Once, though it is told of the error again.
    culprit.expect("sync", "error 710")?;
    other.must("check")?;
    drop((native, culprit, other));
    let said = assertions(&native_errors)?;
    let [line] = said.as_slice() else { anyhow::bail!("natively: {said:?}") };
    ensure!(line.contains("thread: [0,0,0] Assertion `one == two` failed."), "{line}");
    ensure!(assertions(&errors)? == said, "{:?}", assertions(&errors)?);
    ensure!(assertions(&other_errors)?.is_empty(), "another program's: {other_errors:?}");
    let log = sandbox.logs();
    ensure!(!log.contains("Assertion"), "{log}");
    Ok(())
}
