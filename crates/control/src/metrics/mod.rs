//! What the daemon knows, as Prometheus metrics.
//!
//! Per GPU and per client; the labels `gpu` and `UUID` are those of NVIDIA's DCGM exporter ([`gpus`]), so that both can be joined. [`serve`]
//! answers scrapes; [`render`] makes the text of one.

mod address;
mod gpus;
mod http;

pub use address::{Address, AddressError};
pub use http::{Metrics, serve};

use std::fmt;

use gpus::Gpus;

use link::printable;
use link::wire::daemon::{
    ClientDeviceSnapshot, ClientSnapshot, DeviceSnapshot, LAUNCH_BOUNDS_US, ServerStatus,
    multiprocessors_of_share,
};
use link::wire::fault::Blame;
use link::wire::ui::{DaemonState, ServerState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// The text of a scrape, in the OpenMetrics format.
pub fn render(state: DaemonState) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(State { daemon: state, gpus: Gpus::of_this_machine() }));
    let mut text = String::new();
    // Writing to a String cannot fail, and all names are constants.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct State {
    daemon: DaemonState,
    gpus: Gpus,
}

type Labels = Vec<(&'static str, String)>;

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

/// A device of a server.
#[derive(Clone, Copy)]
struct DeviceView<'a> {
    /// The server's number of it.
    index: u32,
    /// The machine's number of it.
    gpu: u32,
    device: &'a DeviceSnapshot,
    server: &'a ServerState,
}

/// A client on one device.
struct ClientView<'a> {
    client: &'a ClientSnapshot,
    share: &'a ClientDeviceSnapshot,
    device: DeviceView<'a>,
}

fn device_metrics<'a>() -> [Metric<DeviceView<'a>>; 15] {
    [
        Metric {
            name: "openmps_device_clients",
            help: "Client processes with a context on the device",
            reading: Reading::Gauge(|view| Some(view.clients().count() as f64)),
        },
        Metric {
            name: "openmps_device_memory_bytes",
            help: "Memory of the device",
            reading: Reading::Gauge(|view| Some(view.device.total_memory_bytes as f64)),
        },
        Metric {
            name: "openmps_device_memory_granted_bytes",
            help: "Device memory granted to clients",
            reading: Reading::Gauge(|view| Some(view.device.granted_bytes as f64)),
        },
        Metric {
            name: "openmps_device_memory_spilled_bytes",
            help: "Memory granted to clients that is in host memory, because others need the device's",
            reading: Reading::Gauge(|view| Some(view.device.spilled_bytes as f64)),
        },
        Metric {
            name: "openmps_device_multiprocessors",
            help: "Streaming multiprocessors of the device",
            reading: Reading::Gauge(|view| Some(view.device.multiprocessors.into())),
        },
        Metric {
            name: "openmps_device_queued_bytes",
            help: "Bytes of commands of all clients that the executor had not taken when it last looked",
            reading: Reading::Gauge(|view| Some(view.device.queued_bytes as f64)),
        },
        Metric {
            name: "openmps_device_kernels",
            help: "Kernels run for clients since the server started",
            reading: Reading::Counter(|view| view.device.kernels_ever as f64),
        },
        Metric {
            name: "openmps_device_chained_kernels",
            help: "Kernels that were submitted together with others, as they waited for the executor",
            reading: Reading::Counter(|view| view.device.chained_kernels_ever as f64),
        },
        Metric {
            name: "openmps_device_chained_copies",
            help: "Small copies that were submitted together with kernels or a wait's signal",
            reading: Reading::Counter(|view| view.device.chained_copies_ever as f64),
        },
        Metric {
            name: "openmps_device_chained_signals",
            help: "Waits' signals that were submitted together with what is waited for",
            reading: Reading::Counter(|view| view.device.chained_signals_ever as f64),
        },
        Metric {
            name: "openmps_device_copied_bytes",
            help: "Bytes copied for clients since the server started, either direction and on the device",
            reading: Reading::Counter(|view| view.device.copied_bytes_ever as f64),
        },
        Metric {
            name: "openmps_device_gpu_seconds",
            help: "Time that kernels of clients took on the device, estimated from a sample of them",
            reading: Reading::Counter(|view| view.device.gpu_time_ns_ever as f64 / 1e9),
        },
        Metric {
            name: "openmps_device_faults",
            help: "Fatal faults of the context of the device since the server started",
            reading: Reading::Counter(|view| view.device.faults as f64),
        },
        Metric {
            name: "openmps_device_executor_restarts",
            help: "Executors started after the first since the server started",
            reading: Reading::Counter(|view| view.device.restarts as f64),
        },
        Metric {
            name: "openmps_device_refused_contexts",
            help: "Contexts refused since the server started, because the device had as many as are allowed",
            reading: Reading::Counter(|view| view.device.refused_contexts as f64),
        },
    ]
}

