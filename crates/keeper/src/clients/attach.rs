//! A client's arrival.

use crate::clients::{Client, share_of};
use crate::devices::uuid_text;
use crate::{Course, Keeper};
use cuda_abi::types::{CUdevice_attribute, CUresult};
use executor_link::log::log_server;
use link::socket::Connection;
use link::wire::attach::{ClientHello, DeviceInfo, HelloReply, Refusal, Welcome};
use link::wire::daemon::{Namespaces, Origin, Peer};
use link::wire::group_socket::{Admission, SocketDomain};
use link::wire::owner::Owner;
use link::wire::shares::{NameError, PROFILE_GROUP_PREFIX, check_name, limits_of_group};
use link::wire::version::{Versions, agree};
use policy::domains::{Domain, Grouping, Key, checked_name};
use policy::limits::{MemoryBound, active_thread_percentage, latency_class};
use policy::sms::partitions::HEADROOM;
use policy::turns::priorities::Class;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::time::Duration;

/// What makes clients a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    /// The name that they give.
    ByName,
    /// Their cgroup.
    ByCgroup,
}

impl Membership {
    /// What the daemon's environment says.
    pub(crate) fn from_environment() -> Self {
        // The daemon says what is wrong with it.
        match settings::Variables::of_environment().is_on(&settings::GROUP_BY_CGROUP) {
            true => Self::ByCgroup,
            false => Self::ByName,
        }
    }
}

/// Clients that the daemon does not see, as its PID namespace is another or has no `/proc`, cannot
/// be told apart.
const UNKNOWN_CONTROL_GROUP: &str = "the daemon does not see its control group: start the daemon in the host's PID namespace, with /proc mounted";

/// What limits go by.
fn bounding_group(origin: &Origin) -> Result<&str, String> {
    let group = origin.bounding_group.as_deref().ok_or(UNKNOWN_CONTROL_GROUP)?;
    // Who could make a group of such a name would have no limits.
    check_name(group).map_err(|error| format!("its control group: {error}"))?;
    Ok(group)
}

fn is_reserved(group: &str) -> bool {
    group.starts_with(PROFILE_GROUP_PREFIX)
}

/// What the daemon says of a client that it hands over.
pub(crate) struct Arrival {
    pub(crate) hello: ClientHello,
    pub(crate) peer: Peer,
    /// Readable once it has ended.
    pub(crate) process: Option<OwnedFd>,
    pub(crate) origin: Origin,
    pub(crate) admission: Option<Admission>,
}

/// Attached processes at a time, with or without contexts.
const MAX_CLIENTS: usize = 1024;
/// Of these, guests ([`Guest`]) may be.
const MAX_GUESTS: usize = 960;

/// Who shares a server with others: each has half of the places that the others leave, at most, so
/// that there is one for who comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guest<'a> {
    /// Who came by the socket of this group.
    OfGroup(&'a str),
    /// Who is another user than the server, or is in a container; by the user for whom it counts.
    OfUser(u32),
}

impl<'a> Guest<'a> {
    /// Nobody's guest is the server's own user, by the daemon's own socket.
    fn of(admission: Option<&'a Admission>, peer: Peer, server_uid: u32) -> Option<Self> {
        match admission {
            Some(admission) => Some(Self::OfGroup(&admission.group)),
            None if peer.uid == server_uid && peer.namespaces == Namespaces::Shared => None,
            None => Some(Self::OfUser(peer.accountable())),
        }
    }
}

/// Whether there is a place for one more, who is a guest or not, beside those that are attached.
fn has_room<'a>(
    arriving: Option<Guest<'_>>,
    attached: impl Iterator<Item = Option<Guest<'a>>>,
) -> bool {
    let (mut all, mut guests, mut same) = (0, 0, 0);
    for present in attached {
        all += 1;
        guests += usize::from(present.is_some());
        same += usize::from(present == arriving);
    }
    all < MAX_CLIENTS && (arriving.is_none() || guests + same < MAX_GUESTS)
}

impl Keeper {
    /// Takes a client, or says why not, and tells the daemon that it has none of this number.
    pub(crate) fn attach(&mut self, id: u64, arrival: Arrival, socket: OwnedFd) {
        if !self.takes(id, arrival, socket) {
            self.has_left(id);
        }
    }

