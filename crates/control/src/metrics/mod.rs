//! What the daemon knows, as Prometheus metrics.
//!
//! Series are per device ([`devices`]), per user, group and domain ([`groups`]), and per client
//! while it is attached ([`clients`]). The labels `gpu` and `UUID` are those of NVIDIA's DCGM
//! exporter ([`gpus`]), so that both can be joined. Process ids and command lines of clients are in
//! one metric alone. [`serve`] answers scrapes; [`render`] makes the text of one. `docs/tools.md`
//! has a table of all metrics, which a test holds complete.

mod accept;
mod clients;
mod devices;
mod exposition;
mod gpus;
mod groups;
mod site;
mod whose;

pub use site::serve;

use std::collections::BTreeMap;

use exposition::{Exposition, Format, Kind, Labels};
use gpus::Gpus;
use groups::Totals;
use link::wire::daemon::{ClientDeviceSnapshot, LAUNCH_BOUNDS_US, ServerStatus, WaitReason};
use link::wire::fault::Blame;
use link::wire::ui::{DaemonState, ServerState};

/// Of the histograms of launches.
const LAUNCH_HELP: &str = "How long the driver took to accept a launch, one launch in eight";

/// Of the age of a running kernel.
const OLDEST_HELP: &str =
    "Time since the oldest kernel was submitted that is not known to have ended; 0 without one";
/// Of clients that wait.
const WAITING_HELP: &str = "Clients whose work does not go on, by what they wait for";
const WAIT_REASONS: [(WaitReason, &str); 5] = [
    (WaitReason::Memory, "memory"),
    (WaitReason::Recovery, "recovery"),
    (WaitReason::Turn, "turn"),
    (WaitReason::Load, "load"),
    (WaitReason::Move, "move"),
];

/// What clients are at, at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Doing {
    oldest_kernel_us: u64,
    /// By reason.
    waiting: [u32; WAIT_REASONS.len()],
}

impl Doing {
    fn add(&mut self, share: &ClientDeviceSnapshot) {
        let age = share.running.as_ref().map_or(0, |kernel| kernel.age_us);
        self.oldest_kernel_us = self.oldest_kernel_us.max(age);
        for ((reason, _), waiting) in WAIT_REASONS.iter().zip(&mut self.waiting) {
            *waiting += u32::from(share.waits_for == Some(*reason));
        }
    }

    fn oldest_kernel_s(&self) -> f64 {
        self.oldest_kernel_us as f64 / 1e6
    }
}

/// A sample for each reason.
fn write_waiting(
    page: &mut Exposition,
    name: &'static str,
    all: impl Iterator<Item = (Labels, Doing)>,
) {
    let mut family = page.family(name, Kind::Gauge, WAITING_HELP);
    for (labels, doing) in all {
        for ((_, reason), waiting) in WAIT_REASONS.iter().zip(doing.waiting) {
            let mut labels = labels.clone();
            labels.push(("reason", (*reason).to_owned()));
            family.sample(&labels, waiting.into());
        }
    }
}

/// What a metric is of, and how it is read.
enum Reading<T> {
    Gauge(fn(&T) -> Option<f64>),
    Counter(fn(&T) -> f64),
}

struct Metric<T> {
    name: &'static str,
    help: &'static str,
    reading: Reading<T>,
}

/// The text of a scrape.
fn render(state: &DaemonState, totals: &Totals, format: Format) -> String {
    let gpus = Gpus::of_this_machine();
    let mut page = Exposition::new(format);
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    page.family("openmps_build", Kind::Info, "The daemon's version").sample(&version, 1.0);
    let servers = state.servers.len() as f64;
    page.family("openmps_servers", Kind::Gauge, "Servers that run").sample(&Vec::new(), servers);
    write_servers(&mut page, &state.servers);
    let devices = devices::views(state, &gpus);
    devices::write(&mut page, &devices);
    groups::write(&mut page, totals, &devices);
    groups::write_holders(&mut page, state);
    clients::write(&mut page, state, &devices);
    write_faults(&mut page, &devices);
    page.finish()
}

