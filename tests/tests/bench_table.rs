//! The table of what is promised about speed, the report of why some requests are slow, and the
//! pictures of the documents: that they can be made here. What their numbers are is not looked at.

use anyhow::{Context, Result, ensure};
use openmps_tests::{Installation, batching, process};
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
    let json = directory.path().join("table.json");
    let first = table(&["--all", "--json", json.to_str().context("a path that is text")?])?;
    let printed = first.success()?;
    let row = |name: &str| printed.lines().find(|line| line.contains(name)).unwrap_or_default();
    ensure!(row("posting a launch").contains(" us (native "), "{printed}");
    ensure!(row("client start").contains(" ms (native "), "{printed}");
    ensure!(row("GPU memory of one more client").contains("needs a GPU"), "{printed}");
    ensure!(row("infer on 1 core | 2 | openmps").split('|').count() == 9, "{printed}");
    let told: serde_json::Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    let rows = told["rows"].as_array().context("no rows")?;
    let needs_no_gpu = |name: &str| {
        ["beside native", "in the client", "client start", "copies", "software GPU"]
            .iter()
            .any(|part| name.contains(part))
    };
    let mut found = 0;
    for row in rows.iter().filter(|row| needs_no_gpu(row["name"].as_str().unwrap_or_default())) {
        found += 1;
        ensure!(matches!(row["verdict"].as_str(), Some("met" | "missed")), "{row}\n{printed}");
        ensure!(row["measured"].as_f64() > Some(0.0) && row["ratio"].as_f64() > Some(0.0), "{row}");
    }
    ensure!(found > 9, "{found} rows\n{printed}");
    // Nothing is left to be measured, and nothing is forgotten.
    let again = table(&["--all", "--resume"])?;
    ensure!(again.success()? == printed, "{printed}");
    Ok(())
}

/// `python3` with a script of the folder `bench`, or a module of Python's there.
fn python(installation: &Installation) -> Command {
    let mut command = Command::new("python3");
    command
        .current_dir(installation.sources().join("../bench"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

#[test]
fn slow_requests_are_told_from_others_and_reported_again() -> Result<()> {
    let installation = Installation::find()?;
    let dist = installation.openmps();
    let dist = dist.ancestors().nth(2).context("the installation's directory")?;
    let directory = tempfile::tempdir()?;
    let (raw, json) = (directory.path().join("raw.json"), directory.path().join("report.json"));
    let mut command = python(&installation);
    command.envs([batching::ON]).args([
        "torch_tail.py",
        "--model",
        "burst",
        "--processes",
        "2",
        "--peers",
        "openmps",
    ]);
    command.args(["--softcuda", "--seconds", "0.5", "--switch", "OPENMPS_BATCHING=off", "--dist"]);
    command.arg(dist).arg("--raw").arg(&raw).arg("--json").arg(&json);
    let first = process::run(&mut command, Duration::from_secs(300))?;
    let printed = first.success()?;
    let row = |name: &str| printed.lines().find(|line| line.contains(name)).unwrap_or_default();
    ensure!(row("p99, ms").split('|').count() == 5, "a column is missing:\n{printed}");
    ensure!(row("waiting, ms").contains('%'), "{printed}");
    ensure!(!row("session: on a processor").is_empty(), "no thread was looked at:\n{printed}");
    let reports: serde_json::Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    ensure!(reports[0]["traced_requests"].as_u64() > Some(0), "no trace:\n{printed}");
    let chained = |run: usize| reports[run]["counters"]["chained_kernels_ever"].as_u64();
    ensure!(
        chained(0) > Some(0) && chained(1).is_none(),
        "the switch is not the server's:\n{printed}"
    );
    let mut again = python(&installation);
    again.args(["torch_tail.py", "--again"]).arg(&raw);
    ensure!(process::run(&mut again, Duration::from_secs(100))?.success()? == printed);
    Ok(())
}

#[test]
fn what_is_made_of_measurements_is_right_for_made_up_ones() -> Result<()> {
    let mut command = python(&Installation::find()?);
    command.args(["-m", "unittest", "table_test", "torch_clients_test", "tail_analysis_test"]);
    command.args(["lanes_test", "equal_clients_test", "openmm_clients_test"]);
    process::run(&mut command, Duration::from_secs(300))?.success()?;
    Ok(())
}

#[test]
fn what_scripts_for_a_gpu_make_of_measurements_is_right_for_made_up_ones() -> Result<()> {
    let installation = Installation::find()?;
    let mut command = python(&installation);
    command.current_dir(installation.sources().join("../tests/gpu"));
    command.args(["-m", "unittest", "long_kernels_test", "suites_test"]);
    process::run(&mut command, Duration::from_secs(300))?.success()?;
    Ok(())
}

#[test]
fn pictures_are_what_scripts_make_of_the_data_and_can_be_read() -> Result<()> {
    let mut command = python(&Installation::find()?);
    command.args(["-m", "unittest", "pictures_test"]);
    process::run(&mut command, Duration::from_secs(300))?.success()?;
    Ok(())
}