    fn takes(&mut self, id: u64, arrival: Arrival, socket: OwnedFd) -> bool {
        let Arrival { hello, peer, process, origin, admission } = arrival;
        let connection = match Connection::from_socket(socket) {
            Ok(connection) => connection,
            Err(error) => {
                log_server!("The socket of client {} is not usable: {error}", peer.pid);
                return false;
            }
        };
        let connection = self.closer.guard(Owner::new(&peer, admission.as_ref()), connection);
        log_server!("Received new client request for {{PID: {}, Context ID: 0}}", peer.pid);
        let hello = match hello.bounded() {
            Ok(hello) => hello,
            Err(error) => {
                log_server!("Client {} is refused: {error}", peer.pid);
                let code = CUresult::ERROR_MPS_CONNECTION_FAILED.0;
                let refusal = Refusal { code, message: error.to_string() };
                let _ = connection.send(&HelloReply::Refused(refusal), &[], Duration::ZERO);
                return false;
            }
        };
        let named = self.named_sets(&hello, admission.as_ref(), &origin);
        let version = agree(hello.versions, Versions::ours());
        let unheard = version.err().map(|error| Refusal {
            code: CUresult::ERROR_MPS_RPC_FAILURE.0,
            message: error.to_string(),
        });
        let refusal = unheard
            .or_else(|| self.refuses(&hello))
            .or_else(|| self.is_full_for(admission.as_ref(), peer))
            .or(named.as_ref().err().cloned());
        if let Some(refusal) = refusal {
            log_server!("Client {} is refused: {}", peer.pid, refusal.message);
            let _ = connection.send(&HelloReply::Refused(refusal), &[], Duration::ZERO);
            return false;
        }
        let domain = match self.domain_of(id, &hello, admission.as_ref(), peer, &origin) {
            Ok(domain) => domain,
            Err(message) => {
                log_server!("Client {} is refused: {message}", peer.pid);
                let refusal = Refusal { code: CUresult::ERROR_INVALID_VALUE.0, message };
                let _ = connection.send(&HelloReply::Refused(refusal), &[], Duration::ZERO);
                return false;
            }
        };
        let (group, reservation) = named.unwrap_or_default();
        self.clients_ever += 1;
        let mut devices = self.devices_seen_by(&hello, group.as_deref(), reservation.as_deref());
        for device in &mut devices {
            device.closed = !admits(admission.as_ref(), device);
        }
        let welcome = Welcome {
            version: version.unwrap_or_default(),
            client_id: id,
            server_pid: std::process::id(),
            driver_version: self.driver_version,
            devices,
        };
        if let Err(error) = connection.send(&HelloReply::Welcome(welcome), &[], Duration::ZERO) {
            log_server!("Client {} cannot be answered: {error}", peer.pid);
            self.leave_domain(domain);
            return false;
        }
        log_server!("Client {{PID: {}, Context ID: 0}} connected", peer.pid);
        log_server!("Creating worker thread for client {{PID: {}, Context ID: 0}}", peer.pid);
        // From a daemon that cannot hold it there is none.
        let process = process.or_else(|| {
            let pid = Pid::from_raw(peer.pid as i32)?;
            pidfd_open(pid, PidfdFlags::empty()).ok()
        });
        let client = Client {
            connection,
            domain,
            process,
            hello,
            peer,
            defaults: self.defaults.clone(),
            contexts: Vec::new(),
            contexts_ever: BTreeMap::new(),
            sessions: BTreeMap::new(),
            opening: None,
            wanted_percentage: None,
            live: Default::default(),
            admission,
            group,
            reservation,
            refusals: Default::default(),
            is_terminated: false,
            retired: Vec::new(),
        };
        self.clients.insert(id, client);
        true
    }

