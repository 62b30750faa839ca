//! Who may go to which device, and why not.

use crate::Keeper;
use crate::clients::Client;
use crate::clients::attach::admits;
use crate::devices::Device;
use crate::sessions::session::{Service, Session};
use crate::shares::{Awaited, PendingChange};
use cuda_abi::types::CUresult;
use executor_link::log::log_server;
use link::wire::attach::Refusal;
use link::wire::shares::{DeviceMove, Moved};
use policy::destinations::{Shortfall, Traits, shortfall};
use std::collections::BTreeSet;

/// Why a client cannot go to a device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Obstacle {
    #[error("it has no context on a GPU")]
    NoContext,
    #[error("it is on GPU {0} already")]
    There(usize),
    #[error("it is being moved already")]
    Moving,
    #[error("its context has failed, or is being made: try again when it works")]
    NotServed,
    #[error(
        "it came by the socket of group {0}: containers, Kubernetes and batch systems give their jobs such sockets, and count what those have on the GPU that they chose; end the job, or have them place it elsewhere"
    )]
    Allocation(String),
    #[error("its code runs apart from others' after a fault")]
    Quarantine,
    #[error("it uses the SMs of reservation {0}, which are on one GPU")]
    Reservation(String),
    #[error("it has another context on GPU {0}: one process cannot have two devices on one GPU")]
    HasContextThere(usize),
    #[error("kernels of its other GPU may reach its memory")]
    Lent,
    #[error("GPU {0} is drained: `openmps drain --undo {0}` lets programs use it again")]
    Drained(usize),
    #[error("GPU {0} is less than it was told: {1}")]
    Shortfall(usize, Shortfall),
    #[error("its group may not use GPU {0}")]
    NotAdmitted(usize),
    #[error(
        "GPU {from} cannot write to the memory of GPU {to} (peer access): its memory cannot be copied"
    )]
    NoPeerAccess { from: usize, to: usize },
    #[error("GPU {to} has {most} contexts, the most that are allowed")]
    Contexts { to: usize, most: usize },
    #[error("it holds {held} bytes, and may have {limit} on GPU {to}: raise the limit first")]
    Limit { to: usize, held: u64, limit: u64 },
    #[error("its group would have more memory on GPU {0} than it may: raise the limit first")]
    GroupLimit(usize),
    #[error("there is no GPU {0}: the server has {1}")]
    NoDevice(usize, usize),
    #[error("the server has no other GPU")]
    Alone,
    #[error("no GPU takes it: {0}")]
    Nowhere(String),
}

impl Device {
    fn traits(&self) -> Traits<'_> {
        Traits {
            attributes: &self.info.attributes,
            memory_bytes: self.info.total_memory_bytes,
            granularity_bytes: self.granularity_bytes,
        }
    }
}

impl Keeper {
    /// Has clients go to another device, as far as they can.
    pub(crate) fn move_clients(&mut self, mut pending: PendingChange, wanted: DeviceMove) {
        let DeviceMove { whom, to } = wanted;
        let to = to.map(|to| to as usize);
        let clients = self.clients.iter().filter(|(_, client)| match &whom {
            Moved::Process(pid) => *pid != 0 && client.peer.pid == *pid,
            Moved::Group(name) => client.group.as_ref() == Some(name),
            Moved::Device(_) => true,
        });
        let clients: Vec<u64> = clients.map(|(&id, _)| id).collect();
        let mut begun = Vec::new();
        for id in clients {
            let Some(client) = self.clients.get(&id) else { continue };
            let pid = client.peer.pid;
            let sessions: Vec<u64> = client.sessions.values().copied().collect();
            if sessions.is_empty() && whom == Moved::Process(pid) {
                pending.report.refused.push(format!("client {pid}: {}", Obstacle::NoContext));
            }
            for session in sessions {
                let here = self.sessions.get(&session).map(|session| session.device);
                if matches!(whom, Moved::Device(device) if here != Some(device as usize)) {
                    continue;
                }
                match self.destination_of(session, to) {
                    Ok(to) => {
                        pending.open.insert(Awaited::Move { session, pid });
                        self.note_move(session, to);
                        begun.push(session);
                    }
                    Err(obstacle) => {
                        pending.report.refused.push(format!("client {pid}: {obstacle}"));
                    }
                }
            }
        }
        // What comes of them is noted there.
        self.await_change(pending);
        begun.into_iter().for_each(|session| self.see_to_move(session));
    }

    /// From now on these devices are drained.
    pub(crate) fn set_drained(&mut self, drained: Vec<u32>) {
        let drained: BTreeSet<usize> = drained.into_iter().map(|device| device as usize).collect();
        for device in drained.symmetric_difference(&self.drained) {
            match drained.contains(device) {
                true => {
                    log_server!("Device {device} is drained: programs that start do not use it")
                }
                false => log_server!("Device {device} is not drained any more"),
            }
        }
        self.drained = drained;
    }

    /// Where a session is to go; `to` is absent: to where there are the fewest, of those that can
    /// take it.
    fn destination_of(&self, id: u64, to: Option<usize>) -> Result<usize, Obstacle> {
        if let Some(to) = to {
            return self.may_go(id, to).map(|()| to);
        }
        let here = self.sessions.get(&id).map(|session| session.device);
        self.choose(here, |to| self.may_go(id, to))
    }

