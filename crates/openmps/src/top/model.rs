//! What `openmps top` shows: two looks at the daemon's state, and what happened between them.

use std::time::Duration;

use link::wire::daemon::{
    ClientDeviceSnapshot, ClientSnapshot, DeviceSnapshot, LAUNCH_BOUNDS_US, ServerStatus,
    WaitReason, multiprocessors_of_share,
};
use link::wire::fault::CallRecord;
use link::wire::ui::{DaemonState, ServerState};
use serde::Serialize;

use super::past::{Key, Past};
use super::users::Users;
use crate::show::{fault_line, silences};

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
    /// Its [`Self::busy_percent`] of the last minute.
    #[serde(skip)]
    pub(super) past: Past,
}

/// One client on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) uid: u32,
    /// The user's name, or the number where there is none.
    pub(super) user: String,
    pub(super) group: Option<String>,
    pub(super) reservation: Option<String>,
    pub(super) server_pid: u32,
    /// The daemon's number of the client, which no other ever has.
    pub(super) client_id: u64,
    pub(super) gpu: u32,
    /// With whom it shares an executor; empty: with all that nothing sets apart.
    pub(super) domain: String,
    pub(super) granted_bytes: u64,
    pub(super) limit_bytes: Option<u64>,
    /// Of what it was granted, what is in host memory.
    pub(super) spilled_bytes: u64,
    /// Multiprocessors that its settings allow it.
    pub(super) multiprocessors: u32,
    /// Its share of them, in per cent.
    pub(super) sm_percent: f64,
    pub(super) weight: u32,
    pub(super) latency_class: bool,
    /// Kernels since it began.
    pub(super) kernels: u64,
    pub(super) kernels_per_s: f64,
    /// Its kernels' time over time.
    pub(super) busy_percent: f64,
    /// Bytes copied since it began.
    pub(super) copied_bytes: u64,
    pub(super) copied_per_s: f64,
    pub(super) queued_bytes: u64,
    /// How long the driver took to accept its launches: half of them, and 99 in 100, took no
    /// longer.
    pub(super) launch_us: Option<(u64, u64)>,
    /// The `CUresult` that its session has failed with, or 0.
    pub(super) error: u32,
    /// What it waits for.
    pub(super) waits_for: Option<WaitReason>,
    /// The oldest launch that has not ended.
    pub(super) running: Option<CallRecord>,
    /// The latest launches, the latest last.
    pub(super) launches: Vec<CallRecord>,
    /// The latest fault that names it, in words.
    pub(super) fault: Option<String>,
    pub(super) command: String,
    /// Memory and multiprocessors of its GPU.
    #[serde(skip)]
    pub(super) gpu_bytes: u64,
    #[serde(skip)]
    pub(super) gpu_multiprocessors: u32,
    /// Its [`Self::busy_percent`] of the last minute.
    #[serde(skip)]
    pub(super) past: Past,
}

impl Row {
    pub(super) fn key(&self) -> Key {
        Key::of_client(self.server_pid, self.gpu, self.client_id)
    }
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
    /// GPU time of the last minute: that of a second alone would have the lines jump.
    Busy,
    Kernels,
    Memory,
    Latency,
    Group,
    Pid,
}

impl SortKey {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Busy => Self::Kernels,
            Self::Kernels => Self::Memory,
            Self::Memory => Self::Latency,
            Self::Latency => Self::Group,
            Self::Group => Self::Pid,
            Self::Pid => Self::Busy,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Busy => "GPU time",
            Self::Kernels => "kernels",
            Self::Memory => "memory",
            Self::Latency => "launch time",
            Self::Group => "group",
            Self::Pid => "process id",
        }
    }
}

/// Which end of the order comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Usual,
    Reversed,
}

