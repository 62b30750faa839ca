//! The control daemon and a server it has started, over the socket pair that the server inherits.
//!
//! The server's standard error goes to its log; what it says here is for the daemon to act on.

use super::attach::ClientHello;
use super::fault::{CallRecord, FaultReport};
use super::group_socket::Admission;
use super::shares::{ChangeReport, ServerChange};
use crate::pieces::Piece;
use serde::{Deserialize, Serialize};

/// From the daemon to a server. [`ToServer::Attach`] carries one descriptor, the client's socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToServer {
    /// A client of this server's user; its socket comes with the packet.
    Attach {
        /// Names the client in all that the server says of it, and in
        /// [`super::attach::Welcome::client_id`]; given out by the daemon, never twice.
        client_id: u64,
        /// What the client said.
        hello: Box<ClientHello>,
        /// What the kernel says of it.
        peer: Peer,
        /// How it came in, if not by the daemon's own socket.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        admission: Option<Admission>,
        /// Where it comes from, as the daemon found out.
        #[serde(default)]
        origin: Origin,
    },
    /// Answer with [`ToDaemon::Snapshot`] of the same id.
    Snapshot {
        /// Chosen by the daemon.
        id: u64,
    },
    /// End one client: its work stops, its next call returns CUDA_ERROR_MPS_CLIENT_TERMINATED.
    /// Answered by [`ToDaemon::Terminated`].
    Terminate {
        /// Chosen by the daemon.
        id: u64,
        /// The client's process id in the daemon's namespace.
        pid: u32,
    },
    /// Somebody wants to trace a client; the connection to them comes with the packet and is closed
    /// if there is no such client, or they may not.
    Trace {
        /// The client's process id in the daemon's namespace.
        pid: u32,
        /// Who wants it, by the kernel's word.
        peer: Peer,
    },
    /// Change running shares. Answered by [`ToDaemon::Changed`].
    Change {
        /// Chosen by the daemon.
        id: u64,
        /// What.
        change: ServerChange,
    },
    /// New default for clients that attach from now on.
    SetDefaults(Defaults),
    /// Stop.
    Shutdown(ShutdownMode),
    /// Do not stop after all, if [`ShutdownMode::WhenIdle`] has not come about yet. Answered by
    /// [`ToDaemon::Resumed`].
    Resume {
        /// Chosen by the daemon.
        id: u64,
    },
}

/// Who is at the other end of a socket, by `SO_PEERCRED`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Process id in the daemon's namespace.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Whether it lives among the daemon's neighbours.
    #[serde(default)]
    pub namespaces: Namespaces,
    /// Another user, if it is that one's doing that this user's processes are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts_for: Option<u32>,
}

impl Peer {
    /// The user whose budgets it counts in. Who it is, and whose server it gets, is another
    /// question.
    pub fn accountable(&self) -> u32 {
        self.counts_for.unwrap_or(self.uid)
    }
}

/// Whose PID and user namespaces a process lives in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespaces {
    /// The daemon's, as far as that can be seen.
    #[default]
    Shared,
    /// Others: it is in a container, and root there is not root here.
    Own,
}

/// Where a client comes from, which it cannot choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its control group; absent: the daemon cannot see it.
    #[serde(default)]
    pub control_group: Option<String>,
    /// The lowest of that group and those above it which the process cannot leave: those below
    /// belong to somebody who is not root.
    #[serde(default)]
    pub bounding_group: Option<String>,
}

/// What new clients get unless they ask for less.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Defaults {
    /// Per cent of the SMs, 0 < x <= 100; absent: all.
    pub active_thread_percentage: Option<f64>,
    /// (device, bytes).
    pub pinned_device_mem_limits_bytes: Vec<(u32, u64)>,
    /// Devices whose limits of the list before are told as their memory: see
    /// [`super::shares::Total::Limit`].
    #[serde(default)]
    pub told_devices: Vec<u32>,
    /// 0 normal, 1 below normal.
    pub client_priority: Option<u32>,
}

/// How a server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShutdownMode {
    /// When the last client has left; no new ones.
    WhenIdle,
    /// Now; clients' calls return errors.
    Now,
}

