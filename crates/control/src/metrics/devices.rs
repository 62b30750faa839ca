//! Metrics of each device of each server.

use link::wire::daemon::{ClientDeviceSnapshot, ClientSnapshot, DeviceSnapshot};
use link::wire::ui::{DaemonState, ServerState};

use super::exposition::{Exposition, Kind, Labels};
use super::gpus::Gpus;
use super::whose::name_label;
use super::{
    Doing, LAUNCH_HELP, Metric, OLDEST_HELP, Reading, launch_bounds, write_all, write_waiting,
};

/// A device of a server.
#[derive(Clone, Copy)]
pub(super) struct DeviceView<'a> {
    /// The server's number of it.
    pub(super) index: u32,
    /// The machine's number of it.
    gpu: u32,
    pub(super) device: &'a DeviceSnapshot,
    pub(super) server: &'a ServerState,
}

/// All devices of all servers.
pub(super) fn views<'a>(
    state: &'a DaemonState,
    gpus: &'a Gpus,
) -> impl Iterator<Item = DeviceView<'a>> + Clone {
    state.servers.iter().flat_map(move |server| {
        let devices = (0u32..).zip(&server.snapshot.devices);
        devices.map(move |(index, device)| {
            let gpu = gpus.number_of(&device.pci_bus_id).unwrap_or(index);
            DeviceView { index, gpu, device, server }
        })
    })
}

impl<'a> DeviceView<'a> {
    /// Of the device and the server, to which others add whose their samples are.
    pub(super) fn place(&self) -> Labels {
        vec![
            ("gpu", self.gpu.to_string()),
            ("UUID", self.device.uuid.clone()),
            ("server", self.server.pid.to_string()),
        ]
    }

    fn labels(&self) -> Labels {
        let mut labels = self.place();
        labels.push(("user", self.server.uid.to_string()));
        labels
    }

    /// Its clients, with what they have of it.
    pub(super) fn clients(
        &self,
    ) -> impl Iterator<Item = (&'a ClientSnapshot, &'a ClientDeviceSnapshot)> + Clone + use<'a>
    {
        let index = self.index;
        self.server.snapshot.clients.iter().flat_map(move |client| {
            let here = client.devices.iter().filter(move |share| share.device == index);
            here.map(move |share| (client, share))
        })
    }

    /// What its clients are at.
    fn doing(&self) -> Doing {
        let mut doing = Doing::default();
        self.clients().for_each(|(_, share)| doing.add(share));
        doing
    }

    fn executors(&self) -> usize {
        usize::from(self.device.executor_pid != 0) + self.device.domains.len()
    }
}

/// Writes them.
pub(super) fn write<'a>(
    page: &mut Exposition,
    devices: &(impl Iterator<Item = DeviceView<'a>> + Clone),
) {
    write_all(page, &metrics(), devices, DeviceView::labels);
    let mut launches = page.family("openmps_device_launch_seconds", Kind::Histogram, LAUNCH_HELP);
    for view in devices.clone() {
        let (counts, sum) = (&view.device.launch_counts, view.device.launch_time_ns as f64 / 1e9);
        launches.histogram(&view.labels(), &launch_bounds(), counts, sum);
    }
    let doing = devices.clone().map(|view| (view.labels(), view.doing()));
    write_waiting(page, "openmps_device_waiting_clients", doing);
    write_reservations(page, devices);
}

/// Sets of SMs that are reserved: few, by an administrator's word.
fn write_reservations<'a>(
    page: &mut Exposition,
    devices: &(impl Iterator<Item = DeviceView<'a>> + Clone),
) {
    let reservations = || {
        devices.clone().flat_map(|view| {
            view.device.reservations.iter().map(move |reservation| {
                let mut labels = view.place();
                labels.push(("reservation", name_label(&reservation.name)));
                (labels, reservation)
            })
        })
    };
    let help = "Multiprocessors that a reservation has";
    let mut family = page.family("openmps_reservation_multiprocessors", Kind::Gauge, help);
    for (labels, reservation) in reservations() {
        family.sample(&labels, reservation.multiprocessors.into());
    }
    let help = "Client processes that use the reservation's multiprocessors";
    let mut family = page.family("openmps_reservation_clients", Kind::Gauge, help);
    for (labels, reservation) in reservations() {
        family.sample(&labels, reservation.clients.into());
    }
}

fn metrics<'a>() -> [Metric<DeviceView<'a>>; 21] {
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
            name: "openmps_device_oldest_kernel_seconds",
            help: OLDEST_HELP,
            reading: Reading::Gauge(|view| Some(view.doing().oldest_kernel_s())),
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
        Metric {
            name: "openmps_device_executor_deaths",
            help: "Executors that ended by themselves, neither by a fault nor by the server's hand",
            reading: Reading::Counter(|view| view.device.executor_deaths as f64),
        },
        Metric {
            name: "openmps_device_executors",
            help: "Executors that serve clients, one for each set of clients that is kept apart",
            reading: Reading::Gauge(|view| Some(view.executors() as f64)),
        },
        Metric {
            name: "openmps_device_recovering",
            help: "1 while another executor takes the place of one that has failed",
            reading: Reading::Gauge(|view| Some(u8::from(view.device.failed).into())),
        },
        Metric {
            name: "openmps_device_standby_ready",
            help: "1 while an executor stands by to take over",
            reading: Reading::Gauge(|view| Some(u8::from(view.device.standby_pid != 0).into())),
        },
        Metric {
            name: "openmps_device_last_fault_timestamp_seconds",
            help: "When the latest fault was, in seconds since 1970; absent without one",
            reading: Reading::Gauge(|view| {
                let faults = view.server.snapshot.faults.iter();
                let here = faults.filter(|fault| fault.device == view.index);
                here.map(|fault| fault.unix_time_ms).max().map(|ms| ms as f64 / 1e3)
            }),
        },
    ]
}