/// The scene after `elapsed` since `before`; without `before`, rates are since the clients' start
/// and shown as none.
pub(super) fn scene(
    before: Option<&DaemonState>,
    now: &DaemonState,
    elapsed: Duration,
    users: &Users,
) -> Scene {
    let mut scene =
        Scene { daemon_pid: now.daemon_pid, silences: silences(now), ..Scene::default() };
    for server in &now.servers {
        let before =
            before.and_then(|state| state.servers.iter().find(|old| old.pid == server.pid));
        let look = Look { server, before, seconds: elapsed.as_secs_f64().max(1e-3), users };
        for (index, device) in (0u32..).zip(&server.snapshot.devices) {
            let rows: Vec<Row> = shares(server, index)
                .map(|(client, share)| look.row(device, client, share))
                .collect();
            scene.gpus.push(gpu(server, index, device, &rows));
            scene.rows.extend(rows);
        }
    }
    scene
}

fn gpu(server: &ServerState, index: u32, device: &DeviceSnapshot, rows: &[Row]) -> Gpu {
    let mut faults = server.snapshot.faults.iter().rev();
    let last_fault = faults.find(|fault| fault.device == index);
    Gpu {
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
        last_fault: last_fault.map(fault_line),
        past: Past::default(),
    }
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

/// One server, now and before.
struct Look<'a> {
    server: &'a ServerState,
    before: Option<&'a ServerState>,
    seconds: f64,
    users: &'a Users,
}

impl Look<'_> {
    fn row(
        &self,
        device: &DeviceSnapshot,
        client: &ClientSnapshot,
        share: &ClientDeviceSnapshot,
    ) -> Row {
        let before = self.before.and_then(|before| {
            shares(before, share.device).find(|(old, _)| old.client_id == client.client_id)
        });
        let old = before.map(|(_, old)| old);
        let rate = |read: fn(&ClientDeviceSnapshot) -> u64| {
            old.map_or(0.0, |old| read(share).saturating_sub(read(old)) as f64 / self.seconds)
        };
        let allowed =
            multiprocessors_of_share(device.multiprocessors, client.active_thread_percentage);
        let faults = &self.server.snapshot.faults;
        let fault = faults.iter().find(|fault| Some(fault.number) == client.fault);
        Row {
            pid: client.pid,
            uid: client.uid,
            user: self.users.name(client.uid),
            group: client.group.clone(),
            reservation: client.reservation.clone(),
            server_pid: self.server.pid,
            client_id: client.client_id,
            gpu: share.device,
            domain: client.domain.clone().unwrap_or_default(),
            granted_bytes: share.granted_bytes,
            limit_bytes: share.memory_limit_bytes,
            spilled_bytes: share.spilled_bytes,
            multiprocessors: if share.multiprocessors > 0 {
                share.multiprocessors
            } else {
                allowed
            },
            sm_percent: client.active_thread_percentage,
            weight: client.weight,
            latency_class: client.latency_class,
            kernels: share.kernels,
            kernels_per_s: rate(|share| share.kernels),
            busy_percent: rate(|share| share.gpu_time_ns) / 1e9 * 100.0,
            copied_bytes: share.copied_bytes,
            copied_per_s: rate(|share| share.copied_bytes),
            queued_bytes: share.queued_bytes,
            launch_us: launch_times(share, old),
            error: share.error,
            waits_for: share.waits_for,
            running: share.running.clone(),
            launches: share.launches.clone(),
            fault: fault.map(fault_line),
            command: link::printable(&client.command),
            gpu_bytes: device.total_memory_bytes,
            gpu_multiprocessors: device.multiprocessors,
            past: Past::default(),
        }
    }
}

