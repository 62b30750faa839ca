//! Metrics of each client, while it is attached.
//!
//! A client is named by the daemon's number of it. Which process that is, is said once, by an info
//! metric: whoever wants no series with process ids and command lines drops one family.

use link::printable_prefix;
use link::wire::daemon::{ClientDeviceSnapshot, ClientSnapshot, multiprocessors_of_share};
use link::wire::ui::DaemonState;

use super::devices::DeviceView;
use super::exposition::{Exposition, Kind, Labels};
use super::whose::Whose;
use super::{Metric, Reading, write_all};

/// Of a command line so much is a label.
const COMMAND_CHARACTERS: usize = 256;

/// A client on one device.
struct ClientView<'a> {
    client: &'a ClientSnapshot,
    share: &'a ClientDeviceSnapshot,
    device: DeviceView<'a>,
}

impl ClientView<'_> {
    fn labels(&self) -> Labels {
        let mut labels = self.device.place();
        labels.push(("client", self.client.client_id.to_string()));
        labels.extend(Whose::of(self.client).labels());
        labels
    }
}

/// Writes them.
pub(super) fn write<'a>(
    page: &mut Exposition,
    state: &DaemonState,
    devices: &(impl Iterator<Item = DeviceView<'a>> + Clone),
) {
    let help = "Which process a client is; join with on (server, client)";
    let mut info = page.family("openmps_client", Kind::Info, help);
    for server in &state.servers {
        for client in &server.snapshot.clients {
            let mut labels =
                vec![("server", server.pid.to_string()), ("client", client.client_id.to_string())];
            labels.extend(Whose::of(client).labels());
            labels.push(("pid", client.pid.to_string()));
            labels.push(("command", printable_prefix(&client.command, COMMAND_CHARACTERS)));
            info.sample(&labels, 1.0);
        }
    }
    let views = devices.clone().flat_map(|device| {
        device.clients().map(move |(client, share)| ClientView { client, share, device })
    });
    write_all(page, &metrics(), &views, ClientView::labels);
}

fn metrics<'a>() -> [Metric<ClientView<'a>>; 11] {
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
            help: "Share of the multiprocessors that the settings of the client allow it, 0 to 100",
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
