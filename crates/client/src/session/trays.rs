//! Staging memory for long pieces: *trays* of one length, that are freed in any order.
//!
//! Threads that share a long copy ([`crate::session::portions`]) each have a few in hand. In a
//! ring, in which the oldest piece must be freed first, they waited for each other: four threads
//! together then copied little more than one.

use crate::memory::host_heap::{HostHeap, Region};
use crate::result::Result;
use crate::session::Session;
use crate::session::slots::Mark;
use crate::session::staging::PIECE_BYTES;
use link::wire::command::REGION_PINNED;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Trays that are made at a time, when none is free.
const TRAYS_PER_REGION: usize = 8;
/// Six threads with four each: what one copies by hand, the device fills or empties meanwhile.
const MOST_TRAYS: usize = 24;
const OWNER_TIMEOUT: Duration = Duration::from_millis(100);

/// See the module's description.
#[derive(Default)]
pub(crate) struct Trays {
    state: Mutex<Rack>,
    freed: Condvar,
}

#[derive(Default)]
struct Rack {
    regions: Vec<Region>,
    trays: Vec<Tray>,
    /// There is no memory for more.
    is_full: bool,
    /// Where to look first: the trays behind it have been out of hand longest.
    next: usize,
}

#[derive(Clone, Copy, Default)]
enum Tray {
    #[default]
    Free,
    /// Its owner is at work.
    Owned,
    /// The device reads it until then.
    Until(u32, Mark),
}

impl Trays {
    fn lock(&self) -> MutexGuard<'_, Rack> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a tray of [`PIECE_BYTES`]: its number and address; waits for one.
    pub(crate) fn take(
        &self,
        session: &Session,
        heap: &HostHeap,
        context: u32,
    ) -> Result<(usize, u64)> {
        let mut rack = self.lock();
        loop {
            if let Some(taken) = rack.take(session, heap, context)? {
                return Ok(taken);
            }
            match rack.oldest_in_use() {
                Some((context, mark)) => {
                    drop(rack);
                    session.wait(context, mark)?;
                    rack = self.lock();
                }
                None => {
                    session.check()?;
                    let waited = self.freed.wait_timeout(rack, OWNER_TIMEOUT);
                    rack = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Takes a tray if one is free.
    pub(crate) fn try_take(
        &self,
        session: &Session,
        heap: &HostHeap,
        context: u32,
    ) -> Result<Option<(usize, u64)>> {
        self.lock().take(session, heap, context)
    }

    /// Frees a tray when the device has done the work up to `mark`.
    pub(crate) fn free_after(&self, number: usize, context: u32, mark: Mark) {
        self.set(number, Tray::Until(context, mark));
    }

    /// Frees a tray now.
    pub(crate) fn free(&self, number: usize) {
        self.set(number, Tray::Free);
    }

    fn set(&self, number: usize, state: Tray) {
        if let Some(tray) = self.lock().trays.get_mut(number) {
            *tray = state;
        }
        self.freed.notify_one();
    }
}

impl Rack {
    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (next, count) = (self.next, self.trays.len());
        (0..count).map(move |step| (next + step) % count)
    }

    /// Takes one that is free, or makes more.
    fn take(
        &mut self,
        session: &Session,
        heap: &HostHeap,
        context: u32,
    ) -> Result<Option<(usize, u64)>> {
        let is_free = |tray| match tray {
            Tray::Free => true,
            Tray::Owned => false,
            Tray::Until(_, mark) => session.is_complete(mark),
        };
        let number = match self.in_turn().find(|&number| is_free(self.trays[number])) {
            Some(number) => number,
            None if self.trays.len() < MOST_TRAYS && !self.is_full => {
                let size_bytes = TRAYS_PER_REGION as u64 * PIECE_BYTES;
                match heap.create_region(session, context, size_bytes, REGION_PINNED) {
                    Ok(region) => self.regions.push(region),
                    Err(error) if self.trays.is_empty() => return Err(error),
                    // Those that are there will do.
                    Err(_) => {
                        self.is_full = true;
                        return Ok(None);
                    }
                }
                self.trays.resize(self.trays.len() + TRAYS_PER_REGION, Tray::Free);
                self.trays.len() - TRAYS_PER_REGION
            }
            None => return Ok(None),
        };
        self.trays[number] = Tray::Owned;
        self.next = (number + 1) % self.trays.len();
        let region = self.regions.get(number / TRAYS_PER_REGION);
        let place = (number % TRAYS_PER_REGION) as u64 * PIECE_BYTES;
        Ok(region.map(|region| (number, region.address + place)))
    }

    fn oldest_in_use(&self) -> Option<(u32, Mark)> {
        self.in_turn().find_map(|number| match self.trays[number] {
            Tray::Until(context, mark) => Some((context, mark)),
            Tray::Free | Tray::Owned => None,
        })
    }
}