/// Median and 99th percentile of the launches since the last look, as upper bounds of their
/// classes.
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
    /// Sorts the clients, and keeps those whose command, user or group has `filter` in it, or whose
    /// process or user id it is.
    pub(super) fn arrange(&mut self, key: SortKey, direction: Direction, filter: &str) {
        let filter = filter.to_lowercase();
        let matches = |row: &Row| {
            let named = [Some(row.user.as_str()), row.group.as_deref()];
            row.command.to_lowercase().contains(&filter)
                || named.into_iter().flatten().any(|name| name.to_lowercase().contains(&filter))
                || [row.pid, row.uid].iter().any(|number| number.to_string() == filter)
        };
        if !filter.is_empty() {
            self.rows.retain(matches);
        }
        let busy = |row: &Row| row.past.mean().unwrap_or(row.busy_percent);
        let latency = |row: &Row| row.launch_us.map_or(0, |(_, p99)| p99);
        self.rows.sort_by(|a, b| {
            let order = match key {
                SortKey::Busy => busy(b).total_cmp(&busy(a)),
                SortKey::Kernels => b.kernels_per_s.total_cmp(&a.kernels_per_s),
                SortKey::Memory => b.granted_bytes.cmp(&a.granted_bytes),
                SortKey::Latency => latency(b).cmp(&latency(a)),
                // Those without one are last.
                SortKey::Group => (a.group.is_none(), &a.group).cmp(&(b.group.is_none(), &b.group)),
                SortKey::Pid => std::cmp::Ordering::Equal,
            };
            let order = order.then(a.pid.cmp(&b.pid)).then(a.gpu.cmp(&b.gpu));
            match direction {
                Direction::Usual => order,
                Direction::Reversed => order.reverse(),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::daemon::ServerSnapshot;

    fn state(kernels: u64, gpu_time_ns: u64, launch_counts: Vec<u64>) -> DaemonState {
        let share =
            ClientDeviceSnapshot { kernels, gpu_time_ns, launch_counts, ..Default::default() };
        let client = |pid: u32, share: ClientDeviceSnapshot| ClientSnapshot {
            client_id: pid.into(),
            pid,
            command: format!("program{pid}"),
            group: (pid == 7).then(|| "Jobs".to_owned()),
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
            log_directory: None,
            servers: vec![server],
            groups: Vec::new(),
            reservations: Vec::new(),
            drained: Vec::new(),
            sockets: Vec::new(),
            holders: Vec::new(),
        }
    }

    fn first_look(state: &DaemonState) -> Scene {
        scene(None, state, Duration::ZERO, &Users::default())
    }

    fn pids(scene: &Scene) -> Vec<u32> {
        scene.rows.iter().map(|row| row.pid).collect()
    }

    #[test]
    fn rates_are_differences_over_time() {
        let before = state(100, 0, vec![10, 0, 0]);
        let now = state(300, 500_000_000, vec![10, 98, 0, 2]);
        let mut scene = scene(Some(&before), &now, Duration::from_secs(2), &Users::default());
        scene.arrange(SortKey::Kernels, Direction::Usual, "");
        let row = &scene.rows[0];
        assert_eq!((row.pid, row.kernels_per_s, row.busy_percent), (7, 100.0, 25.0));
        assert_eq!(row.launch_us, Some((2, 8)));
        assert_eq!(row.multiprocessors, 24);
        assert_eq!(scene.rows[1].launch_us, None);
        assert_eq!(scene.gpus[0].kernels_per_s, 100.0);
    }

    #[test]
    fn the_first_look_has_no_rates() {
        assert_eq!(first_look(&state(300, 1, vec![1])).rows[1].kernels_per_s, 0.0);
    }

    #[test]
    fn filters_look_at_command_process_user_and_group() {
        for (filter, left) in
            [("Program7", 1), ("7", 1), ("program", 2), ("nothing", 0), ("jobs", 1), ("0", 2)]
        {
            let mut scene = first_look(&state(1, 1, vec![]));
            scene.arrange(SortKey::Pid, Direction::Usual, filter);
            assert_eq!(scene.rows.len(), left, "{filter}");
        }
    }

    #[test]
    fn equal_clients_stand_in_the_order_of_their_processes() {
        let mut scene = first_look(&state(0, 0, vec![]));
        for key in [SortKey::Busy, SortKey::Kernels, SortKey::Memory, SortKey::Latency] {
            scene.arrange(key, Direction::Usual, "");
            assert_eq!(pids(&scene), [5, 7], "{key:?}");
            scene.arrange(key, Direction::Reversed, "");
            assert_eq!(pids(&scene), [7, 5], "{key:?}");
        }
        scene.arrange(SortKey::Group, Direction::Usual, "");
        assert_eq!(pids(&scene), [7, 5], "those with a group come first");
    }
}
