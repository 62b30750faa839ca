//! What came of a run, added up over the runs that continue it.

use super::Phase;
use super::kind::Kind;
pub use super::served::Served;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Version of the JSON report.
pub const SCHEMA_VERSION: u32 = 1;

/// Everything counted. What is counted by phase is by what a good client did when the fault came.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// See [`SCHEMA_VERSION`].
    pub schema: u32,
    /// Under which peer.
    pub peer: String,
    /// Good clients at once, those of PyTorch included.
    pub good_clients: usize,
    /// Of these, PyTorch.
    pub torch_clients: usize,
    /// How long faults were made.
    pub seconds: f64,
    /// By kind.
    pub faults: BTreeMap<Kind, KindTally>,
    /// Good clients that lived on, once for each fault and client.
    pub survived: ByPhase,
    /// Good clients that got an error.
    pub lost: ByPhase,
    /// The errors, as results of the calls that gave them.
    pub errors: BTreeMap<String, u64>,
    /// Good clients that were not heard of for too long, and were killed.
    pub hangs: u64,
    /// Good clients whose first work was in flight when a fault came: they had their context, and
    /// had not said that they are ready.
    #[serde(default)]
    pub lost_starting: u64,
    /// Good clients that were refused what they need to begin.
    pub refused_starts: u64,
    /// Kernels of good clients.
    pub kernels: u64,
    /// Words of their results that were compared.
    pub words: u64,
    /// Those of them that were wrong.
    pub wrong_words: u64,
    /// How long each client's longest wait after each fault took, in microseconds, by phase: busy
    /// ones.
    pub pauses_us: Vec<u64>,
    /// What was left over.
    pub leaks: Leaks,
    /// The same in words, and whatever else was not as it should be when no faults were made any
    /// more.
    #[serde(default)]
    pub left_over: Vec<String>,
    /// What the peer's own counters say; absent: it has none that can be asked.
    #[serde(default)]
    pub served: Option<Served>,
}

/// Counts of clients by what they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByPhase {
    /// With work in flight.
    pub busy: u64,
    /// Without.
    pub idle: u64,
}

impl ByPhase {
    /// Counts one.
    pub fn add(&mut self, phase: Phase) {
        match phase {
            Phase::Busy => self.busy += 1,
            Phase::Idle => self.idle += 1,
        }
    }
}

/// Faults of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindTally {
    /// How many.
    pub count: u64,
    /// What those who made them were told, by `CUresult`; `killed` for those that were.
    pub answers: BTreeMap<String, u64>,
    /// Those who were told nothing for too long.
    pub stuck: u64,
    /// Bad inputs that these were made of: commands, messages, images, calls; where there are none,
    /// each is one.
    #[serde(default)]
    pub inputs: u64,
    /// As [`Tally::pauses_us`], after faults of this kind.
    #[serde(default)]
    pub pauses_us: Vec<u64>,
}

/// What there is more of than there was before the faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaks {
    /// Memory of the device.
    pub device_bytes: u64,
    /// Open files of the daemon's processes.
    pub descriptors: u64,
    /// Processes, while the daemon runs and once it has ended.
    pub processes: u64,
}

impl Tally {
    /// All faults.
    pub fn fault_count(&self) -> u64 {
        self.faults.values().map(|kind| kind.count).sum()
    }

    /// The pause that so many parts of a hundred do not exceed, in milliseconds.
    pub fn pause_ms(&self, percent: usize) -> f64 {
        percentile_ms(&self.pauses_us, percent)
    }

