//! Metrics of all clients of a user, a group and a domain together, on each device.
//!
//! A client's series end with it. These go on, as operators need of a counter: what a client has
//! done stays counted when it has left. The servers tell of each client, and for a while of those
//! that left; [`Totals`] adds up what is new at each scrape.

use std::collections::BTreeMap;

use link::wire::daemon::{ClientDeviceSnapshot, ClientSnapshot, LAUNCH_BOUNDS_US};
use link::wire::ui::DaemonState;

use super::devices::DeviceView;
use super::exposition::{Exposition, Kind};
use super::whose::{Whose, name_label};
use super::{
    Doing, LAUNCH_HELP, Metric, OLDEST_HELP, Reading, launch_bounds, write_all, write_waiting,
};

/// Rows without a client that are kept, of all servers: of jobs that have ended, and of groups that
/// some client made up.
const MOST_IDLE_ROWS: usize = 512;

/// What only grows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Counts {
    kernels: u64,
    copied_bytes: u64,
    gpu_time_ns: u64,
    launch_time_ns: u64,
    launches: [u64; LAUNCH_BOUNDS_US.len() + 1],
}

impl Counts {
    fn of(share: &ClientDeviceSnapshot) -> Self {
        let launch = |class: usize| share.launch_counts.get(class).copied().unwrap_or(0);
        Self {
            kernels: share.kernels,
            copied_bytes: share.copied_bytes,
            gpu_time_ns: share.gpu_time_ns,
            launch_time_ns: share.launch_time_ns,
            launches: std::array::from_fn(launch),
        }
    }

    /// Adds what is new since an earlier look. What a server takes back counts for nothing.
    fn grow(&mut self, now: &Self, before: &Self) {
        let grow = |sum: &mut u64, now: u64, before: u64| {
            *sum = sum.saturating_add(now.saturating_sub(before));
        };
        grow(&mut self.kernels, now.kernels, before.kernels);
        grow(&mut self.copied_bytes, now.copied_bytes, before.copied_bytes);
        grow(&mut self.gpu_time_ns, now.gpu_time_ns, before.gpu_time_ns);
        grow(&mut self.launch_time_ns, now.launch_time_ns, before.launch_time_ns);
        for (class, sum) in self.launches.iter_mut().enumerate() {
            grow(sum, now.launches[class], before.launches[class]);
        }
    }
}

/// Which row: a server, its number of a device, and whose clients.
type Key = (u32, u32, Whose);

#[derive(Debug, Default)]
struct Row {
    counts: Counts,
    clients: u32,
    failed_clients: u32,
    granted_bytes: u64,
    spilled_bytes: u64,
    queued_bytes: u64,
    doing: Doing,
    /// The look at which it last had a client.
    latest: u64,
}

/// What all clients did that were seen in any scrape.
#[derive(Debug, Default)]
pub(super) struct Totals {
    rows: BTreeMap<Key, Row>,
    /// By server, client and device, as long as the server lists the client.
    seen: BTreeMap<(u32, u64, u32), Counts>,
    looks: u64,
}

impl Totals {
    /// Takes in what the servers say now.
    pub(super) fn look(&mut self, state: &DaemonState) {
        self.looks += 1;
        self.rows.retain(|(server, ..), _| state.servers.iter().any(|now| now.pid == *server));
        for row in self.rows.values_mut() {
            *row = Row {
                counts: std::mem::take(&mut row.counts),
                latest: row.latest,
                ..Default::default()
            };
        }
        let mut seen = BTreeMap::new();
        for server in &state.servers {
            for client in &server.snapshot.departed {
                for share in &client.devices {
                    self.count(server.pid, client, share, &mut seen);
                }
            }
            for client in &server.snapshot.clients {
                for share in &client.devices {
                    let row = self.count(server.pid, client, share, &mut seen);
                    row.clients += 1;
                    row.doing.add(share);
                    row.failed_clients += u32::from(share.error != 0);
                    row.granted_bytes = row.granted_bytes.saturating_add(share.granted_bytes);
                    row.spilled_bytes = row.spilled_bytes.saturating_add(share.spilled_bytes);
                    row.queued_bytes = row.queued_bytes.saturating_add(share.queued_bytes);
                }
            }
        }
        self.seen = seen;
        self.forget_the_oldest();
    }

