//! Staging: pinned memory through which pageable data reaches the device.
//!
//! Long pieces are [`Trays`]. Short ones come from a ring: a piece is taken at the ring's end and
//! is free again when its owner says so, or when the copy that reads it is done. Pieces are freed
//! in the order in which they were taken; who finds no room waits for the oldest.

use crate::memory::host_heap::{HostHeap, Region};
use crate::result::Result;
use crate::session::Session;
use crate::session::slots::Mark;
use crate::session::trays::Trays;
use link::wire::command::REGION_PINNED;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Short: it is made, and registered with the driver, which holds up others' work, for the first
/// short copy.
const RING_BYTES: u64 = 2 << 20;
/// Pieces from this length on are trays.
const TRAY_BYTES: u64 = 256 << 10;
/// Longest piece.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;
/// Pieces of a copy that one thread makes: it fills one while the device takes the one before, and
/// they come from the ring, which a core's cache holds.
const SHORT_PIECE_BYTES: u64 = 192 << 10;
/// Copies from this length on are worth long pieces.
const LONG_COPY_BYTES: u64 = 4 << 20;
const ALIGN_BYTES: u64 = 64;
const OWNER_TIMEOUT: Duration = Duration::from_millis(100);

/// How long the pieces of a copy are, at most, whose end its caller waits for.
pub(crate) fn piece_bytes(copy_bytes: u64) -> u64 {
    if copy_bytes < LONG_COPY_BYTES { SHORT_PIECE_BYTES } else { PIECE_BYTES }
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct Staging {
    ring: Mutex<Ring>,
    freed: Condvar,
    trays: Trays,
}

#[derive(Default)]
struct Ring {
    region: Option<Region>,
    /// Counts every byte handed out, skipped ones included.
    end: u64,
    pieces: VecDeque<Entry>,
    first_serial: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    start: u64,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// Its owner is at work.
    Owned,
    /// The device reads it until then.
    Until(u32, Mark),
    Free,
}

/// A piece, the owner's alone until it is freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// By serial number.
    Ring(u64),
    /// By number.
    Tray(usize),
}

impl Piece {
    /// Whether so few fit that who waits for one waits for the device.
    pub(crate) fn is_long(&self) -> bool {
        matches!(self.place, Place::Tray(_))
    }

    fn tray((number, address): (usize, u64)) -> Self {
        Self { address, place: Place::Tray(number) }
    }
}

impl Staging {
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes a piece of at most [`PIECE_BYTES`]; waits for room.
    pub(crate) fn take(
        &self,
        session: &Session,
        heap: &HostHeap,
        context: u32,
        size_bytes: u64,
    ) -> Result<Piece> {
        if size_bytes >= TRAY_BYTES {
            return self.trays.take(session, heap, context).map(Piece::tray);
        }
        let mut ring = self.made(session, heap, context)?;
        loop {
            if let Some(piece) = ring.take(session, size_bytes) {
                return Ok(piece);
            }
            ring = self.wait_for_oldest(session, ring)?;
        }
    }

    /// Takes a piece if there is room.
    pub(crate) fn try_take(
        &self,
        session: &Session,
        heap: &HostHeap,
        context: u32,
        size_bytes: u64,
    ) -> Result<Option<Piece>> {
        if size_bytes >= TRAY_BYTES {
            let tray = self.trays.try_take(session, heap, context)?;
            return Ok(tray.map(Piece::tray));
        }
        Ok(self.made(session, heap, context)?.take(session, size_bytes))
    }

