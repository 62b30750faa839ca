//! Medians and ratios, for people and for programs.

use crate::peer::Peer;
use crate::runner::{Load, Measurement, Plan};
use crate::workload::Workload;
use serde::Serialize;
use std::fmt::Write;

/// Version of the JSON report.
pub const SCHEMA_VERSION: u32 = 4;

/// Everything measured, and its summary.
#[derive(Debug, Serialize)]
pub struct Report {
    /// See [`SCHEMA_VERSION`].
    pub schema: u32,
    /// The native driver that was used.
    pub native_driver: String,
    /// What one more client did all the time.
    pub beside: Option<Workload>,
    /// Medians over the repeats of workloads that are loops of kernels.
    pub rows: Vec<Row>,
    /// Medians over the repeats of the calls that are measured one by one.
    pub calls: Vec<CallRow>,
    /// Every run.
    pub measurements: Vec<Measurement>,
}

/// One workload at one number of clients.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Doing what.
    pub workload: Workload,
    /// How many clients.
    pub clients: usize,
    /// Each client's share of the SMs, in percent.
    pub sm_percent: u32,
    /// In the plan's order.
    pub cells: Vec<Cell>,
}

/// The median of one peer in a row.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// Which peer.
    pub peer: Peer,
    /// Median of the repeats.
    pub kernels_per_second: f64,
    /// Median of the repeats; 0 where iterations do not wait.
    pub iteration_p50_ns: u64,
    /// Median of the repeats' worst clients.
    pub iteration_p99_ns: u64,
    /// Median of the repeats' worst clients.
    pub iteration_p999_ns: u64,
    /// Median of the bytes of the device that nobody used.
    pub free_bytes: u64,
    /// This peer's kernels per second over the first peer's of the row.
    pub ratio_to_first: f64,
    /// This peer's kernels per second over those under NVIDIA's MPS, where that was measured.
    pub ratio_to_nvidia: Option<f64>,
    /// The SMs that a client was told it has.
    pub multiprocessors: u32,
    /// A client's kernels per second over those of one client of this peer that has all SMs to
    /// itself, where that was measured.
    pub of_whole_device: Option<f64>,
}

/// One call at one number of clients.
#[derive(Debug, Serialize)]
pub struct CallRow {
    /// Which call.
    pub call: String,
    /// How many clients make it at once.
    pub clients: usize,
    /// In the plan's order.
    pub cells: Vec<CallCell>,
}

/// The median of one peer in a row of calls.
#[derive(Debug, Serialize)]
pub struct CallCell {
    /// Which peer.
    pub peer: Peer,
    /// Median of the repeats.
    pub time_ns: f64,
    /// This peer's time over the first peer's of the row: below 1 is faster.
    pub ratio_to_first: f64,
    /// This peer's time over that under NVIDIA's MPS, where that was measured.
    pub ratio_to_nvidia: Option<f64>,
}

impl Report {
    /// Summarises.
    pub fn new(plan: &Plan, measurements: Vec<Measurement>) -> Self {
        let mut rows = Vec::new();
        for &workload in plan.workloads.iter().filter(|workload| !workload.is_call_by_call()) {
            for load in plan.loads(workload) {
                let nvidia = rate(&of_load(&measurements, Peer::Nvidia, load));
                let mut cells: Vec<Cell> = Vec::new();
                for &peer in &plan.peers {
                    let of_cell = of_load(&measurements, peer, load);
                    let kernels_per_second = rate(&of_cell);
                    let whole = rate(&of_load(&measurements, peer, Load::whole_device(workload)));
                    let per_client = kernels_per_second / load.clients.max(1) as f64;
                    let first =
                        cells.first().map_or(kernels_per_second, |cell| cell.kernels_per_second);
                    cells.push(Cell {
                        peer,
                        kernels_per_second,
                        iteration_p50_ns: median_of(&of_cell, |m| m.iteration_p50_ns),
                        iteration_p99_ns: median_of(&of_cell, |m| m.iteration_p99_ns),
                        iteration_p999_ns: median_of(&of_cell, |m| m.iteration_p999_ns),
                        free_bytes: median_of(&of_cell, |m| m.free_bytes),
                        ratio_to_first: kernels_per_second / first.max(f64::MIN_POSITIVE),
                        ratio_to_nvidia: ratio(kernels_per_second, nvidia),
                        multiprocessors: of_cell.first().map_or(0, |m| m.multiprocessors),
                        of_whole_device: (!plan.sm_percentages.is_empty() && whole > 0.0)
                            .then(|| per_client / whole),
                    });
                }
                let Load { workload, clients, sm_percent } = load;
                rows.push(Row { workload, clients, sm_percent, cells });
            }
        }
        Self {
            schema: SCHEMA_VERSION,
            native_driver: plan.places.native_driver.to_string_lossy().into_owned(),
            beside: plan.beside,
            rows,
            calls: call_rows(plan, &measurements),
            measurements,
        }
    }

