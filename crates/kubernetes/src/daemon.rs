//! The OpenMPS daemon, as the plugin sees it: which GPUs it serves and how they are, and a socket
//! for each container.
//!
//! Each question is a connection of its own, so that a daemon that was restarted needs no notice.

use std::path::{Path, PathBuf};

use control::directories::Directories;
use control::frontend::{Frontend, FrontendError};
use link::wire::DAEMON_SOCKET;
use link::wire::daemon::ServerStatus;
use link::wire::group_socket::{GroupHolder, GroupSocket, SocketDomain};
use link::wire::shares::{GroupLimits, LimitChange, MemoryLimit, NewLimits, Target};
use link::wire::ui::{DaemonState, UiRequest};

use crate::ledger::{Allocation, Gpu, Health};

/// Before the name of each group that is a container's.
const GROUP_PREFIX: &str = "kubernetes/";

/// Why the daemon did not do something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DaemonError {
    /// It is not there, or does not answer.
    #[error("the OpenMPS daemon of this node does not answer: {0}")]
    Absent(#[from] FrontendError),
    /// It said no.
    #[error("the OpenMPS daemon refuses: {0}")]
    Refused(String),
}

/// The daemon of the node.
#[derive(Debug)]
pub(crate) struct Daemon {
    directories: Directories,
    /// Each container's socket is in a directory in here.
    sockets: PathBuf,
    domain: SocketDomain,
}

/// What becomes of sockets that no allocation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strangers {
    /// Nothing: whose they are is not known yet.
    Keep,
    /// They are closed.
    Close,
}

/// One look.
#[derive(Debug)]
pub(crate) struct Look {
    /// GPUs that it serves; none while its server starts.
    pub(crate) gpus: Vec<Gpu>,
    state: DaemonState,
}

impl Daemon {
    pub(crate) fn new(directories: Directories, sockets: PathBuf, domain: SocketDomain) -> Self {
        Self { directories, sockets, domain }
    }

    /// Looks at it, and has a server started if there is none: pods then find it ready, and GPUs
    /// are known.
    pub(crate) fn look(&self) -> Result<Look, DaemonError> {
        let mut frontend = Frontend::connect(&self.directories)?;
        let state = frontend.state()?;
        if state.servers.is_empty() {
            let uid = rustix::process::geteuid().as_raw();
            let answer = frontend.command(&format!("start_server -uid {uid}"))?;
            if !answer.error.is_empty() {
                return Err(DaemonError::Refused(answer.error.trim().to_owned()));
            }
        }
        Ok(Look { gpus: gpus(&state, self.domain), state })
    }

    /// The directory of a container's socket.
    pub(crate) fn directory(&self, allocation: &Allocation) -> PathBuf {
        self.sockets.join(&allocation.id)
    }

    /// Makes an allocation's limits and its socket, limits first, where they are not there.
    pub(crate) fn open(&self, allocation: &Allocation) -> Result<(), DaemonError> {
        let mut frontend = Frontend::connect(&self.directories)?;
        self.open_by(&mut frontend, allocation)
    }

    fn open_by(&self, frontend: &mut Frontend, allocation: &Allocation) -> Result<(), DaemonError> {
        if allocation.id.is_empty() {
            return Ok(());
        }
        change(frontend, &limits(allocation))?;
        change(frontend, &UiRequest::OpenSocket(self.socket(allocation)))
    }

    /// Closes an allocation's socket and forgets its limits; what is not there is no error.
    pub(crate) fn close(&self, allocation: &Allocation) -> Result<(), DaemonError> {
        if allocation.id.is_empty() {
            return Ok(());
        }
        let directory = self.directory(allocation);
        let closed = Frontend::connect(&self.directories).map_err(DaemonError::from).and_then(
            |mut frontend| {
                let directory = text(&directory);
                match change(&mut frontend, &UiRequest::CloseSocket { directory }) {
                    Err(error @ DaemonError::Absent(_)) => Err(error),
                    _ => change(&mut frontend, &no_limits(&group(&allocation.id))),
                }
            },
        );
        // What a daemon that has died left there, if it is that.
        let _ = std::fs::remove_file(directory.join(DAEMON_SOCKET));
        let _ = std::fs::remove_dir(&directory);
        closed
    }