fn client_metrics<'a>() -> [Metric<ClientView<'a>>; 11] {
    [
        Metric {
            name: "openmps_client_memory_granted_bytes",
            help: "Device memory granted to the client",
            reading: Reading::Gauge(|view| Some(view.share.granted_bytes as f64)),
        },
        Metric {
            name: "openmps_client_memory_spilled_bytes",
            help: "Memory granted to the client that is in host memory, because others need the device's",
            reading: Reading::Gauge(|view| Some(view.share.spilled_bytes as f64)),
        },
        Metric {
            name: "openmps_client_memory_limit_bytes",
            help: "How much device memory the client may be granted; absent without a limit",
            reading: Reading::Gauge(|view| view.share.memory_limit_bytes.map(|bytes| bytes as f64)),
        },
        Metric {
            name: "openmps_client_active_thread_percentage",
            help: "Share of the multiprocessors that the settings of the client allow it, in per cent",
            reading: Reading::Gauge(|view| Some(view.client.active_thread_percentage)),
        },
        Metric {
            name: "openmps_client_multiprocessors",
            help: "Multiprocessors that this share is of the device",
            reading: Reading::Gauge(|view| {
                let all = view.device.device.multiprocessors;
                let percent = view.client.active_thread_percentage;
                Some(multiprocessors_of_share(all, percent).into())
            }),
        },
        Metric {
            name: "openmps_client_priority",
            help: "0 normal, 1 below normal",
            reading: Reading::Gauge(|view| Some(view.client.priority.into())),
        },
        Metric {
            name: "openmps_client_queued_bytes",
            help: "Bytes of commands that the executor had not taken when it last looked",
            reading: Reading::Gauge(|view| Some(view.share.queued_bytes as f64)),
        },
        Metric {
            name: "openmps_client_failed",
            help: "1 if the session of the client has failed and every call of it returns an error",
            reading: Reading::Gauge(|view| Some(f64::from(u8::from(view.share.error != 0)))),
        },
        Metric {
            name: "openmps_client_kernels",
            help: "Kernels submitted for the client",
            reading: Reading::Counter(|view| view.share.kernels as f64),
        },
        Metric {
            name: "openmps_client_copied_bytes",
            help: "Bytes copied for the client, either direction and on the device",
            reading: Reading::Counter(|view| view.share.copied_bytes as f64),
        },
        Metric {
            name: "openmps_client_gpu_seconds",
            help: "Time that kernels of the client took on the device, estimated from a sample of them",
            reading: Reading::Counter(|view| view.share.gpu_time_ns as f64 / 1e9),
        },
    ]
}

impl Collector for State {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let servers = &self.daemon.servers;
        encoder
            .encode_descriptor("openmps_servers", "Servers", None, MetricType::Gauge)?
            .encode_gauge(&(servers.len() as u64))?;
        let mut states = encoder.encode_descriptor(
            "openmps_server_status",
            "1 for the status that the server is in",
            None,
            MetricType::Gauge,
        )?;
        for server in servers {
            let status = match server.status {
                ServerStatus::Initializing => "INITIALIZING",
                ServerStatus::Active => "ACTIVE",
                ServerStatus::Fault => "FAULT",
            };
            let mut labels = server_labels(server);
            labels.push(("status", status.to_owned()));
            states.encode_family(&labels)?.encode_gauge(&1u64)?;
        }
        encode_faults(&mut encoder, servers, &self.gpus)?;
        let devices = || servers.iter().flat_map(|server| devices_of(server, &self.gpus));
        let clients = || devices().flat_map(DeviceView::into_clients);
        encode_all(&mut encoder, &device_metrics(), devices, DeviceView::labels)?;
        encode_all(&mut encoder, &client_metrics(), clients, ClientView::labels)?;
        let launches_of_device = |view: DeviceView<'_>| {
            (view.labels(), view.device.launch_counts.clone(), view.device.launch_time_ns)
        };
        let launches_of_client = |view: ClientView<'_>| {
            (view.labels(), view.share.launch_counts.clone(), view.share.launch_time_ns)
        };
        encode_launches(
            &mut encoder,
            "openmps_device_launch_seconds",
            devices().map(launches_of_device),
        )?;
        encode_launches(
            &mut encoder,
            "openmps_client_launch_seconds",
            clients().map(launches_of_client),
        )
    }
}

