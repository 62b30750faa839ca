//! Kernels that run for longer than the administrator allows: their client is ended.
//!
//! Nobody sees a kernel begin. What is known is when a session has launched something last, and
//! that its work has not ended. The session of a context that has waited so for longest is the one
//! whose work runs: of the others it is not known. So there is one at a time, and its time begins
//! again when it launches something, when its work has ended, or when another's has.

use crate::Keeper;
use crate::executors::place::Place;
use crate::sessions::session::Service;
use cuda_abi::types::CUresult;
use executor_link::log::log_fault;
use executor_link::messages::ToExecutor;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Whose work a context is at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    session: u64,
    since: Instant,
}

impl Keeper {
    /// From time to time: ends clients whose kernels run for too long.
    pub(crate) fn see_to_overtime(&mut self) {
        let longest = Duration::from_millis(self.fault_settings.longest_kernel_ms);
        if longest.is_zero() {
            return;
        }
        let mut waiting: BTreeMap<Place, (Duration, u64)> = BTreeMap::new();
        for (&id, session) in &self.sessions {
            let is_served = session.service == Service::Serving && session.doomed_since.is_none();
            if is_served && session.has_work() {
                let launches = session.launches().into_iter().filter(|launch| launch.in_flight);
                let latest = launches.map(|launch| launch.record.age_us).min();
                let waits = latest.map(|age_us| (Duration::from_micros(age_us), id));
                let known = waiting.get(&session.place()).copied();
                waiting.extend(waits.max(known).map(|longer| (session.place(), longer)));
            }
        }
        let before = std::mem::take(&mut self.running);
        for (place, (waits, session)) in waiting {
            let goes_on = |it: &&Running| it.session == session && it.since.elapsed() <= waits;
            let known = before.get(&place).filter(goes_on).copied();
            let running = known.unwrap_or(Running { session, since: Instant::now() });
            match running.since.elapsed() >= longest && !self.killings.contains_key(&place) {
                true => self.end_overtime(session),
                false => drop(self.running.insert(place, running)),
            }
        }
    }

    fn end_overtime(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.is_overdue = true;
        let longest_ms = self.fault_settings.longest_kernel_ms;
        log_fault!("{} has run a kernel for longer than {longest_ms} ms: it ends", session.label);
        if let Some(executor) = self.executor_of(id) {
            let code = CUresult::ERROR_LAUNCH_TIMEOUT.0;
            executor.tell(&ToExecutor::EndSession { session: id, code }, &[]);
        }
        self.doom(id);
    }
}