    fn count(
        &mut self,
        server: u32,
        client: &ClientSnapshot,
        share: &ClientDeviceSnapshot,
        seen: &mut BTreeMap<(u32, u64, u32), Counts>,
    ) -> &mut Row {
        let id = (server, client.client_id, share.device);
        let (now, before) = (Counts::of(share), self.seen.remove(&id).unwrap_or_default());
        let row = self.rows.entry((server, share.device, Whose::of(client))).or_default();
        row.counts.grow(&now, &before);
        row.latest = self.looks;
        seen.insert(id, now);
        row
    }

    fn forget_the_oldest(&mut self) {
        let idle = |row: &Row| row.latest < self.looks;
        let mut looks: Vec<u64> =
            self.rows.values().filter(|row| idle(row)).map(|row| row.latest).collect();
        looks.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(last) = looks.get(MOST_IDLE_ROWS).copied() {
            self.rows.retain(|_, row| row.latest > last);
        }
    }
}

/// A row on its device.
struct RowView<'a> {
    whose: &'a Whose,
    row: &'a Row,
    device: DeviceView<'a>,
}

fn metrics<'a>() -> [Metric<RowView<'a>>; 9] {
    [
        Metric {
            name: "openmps_group_clients",
            help: "Client processes with a context on the device",
            reading: Reading::Gauge(|view| Some(view.row.clients.into())),
        },
        Metric {
            name: "openmps_group_failed_clients",
            help: "Clients of these whose session has failed",
            reading: Reading::Gauge(|view| Some(view.row.failed_clients.into())),
        },
        Metric {
            name: "openmps_group_memory_granted_bytes",
            help: "Device memory granted to the clients",
            reading: Reading::Gauge(|view| Some(view.row.granted_bytes as f64)),
        },
        Metric {
            name: "openmps_group_memory_spilled_bytes",
            help: "Memory granted to the clients that is in host memory, because others need the device's",
            reading: Reading::Gauge(|view| Some(view.row.spilled_bytes as f64)),
        },
        Metric {
            name: "openmps_group_oldest_kernel_seconds",
            help: OLDEST_HELP,
            reading: Reading::Gauge(|view| Some(view.row.doing.oldest_kernel_s())),
        },
        Metric {
            name: "openmps_group_queued_bytes",
            help: "Bytes of the clients' commands that the executor had not taken when it last looked",
            reading: Reading::Gauge(|view| Some(view.row.queued_bytes as f64)),
        },
        Metric {
            name: "openmps_group_kernels",
            help: "Kernels submitted for the clients, those that left included",
            reading: Reading::Counter(|view| view.row.counts.kernels as f64),
        },
        Metric {
            name: "openmps_group_copied_bytes",
            help: "Bytes copied for the clients, those that left included",
            reading: Reading::Counter(|view| view.row.counts.copied_bytes as f64),
        },
        Metric {
            name: "openmps_group_gpu_seconds",
            help: "Time that kernels of the clients took on the device, those that left included",
            reading: Reading::Counter(|view| view.row.counts.gpu_time_ns as f64 / 1e9),
        },
    ]
}

/// Writes them.
pub(super) fn write<'a>(
    page: &mut Exposition,
    totals: &'a Totals,
    devices: &(impl Iterator<Item = DeviceView<'a>> + Clone),
) {
    let views = devices.clone().flat_map(move |device| {
        let here = move |key: &&Key| (key.0, key.1) == (device.server.pid, device.index);
        let rows = totals.rows.iter().filter(move |(key, _)| here(key));
        rows.map(move |(key, row)| RowView { whose: &key.2, row, device })
    });
    let labels = |view: &RowView<'_>| {
        let mut labels = view.device.place();
        labels.extend(view.whose.labels());
        labels
    };
    write_all(page, &metrics(), &views, labels);
    let mut launches = page.family("openmps_group_launch_seconds", Kind::Histogram, LAUNCH_HELP);
    for view in views.clone() {
        let counts = &view.row.counts;
        let sum = counts.launch_time_ns as f64 / 1e9;
        launches.histogram(&labels(&view), &launch_bounds(), &counts.launches, sum);
    }
    let doing = views.map(|view| (labels(&view), view.row.doing));
    write_waiting(page, "openmps_group_waiting_clients", doing);
    write_limits(page, devices);
}