/// The latest faults, and who is the culprit or a suspect: as many series as a server remembers.
fn encode_faults(
    encoder: &mut DescriptorEncoder<'_>,
    servers: &[ServerState],
    gpus: &Gpus,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(
        "openmps_fault_unixtime_seconds",
        "When the latest faults were, with the clients that made them or are suspected",
        None,
        MetricType::Gauge,
    )?;
    for server in servers {
        for fault in &server.snapshot.faults {
            let device = devices_of(server, gpus).find(|view| view.index == fault.device);
            let role = match fault.blame {
                Blame::Culprit => "culprit",
                Blame::Suspects => "suspect",
                Blame::Nobody => continue,
            };
            for accused in &fault.accused {
                let launch = accused.in_flight.iter().find_map(|call| call.launch.as_ref());
                let mut labels = device.map_or_else(|| server_labels(server), |view| view.labels());
                labels.extend([
                    ("fault", fault.number.to_string()),
                    ("error", fault.what.clone()),
                    ("role", role.to_owned()),
                    ("pid", accused.pid.to_string()),
                    ("client_user", accused.uid.to_string()),
                    ("command", printable(&accused.command)),
                    ("kernel", launch.map(|launch| printable(&launch.kernel)).unwrap_or_default()),
                ]);
                let seconds = fault.unix_time_ms as f64 / 1e3;
                family.encode_family(&labels)?.encode_gauge(&seconds)?;
            }
        }
    }
    Ok(())
}

