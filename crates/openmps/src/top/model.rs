//! What `openmps top` shows: two looks at the daemon's state, and what happened between them.

use std::time::Duration;

use link::wire::daemon::{
    ClientDeviceSnapshot, ClientSnapshot, LAUNCH_BOUNDS_US, ServerStatus, multiprocessors_of_share,
};
use link::wire::ui::{DaemonState, ServerState};
use serde::Serialize;

use crate::show::silences;

/// One GPU of one server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Gpu {
    pub(super) index: u32,
    pub(super) server_pid: u32,
    pub(super) name: String,
    pub(super) status: ServerStatus,
    /// Its server did not answer in time: this is what it said before.
    pub(super) silent: bool,
    pub(super) clients: usize,
    pub(super) granted_bytes: u64,
    pub(super) total_bytes: u64,
    pub(super) multiprocessors: u32,
    /// Kernels of all clients, a second.
    pub(super) kernels_per_s: f64,
    /// Kernel time of all clients over time; above 100 where they ran side by side.
    pub(super) busy_percent: f64,
    pub(super) faults: u64,
    pub(super) restarts: u64,
    /// The latest fault in words.
    pub(super) last_fault: Option<String>,
}

/// One client on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) server_pid: u32,
    pub(super) gpu: u32,
    /// With whom it shares an executor; empty: with all that nothing sets apart.
    pub(super) domain: String,
    pub(super) granted_bytes: u64,
    pub(super) limit_bytes: Option<u64>,
    /// Of what it was granted, what is in host memory.
    pub(super) spilled_bytes: u64,
    /// Multiprocessors that its settings allow it.
    pub(super) multiprocessors: u32,
    pub(super) kernels_per_s: f64,
    /// Its kernels' time over time.
    pub(super) busy_percent: f64,
    pub(super) copied_per_s: f64,
    pub(super) queued_bytes: u64,
    /// How long the driver took to accept its launches: half of them, and 99 in 100, took no longer.
    pub(super) launch_us: Option<(u64, u64)>,
    /// The `CUresult` that its session has failed with, or 0.
    pub(super) error: u32,
    pub(super) command: String,
}

/// One moment, with rates since the one before.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Scene {
    pub(super) daemon_pid: u32,
    pub(super) gpus: Vec<Gpu>,
    #[serde(rename = "clients")]
    pub(super) rows: Vec<Row>,
    /// What is to be said of servers that do not answer; for programs there is [`Gpu::silent`].
    #[serde(skip)]
    pub(super) silences: Vec<String>,
}

/// What clients are sorted by, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortKey {
    Busy,
    Kernels,
    Memory,
    Latency,
    Pid,
}

impl SortKey {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Busy => Self::Kernels,
            Self::Kernels => Self::Memory,
            Self::Memory => Self::Latency,
            Self::Latency => Self::Pid,
            Self::Pid => Self::Busy,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Busy => "GPU time",
            Self::Kernels => "kernels",
            Self::Memory => "memory",
            Self::Latency => "launch time",
            Self::Pid => "process id",
        }
    }
}

/// The scene after `elapsed` since `before`; without `before`, rates are since the clients' start and shown as none.
pub(super) fn scene(before: Option<&DaemonState>, now: &DaemonState, elapsed: Duration) -> Scene {
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let mut scene =
        Scene { daemon_pid: now.daemon_pid, silences: silences(now), ..Scene::default() };
    for server in &now.servers {
        let server_before =
            before.and_then(|state| state.servers.iter().find(|old| old.pid == server.pid));
        for (index, device) in (0u32..).zip(&server.snapshot.devices) {
            let rows: Vec<Row> = shares(server, index)
                .map(|(client, share)| {
                    let old = server_before.and_then(|old| {
                        shares(old, index).find(|(other, _)| other.client_id == client.client_id)
                    });
                    row(
                        server,
                        device.multiprocessors,
                        client,
                        share,
                        old.map(|(_, old)| old),
                        seconds,
                    )
                })
                .collect();
            scene.gpus.push(Gpu {
                index,
                server_pid: server.pid,
                name: device.name.clone(),
                status: server.status,
                silent: server.silent,
                clients: rows.len(),
                granted_bytes: device.granted_bytes,
                total_bytes: device.total_memory_bytes,
                multiprocessors: device.multiprocessors,
                // The sum of no numbers is -0.
                kernels_per_s: rows.iter().fold(0.0, |sum, row| sum + row.kernels_per_s),
                busy_percent: rows.iter().fold(0.0, |sum, row| sum + row.busy_percent),
                faults: device.faults,
                restarts: device.restarts,
                last_fault: last_fault(server, index),
            });
            scene.rows.extend(rows);
        }
    }
    scene
}

fn last_fault(server: &ServerState, device: u32) -> Option<String> {
    let mut faults = server.snapshot.faults.iter().rev();
    faults.find(|fault| fault.device == device).map(ToString::to_string)
}

fn shares(
    server: &ServerState,
    device: u32,
) -> impl Iterator<Item = (&ClientSnapshot, &ClientDeviceSnapshot)> {
    server.snapshot.clients.iter().flat_map(move |client| {
        let here = client.devices.iter().filter(move |share| share.device == device);
        here.map(move |share| (client, share))
    })
}

