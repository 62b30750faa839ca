//! SMs that are kept free for the latency class: while a client of that class has a session on a
//! device, the others run on the rest of it.
//!
//! A launch of that class goes ahead of all that is queued, but not of blocks that run, and its
//! blocks crowd onto the SMs that free first. With headroom (`OPENMPS_LATENCY_SMS`) they find SMs
//! free. It is a reservation ([`crate::shares`]) that the keeper makes and releases by itself, and
//! whose clients may use all other free SMs too.

use crate::Keeper;
use crate::clients::Client;
use crate::devices::Headroom;
use crate::executors::place::Place;
use executor_link::log::log_server;
use link::wire::daemon::SMALLEST_SHARE;
use policy::limits::latency_class;
use policy::sms::partitions::HEADROOM;
use policy::turns::priorities::Class;
use std::time::{Duration, Instant};

/// A client that comes again within this time moves nobody.
const LINGERS: Duration = Duration::from_secs(5);

impl Keeper {
    /// The reservation whose SMs a client uses on a device: its own, or, of the latency class, the
    /// headroom.
    pub(crate) fn reservation_of<'a>(&self, client: &'a Client, device: usize) -> Option<&'a str> {
        let slot = &self.devices[device];
        let is_made = |name: &&str| slot.reservations.iter().any(|(known, _)| known == *name);
        let has_headroom = slot.headroom.multiprocessors().is_some();
        let is_latency = latency_class(&client.hello.limits) == Class::Latency;
        let own = client.reservation.as_deref().filter(is_made);
        own.or((is_latency && has_headroom).then_some(HEADROOM))
    }

    /// Before a session of the latency class is opened.
    pub(crate) fn hold_headroom(&mut self, device: usize) {
        let wanted = self.options.latency_multiprocessors;
        let slot = &mut self.devices[device];
        if let Some(held) = slot.headroom.multiprocessors() {
            slot.headroom = Headroom::Held(held);
            return;
        }
        if wanted == 0 {
            return;
        }
        let all = slot.multiprocessors();
        let reserved = self.reservations.iter().filter(|one| one.device as usize == device);
        let reserved: u32 = reserved.map(|one| one.multiprocessors).sum();
        let most = all.saturating_sub(reserved).saturating_sub(SMALLEST_SHARE);
        if wanted > most || !self.can_set_apart() {
            log_server!(
                "No SMs of device {device} are kept for the latency class: OPENMPS_LATENCY_SMS is {wanted}, and {} can be set apart",
                if self.can_set_apart() { most } else { 0 }
            );
            return;
        }
        self.devices[device].headroom = Headroom::Held(wanted);
        log_server!("{wanted} SMs of device {device} are kept for the latency class");
        self.tell_all_reservations(device);
    }

    /// From time to time: gives back what nobody has needed for a while.
    pub(crate) fn see_to_headroom(&mut self) {
        for device in 0..self.devices.len() {
            let Some(count) = self.devices[device].headroom.multiprocessors() else { continue };
            let is_latency = |client: &Client| {
                latency_class(&client.hello.limits) == Class::Latency
                    && client.sessions.keys().any(|&told| self.home_of(client, told) == device)
            };
            let is_used = self.clients.values().any(is_latency);
            let headroom = &mut self.devices[device].headroom;
            *headroom = match *headroom {
                _ if is_used => Headroom::Held(count),
                Headroom::Unused(_, since) if since.elapsed() >= LINGERS => Headroom::None,
                Headroom::Unused(..) => continue,
                _ => Headroom::Unused(count, Instant::now()),
            };
            if *headroom == Headroom::None {
                log_server!(
                    "The SMs of device {device} that were kept for the latency class are everybody's"
                );
                self.tell_all_reservations(device);
            }
        }
    }

    fn tell_all_reservations(&self, device: usize) {
        for &(domain, side) in self.devices[device].executors.keys() {
            self.tell_reservations(Place { device, domain, side }, 0);
        }
    }
}