fn encode_all<T, V: Iterator<Item = T>>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[Metric<T>],
    views: impl Fn() -> V,
    labels: impl Fn(&T) -> Labels,
) -> fmt::Result {
    for Metric { name, help, reading } in metrics {
        let kind = match reading {
            Reading::Gauge(_) => MetricType::Gauge,
            Reading::Counter(_) => MetricType::Counter,
        };
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for view in views() {
            let labels = labels(&view);
            match reading {
                Reading::Counter(read) => {
                    family
                        .encode_family(&labels)?
                        .encode_counter::<NoLabelSet, f64, f64>(&read(&view), None)?;
                }
                Reading::Gauge(read) => {
                    if let Some(value) = read(&view) {
                        family.encode_family(&labels)?.encode_gauge(&value)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// A histogram of labels, counts by class, and the sum of the times.
fn encode_launches(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    launches: impl Iterator<Item = (Labels, Vec<u64>, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(
        name,
        "How long the driver took to accept a launch, one launch in eight",
        None,
        MetricType::Histogram,
    )?;
    for (labels, counts, time_ns) in launches {
        let bounds = LAUNCH_BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::MAX]);
        let classes: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
        let count = counts.iter().sum();
        let sum = time_ns as f64 / 1e9;
        family
            .encode_family(&labels)?
            .encode_histogram::<NoLabelSet>(sum, count, &classes, None)?;
    }
    Ok(())
}

fn server_labels(server: &ServerState) -> Labels {
    vec![("server", server.pid.to_string()), ("user", server.uid.to_string())]
}

fn devices_of<'a>(server: &'a ServerState, gpus: &'a Gpus) -> impl Iterator<Item = DeviceView<'a>> {
    let devices = (0u32..).zip(&server.snapshot.devices);
    devices.map(move |(index, device)| {
        let gpu = gpus.number_of(&device.pci_bus_id).unwrap_or(index);
        DeviceView { index, gpu, device, server }
    })
}

impl<'a> DeviceView<'a> {
    fn labels(&self) -> Labels {
        let mut labels = vec![("gpu", self.gpu.to_string()), ("UUID", self.device.uuid.clone())];
        labels.extend(server_labels(self.server));
        labels
    }

    fn clients(
        &self,
    ) -> impl Iterator<Item = (&'a ClientSnapshot, &'a ClientDeviceSnapshot)> + use<'a> {
        let index = self.index;
        self.server.snapshot.clients.iter().flat_map(move |client| {
            let here = client.devices.iter().filter(move |share| share.device == index);
            here.map(move |share| (client, share))
        })
    }

    fn into_clients(self) -> impl Iterator<Item = ClientView<'a>> {
        self.clients().map(move |(client, share)| ClientView { client, share, device: self })
    }
}

impl ClientView<'_> {
    fn labels(&self) -> Labels {
        let mut labels = self.device.labels();
        labels.extend([
            ("pid", self.client.pid.to_string()),
            ("client_user", self.client.uid.to_string()),
            ("command", printable(&self.client.command)),
        ]);
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::daemon::ServerSnapshot;
    use link::wire::fault::{Accused, CallRecord, FaultReport, LaunchRecord};

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
            ..Default::default()
        };
        let client = ClientSnapshot {
            pid: 42,
            uid: 1000,
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
            ..Default::default()
        };
        let launch = LaunchRecord { kernel: "poke".into(), ..Default::default() };
        let call = CallRecord { call: "Launch".into(), launch: Some(launch), age_us: 5 };
        let in_flight = vec![call];
        let fault = FaultReport {
            number: 2,
            unix_time_ms: 1500,
            code: 700,
            what: "bad".into(),
            blame: Blame::Culprit,
            accused: vec![Accused { pid: 42, uid: 1000, in_flight, ..Default::default() }],
            ..Default::default()
        };
        let snapshot = ServerSnapshot {
            devices: vec![device],
            clients: vec![client],
            faults: vec![fault],
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
    fn devices_and_clients_have_their_labels_and_values() {
        let text = render(state());
        let device = "gpu=\"0\",UUID=\"GPU-aa\",server=\"9\",user=\"0\"";
        let client = format!("{device},pid=\"42\",client_user=\"1000\",command=\"say \\\"hi\\\"\"");
        for line in [
            format!("openmps_device_clients{{{device}}} 1.0"),
            format!("openmps_device_memory_bytes{{{device}}} 8192.0"),
            format!("openmps_device_memory_granted_bytes{{{device}}} 4096.0"),
            format!("openmps_device_memory_spilled_bytes{{{device}}} 2048.0"),
            format!("openmps_client_memory_spilled_bytes{{{client}}} 1024.0"),
            format!("openmps_device_multiprocessors{{{device}}} 132.0"),
            format!("openmps_device_kernels_total{{{device}}} 9.0"),
            format!("openmps_device_chained_kernels_total{{{device}}} 8.0"),
            format!("openmps_device_chained_copies_total{{{device}}} 4.0"),
            format!("openmps_device_chained_signals_total{{{device}}} 2.0"),
            format!("openmps_device_gpu_seconds_total{{{device}}} 3.0"),
            format!("openmps_device_copied_bytes_total{{{device}}} 77.0"),
            format!("openmps_device_queued_bytes{{{device}}} 16.0"),
            format!("openmps_device_launch_seconds_count{{{device}}} 6"),
            format!("openmps_device_launch_seconds_sum{{{device}}} 0.00001"),
            format!("openmps_device_faults_total{{{device}}} 2.0"),
            format!(
                "openmps_fault_unixtime_seconds{{{device},fault=\"2\",error=\"bad\",role=\"culprit\",pid=\"42\",client_user=\"1000\",command=\"\",kernel=\"poke\"}} 1.5"
            ),
            format!("openmps_device_executor_restarts_total{{{device}}} 1.0"),
            format!("openmps_device_refused_contexts_total{{{device}}} 3.0"),
            format!("openmps_client_memory_granted_bytes{{{client}}} 4096.0"),
            format!("openmps_client_memory_limit_bytes{{{client}}} 1073741824.0"),
            format!("openmps_client_active_thread_percentage{{{client}}} 25.0"),
            format!("openmps_client_multiprocessors{{{client}}} 32.0"),
            format!("openmps_client_kernels_total{{{client}}} 7.0"),
            format!("openmps_client_gpu_seconds_total{{{client}}} 2.5"),
            format!("openmps_client_copied_bytes_total{{{client}}} 11.0"),
            format!("openmps_client_queued_bytes{{{client}}} 3.0"),
            format!("openmps_client_failed{{{client}}} 0.0"),
            format!("openmps_client_launch_seconds_count{{{client}}} 4"),
            format!("openmps_client_launch_seconds_bucket{{le=\"0.000001\",{client}}} 3"),
            "openmps_server_status{server=\"9\",user=\"0\",status=\"ACTIVE\"} 1".to_owned(),
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