fn row(
    server: &ServerState,
    multiprocessors: u32,
    client: &ClientSnapshot,
    share: &ClientDeviceSnapshot,
    old: Option<&ClientDeviceSnapshot>,
    seconds: f64,
) -> Row {
    let rate = |read: fn(&ClientDeviceSnapshot) -> u64| {
        old.map_or(0.0, |old| read(share).saturating_sub(read(old)) as f64 / seconds)
    };
    Row {
        pid: client.pid,
        uid: client.uid,
        server_pid: server.pid,
        gpu: share.device,
        domain: client.domain.clone().unwrap_or_default(),
        granted_bytes: share.granted_bytes,
        limit_bytes: share.memory_limit_bytes,
        spilled_bytes: share.spilled_bytes,
        multiprocessors: multiprocessors_of_share(multiprocessors, client.active_thread_percentage),
        kernels_per_s: rate(|share| share.kernels),
        busy_percent: rate(|share| share.gpu_time_ns) / 1e9 * 100.0,
        copied_per_s: rate(|share| share.copied_bytes),
        queued_bytes: share.queued_bytes,
        launch_us: launch_times(share, old),
        error: share.error,
        command: link::printable(&client.command),
    }
}

/// Median and 99th percentile of the launches since the last look, as upper bounds of their classes.
fn launch_times(
    share: &ClientDeviceSnapshot,
    old: Option<&ClientDeviceSnapshot>,
) -> Option<(u64, u64)> {
    let before =
        |class: usize| old.and_then(|old| old.launch_counts.get(class)).copied().unwrap_or(0);
    let counts: Vec<u64> = (0..)
        .zip(&share.launch_counts)
        .map(|(class, count)| count.saturating_sub(before(class)))
        .collect();
    let total: u64 = counts.iter().sum();
    let quantile = |part: f64| {
        let wanted = (total as f64 * part).ceil() as u64;
        let mut seen = 0;
        let class = counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        let last = LAUNCH_BOUNDS_US.len() - 1;
        LAUNCH_BOUNDS_US[class.unwrap_or(last).min(last)]
    };
    (total > 0).then(|| (quantile(0.5), quantile(0.99)))
}

impl Scene {
    /// Sorts the clients, and keeps those that `filter` is part of: of their command, process id, user or GPU.
    pub(super) fn arrange(&mut self, key: SortKey, filter: &str) {
        let matches = |row: &Row| {
            row.command.contains(filter)
                || row.pid.to_string() == filter
                || row.uid.to_string() == filter
        };
        if !filter.is_empty() {
            self.rows.retain(matches);
        }
        let latency = |row: &Row| row.launch_us.map_or(0, |(_, p99)| p99);
        self.rows.sort_by(|a, b| {
            let order = match key {
                SortKey::Busy => b.busy_percent.total_cmp(&a.busy_percent),
                SortKey::Kernels => b.kernels_per_s.total_cmp(&a.kernels_per_s),
                SortKey::Memory => b.granted_bytes.cmp(&a.granted_bytes),
                SortKey::Latency => latency(b).cmp(&latency(a)),
                SortKey::Pid => std::cmp::Ordering::Equal,
            };
            order.then(a.pid.cmp(&b.pid)).then(a.gpu.cmp(&b.gpu))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::daemon::{DeviceSnapshot, ServerSnapshot};

    fn state(kernels: u64, gpu_time_ns: u64, launch_counts: Vec<u64>) -> DaemonState {
        let share =
            ClientDeviceSnapshot { kernels, gpu_time_ns, launch_counts, ..Default::default() };
        let client = |pid: u32, share: ClientDeviceSnapshot| ClientSnapshot {
            client_id: pid.into(),
            pid,
            command: format!("program{pid}"),
            active_thread_percentage: 25.0,
            devices: vec![share],
            ..Default::default()
        };
        let snapshot = ServerSnapshot {
            devices: vec![DeviceSnapshot { multiprocessors: 100, ..Default::default() }],
            clients: vec![client(5, ClientDeviceSnapshot::default()), client(7, share)],
            ..Default::default()
        };
        let server =
            ServerState { pid: 9, uid: 0, status: ServerStatus::Active, snapshot, silent: false };
        DaemonState {
            daemon_pid: 1,
            servers: vec![server],
            groups: Vec::new(),
            reservations: Vec::new(),
            sockets: Vec::new(),
        }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let before = state(100, 0, vec![10, 0, 0]);
        let now = state(300, 500_000_000, vec![10, 98, 0, 2]);
        let mut scene = scene(Some(&before), &now, Duration::from_secs(2));
        scene.arrange(SortKey::Kernels, "");
        let row = &scene.rows[0];
        assert_eq!((row.pid, row.kernels_per_s, row.busy_percent), (7, 100.0, 25.0));
        assert_eq!(row.launch_us, Some((2, 8)));
        assert_eq!(row.multiprocessors, 24);
        assert_eq!(scene.rows[1].launch_us, None);
        assert_eq!(scene.gpus[0].kernels_per_s, 100.0);
    }

    #[test]
    fn the_first_look_has_no_rates() {
        let scene = scene(None, &state(300, 1, vec![1]), Duration::ZERO);
        assert_eq!(scene.rows[1].kernels_per_s, 0.0);
    }

    #[test]
    fn filters_look_at_command_and_process() {
        for (filter, left) in [("program7", 1), ("7", 1), ("program", 2), ("nothing", 0)] {
            let mut scene = scene(None, &state(1, 1, vec![]), Duration::ZERO);
            scene.arrange(SortKey::Pid, filter);
            assert_eq!(scene.rows.len(), left, "{filter}");
        }
    }
}