/// Which containers have groups, as Kubernetes names them.
pub(super) fn write_holders(page: &mut Exposition, state: &DaemonState) {
    let help = "Which container has a group; join with on (instance, group)";
    let mut family = page.family("openmps_group_holder", Kind::Info, help);
    for holder in &state.holders {
        let labels = vec![
            ("group", name_label(&holder.group)),
            ("namespace", holder.namespace.clone()),
            ("pod", holder.pod.clone()),
            ("container", holder.container.clone()),
        ];
        family.sample(&labels, 1.0);
    }
}

/// Limits that a group's clients have together; absent without one.
fn write_limits<'a>(
    page: &mut Exposition,
    devices: &(impl Iterator<Item = DeviceView<'a>> + Clone),
) {
    let groups = || {
        devices.clone().flat_map(|view| {
            view.device.groups.iter().map(move |group| {
                let mut labels = view.place();
                labels.push(("group", name_label(&group.name)));
                (labels, group)
            })
        })
    };
    let help = "How much device memory the clients of the group may be granted together; absent without a limit";
    let mut family = page.family("openmps_group_memory_limit_bytes", Kind::Gauge, help);
    for (labels, group) in groups() {
        if let Some(limit) = group.memory_limit_bytes {
            family.sample(&labels, limit as f64);
        }
    }
    let help = "Share of the multiprocessors that the limits of the group allow it, 0 to 100; absent without a limit";
    let mut family = page.family("openmps_group_active_thread_percentage", Kind::Gauge, help);
    for (labels, group) in groups() {
        if let Some(percentage) = group.percentage {
            family.sample(&labels, percentage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::daemon::{ServerSnapshot, ServerStatus};
    use link::wire::ui::ServerState;

    fn client(client_id: u64, group: &str, kernels: u64) -> ClientSnapshot {
        let share = ClientDeviceSnapshot {
            kernels,
            granted_bytes: 10,
            launch_counts: vec![kernels],
            ..Default::default()
        };
        let group = Some(group.to_owned());
        ClientSnapshot { client_id, group, devices: vec![share], ..Default::default() }
    }

    fn state(clients: Vec<ClientSnapshot>, departed: Vec<ClientSnapshot>) -> DaemonState {
        let snapshot = ServerSnapshot { clients, departed, ..Default::default() };
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

    fn row<'a>(totals: &'a Totals, group: &str) -> Option<&'a Row> {
        let whose = Whose::of(&client(0, group, 0));
        totals.rows.get(&(9, 0, whose))
    }

    #[test]
    fn what_clients_did_stays_counted_once() {
        let mut totals = Totals::default();
        let kernels = |totals: &Totals, group| row(totals, group).unwrap().counts.kernels;
        totals.look(&state(vec![client(1, "a", 5), client(2, "b", 1)], vec![]));
        totals.look(&state(vec![client(1, "a", 5), client(2, "b", 1)], vec![]));
        assert_eq!((kernels(&totals, "a"), kernels(&totals, "b")), (5, 1));
        // One leaves with two more, another one came and went between two looks.
        let departed = vec![client(1, "a", 7), client(3, "a", 10)];
        totals.look(&state(vec![client(4, "a", 100)], departed.clone()));
        assert_eq!(kernels(&totals, "a"), 117);
        assert_eq!(row(&totals, "a").unwrap().counts.launches[0], 117);
        assert_eq!(
            (row(&totals, "a").unwrap().clients, row(&totals, "b").unwrap().clients),
            (1, 0)
        );
        assert_eq!(row(&totals, "a").unwrap().granted_bytes, 10);
        // The server lists it no longer, or says less than before.
        totals.look(&state(vec![client(4, "a", 3)], departed[1..].to_vec()));
        assert_eq!(kernels(&totals, "a"), 117);
        assert_eq!(totals.seen.len(), 2);
        // Its server has gone.
        let mut none = state(vec![], vec![]);
        none.servers.clear();
        totals.look(&none);
        assert!(totals.rows.is_empty() && totals.seen.is_empty());
    }

    #[test]
    fn groups_that_clients_make_up_do_not_pile_up() {
        let mut totals = Totals::default();
        for number in 0..2 * MOST_IDLE_ROWS as u64 {
            let made_up = client(number, &format!("g{number}"), 1);
            totals.look(&state(vec![client(1 << 40, "stays", number), made_up], vec![]));
        }
        assert!(totals.rows.len() <= MOST_IDLE_ROWS + 2, "{}", totals.rows.len());
        assert!(row(&totals, "g0").is_none());
        assert_eq!(row(&totals, "stays").unwrap().counts.kernels, 2 * MOST_IDLE_ROWS as u64 - 1);
    }
}