    /// With whom a client shares executors: the administrator's word, and the client's name within
    /// it.
    fn domain_of(
        &mut self,
        id: u64,
        hello: &ClientHello,
        admission: Option<&Admission>,
        peer: Peer,
        origin: &Origin,
    ) -> Result<Domain, String> {
        let entrance = admission.and_then(|admission| match admission.domain {
            SocketDomain::Server => None,
            SocketDomain::User => Some(format!("user {}", peer.uid)),
            SocketDomain::Group => Some(format!("group {}", admission.group)),
        });
        let name = checked_name(hello.limits.isolation.as_deref())?;
        let group = match self.options.grouping {
            Grouping::Server => None,
            // All processes that the daemon cannot see have the number 0.
            Grouping::Process if peer.pid == 0 => Some(format!("client {id}")),
            Grouping::Process => Some(format!("process {}", peer.pid)),
            Grouping::ControlGroup => {
                Some(origin.control_group.clone().ok_or(UNKNOWN_CONTROL_GROUP)?)
            }
        };
        // Both hold: neither brings together what the other sets apart.
        let apart: Vec<String> = [entrance, group].into_iter().flatten().collect();
        let group = (!apart.is_empty()).then(|| apart.join(" in "));
        Ok(self.domains.find(Key { group, named: name.map(|name| (peer.uid, name)) }))
    }

    /// The devices as a client sees them: with the SMs that it may use, and the memory that it is
    /// told.
    fn devices_seen_by(
        &self,
        hello: &ClientHello,
        group: Option<&str>,
        reservation: Option<&str>,
    ) -> Vec<DeviceInfo> {
        let of_group = group.and_then(|name| limits_of_group(&self.groups, name)?.percentage);
        let percentage =
            active_thread_percentage(&self.defaults, &hello.limits).min(of_group.unwrap_or(100.0));
        let count = CUdevice_attribute::MULTIPROCESSOR_COUNT.0 as i32;
        let is_latency = latency_class(&hello.limits) == Class::Latency;
        let headroom = is_latency.then_some(HEADROOM);
        let mut devices: Vec<_> = self.devices.iter().map(|device| device.info.clone()).collect();
        for (index, device) in devices.iter_mut().enumerate() {
            let own = self.first_memory_bound(&self.defaults, &hello.limits, index);
            let of_group = MemoryBound::told(self.group_memory_limit(group, index));
            let told = own.and(of_group).total_bytes(device.total_memory_bytes);
            device.told_memory_bytes = (told < device.total_memory_bytes).then_some(told);
            let available = self.available_to(index, reservation.or(headroom));
            let share = share_of(device, self.driver_version, percentage);
            let share = share.unwrap_or(available).min(available);
            for (attribute, value) in &mut device.attributes {
                if *attribute == count {
                    *value = share as i32;
                }
            }
        }
        devices
    }

    /// The group and the reservation that a client belongs to.
    fn named_sets(
        &self,
        hello: &ClientHello,
        admission: Option<&Admission>,
        origin: &Origin,
    ) -> Result<(Option<String>, Option<String>), Refusal> {
        if let Some(admission) = admission {
            return Ok((Some(admission.group.clone()), None));
        }
        let refusal =
            |message: String| Refusal { code: CUresult::ERROR_MPS_CONNECTION_FAILED.0, message };
        let limits = &hello.limits;
        for (variable, name) in
            [("OPENMPS_GROUP", &limits.group), ("OPENMPS_RESERVATION", &limits.reservation)]
        {
            if let Some(name) = name {
                check_name(name).map_err(|error| refusal(format!("{variable}: {error}")))?;
            }
        }
        let is_known = |name: &String| self.reservations.iter().any(|known| known.name == *name);
        if let Some(unknown) = limits.reservation.as_ref().filter(|name| !is_known(name)) {
            return Err(refusal(format!(
                "OPENMPS_RESERVATION: there is no reservation {unknown}: `openmps reserve` lists them, and makes one"
            )));
        }
        if let Some(reserved) = limits.group.as_ref().filter(|name| is_reserved(name)) {
            return Err(refusal(NameError::Reserved(reserved.clone()).to_string()));
        }
        let group = match self.membership {
            Membership::ByName => limits.group.clone(),
            // A process cannot choose its cgroup: what it says itself does not count.
            Membership::ByCgroup => {
                let group = bounding_group(origin).map_err(refusal)?;
                (group != "/").then(|| group.to_owned())
            }
        };
        Ok((group, limits.reservation.clone()))
    }