    /// Makes what is missing after a restart of the daemon, and removes what no allocation has, if
    /// that is to be.
    pub(crate) fn restore(
        &self,
        look: &Look,
        allocations: &[Allocation],
        strangers: Strangers,
    ) -> Vec<DaemonError> {
        let missing: Vec<&Allocation> = allocations
            .iter()
            .filter(|known| !known.id.is_empty())
            .filter(|known| !look.has(&self.socket(known), known))
            .collect();
        // What no record names may be a socket that no record names.
        let all_known = allocations.iter().all(|known| !known.id.is_empty());
        let of_nobody = look.state.sockets.iter().filter(|open| {
            all_known
                && strangers == Strangers::Close
                && Path::new(&open.directory).parent() == Some(self.sockets.as_path())
                && !allocations.iter().any(|known| group(&known.id) == open.group)
        });
        let of_nobody: Vec<&GroupSocket> = of_nobody.collect();
        let holders = allocations.iter().filter_map(holder);
        let unnamed: Vec<GroupHolder> =
            holders.filter(|holder| !look.state.holders.contains(holder)).collect();
        if missing.is_empty() && of_nobody.is_empty() && unnamed.is_empty() {
            return Vec::new();
        }
        let mut errors = Vec::new();
        match Frontend::connect(&self.directories) {
            Err(error) => errors.push(error.into()),
            Ok(mut frontend) => {
                for allocation in missing {
                    errors.extend(self.open_by(&mut frontend, allocation).err());
                }
                for holder in unnamed {
                    errors.extend(change(&mut frontend, &UiRequest::NameHolder(holder)).err());
                }
                for open in of_nobody {
                    let directory = open.directory.clone();
                    let close = UiRequest::CloseSocket { directory };
                    errors.extend(change(&mut frontend, &close).err());
                    errors.extend(change(&mut frontend, &no_limits(&open.group)).err());
                }
            }
        }
        errors
    }

    fn socket(&self, allocation: &Allocation) -> GroupSocket {
        GroupSocket {
            directory: text(&self.directory(allocation)),
            group: group(&allocation.id),
            devices: vec![allocation.gpu.clone()],
            domain: self.domain,
            weight: allocation.sm_percent().map(|percent| percent.clamp(1, 1000)),
        }
    }
}

impl Look {
    fn has(&self, socket: &GroupSocket, allocation: &Allocation) -> bool {
        let wanted = wanted_limits(allocation);
        let limited = wanted.percentage.is_none() && wanted.memory.is_empty()
            || self.state.groups.contains(&wanted);
        limited && self.state.sockets.contains(socket)
    }
}

/// A failed executor keeps new clients out of its trust domain only: containers with domains of
/// their own have nothing to do with it.
fn gpus(state: &DaemonState, domain: SocketDomain) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = Vec::new();
    for server in &state.servers {
        let is_up = server.status != ServerStatus::Initializing;
        for device in &server.snapshot.devices {
            let failed = device.failed && domain != SocketDomain::Group;
            let health = if is_up && !failed { Health::Healthy } else { Health::Unhealthy };
            let known = gpus.iter_mut().find(|known| known.uuid == device.uuid);
            match known {
                // With a server per user, one that works is enough.
                Some(known) if health == Health::Healthy => known.health = health,
                Some(_) => {}
                None => gpus.push(Gpu {
                    uuid: device.uuid.clone(),
                    memory_bytes: device.total_memory_bytes,
                    health,
                }),
            }
        }
    }
    gpus
}