/// From a server to the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToDaemon {
    /// Executors have their contexts; clients may come.
    Ready,
    /// Could not start; the process exits after this.
    Failed {
        /// What was wrong and what to do.
        message: String,
    },
    /// State changed.
    Status(ServerStatus),
    /// Answer to [`ToServer::Snapshot`].
    Snapshot {
        /// The request's id.
        id: u64,
        /// What the server knows.
        snapshot: ServerSnapshot,
    },
    /// Of a message that is longer than a packet.
    Piece(Piece),
    /// Answer to [`ToServer::Resume`]: clients may come again.
    Resumed {
        /// The request's id.
        id: u64,
    },
    /// Answer to [`ToServer::Terminate`].
    Terminated {
        /// The request's id.
        id: u64,
        /// 0, or a `CUresult`: 201 where there is no such client, as the original answers.
        code: u32,
    },
    /// Clients of [`ToServer::Attach`] that have left, or were not taken.
    Left {
        /// Their numbers.
        client_ids: Vec<u64>,
    },
    /// Answer to [`ToServer::Change`].
    Changed {
        /// The request's id.
        id: u64,
        /// What came of it.
        report: ChangeReport,
    },
}

/// States of a server: seed document 002, section 3.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ServerStatus {
    /// Contexts are being made.
    Initializing,
    /// Serving.
    Active,
    /// Handling a fatal fault.
    Fault,
}

/// How many clients that left a server still lists.
pub const DEPARTED_KEPT: usize = 256;

/// Longest message of a server to the daemon, in bytes of JSON: what [`ServerSnapshot`] may take.
pub const MAX_SERVER_MESSAGE_BYTES: usize = 8 << 20;
/// Contexts of one client that a snapshot lists.
pub const CONTEXTS_LISTED_OF_CLIENT: usize = 256;
/// Contexts of all clients that a snapshot lists.
pub const CONTEXTS_LISTED: usize = 16_384;

/// One moment of a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ServerSnapshot {
    /// Devices, in the server's order.
    pub devices: Vec<DeviceSnapshot>,
    /// Clients, in order of attachment.
    pub clients: Vec<ClientSnapshot>,
    /// Clients that left, the latest last, at most [`DEPARTED_KEPT`], with their final counts: what
    /// proves of a program that has ended that it ran here.
    #[serde(default)]
    pub departed: Vec<ClientSnapshot>,
    /// Clients attached since the server started, those that left included.
    pub clients_ever: u64,
    /// Faults, the latest last, at most [`super::fault::FAULTS_KEPT`].
    #[serde(default)]
    pub faults: Vec<FaultReport>,
}

/// An executor of a device that only some clients share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DomainSnapshot {
    /// What the clients are set apart by: a name, a control group, a process.
    pub name: String,
    /// Process id of the executor.
    pub executor_pid: u32,
    /// Clients with a session there.
    pub clients: u32,
}

