//! Every kind of fault and attack in turn, beside good clients that check every word and have work
//! in flight half of the time.
//!
//! The run ends by the number of faults, never by time: on a loaded machine it takes longer, and
//! nothing else.

use anyhow::{Context, Result, ensure};
use bench::chaos::kind::Kind;
use bench::chaos::tally::{Leaks, Tally};
use openmps_tests::{Runtime, Sandbox, process};
use std::time::Duration;

const FAULTS: u64 = 300;
const GOOD_CLIENTS: u64 = 8;
/// Far more than it ever takes; what hangs is found, and counted, after a minute.
const LIMIT: Duration = Duration::from_secs(30 * 60);
/// Kernels that do not end are killed after this, so that the run is made of faults and not of
/// waiting.
const KILL_PATIENCE_MS: &str = "200";

/// What CUDA says of what was done on the device, by the software GPU.
const ANSWERS: [(Kind, &str); 6] = [
    (Kind::IllegalAddress, "700"),
    (Kind::Misaligned, "716"),
    (Kind::Trap, "719"),
    (Kind::Assert, "710"),
    (Kind::StackOverflow, "700"),
    (Kind::SharedOutOfRange, "700"),
];

#[test]
fn three_hundred_faults_cost_idle_clients_nothing_and_nobody_a_word() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    command
        .args(["bench", "chaos", "--softcuda", "--json", "--rest-ms", "0", "--minutes", "25"])
        .args(["--faults", &FAULTS.to_string(), "--clients", &GOOD_CLIENTS.to_string()])
        .arg("--logs")
        .arg(sandbox.log_directory())
        .env("OPENMPS_KILL_PATIENCE_MS", KILL_PATIENCE_MS)
        // Else all but the first few faults would cost nobody anything.
        .env("OPENMPS_QUARANTINE", "0");
    let finished = process::run(&mut command, LIMIT)?;
    let tally: Tally = serde_json::from_str(&finished.stdout)
        .with_context(|| format!("{}\n{}", finished.stdout, finished.stderr))?;
    check(&tally).with_context(|| format!("{}\n{}", tally.text(), sandbox.last_log_lines()))?;
    finished.success()?;
    ensure!(!sandbox.logs().contains("panicked"), "{}", sandbox.logs());
    // For whoever reads the log of a test run.
    println!("{}", tally.text());
    Ok(())
}

fn check(tally: &Tally) -> Result<()> {
    ensure!(tally.fault_count() >= FAULTS, "too few faults");
    ensure!(tally.wrong_words == 0, "wrong words");
    ensure!(tally.lost.idle == 0, "clients without work in flight were lost");
    ensure!(tally.hangs == 0, "good clients hang");
    ensure!(tally.refused_starts == 0, "who came during a recovery did not wait");
    ensure!(tally.leaks == Leaks::default(), "something is left over");
    ensure!(tally.left_over.is_empty(), "{}", tally.left_over.join("; "));
    // Of those with work in flight some are lost, others not; both kinds were there when faults
    // came.
    ensure!(tally.survived.idle > 0 && tally.survived.busy > 0 && tally.words > 0);
    for kind in Kind::ALL {
        let made = tally.faults.get(&kind).with_context(|| format!("no {}", kind.name()))?;
        ensure!(made.count > 0 && made.stuck == 0, "{}: {made:?}", kind.name());
    }
    for (kind, code) in ANSWERS {
        ensure!(
            tally.faults[&kind].answers.contains_key(code),
            "{}: nobody got {code}",
            kind.name()
        );
    }
    for kind in [Kind::CorruptImage, Kind::RefusedCalls, Kind::HostileRing, Kind::HostileMessages] {
        let made = &tally.faults[&kind];
        ensure!(made.inputs > 5 * made.count, "{}: few inputs: {made:?}", kind.name());
    }
    for (kind, answer) in [(Kind::RefusedCalls, "refused"), (Kind::HostileRing, "thrown out")] {
        let answers = &tally.faults[&kind].answers;
        ensure!(answers.keys().eq([answer]), "{}: {answers:?}", kind.name());
    }
    let served = tally.served.context("the daemon was not asked")?;
    ensure!(served.good_clients == GOOD_CLIENTS, "not all good clients were attached");
    ensure!(served.kernels > 0 && served.clients > FAULTS, "bad clients were not attached");
    // An endless kernel of one that was killed may take the next fault's maker with it.
    let made: u64 = ANSWERS.iter().map(|(kind, _)| tally.faults[kind].count).sum();
    ensure!(served.device_faults >= made / 2, "faults did not happen on the device");
    ensure!(served.executors_died == 0, "a client has brought down an executor");
    Ok(())
}