    fn refuses(&self, hello: &ClientHello) -> Option<Refusal> {
        let refusal = |code: CUresult, message: String| Some(Refusal { code: code.0, message });
        if let Some(partition) = &hello.limits.sm_partition {
            // It is to have these SMs alone: on others, or on all, it would disturb whoever has
            // them.
            let message = format!(
                "CUDA_MPS_SM_PARTITION={}: there are no partitions here: unset it, and reserve SMs by `openmps reserve` and OPENMPS_RESERVATION",
                link::printable_prefix(partition, 128)
            );
            return refusal(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION, message);
        }
        if self.course != Course::Serving {
            return refusal(
                CUresult::ERROR_MPS_SERVER_NOT_READY,
                "the server is shutting down".into(),
            );
        }
        None
    }

    /// Whether a client shares the server with the user whose it is.
    pub(crate) fn is_guest(&self, client: &Client) -> bool {
        let own = rustix::process::geteuid().as_raw();
        Guest::of(client.admission.as_ref(), client.peer, own).is_some()
    }

    fn is_full_for(&self, admission: Option<&Admission>, peer: Peer) -> Option<Refusal> {
        let own = rustix::process::geteuid().as_raw();
        let arriving = Guest::of(admission, peer, own);
        let attached = self.clients.values();
        let attached =
            attached.map(|client| Guest::of(client.admission.as_ref(), client.peer, own));
        if has_room(arriving, attached) {
            return None;
        }
        let count = self.clients.len();
        let message = match arriving {
            Some(Guest::OfGroup(group)) => format!(
                "{count} processes are attached, and group {group} has its share of the {MAX_GUESTS} places; wait for one of its to end"
            ),
            Some(Guest::OfUser(uid)) => format!(
                "{count} processes are attached, and user {uid} has its share of the {MAX_GUESTS} places; wait for one of its to end"
            ),
            None => format!("{count} processes are attached; wait for one to end"),
        };
        Some(Refusal { code: CUresult::ERROR_MPS_MAX_CONNECTIONS_REACHED.0, message })
    }
}

/// Whether a client that came in so may use a device.
pub(crate) fn admits(admission: Option<&Admission>, device: &DeviceInfo) -> bool {
    let uuid = uuid_text(&device.uuid);
    admission
        .is_none_or(|admission| admission.devices.is_empty() || admission.devices.contains(&uuid))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of a kind get in beside those that are there.
    fn fill<'a>(attached: &mut Vec<Option<Guest<'a>>>, arriving: Option<Guest<'a>>) -> usize {
        let before = attached.len();
        while has_room(arriving, attached.iter().copied()) {
            attached.push(arriving);
        }
        attached.len() - before
    }

    #[test]
    fn guests_leave_room_for_others_and_the_owner_needs_none() {
        assert_eq!(fill(&mut Vec::new(), None), MAX_CLIENTS);
        let mut attached = Vec::new();
        let guests = [Guest::OfGroup("a"), Guest::OfGroup("b"), Guest::OfUser(7)];
        assert_eq!(guests.map(|guest| fill(&mut attached, Some(guest))), [480, 240, 120]);
        for uid in 100..1000 {
            fill(&mut attached, Some(Guest::OfUser(uid)));
        }
        assert_eq!(attached.len(), MAX_GUESTS);
        assert_eq!(fill(&mut attached, None), MAX_CLIENTS - MAX_GUESTS);
    }

    #[test]
    fn the_servers_user_is_a_guest_in_a_container_and_by_a_groups_socket() {
        let peer = Peer { pid: 1, uid: 5, gid: 5, ..Peer::default() };
        let contained = Peer { namespaces: Namespaces::Own, ..peer };
        let admission =
            Admission { group: "a".into(), devices: Vec::new(), domain: SocketDomain::User };
        assert_eq!(Guest::of(None, peer, 5), None);
        assert_eq!(Guest::of(None, peer, 0), Some(Guest::OfUser(5)));
        assert_eq!(Guest::of(None, contained, 5), Some(Guest::OfUser(5)));
        let subordinate = Peer { counts_for: Some(7), ..peer };
        assert_eq!(Guest::of(None, subordinate, 0), Some(Guest::OfUser(7)));
        assert_eq!(Guest::of(None, subordinate, 5), None);
        assert_eq!(Guest::of(Some(&admission), peer, 5), Some(Guest::OfGroup("a")));
    }
}