fn group(id: &str) -> String {
    format!("{GROUP_PREFIX}{id}")
}

/// Which container has an allocation, once the kubelet has listed it: `namespace/pod/container`.
fn holder(allocation: &Allocation) -> Option<GroupHolder> {
    let mut names = allocation.owner.as_deref()?.splitn(3, '/').map(str::to_owned);
    let (namespace, pod, container) = (names.next()?, names.next()?, names.next()?);
    let is_known = !allocation.id.is_empty();
    is_known.then(|| GroupHolder { group: group(&allocation.id), namespace, pod, container })
}

/// What the daemon shows for a group with these limits.
fn wanted_limits(allocation: &Allocation) -> GroupLimits {
    GroupLimits {
        name: group(&allocation.id),
        percentage: allocation.sm_percent().filter(|percent| *percent < 100).map(f64::from),
        memory: vec![MemoryLimit { device: None, limit_bytes: Some(allocation.memory_bytes()) }],
        weight: None,
    }
}

fn limits(allocation: &Allocation) -> UiRequest {
    let percent = allocation.sm_percent().unwrap_or(100).min(100);
    limit(group(&allocation.id), f64::from(percent), Some(allocation.memory_bytes()))
}

fn no_limits(group: &str) -> UiRequest {
    limit(group.to_owned(), 100.0, None)
}

fn limit(group: String, percent: f64, memory_bytes: Option<u64>) -> UiRequest {
    UiRequest::Limit(LimitChange {
        target: Target::Group(group),
        limits: NewLimits {
            percentage: Some(percent),
            memory: Some(MemoryLimit { device: None, limit_bytes: memory_bytes }),
            // That is the socket's.
            weight: None,
        },
    })
}

/// Kernels that run past the daemon's patience are no failure: the limit comes into force when they
/// end.
fn change(frontend: &mut Frontend, request: &UiRequest) -> Result<(), DaemonError> {
    let report = frontend.change_shares(request)?.map_err(DaemonError::Refused)?;
    match report.refused.into_iter().next() {
        Some(message) => Err(DaemonError::Refused(message)),
        None => Ok(()),
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use link::wire::daemon::{DeviceSnapshot, ServerSnapshot};
    use link::wire::ui::ServerState;

    use super::*;

    fn state(status: ServerStatus, failed: bool) -> DaemonState {
        let device = |uuid: &str, failed| DeviceSnapshot {
            uuid: uuid.to_owned(),
            total_memory_bytes: 1 << 30,
            failed,
            ..Default::default()
        };
        let devices = vec![device("GPU-a", failed), device("GPU-b", false)];
        let snapshot = ServerSnapshot { devices, ..Default::default() };
        DaemonState {
            daemon_pid: 1,
            log_directory: None,
            servers: vec![ServerState { pid: 2, uid: 0, status, snapshot, silent: false }],
            groups: Vec::new(),
            reservations: Vec::new(),
            drained: Vec::new(),
            sockets: Vec::new(),
            holders: Vec::new(),
        }
    }

    #[test]
    fn a_failed_gpu_is_unhealthy_and_the_others_are_not() {
        let health = |status, failed, domain| -> Vec<Health> {
            gpus(&state(status, failed), domain).iter().map(|gpu| gpu.health).collect()
        };
        let (well, ill) = (Health::Healthy, Health::Unhealthy);
        let user = SocketDomain::User;
        assert_eq!(health(ServerStatus::Active, false, user), [well, well]);
        assert_eq!(health(ServerStatus::Fault, true, user), [ill, well]);
        assert_eq!(health(ServerStatus::Active, false, user), [well, well], "it is back");
        assert_eq!(health(ServerStatus::Initializing, false, user), [ill, ill]);
        // What another container's own executor suffers keeps nobody out.
        assert_eq!(health(ServerStatus::Fault, true, SocketDomain::Group), [well, well]);
    }
}