fn write_servers(page: &mut Exposition, servers: &[ServerState]) {
    let labels = |server: &ServerState| {
        vec![("server", server.pid.to_string()), ("user", server.uid.to_string())]
    };
    let help = "1 for the status that the server is in";
    let mut family = page.family("openmps_server_status", Kind::Gauge, help);
    for server in servers {
        let status = match server.status {
            ServerStatus::Initializing => "INITIALIZING",
            ServerStatus::Active => "ACTIVE",
            ServerStatus::Fault => "FAULT",
        };
        let mut labels = labels(server);
        labels.push(("status", status.to_owned()));
        family.sample(&labels, 1.0);
    }
    let help = "0 where the server did not answer in time, and its series are what it said before";
    let mut family = page.family("openmps_server_answers", Kind::Gauge, help);
    for server in servers {
        family.sample(&labels(server), u8::from(!server.silent).into());
    }
    let help = "Client processes that have attached since the server started";
    let mut family = page.family("openmps_server_attached_clients", Kind::Counter, help);
    for server in servers {
        family.sample(&labels(server), server.snapshot.clients_ever as f64);
    }
}

/// When a client of a user last made a fault, or was suspected. Who exactly is in the log and in
/// `openmps ps`.
fn write_faults<'a>(
    page: &mut Exposition,
    devices: &(impl Iterator<Item = devices::DeviceView<'a>> + Clone),
) {
    let help =
        "When a client of the user last made a fault or was suspected, in seconds since 1970";
    let mut family = page.family("openmps_user_last_fault_timestamp_seconds", Kind::Gauge, help);
    for view in devices.clone() {
        let mut latest: BTreeMap<(u32, &str), u64> = BTreeMap::new();
        let faults = view.server.snapshot.faults.iter();
        for fault in faults.filter(|fault| fault.device == view.index) {
            let role = match fault.blame {
                Blame::Culprit => "culprit",
                Blame::Suspects => "suspect",
                Blame::Nobody => continue,
            };
            for accused in &fault.accused {
                let at = latest.entry((accused.uid, role)).or_default();
                *at = fault.unix_time_ms.max(*at);
            }
        }
        for ((uid, role), unix_time_ms) in latest {
            let mut labels = view.place();
            labels.extend([("user", uid.to_string()), ("role", role.to_owned())]);
            family.sample(&labels, unix_time_ms as f64 / 1e3);
        }
    }
}

fn write_all<T>(
    page: &mut Exposition,
    metrics: &[Metric<T>],
    views: &(impl Iterator<Item = T> + Clone),
    labels: impl Fn(&T) -> Labels,
) {
    for Metric { name, help, reading } in metrics {
        let kind = match reading {
            Reading::Gauge(_) => Kind::Gauge,
            Reading::Counter(_) => Kind::Counter,
        };
        let mut family = page.family(name, kind, help);
        for view in views.clone() {
            let value = match reading {
                Reading::Counter(read) => Some(read(&view)),
                Reading::Gauge(read) => read(&view),
            };
            if let Some(value) = value {
                family.sample(&labels(&view), value);
            }
        }
    }
}