    /// The device, other than `here`, that has the fewest sessions of those that will do.
    fn choose(
        &self,
        here: Option<usize>,
        will_do: impl Fn(usize) -> Result<(), Obstacle>,
    ) -> Result<usize, Obstacle> {
        let mut others: Vec<usize> =
            (0..self.devices.len()).filter(|&device| Some(device) != here).collect();
        let sessions_on = |device: usize| {
            self.sessions.iter().filter(|(id, it)| self.will_be_on(device, **id, it)).count()
        };
        others.sort_by_cached_key(|&device| sessions_on(device));
        let mut reasons = Vec::new();
        for device in others {
            match will_do(device) {
                Ok(()) => return Ok(device),
                Err(obstacle) => reasons.push(obstacle),
            }
        }
        match reasons.len() {
            0 => Err(Obstacle::Alone),
            1 => Err(reasons.remove(0)),
            _ => {
                let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                Err(Obstacle::Nowhere(reasons.join("; ")))
            }
        }
    }

    /// Whether a running session may go to a device.
    fn may_go(&self, id: u64, to: usize) -> Result<(), Obstacle> {
        let session = self.sessions.get(&id).ok_or(Obstacle::NoContext)?;
        let client = self.clients.get(&session.client).ok_or(Obstacle::NoContext)?;
        let from = session.device;
        if to >= self.devices.len() {
            return Err(Obstacle::NoDevice(to, self.devices.len()));
        }
        if from == to {
            return Err(Obstacle::There(to));
        }
        if self.moves.contains_key(&id) {
            return Err(Obstacle::Moving);
        }
        let is_served = matches!(session.service, Service::Serving | Service::Waiting(_));
        if !is_served || session.files.error() != 0 {
            return Err(Obstacle::NotServed);
        }
        if self.quarantine.is_apart(session.domain) {
            return Err(Obstacle::Quarantine);
        }
        if session.lending.is_lent() {
            return Err(Obstacle::Lent);
        }
        self.may_live(client, session.told_device as usize, to)?;
        let peer = self.devices[from].info.peers.get(to);
        if !peer.is_some_and(|peer| peer.can_access) {
            return Err(Obstacle::NoPeerAccess { from, to });
        }
        let held = self.held_bytes(session);
        let bound = self.memory_bound_where(client, session.told_device as usize, to);
        if let Some(limit) = bound.bytes.filter(|limit| *limit < held) {
            return Err(Obstacle::Limit { to, held, limit });
        }
        if self.is_beyond_group_on(to, client, held) {
            return Err(Obstacle::GroupLimit(to));
        }
        Ok(())
    }

    /// Whether what a client was told of one device holds on another, and it may use that.
    fn may_live(&self, client: &Client, told: usize, to: usize) -> Result<(), Obstacle> {
        if let Some(admission) = &client.admission {
            return Err(Obstacle::Allocation(admission.group.clone()));
        }
        if let Some(reservation) = &client.reservation {
            return Err(Obstacle::Reservation(reservation.clone()));
        }
        if self.drained.contains(&to) {
            return Err(Obstacle::Drained(to));
        }
        if !admits(client.admission.as_ref(), &self.devices[to].info) {
            return Err(Obstacle::NotAdmitted(to));
        }
        let others = client.sessions.iter().filter(|(device, _)| **device as usize != told);
        let others: Vec<u64> = others.map(|(_, &id)| id).collect();
        let is_there = |id: &u64| {
            self.sessions.get(id).is_some_and(|it| it.device == to)
                || self.moves.get(id).is_some_and(|going| going.to.device == to)
        };
        if others.iter().any(is_there) {
            return Err(Obstacle::HasContextThere(to));
        }
        if let Some(missing) = shortfall(self.devices[told].traits(), self.devices[to].traits()) {
            return Err(Obstacle::Shortfall(to, missing));
        }
        let most = self.options.contexts_per_device;
        let contexts = self.contexts_on(to);
        let own = client.contexts.iter().filter(|it| it.device as usize == told).count().max(1);
        match contexts + own > most {
            true => Err(Obstacle::Contexts { to, most }),
            false => Ok(()),
        }
    }

    /// Contexts of all clients that live on a device, or are on their way to it.
    fn contexts_on(&self, device: usize) -> usize {
        let is_there = |client: &Client, told: u32| {
            let goes = client.sessions.get(&told).and_then(|id| self.moves.get(id));
            self.home_of(client, told) == device || goes.is_some_and(|it| it.to.device == device)
        };
        let of = |client: &Client| {
            client.contexts.iter().filter(|it| is_there(client, it.device)).count()
        };
        self.clients.values().map(of).sum()
    }

    /// Whether a session will be on a device once all that are on their way have come.
    fn will_be_on(&self, device: usize, id: u64, session: &Session) -> bool {
        self.moves.get(&id).map_or(session.device, |going| going.to.device) == device
    }

    /// Where a client's session lives that it knows by this number of a device.
    pub(crate) fn home_of(&self, client: &Client, told: u32) -> usize {
        let session = client.sessions.get(&told).and_then(|id| self.sessions.get(id));
        session.map_or(told as usize, |session: &Session| session.device)
    }

    /// On which device a client begins that asks for one: on that, if it is not drained.
    ///
    /// # Errors
    /// It is, and no other will do.
    pub(crate) fn device_for_newcomer(&self, client: &Client, told: u32) -> Result<usize, Refusal> {
        let told = told as usize;
        if !self.drained.contains(&told) || told >= self.devices.len() {
            return Ok(told);
        }
        self.choose(Some(told), |to| self.may_live(client, told, to)).map_err(|obstacle| {
            let message = format!(
                "GPU {told} is drained, and the program cannot begin on another: {obstacle}; `openmps drain --undo {told}` ends that"
            );
            Refusal { code: CUresult::ERROR_DEVICE_UNAVAILABLE.0, message }
        })
    }
}
