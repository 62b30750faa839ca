//! Faults of every kind beside clients that check every word: nothing is wrong, nothing hangs, nothing is left over.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use openmps_tests::{Installation, process};
use serde_json::Value;

const FAULTS: u64 = 300;
/// The faults take as long as they take; what is longer hangs.
const PATIENCE: Duration = Duration::from_secs(900);

#[test]
fn good_clients_live_through_faults_of_every_kind() -> Result<()> {
    let installation = Installation::find()?;
    let mut command = Command::new(installation.openmps());
    command.args(["bench", "chaos", "--softcuda", "--json", "--clients", "8"]);
    command.args(["--minutes", "12", "--side-by-side", "2", "--rest-ms", "20"]);
    command.args(["--faults", &FAULTS.to_string()]);
    let finished = process::run(&mut command, PATIENCE)?;
    let tally: Value = serde_json::from_str(&finished.stdout)
        .with_context(|| format!("{}\n{}", finished.stdout, finished.stderr))?;
    let number = |path: &str| tally.pointer(path).and_then(Value::as_u64).unwrap_or(u64::MAX);
    let kinds = tally["faults"].as_object().context("no faults")?;
    let faults: u64 = kinds.values().filter_map(|kind| kind["count"].as_u64()).sum();
    ensure!(faults >= FAULTS && kinds.len() == 12, "{faults} faults of {} kinds", kinds.len());
    for (path, what) in [
        ("/wrong_words", "words were wrong"),
        ("/hangs", "good clients hung"),
        ("/lost/idle", "clients with nothing in flight got an error"),
        ("/leaks/device_bytes", "bytes of device memory were left over"),
        ("/leaks/descriptors", "descriptors were left over"),
        ("/leaks/processes", "processes were left over"),
    ] {
        ensure!(number(path) == 0, "{} {what}: {tally:#}", number(path));
    }
    let stuck: u64 = kinds.values().filter_map(|kind| kind["stuck"].as_u64()).sum();
    ensure!(stuck == 0, "{stuck} bad clients were told nothing: {tally:#}");
    ensure!(number("/words") > 0 && number("/survived/idle") > 0, "{tally:#}");
    finished.success().map(drop)
}