    /// The ring, with its region made.
    fn made(
        &self,
        session: &Session,
        heap: &HostHeap,
        context: u32,
    ) -> Result<MutexGuard<'_, Ring>> {
        let mut ring = self.lock();
        if ring.region.is_none() {
            ring.region = Some(heap.create_region(session, context, RING_BYTES, REGION_PINNED)?);
        }
        Ok(ring)
    }

    fn wait_for_oldest<'a>(
        &'a self,
        session: &Session,
        ring: MutexGuard<'a, Ring>,
    ) -> Result<MutexGuard<'a, Ring>> {
        match ring.pieces.front().map(|oldest| oldest.state) {
            Some(State::Until(context, mark)) => {
                drop(ring);
                session.wait(context, mark)?;
                Ok(self.lock())
            }
            _ => {
                session.check()?;
                let waited = self.freed.wait_timeout(ring, OWNER_TIMEOUT);
                Ok(waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0)
            }
        }
    }

    fn set(&self, serial: u64, state: State) {
        let mut ring = self.lock();
        let index =
            serial.checked_sub(ring.first_serial).and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| ring.pieces.get_mut(index)) {
            entry.state = state;
        }
        drop(ring);
        self.freed.notify_all();
    }

    /// Frees a piece when the device has done the work up to `mark`. The caller asks for the signal
    /// of a long one: else whoever wants room asks for one later, behind all that was posted
    /// meanwhile, and the device idles.
    pub(crate) fn free_after(&self, piece: Piece, context: u32, mark: Mark) {
        match piece.place {
            Place::Ring(serial) => self.set(serial, State::Until(context, mark)),
            Place::Tray(number) => self.trays.free_after(number, context, mark),
        }
    }

    /// Frees a piece now.
    pub(crate) fn free(&self, piece: Piece) {
        match piece.place {
            Place::Ring(serial) => self.set(serial, State::Free),
            Place::Tray(number) => self.trays.free(number),
        }
    }
}

impl Ring {
    fn take(&mut self, session: &Session, size_bytes: u64) -> Option<Piece> {
        debug_assert!(size_bytes < TRAY_BYTES);
        let size_bytes = size_bytes.max(1).next_multiple_of(ALIGN_BYTES);
        self.drop_free(session);
        let start = self.place(size_bytes)?;
        let address = self.region.as_ref()?.address + start % RING_BYTES;
        self.end = start + size_bytes;
        self.pieces.push_back(Entry { start, state: State::Owned });
        let serial = self.first_serial + self.pieces.len() as u64 - 1;
        Some(Piece { address, place: Place::Ring(serial) })
    }

    fn drop_free(&mut self, session: &Session) {
        while let Some(oldest) = self.pieces.front() {
            match oldest.state {
                State::Free => {}
                State::Until(_, mark) if session.is_complete(mark) => {}
                _ => return,
            }
            self.pieces.pop_front();
            self.first_serial += 1;
        }
    }

    /// Where a piece fits: at the end, or at the ring's start if it would cross its end.
    fn place(&self, size_bytes: u64) -> Option<u64> {
        let left = RING_BYTES - self.end % RING_BYTES;
        let start = if left < size_bytes { self.end + left } else { self.end };
        let oldest = self.pieces.front().map_or(start, |oldest| oldest.start);
        (start + size_bytes - oldest <= RING_BYTES).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_wrap_and_never_overlap() {
        let mut ring = Ring::default();
        let mut live: VecDeque<(u64, u64)> = VecDeque::new();
        let mut placed = 0;
        for step in 0..10_000_u64 {
            let size_bytes = (step * 7919 % TRAY_BYTES).max(1).next_multiple_of(ALIGN_BYTES);
            match ring.place(size_bytes) {
                Some(start) => {
                    let (low, high) = (start % RING_BYTES, start % RING_BYTES + size_bytes);
                    assert!(high <= RING_BYTES, "a piece is contiguous");
                    assert!(live.iter().all(|&(l, h)| high <= l || h <= low));
                    live.push_back((low, high));
                    ring.end = start + size_bytes;
                    ring.pieces.push_back(Entry { start, state: State::Owned });
                    placed += 1;
                }
                None => {
                    live.pop_front();
                    ring.pieces.pop_front();
                }
            }
        }
        assert!(placed > 4000, "{placed}");
    }
}