    /// The tables in text.
    pub fn table(&self) -> String {
        let mut text = String::new();
        if !self.rows.is_empty() {
            self.launches(&mut text);
        }
        if !self.calls.is_empty() {
            self.calls(&mut text);
        }
        text
    }

    fn launches(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "{:<8} {:>7} {:>4}  {:<11} {:>5} {:>12} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}",
            "workload",
            "clients",
            "SM %",
            "peer",
            "SMs",
            "kernels/s",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "ratio",
            "/NVIDIA",
            "% each"
        );
        for row in &self.rows {
            for cell in &row.cells {
                let _ = writeln!(
                    text,
                    "{:<8} {:>7} {:>4}  {:<11} {:>5} {:>12.0} {:>10} {:>10} {:>10} {:>8.2} {:>8} {:>8}",
                    row.workload.name(),
                    row.clients,
                    row.sm_percent,
                    cell.peer.name(),
                    cell.multiprocessors,
                    cell.kernels_per_second,
                    microseconds(cell.iteration_p50_ns),
                    microseconds(cell.iteration_p99_ns),
                    microseconds(cell.iteration_p999_ns),
                    cell.ratio_to_first,
                    two_digits(cell.ratio_to_nvidia),
                    cell.of_whole_device
                        .map_or_else(|| "-".to_owned(), |part| format!("{:.1}", part * 100.0)),
                );
            }
        }
    }

    fn calls(&self, text: &mut String) {
        let _ = write!(text, "{:<45} {:>7}", "ns per call, and ratio to the first", "clients");
        for cell in self.calls.first().map(|row| &row.cells).into_iter().flatten() {
            let _ = write!(text, " {:>11} {:>6} {:>7}", cell.peer.name(), "ratio", "/NVIDIA");
        }
        text.push('\n');
        let _ = write!(text, "{:<45} {:>7}", "(processor's clock meanwhile, MHz)", "");
        for cell in self.calls.first().map(|row| &row.cells).into_iter().flatten() {
            let of_peer = self.measurements.iter().filter(|m| m.peer == cell.peer);
            let clock_mhz = median(of_peer.filter(|m| !m.calls.is_empty()).map(|m| m.clock_mhz));
            let _ = write!(text, " {clock_mhz:>11.0} {:>6} {:>7}", "", "");
        }
        text.push('\n');
        for row in &self.calls {
            let _ = write!(text, "{:<45} {:>7}", row.call, row.clients);
            for cell in &row.cells {
                let to_nvidia = two_digits(cell.ratio_to_nvidia);
                let _ = write!(
                    text,
                    " {:>11.1} {:>6.2} {to_nvidia:>7}",
                    cell.time_ns, cell.ratio_to_first
                );
            }
            text.push('\n');
        }
    }
}

fn of_load(measurements: &[Measurement], peer: Peer, load: Load) -> Vec<&Measurement> {
    let is_of = |m: &&Measurement| {
        let measured = Load { workload: m.workload, clients: m.clients, sm_percent: m.sm_percent };
        m.peer == peer && measured == load
    };
    measurements.iter().filter(is_of).collect()
}

fn median_of(of_load: &[&Measurement], value: fn(&Measurement) -> u64) -> u64 {
    median(of_load.iter().map(|measurement| value(measurement) as f64)) as u64
}

fn rate(of_load: &[&Measurement]) -> f64 {
    median(of_load.iter().map(|m| m.kernels_per_second))
}

