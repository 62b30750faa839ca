//! What the page shows, as JSON: the scene of the terminal's screen, with the words and the minute
//! that the screen makes of it, and the faults.

use std::time::Duration;

use link::wire::fault::FaultReport;
use serde::Serialize;

use super::super::model::{Gpu, Row};
use super::super::palette::Palette;
use super::super::past::Past;
use super::super::{Watch, columns, details};
use crate::show::{Faults, fault_line, json_line, own_faults};

/// Points of a line of the last minute.
const POINTS: usize = 60;

#[derive(Serialize)]
struct State<'a> {
    daemon_pid: u32,
    version: &'static str,
    /// Seconds between two looks.
    interval_s: f64,
    /// Why what follows is old: the daemon does not answer.
    trouble: Option<String>,
    /// What is to be said of servers that do not answer.
    silences: &'a [String],
    gpus: Vec<ShownGpu<'a>>,
    clients: Vec<ShownClient<'a>>,
    faults: Vec<ShownFault<'a>>,
}

#[derive(Serialize)]
struct ShownGpu<'a> {
    gpu: &'a Gpu,
    minute: Vec<Option<f64>>,
}

#[derive(Serialize)]
struct ShownClient<'a> {
    client: &'a Row,
    /// What it does, in a word and in a sentence.
    state: String,
    told: String,
    /// The kernel that runs, as its source has the name.
    kernel: Option<String>,
    minute: Vec<Option<f64>>,
}

#[derive(Serialize)]
struct ShownFault<'a> {
    fault: &'a FaultReport,
    line: String,
}

/// What was seen last.
///
/// # Errors
/// None that happens: all keys are texts.
pub(super) fn text(
    watch: &Watch,
    trouble: Option<String>,
    interval: Duration,
) -> anyhow::Result<String> {
    let scene = &watch.scene;
    let client = |row| ShownClient {
        client: row,
        state: columns::state(row, Palette::None).content.into_owned(),
        told: details::state(row).0,
        kernel: columns::kernel(row),
        minute: minute(&row.past),
    };
    let faults = own_faults(&watch.now, Faults::Recent);
    let fault = |fault| ShownFault { fault, line: link::printable(&fault_line(fault)) };
    json_line(State {
        daemon_pid: scene.daemon_pid,
        version: env!("CARGO_PKG_VERSION"),
        interval_s: interval.as_secs_f64(),
        trouble,
        silences: &scene.silences,
        gpus: scene.gpus.iter().map(|gpu| ShownGpu { gpu, minute: minute(&gpu.past) }).collect(),
        clients: scene.rows.iter().map(client).collect(),
        faults: faults.into_iter().rev().map(fault).collect(),
    })
}

/// The last minute's GPU time, in tenths of a per cent.
fn minute(past: &Past) -> Vec<Option<f64>> {
    let tenths = |value: f64| (value * 10.0).round() / 10.0;
    past.parts(POINTS).into_iter().map(|value| value.map(tenths)).collect()
}
