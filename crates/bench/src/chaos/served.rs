//! What the OpenMPS server itself counted: whether the good clients were its clients at all, and
//! what became of its executors.

use link::socket::{Connection, SocketError};
use link::wire::attach::Hello;
use link::wire::daemon::ServerSnapshot;
use link::wire::ui::{UiReply, UiRequest};
use link::wire::{DAEMON_SOCKET, PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Counts of the servers of one daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Good clients that were attached, with kernels of theirs counted, when the last fault had
    /// been made.
    pub good_clients: u64,
    /// Kernels run for clients.
    pub kernels: u64,
    /// Clients that were ever attached.
    pub clients: u64,
    /// Fatal faults of devices' contexts.
    pub device_faults: u64,
    /// Executors that another one took over from.
    pub executors_replaced: u64,
    /// Of these, those that ended by themselves: nothing that a client does may cause that on a
    /// driver that does not crash.
    pub executors_died: u64,
}

/// What the daemon says at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) served: Served,
    /// Whether each device that is in use has an executor to spare.
    pub(super) stands_by: bool,
    /// Executors that serve or stand by. Others are on their way in or out, or there for a while.
    pub(super) executors: Vec<u32>,
}

impl Served {
    /// Asks the daemon in `directory`; `good` are the processes of the good clients.
    pub(super) fn ask(directory: &Path, good: &[u32]) -> Result<Answer, SocketError> {
        let daemon = Connection::connect(&directory.join(DAEMON_SOCKET), LIMIT)?;
        daemon.send(&Hello::Ui { protocol: PROTOCOL_VERSION }, &[], LIMIT)?;
        daemon.send(&UiRequest::State, &[], LIMIT)?;
        let UiReply::State(state) = daemon.receive::<UiReply>(LIMIT)?.message else {
            return Err(SocketError::Closed);
        };
        let mut served = Self::default();
        for server in &state.servers {
            served.count(&server.snapshot, good);
        }
        let devices = || state.servers.iter().flat_map(|server| &server.snapshot.devices);
        let stands_by = devices().all(|it| it.executor_pid == 0 || it.standby_pid != 0);
        let executors = devices().flat_map(|it| {
            let of_domains = it.domains.iter().map(|domain| domain.executor_pid);
            of_domains.chain([it.executor_pid, it.second_executor_pid, it.standby_pid])
        });
        Ok(Answer { served, stands_by, executors: executors.collect() })
    }

    fn count(&mut self, server: &ServerSnapshot, good: &[u32]) {
        let counted = server.clients.iter().filter(|client| client.kernels > 0);
        self.good_clients += counted.filter(|client| good.contains(&client.pid)).count() as u64;
        self.clients += server.clients_ever;
        for device in &server.devices {
            self.kernels += device.kernels_ever;
            self.device_faults += device.faults;
            self.executors_replaced += device.restarts;
            self.executors_died += device.executor_deaths;
        }
    }

    /// Adds what a later run counted.
    pub(super) fn add(&mut self, later: Self) {
        self.good_clients = later.good_clients;
        self.kernels += later.kernels;
        self.clients += later.clients;
        self.device_faults += later.device_faults;
        self.executors_replaced += later.executors_replaced;
        self.executors_died += later.executors_died;
    }
}
