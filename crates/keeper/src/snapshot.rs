//! One moment of the server, for the daemon.

use super::Keeper;
use super::devices::uuid_text;
use crate::executors::place::{Seat, Side};
use cuda_abi::types::CUdevice_attribute;
use link::wire::daemon::{
    CONTEXTS_LISTED, CONTEXTS_LISTED_OF_CLIENT, DeviceSnapshot, DomainSnapshot, GroupSnapshot,
    LAUNCHES_LISTED, ReservationSnapshot, ServerSnapshot,
};
use policy::domains::SHARED;
use std::collections::BTreeMap;

impl Keeper {
    pub(crate) fn snapshot(&self) -> ServerSnapshot {
        let clients = self.clients.iter().map(|(&id, client)| self.client_snapshot(id, client));
        let mut clients: Vec<_> = clients.collect();
        // A client can make as many contexts as it likes; the list must stay one that the daemon
        // takes.
        let mut room = CONTEXTS_LISTED;
        for client in &mut clients {
            client.contexts.truncate(room.min(CONTEXTS_LISTED_OF_CLIENT));
            room -= client.contexts.len();
        }
        let mut room = LAUNCHES_LISTED;
        for device in clients.iter_mut().flat_map(|client| &mut client.devices) {
            device.launches.truncate(room);
            room -= device.launches.len();
        }
        let mut departed: Vec<_> = self.departed.iter().cloned().collect();
        // What still runs for those that have just left counts already.
        for session in self.sessions.values() {
            if let Some(departed) =
                departed.iter_mut().find(|departed| departed.client_id == session.client)
            {
                let counts = session.counts();
                departed.kernels += counts.kernels;
                departed.copied_bytes += counts.copied_bytes;
                departed.commands += counts.commands;
            }
        }
        let devices = (0..self.devices.len()).map(|index| self.device_snapshot(index)).collect();
        ServerSnapshot {
            devices,
            clients,
            departed,
            clients_ever: self.clients_ever,
            faults: self.faults.latest(),
        }
    }

    fn device_snapshot(&self, index: usize) -> DeviceSnapshot {
        let device = &self.devices[index];
        let sessions = || self.sessions.values().filter(move |session| session.device == index);
        let (mut all, mut queued_bytes) = (device.departed, 0);
        for session in sessions() {
            let counts = session.counts();
            all.add(&counts.since(&session.counted_elsewhere));
            queued_bytes += counts.queued_bytes;
        }
        let pid = |seat: Seat| device.executors.get(&seat).map_or(0, |it| it.process.pid());
        let seats = device.executors.keys().filter(|(domain, _)| *domain != SHARED);
        let domains = seats.map(|&(domain, side)| DomainSnapshot {
            name: self.domains.label(domain),
            executor_pid: pid((domain, side)),
            clients: sessions().filter(|session| session.domain == domain).count() as u32,
        });
        DeviceSnapshot {
            uuid: uuid_text(&device.info.uuid),
            name: device.info.name.clone(),
            pci_bus_id: device.info.pci_bus_id.clone(),
            executor_pid: pid((SHARED, Side::First)),
            second_executor_pid: pid((SHARED, Side::Second)),
            domains: domains.collect(),
            compute_mode: device.attribute(CUdevice_attribute::COMPUTE_MODE).max(0) as u32,
            granted_bytes: sessions().map(|session| self.held_bytes(session)).sum(),
            spilled_bytes: self.residencies[index].spilled_bytes(),
            kernels_ever: all.kernels,
            chained_kernels_ever: all.chained_kernels,
            chained_copies_ever: all.chained_copies,
            chained_signals_ever: all.chained_signals,
            total_memory_bytes: device.info.total_memory_bytes,
            multiprocessors: device.multiprocessors(),
            faults: device.faults,
            failed: self.recovering.iter().any(|place| place.device == index),
            restarts: device.restarts,
            executor_deaths: device.deaths,
            standby_pid: device.standby.ready().map_or(0, |it| it.process.pid()),
            standby_memory_bytes: device.standby.ready().map_or(0, |it| it.ahead.mapped_bytes()),
            refused_contexts: device.refused_contexts,
            copied_bytes_ever: all.copied_bytes,
            gpu_time_ns_ever: all.gpu_time_ns,
            queued_bytes,
            launch_counts: all.launches.to_vec(),
            launch_time_ns: all.launch_time_ns,
            reservations: self.reservation_snapshots(index),
            groups: self.group_snapshots(index),
        }
    }

    fn reservation_snapshots(&self, index: usize) -> Vec<ReservationSnapshot> {
        let of = |name: &str| {
            let members = self.sessions.values().filter(|session| {
                session.device == index && session.share.wish().reservation.as_deref() == Some(name)
            });
            members.count() as u32
        };
        let reservations = self.devices[index].reservations.iter();
        reservations
            .map(|(name, multiprocessors)| ReservationSnapshot {
                name: name.clone(),
                multiprocessors: *multiprocessors,
                clients: of(name),
            })
            .collect()
    }

    fn group_snapshots(&self, index: usize) -> Vec<GroupSnapshot> {
        let mut groups: BTreeMap<&str, GroupSnapshot> = BTreeMap::new();
        for session in self.sessions.values().filter(|session| session.device == index) {
            let Some(client) = self.clients.get(&session.client) else { continue };
            let Some(name) = client.group.as_deref() else { continue };
            let group = groups.entry(name).or_insert_with(|| {
                let membership = self.membership(client, index);
                GroupSnapshot {
                    name: name.to_owned(),
                    memory_limit_bytes: membership.and_then(|group| group.memory_limit_bytes),
                    percentage: self.group_of(client).and_then(|group| group.percentage),
                    ..Default::default()
                }
            });
            group.clients += 1;
            group.granted_bytes += self.held_bytes(session);
        }
        groups.into_values().collect()
    }
}