/// One device of a server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeviceSnapshot {
    /// `GPU-xxxxxxxx-xxxx-...`, as the original prints UUIDs.
    pub uuid: String,
    /// The driver's name of it.
    pub name: String,
    /// `dddd:bb:dd.f`.
    pub pci_bus_id: String,
    /// Process id of its executor for clients that nothing sets apart; 0 without one.
    pub executor_pid: u32,
    /// The same of the device's second context, where some of those clients are at the moment.
    #[serde(default)]
    pub second_executor_pid: u32,
    /// Its executors for clients that are set apart.
    #[serde(default)]
    pub domains: Vec<DomainSnapshot>,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE` when the server started: 0 default, 2 prohibited, 3
    /// exclusive process.
    #[serde(default)]
    pub compute_mode: u32,
    /// Device memory granted to clients.
    pub granted_bytes: u64,
    /// Of this, what is in host memory at the moment, because others need the device's.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// Kernels run for clients, those that left included.
    pub kernels_ever: u64,
    /// Those of them that were submitted together with others.
    #[serde(default)]
    pub chained_kernels_ever: u64,
    /// Small copies that were submitted together with launches.
    #[serde(default)]
    pub chained_copies_ever: u64,
    /// Signals, by which clients wait, that were submitted together with what they wait for.
    #[serde(default)]
    pub chained_signals_ever: u64,
    /// All of its memory.
    #[serde(default)]
    pub total_memory_bytes: u64,
    /// Its streaming multiprocessors.
    #[serde(default)]
    pub multiprocessors: u32,
    /// Fatal faults of its context since the server started.
    #[serde(default)]
    pub faults: u64,
    /// Whether an executor of it has failed, and another one is taking its place.
    #[serde(default)]
    pub failed: bool,
    /// Executors started after the first.
    #[serde(default)]
    pub restarts: u64,
    /// Executors that ended by themselves, neither by a fault nor by the server's hand.
    #[serde(default)]
    pub executor_deaths: u64,
    /// Process id of the executor that stands by to take over; 0: none, or it is not ready.
    #[serde(default)]
    pub standby_pid: u32,
    /// Memory of clients that this executor has mapped already.
    #[serde(default)]
    pub standby_memory_bytes: u64,
    /// Contexts refused since the server started, because the device had as many as are allowed.
    #[serde(default)]
    pub refused_contexts: u64,
    /// Bytes copied for clients, those that left included.
    #[serde(default)]
    pub copied_bytes_ever: u64,
    /// Time that clients' kernels took, those that left included; see
    /// [`ClientDeviceSnapshot::gpu_time_ns`].
    #[serde(default)]
    pub gpu_time_ns_ever: u64,
    /// Bytes in the rings of all clients that the executor had not taken when it last looked.
    #[serde(default)]
    pub queued_bytes: u64,
    /// See [`ClientDeviceSnapshot::launch_counts`]; clients that left included.
    #[serde(default)]
    pub launch_counts: Vec<u64>,
    /// See [`ClientDeviceSnapshot::launch_time_ns`]; clients that left included.
    #[serde(default)]
    pub launch_time_ns: u64,
    /// Sets of SMs that are reserved.
    #[serde(default)]
    pub reservations: Vec<ReservationSnapshot>,
    /// Groups that have clients here.
    #[serde(default)]
    pub groups: Vec<GroupSnapshot>,
}

/// Reserved SMs of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationSnapshot {
    /// The reservation's name.
    pub name: String,
    /// SMs that it has.
    pub multiprocessors: u32,
    /// Clients that use them.
    pub clients: u32,
}

/// A group on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupSnapshot {
    /// Its name.
    pub name: String,
    /// Clients with a context here.
    pub clients: u32,
    /// Device memory granted to all of them.
    pub granted_bytes: u64,
    /// How much that may be; absent: no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Per cent of the SMs that each of them may use; absent: no limit.
    pub percentage: Option<f64>,
}

/// One client, summed over its contexts. Who it is the daemon knows by its number: what a server
/// puts into `pid`, `uid`, `pid_namespace`, `command` and `group` is for whoever speaks to a server
/// without a daemon.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientSnapshot {
    /// See [`super::attach::Welcome::client_id`].
    pub client_id: u64,
    /// Process id in the daemon's namespace.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Inode of its PID namespace.
    pub pid_namespace: u64,
    /// What it was started as.
    pub command: String,
    /// Its contexts.
    pub contexts: Vec<ContextSnapshot>,
    /// Kernels submitted to the native driver for it.
    pub kernels: u64,
    /// Bytes copied for it, either direction and on the device.
    pub copied_bytes: u64,
    /// Device memory granted to it.
    pub granted_bytes: u64,
    /// Commands taken off its ring.
    pub commands: u64,
    /// Per cent of the SMs that its settings allow it.
    #[serde(default)]
    pub active_thread_percentage: f64,
    /// 0 normal, 1 below normal.
    #[serde(default)]
    pub priority: u32,
    /// Its share of a contested device is to others' as the weights are; 0: the server does not
    /// say.
    #[serde(default)]
    pub weight: u32,
    /// Whether it is of the latency class, whose launches go before all that others have queued.
    #[serde(default)]
    pub latency_class: bool,
    /// How many hardware queues its environment asks for (`CUDA_DEVICE_MAX_CONNECTIONS`); absent:
    /// it does not say.
    #[serde(default)]
    pub wanted_connections: Option<u32>,
    /// See [`DomainSnapshot::name`]; absent: it shares the executor of all that nothing sets apart.
    #[serde(default)]
    pub domain: Option<String>,
    /// The same by device.
    #[serde(default)]
    pub devices: Vec<ClientDeviceSnapshot>,
    /// The group whose limits it shares.
    #[serde(default)]
    pub group: Option<String>,
    /// The reservation whose SMs it uses.
    #[serde(default)]
    pub reservation: Option<String>,
    /// The number of the latest fault that it is the culprit of, or a suspect; see
    /// [`ServerSnapshot::faults`].
    #[serde(default)]
    pub fault: Option<u64>,
}

/// How many of a device's multiprocessors a share in per cent is. As the original has it (of 132: 1
/// % are 8, 25 % are 32, 40 % 52, 50 % 66), it is rounded down to what hardware can set apart, and
/// is [`SMALLEST_SHARE`] at least.
pub fn multiprocessors_of_share(all: u32, percent: f64) -> u32 {
    // A share that is a whole number of them is not always one in floating point.
    const SLACK: f64 = 1e-6;
    let share = (f64::from(all) * percent / 100.0 + SLACK).floor() as u32;
    if share >= all {
        return all;
    }
    (share - share % SHARE_STEP).max(SMALLEST_SHARE.min(all))
}

/// Multiprocessors are set apart in pairs.
const SHARE_STEP: u32 = 2;
/// Fewest multiprocessors that a share in per cent gives, on devices that have as many.
pub const SMALLEST_SHARE: u32 = 8;

/// Upper bounds of the classes of [`ClientDeviceSnapshot::launch_counts`], in microseconds; one
/// more class is beyond the last.
pub const LAUNCH_BOUNDS_US: [u64; 15] =
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// Latest launches of a client on a device that a snapshot lists.
pub const LAUNCHES_LISTED_OF_CLIENT: usize = 8;
/// Launches of all clients that a snapshot lists: each may take half a kilobyte of a server's
/// longest message.
pub const LAUNCHES_LISTED: usize = 4096;

/// Why a client's work on a device does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// For memory that others have.
    Memory,
    /// For the executor that takes the place of one that has gone.
    Recovery,
    /// For its turn: others have the device, as the weights are.
    Turn,
    /// For the end of kernels: its call needs an idle device, as a load of code does.
    Load,
    /// For the other context of the device, to which it goes.
    Move,
}

/// One client on one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientDeviceSnapshot {
    /// Device index.
    pub device: u32,
    /// Device memory granted.
    pub granted_bytes: u64,
    /// Of this, what is in host memory at the moment, because others need the device's.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// How much may be granted; absent: no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Kernels submitted.
    pub kernels: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Time that its kernels took on the device, estimated from a sample of them.
    pub gpu_time_ns: u64,
    /// Bytes in its ring that the executor had not taken when it last looked.
    pub queued_bytes: u64,
    /// How long the driver took to accept a launch, one launch in eight: counts by class, bounds
    /// [`LAUNCH_BOUNDS_US`].
    pub launch_counts: Vec<u64>,
    /// The sum of those times.
    pub launch_time_ns: u64,
    /// The `CUresult` that its session has failed with, 0 while it works.
    pub error: u32,
    /// SMs that its work runs on; 0 from a server that does not say.
    #[serde(default)]
    pub multiprocessors: u32,
    /// Whether a fault of another client would cost it something that nobody has saved, though
    /// nothing of it runs.
    #[serde(default)]
    pub unsaved: bool,
    /// The oldest of its latest launches that is not known to have ended; its age is since it was
    /// submitted.
    #[serde(default)]
    pub running: Option<CallRecord>,
    /// Its latest launches, the latest last, at most [`LAUNCHES_LISTED_OF_CLIENT`].
    #[serde(default)]
    pub launches: Vec<CallRecord>,
    /// What it waits for at the moment; absent: for nothing that the server knows of.
    #[serde(default)]
    pub waits_for: Option<WaitReason>,
    /// It is in the device's second context.
    #[serde(default)]
    pub is_in_second_context: bool,
    /// How often it has gone from one context of the device to the other.
    #[serde(default)]
    pub relocations: u64,
    /// Why it waits for others' kernels where it is, and does not go to the other context.
    #[serde(default)]
    pub stays_for: Option<String>,
}

/// One context of a client.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ContextSnapshot {
    /// Device index.
    pub device: u32,
    /// See [`super::attach::ContextOpened::context_id`].
    pub context_id: u32,
    /// The number that the original's `ps` shows as ID; unique in a server.
    pub serial: u64,
    /// Per cent of the SMs that this context may use: at most the client's share. 0 from a server
    /// that does not say.
    #[serde(default)]
    pub active_thread_percentage: f64,
}

#[cfg(test)]
mod tests {
    use super::multiprocessors_of_share;

    #[test]
    fn shares_are_rounded_down_as_the_original_does() {
        for (all, percent, share) in [
            (132, 1.0, 8),
            (132, 25.0, 32),
            (132, 40.0, 52),
            (132, 50.0, 66),
            (132, 100.0, 132),
            (100, 29.0, 28),
            (84, 0.1, 8),
            (84, 200.0, 84),
            (84, f64::NAN, 8),
            (7, 100.0, 7),
            (6, 50.0, 6),
            (0, 50.0, 0),
        ] {
            assert_eq!(multiprocessors_of_share(all, percent), share, "{percent} % of {all}");
        }
    }
}