    /// Whether no innocent idle client, no result and nothing else was lost, nothing hung, and the
    /// good clients were what they should be: clients.
    pub fn is_clean(&self) -> bool {
        self.wrong_words == 0
            && self.hangs == 0
            && self.faults.values().all(|kind| kind.stuck == 0)
            && self.lost.idle == 0
            && self.leaks == Leaks::default()
            && self.left_over.is_empty()
            && self.served.is_none_or(|served| served.good_clients == self.good_clients as u64)
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let Self { peer, good_clients, torch_clients, seconds, .. } = self;
        writeln!(
            text,
            "peer {peer}, {good_clients} good clients ({torch_clients} of PyTorch), {seconds:.0} s, {} faults",
            self.fault_count()
        )?;
        writeln!(
            text,
            "{:<22}{:>7}{:>8}{:>7}{:>10}{:>10}  answers (pauses of those in flight, in ms)",
            "fault", "count", "inputs", "stuck", "p50", "p99"
        )?;
        for (kind, tally) in &self.faults {
            let answers: Vec<String> =
                tally.answers.iter().map(|(answer, count)| format!("{answer} x{count}")).collect();
            let (name, answers) = (kind.name(), answers.join(", "));
            let pause = |percent| percentile_ms(&tally.pauses_us, percent);
            let KindTally { count, inputs, stuck, .. } = tally;
            let (p50, p99) = (pause(50), pause(99));
            writeln!(
                text,
                "{name:<22}{count:>7}{inputs:>8}{stuck:>7}{p50:>10.1}{p99:>10.1}  {answers}"
            )?;
        }
        writeln!(text, "{:<22}{:>14}{:>14}", "good clients", "in flight", "idle")?;
        let ByPhase { busy, idle } = self.survived;
        writeln!(text, "{:<22}{busy:>14}{idle:>14}", "  survived a fault")?;
        let ByPhase { busy, idle } = self.lost;
        writeln!(text, "{:<22}{busy:>14}{idle:>14}", "  got an error")?;
        for (error, count) in &self.errors {
            writeln!(text, "    {error} x{count}")?;
        }
        writeln!(
            text,
            "pause in flight: p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms",
            self.pause_ms(50),
            self.pause_ms(99),
            self.pause_ms(100)
        )?;
        writeln!(
            text,
            "kernels {}, words compared {}, wrong {}, hangs {}, lost with their first work {}, refused starts {}",
            self.kernels,
            self.words,
            self.wrong_words,
            self.hangs,
            self.lost_starting,
            self.refused_starts
        )?;
        let Leaks { device_bytes, descriptors, processes } = self.leaks;
        writeln!(
            text,
            "leaks: device memory {device_bytes} B, descriptors {descriptors}, processes {processes}"
        )?;
        self.left_over.iter().try_for_each(|what| writeln!(text, "    {what}"))?;
        let Some(served) = self.served else { return Ok(()) };
        let Served { clients, kernels, device_faults, .. } = served;
        writeln!(
            text,
            "counted by the server: {} good clients attached, {clients} clients and {kernels} kernels in all, faults of the device {device_faults}, executors replaced {}, of these ended unexpectedly {}",
            served.good_clients, served.executors_replaced, served.executors_died
        )
    }
}

fn percentile_ms(times_us: &[u64], percent: usize) -> f64 {
    let mut sorted = times_us.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).map_or(0.0, |&us| us as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let tally =
            Tally { pauses_us: (1..=100).rev().map(|ms| ms * 1000).collect(), ..Tally::default() };
        assert_eq!(
            (tally.pause_ms(50), tally.pause_ms(99), tally.pause_ms(100)),
            (50.0, 99.0, 100.0)
        );
        assert_eq!(Tally::default().pause_ms(50), 0.0);
    }

    #[test]
    fn a_run_is_clean_only_if_nothing_is_lost() {
        let clean = Tally { lost: ByPhase { busy: 3, idle: 0 }, ..Tally::default() };
        assert!(clean.is_clean());
        let stuck = [(Kind::Trap, KindTally { stuck: 1, ..KindTally::default() })].into();
        for dirty in [
            Tally { wrong_words: 1, ..clean.clone() },
            Tally { hangs: 1, ..clean.clone() },
            Tally { faults: stuck, ..clean.clone() },
            Tally { good_clients: 8, served: Some(Served::default()), ..clean.clone() },
            Tally { lost: ByPhase { busy: 0, idle: 1 }, ..clean.clone() },
            Tally { left_over: vec!["nobody stands by".to_owned()], ..clean.clone() },
            Tally { leaks: Leaks { processes: 1, ..Leaks::default() }, ..clean },
        ] {
            assert!(!dirty.is_clean());
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut tally = Tally { schema: SCHEMA_VERSION, ..Tally::default() };
        tally.faults.entry(Kind::Trap).or_default().count = 4;
        let text = serde_json::to_string(&tally).unwrap();
        let again: Tally = serde_json::from_str(&text).unwrap();
        assert_eq!(again.fault_count(), 4);
        assert!(tally.text().contains("trap"));
    }
}