/// Upper bounds of the classes of launch times, in seconds.
fn launch_bounds() -> [f64; LAUNCH_BOUNDS_US.len()] {
    LAUNCH_BOUNDS_US.map(|us| us as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::daemon::{
        ClientSnapshot, DeviceSnapshot, GroupSnapshot, ReservationSnapshot, ServerSnapshot,
    };
    use link::wire::fault::{Accused, CallRecord, FaultReport};
    use link::wire::group_socket::GroupHolder;

    fn state() -> DaemonState {
        let share = ClientDeviceSnapshot {
            memory_limit_bytes: Some(1 << 30),
            granted_bytes: 4096,
            spilled_bytes: 1024,
            kernels: 7,
            copied_bytes: 11,
            queued_bytes: 3,
            gpu_time_ns: 2_500_000_000,
            launch_counts: vec![3, 0, 1],
            launch_time_ns: 9000,
            waits_for: Some(WaitReason::Memory),
            running: Some(CallRecord { age_us: 1_500_000, ..Default::default() }),
            ..Default::default()
        };
        let client = ClientSnapshot {
            client_id: 3,
            pid: 42,
            uid: 1000,
            group: Some("g".into()),
            domain: Some("process 42".into()),
            command: "say \"hi\"\n".into(),
            active_thread_percentage: 25.0,
            devices: vec![share],
            ..Default::default()
        };
        let device = DeviceSnapshot {
            uuid: "GPU-aa".into(),
            multiprocessors: 132,
            faults: 2,
            restarts: 1,
            refused_contexts: 3,
            total_memory_bytes: 8192,
            granted_bytes: 4096,
            spilled_bytes: 2048,
            kernels_ever: 9,
            chained_kernels_ever: 8,
            chained_copies_ever: 4,
            chained_signals_ever: 2,
            copied_bytes_ever: 77,
            gpu_time_ns_ever: 3_000_000_000,
            queued_bytes: 16,
            launch_counts: vec![5, 0, 1],
            launch_time_ns: 10_000,
            executor_pid: 77,
            groups: vec![GroupSnapshot {
                name: "g".into(),
                memory_limit_bytes: Some(4096),
                percentage: Some(50.0),
                ..Default::default()
            }],
            reservations: vec![ReservationSnapshot {
                name: "r".into(),
                multiprocessors: 8,
                clients: 1,
            }],
            ..Default::default()
        };
        let fault = FaultReport {
            number: 2,
            unix_time_ms: 1500,
            code: 700,
            what: "bad".into(),
            blame: Blame::Culprit,
            accused: vec![Accused { pid: 42, uid: 1000, ..Default::default() }],
            ..Default::default()
        };
        let snapshot = ServerSnapshot {
            devices: vec![device],
            clients: vec![client],
            faults: vec![fault],
            clients_ever: 6,
            ..Default::default()
        };
        let server =
            ServerState { pid: 9, uid: 0, status: ServerStatus::Active, snapshot, silent: false };
        let [group, namespace, pod, container] = ["g", "n", "p", "c"].map(str::to_owned);
        let holder = GroupHolder { group, namespace, pod, container };
        DaemonState {
            daemon_pid: 1,
            log_directory: None,
            servers: vec![server],
            groups: Vec::new(),
            reservations: Vec::new(),
            drained: Vec::new(),
            sockets: Vec::new(),
            holders: vec![holder],
        }
    }

    fn rendered(format: Format) -> String {
        let (state, mut totals) = (state(), Totals::default());
        totals.look(&state);
        render(&state, &totals, format)
    }

    #[test]
    fn all_series_have_their_labels_and_values() {
        let text = rendered(Format::Text);
        let place = "gpu=\"0\",UUID=\"GPU-aa\",server=\"9\"";
        let device = format!("{place},user=\"0\"");
        let whose = "user=\"1000\",group=\"g\",domain=\"process\"";
        let group = format!("{place},{whose}");
        let client = format!("{place},client=\"3\",{whose}");
        let version = env!("CARGO_PKG_VERSION");
        for line in [
            format!("openmps_build_info{{version=\"{version}\"}} 1"),
            "openmps_servers 1".to_owned(),
            "openmps_server_status{server=\"9\",user=\"0\",status=\"ACTIVE\"} 1".to_owned(),
            "openmps_server_answers{server=\"9\",user=\"0\"} 1".to_owned(),
            "openmps_server_attached_clients_total{server=\"9\",user=\"0\"} 6".to_owned(),
            format!("openmps_device_clients{{{device}}} 1"),
            format!("openmps_device_oldest_kernel_seconds{{{device}}} 1.5"),
            format!("openmps_device_waiting_clients{{{device},reason=\"memory\"}} 1"),
            format!("openmps_device_waiting_clients{{{device},reason=\"recovery\"}} 0"),
            format!("openmps_device_waiting_clients{{{device},reason=\"turn\"}} 0"),
            format!("openmps_group_oldest_kernel_seconds{{{group}}} 1.5"),
            format!("openmps_group_waiting_clients{{{group},reason=\"memory\"}} 1"),
            format!("openmps_group_waiting_clients{{{group},reason=\"turn\"}} 0"),
            format!("openmps_device_memory_bytes{{{device}}} 8192"),
            format!("openmps_device_memory_granted_bytes{{{device}}} 4096"),
            format!("openmps_device_memory_spilled_bytes{{{device}}} 2048"),
            format!("openmps_device_multiprocessors{{{device}}} 132"),
            format!("openmps_device_kernels_total{{{device}}} 9"),
            format!("openmps_device_chained_kernels_total{{{device}}} 8"),
            format!("openmps_device_chained_copies_total{{{device}}} 4"),
            format!("openmps_device_chained_signals_total{{{device}}} 2"),
            format!("openmps_device_gpu_seconds_total{{{device}}} 3"),
            format!("openmps_device_copied_bytes_total{{{device}}} 77"),
            format!("openmps_device_queued_bytes{{{device}}} 16"),
            format!("openmps_device_launch_seconds_bucket{{{device},le=\"0.000001\"}} 5"),
            format!("openmps_device_launch_seconds_bucket{{{device},le=\"0.016384\"}} 6"),
            format!("openmps_device_launch_seconds_bucket{{{device},le=\"+Inf\"}} 6"),
            format!("openmps_device_launch_seconds_count{{{device}}} 6"),
            format!("openmps_device_launch_seconds_sum{{{device}}} 0.00001"),
            format!("openmps_device_faults_total{{{device}}} 2"),
            format!("openmps_device_executor_restarts_total{{{device}}} 1"),
            format!("openmps_device_executor_deaths_total{{{device}}} 0"),
            format!("openmps_device_executors{{{device}}} 1"),
            format!("openmps_device_recovering{{{device}}} 0"),
            format!("openmps_device_standby_ready{{{device}}} 0"),
            format!("openmps_device_refused_contexts_total{{{device}}} 3"),
            format!("openmps_device_last_fault_timestamp_seconds{{{device}}} 1.5"),
            format!("openmps_reservation_multiprocessors{{{place},reservation=\"r\"}} 8"),
            format!("openmps_reservation_clients{{{place},reservation=\"r\"}} 1"),
            "openmps_group_holder_info{group=\"g\",namespace=\"n\",pod=\"p\",container=\"c\"} 1"
                .to_owned(),
            format!("openmps_group_clients{{{group}}} 1"),
            format!("openmps_group_failed_clients{{{group}}} 0"),
            format!("openmps_group_memory_granted_bytes{{{group}}} 4096"),
            format!("openmps_group_memory_spilled_bytes{{{group}}} 1024"),
            format!("openmps_group_queued_bytes{{{group}}} 3"),
            format!("openmps_group_kernels_total{{{group}}} 7"),
            format!("openmps_group_copied_bytes_total{{{group}}} 11"),
            format!("openmps_group_gpu_seconds_total{{{group}}} 2.5"),
            format!("openmps_group_launch_seconds_bucket{{{group},le=\"+Inf\"}} 4"),
            format!("openmps_group_memory_limit_bytes{{{place},group=\"g\"}} 4096"),
            format!("openmps_group_active_thread_percentage{{{place},group=\"g\"}} 50"),
            format!("openmps_client_memory_granted_bytes{{{client}}} 4096"),
            format!("openmps_client_memory_spilled_bytes{{{client}}} 1024"),
            format!("openmps_client_memory_limit_bytes{{{client}}} 1073741824"),
            format!("openmps_client_active_thread_percentage{{{client}}} 25"),
            format!("openmps_client_multiprocessors{{{client}}} 32"),
            format!("openmps_client_priority{{{client}}} 0"),
            format!("openmps_client_kernels_total{{{client}}} 7"),
            format!("openmps_client_gpu_seconds_total{{{client}}} 2.5"),
            format!("openmps_client_copied_bytes_total{{{client}}} 11"),
            format!("openmps_client_queued_bytes{{{client}}} 3"),
            format!("openmps_client_failed{{{client}}} 0"),
            format!(
                "openmps_client_info{{server=\"9\",client=\"3\",{whose},pid=\"42\",command=\"say \\\"hi\\\"\"}} 1"
            ),
            format!(
                "openmps_user_last_fault_timestamp_seconds{{{place},user=\"1000\",role=\"culprit\"}} 1.5"
            ),
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn processes_are_named_by_one_metric_alone() {
        for line in rendered(Format::Text).lines().filter(|line| !line.starts_with('#')) {
            let names_a_process = line.contains("pid=") || line.contains("command=");
            assert_eq!(names_a_process, line.starts_with("openmps_client_info{"), "{line}");
        }
    }

    #[test]
    fn formats_differ_in_names_of_families_and_in_the_end() {
        let (text, open) = (rendered(Format::Text), rendered(Format::OpenMetrics));
        assert!(open.ends_with("# EOF\n") && !text.contains("# EOF"));
        let samples = |page: &str| {
            page.lines()
                .filter(|line| !line.starts_with('#'))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(samples(&text), samples(&open));
        assert!(text.contains("# TYPE openmps_device_kernels_total counter\n"));
        assert!(open.contains("# TYPE openmps_device_kernels counter\n"));
    }

    #[test]
    fn the_documents_list_each_metric_and_no_other() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tools.md");
        let document = std::fs::read_to_string(path).unwrap();
        let listed: Vec<[&str; 2]> = document
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `openmps_")?.split('|').map(str::trim);
                Some([cells.next()?.trim_end_matches('`'), cells.next()?])
            })
            .collect();
        let text = rendered(Format::Text);
        let made: Vec<[&str; 2]> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.strip_prefix("# TYPE openmps_")?.split(' ');
                Some([words.next()?, words.next()?])
            })
            .collect();
        for one in &made {
            assert!(listed.contains(one), "{one:?} is missing in the table of {path}");
        }
        for one in &listed {
            assert!(made.contains(one), "{one:?} of the table of {path} is no metric");
        }
    }
}