fn call_rows(plan: &Plan, measurements: &[Measurement]) -> Vec<CallRow> {
    let mut rows = Vec::new();
    let of_calls = plan.workloads.iter().filter(|workload| workload.is_call_by_call());
    let loads = of_calls.flat_map(|&workload| plan.clients.iter().map(move |&n| (workload, n)));
    for (workload, clients) in loads {
        let of_clients = |m: &&Measurement| m.workload == workload && m.clients == clients;
        let Some(names) = measurements.iter().find(of_clients).map(|m| &m.calls) else { continue };
        for (index, name) in names.iter().enumerate() {
            let time_ns_of = |peer: Peer| {
                let of_peer = measurements.iter().filter(of_clients).filter(|m| m.peer == peer);
                median(of_peer.filter_map(|m| Some(m.calls.get(index)?.time_ns)))
            };
            let nvidia_ns = time_ns_of(Peer::Nvidia);
            let mut cells: Vec<CallCell> = Vec::new();
            for &peer in &plan.peers {
                let time_ns = time_ns_of(peer);
                let first_ns = cells.first().map_or(time_ns, |cell| cell.time_ns);
                let ratio_to_first = time_ns / first_ns.max(f64::MIN_POSITIVE);
                let ratio_to_nvidia = ratio(time_ns, nvidia_ns);
                cells.push(CallCell { peer, time_ns, ratio_to_first, ratio_to_nvidia });
            }
            rows.push(CallRow { call: name.call.clone(), clients, cells });
        }
    }
    rows
}

/// Nothing where there is nothing to compare with.
fn ratio(value: f64, other: f64) -> Option<f64> {
    (other > 0.0).then(|| value / other)
}

fn two_digits(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn microseconds(time_ns: u64) -> String {
    if time_ns == 0 { "-".to_owned() } else { format!("{:.1}", time_ns as f64 / 1e3) }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::{Report, median};
    use crate::peer::{Peer, Places};
    use crate::runner::{Measurement, Plan};
    use crate::timer::CallCost;
    use crate::workload::Workload;

    #[test]
    fn median_of_three_is_the_middle_one() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median(std::iter::empty()), 0.0);
    }

    fn plan(peers: &[Peer], workload: Workload) -> Plan {
        Plan {
            places: Places {
                openmps: "openmps".into(),
                client_library: "libcuda.so.1".into(),
                native_driver: "libcuda.so.1".into(),
                logs: None,
            },
            peers: peers.to_vec(),
            workloads: vec![workload],
            clients: vec![1],
            beside: None,
            sm_percentages: Vec::new(),
            repeats: 1,
            duration_ms: 1,
        }
    }

    fn measurement(
        peer: Peer,
        workload: Workload,
        kernels_per_second: f64,
        time_ns: f64,
    ) -> Measurement {
        let call = CallCost { call: "cuCtxGetCurrent".to_owned(), time_ns };
        Measurement {
            peer,
            workload,
            clients: 1,
            sm_percent: 100,
            multiprocessors: 1,
            repeat: 0,
            kernels_per_second,
            iteration_p50_ns: 0,
            iteration_p99_ns: 0,
            iteration_p999_ns: 0,
            free_bytes: 0,
            calls: if workload.is_call_by_call() { vec![call] } else { Vec::new() },
            clock_mhz: 0.0,
        }
    }

    /// Of one repeat, in which each peer has twice the rate of the one before it and takes half its
    /// time.
    fn report(peers: &[Peer], workload: Workload) -> Report {
        let powers = (0..).map(|power| f64::from(1 << power));
        let measurements = peers.iter().zip(powers);
        let measurements = measurements
            .map(|(&peer, power)| measurement(peer, workload, power, 8.0 / power))
            .collect();
        Report::new(&plan(peers, workload), measurements)
    }

    #[test]
    fn every_peer_is_compared_with_nvidias_too() {
        let peers = [Peer::None, Peer::Nvidia, Peer::Openmps];
        let rates = report(&peers, Workload::Lat);
        let ratios: Vec<_> = rates.rows[0].cells.iter().map(|cell| cell.ratio_to_nvidia).collect();
        assert_eq!(ratios, [Some(0.5), Some(1.0), Some(2.0)]);
        let times = report(&peers, Workload::Calls);
        let ratios: Vec<_> = times.calls[0].cells.iter().map(|cell| cell.ratio_to_nvidia).collect();
        assert_eq!(ratios, [Some(2.0), Some(1.0), Some(0.5)]);
        for table in [rates.table(), times.table()] {
            assert!(table.contains("/NVIDIA") && table.contains(" 0.50"), "{table}");
        }
    }

    #[test]
    fn where_nvidias_was_not_measured_nothing_is_compared_with_it() {
        let peers = [Peer::None, Peer::Openmps];
        let report = report(&peers, Workload::Lat);
        assert!(report.rows[0].cells.iter().all(|cell| cell.ratio_to_nvidia.is_none()));
        assert!(report.rows[0].cells.iter().all(|cell| cell.ratio_to_first >= 1.0));
    }
}
