//! The table of what is promised about speed: that it can be made here. What its numbers are is not looked at.

use anyhow::{Context, Result, ensure};
use openmps_tests::Installation;
use openmps_tests::process;
use std::process::Command;
use std::time::Duration;

#[test]
fn the_table_is_printed_and_resumed_on_the_software_gpu() -> Result<()> {
    let installation = Installation::find()?;
    let dist = installation.openmps();
    let dist = dist.ancestors().nth(2).context("the installation's directory")?;
    let directory = tempfile::tempdir()?;
    let table = |arguments: &[&str]| {
        let script = installation.sources().join("../bench/table.py");
        let mut command = Command::new("python3");
        command.arg(script).args(["--quick", "--softcuda", "--dist"]).arg(dist);
        command.arg("--state").arg(directory.path().join("state.json")).args(arguments);
        process::run(&mut command, Duration::from_secs(300))
    };
    let first = table(&["--part", "calls"])?;
    let printed = first.success()?;
    let row = |name: &str| printed.lines().find(|line| line.contains(name)).unwrap_or_default();
    ensure!(row("posting a launch").contains(" us (native "), "{printed}");
    ensure!(row("client start").contains(" ms (native "), "{printed}");
    ensure!(row("GPU memory of one more client").contains("needs a GPU"), "{printed}");
    // Nothing is left to be measured, and nothing is forgotten.
    let again = table(&["--part", "calls", "--resume"])?;
    ensure!(again.success()? == printed, "{printed}");
    Ok(())
}
