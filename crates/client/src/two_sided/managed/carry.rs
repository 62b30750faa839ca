//! The bytes of managed memory between the mirror and the device, through memory that this process
//! shares with the executor.

use super::blocks::{Carrier, Guard, Hole};
use super::faults::{Faults, discard};
use crate::result::Result;
use crate::session::Session;
use crate::session::slots::Mark;
use crate::thread;
use cuda_abi::types::CUresult;
use std::collections::VecDeque;
use std::ops::Range;

/// How much goes at once.
pub(super) const PIECE_BYTES: u64 = 512 << 10;
/// Where pieces go through. A thread has two: one is on its way while it reads or writes another.
const TRAYS: u64 = 4;
/// Ranges from this length on are put into the mirror by two threads: making pages takes longer
/// than all else.
const SHARED_FETCH_BYTES: u64 = 8 * PIECE_BYTES;
/// See [`Carriage::transfer`].
pub(super) const TRANSFER_BYTES: u64 = TRAYS * PIECE_BYTES;

/// Who has it has the books, so that the transfer memory is one user's at a time.
pub(super) struct Carriage<'a> {
    pub(super) faults: &'a Faults,
    pub(super) session: &'a Session,
    /// Shared memory of [`TRANSFER_BYTES`].
    pub(super) transfer: u64,
    /// Of a piece's length.
    pub(super) zeros: &'a [u8],
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> + Clone {
    let end = range.end;
    range.step_by(PIECE_BYTES as usize).map(move |at| at..(at + PIECE_BYTES).min(end))
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

impl Carriage<'_> {
    /// Where the pieces of a range go through, one after the other.
    fn tray(&self, number: usize) -> u64 {
        self.transfer + number as u64 % TRAYS * PIECE_BYTES
    }

    /// Has pieces of the device's memory in the mirror: the next is on its way while one is put
    /// there. Takes two trays, from `first_tray` on.
    fn fetch_pieces(
        &self,
        pieces: impl Iterator<Item = Range<u64>>,
        first_tray: usize,
        guard: Guard,
    ) -> Result {
        let trays = [self.tray(first_tray), self.tray(first_tray + 1)];
        let mut before: Option<(Mark, Range<u64>, u64)> = None;
        for (piece, tray) in pieces.zip(trays.into_iter().cycle()) {
            let posted = self.session.start_quiet_copy(tray, piece.start, length(&piece))?;
            if let Some((mark, piece, tray)) = before.replace((posted, piece, tray)) {
                self.session.await_quiet_copy(mark)?;
                self.faults.copy(piece, tray, guard);
            }
        }
        let Some((mark, piece, tray)) = before else { return Ok(()) };
        self.session.await_quiet_copy(mark)?;
        self.faults.copy(piece, tray, guard);
        Ok(())
    }

    /// The same by two threads, if another can be had.
    fn fetch_together(&self, range: Range<u64>, guard: Guard) -> Result {
        let others = pieces(range.clone()).skip(1).step_by(2);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("openmps-managed".to_owned());
            let fetch_others = || self.fetch_pieces(others.clone(), 2, guard);
            let helper = thread::without_signals(|| thread.spawn_scoped(scope, fetch_others));
            let done = self.fetch_pieces(pieces(range).step_by(2), 0, guard);
            let helped = match helper {
                Ok(helper) => helper.join().unwrap_or(Err(CUresult::ERROR_UNKNOWN)),
                Err(_) => fetch_others(),
            };
            done.and(helped)
        })
    }
}

impl Carrier for Carriage<'_> {
    fn fetch(&mut self, range: Range<u64>, guard: Guard) {
        let fetched = match length(&range) {
            SHARED_FETCH_BYTES.. => self.fetch_together(range.clone(), guard),
            _ => self.fetch_pieces(pieces(range.clone()), 0, guard),
        };
        if let Err(error) = fetched {
            // The session has failed, as every call of the program's says.
            crate::error!("managed memory at {:#x} is lost: {error}", range.start);
            self.zero(range);
        }
    }

    fn zero(&mut self, range: Range<u64>) {
        // Pages of its own, since the host is about to write: the kernel's page of zeros would be
        // another fault for each.
        for piece in pieces(range) {
            self.faults.copy(piece, self.zeros.as_ptr() as u64, Guard::Off);
        }
    }

    fn fill_hole(&mut self, page: Range<u64>) -> Hole {
        self.faults.zero_page(page)
    }

    fn guard(&mut self, range: Range<u64>, guard: Guard) {
        self.faults.guard(range, guard);
    }

    fn wake(&mut self, range: Range<u64>) {
        self.faults.wake(range);
    }

    fn host_bytes(&mut self, range: Range<u64>) -> Vec<u8> {
        self.faults.fill_holes(&range);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        // SAFETY: pages that the mirror has, so that reading them is no fault; the vector is as
        // long.
        unsafe {
            core::ptr::copy_nonoverlapping(
                range.start as *const u8,
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
        bytes
    }

    fn carry(&mut self, range: Range<u64>) -> Result {
        let mut posted = VecDeque::new();
        for (number, piece) in pieces(range).enumerate() {
            if posted.len() as u64 == TRAYS
                && let Some(oldest) = posted.pop_front()
            {
                self.session.await_quiet_copy(oldest)?;
            }
            self.faults.fill_holes(&piece);
            // SAFETY: pages that the mirror has; a tray is as long as a piece, and its last copy is
            // done.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    piece.start as *const u8,
                    self.tray(number) as *mut u8,
                    length(&piece) as usize,
                );
            }
            posted.push_back(self.session.start_quiet_copy(
                piece.start,
                self.tray(number),
                length(&piece),
            )?);
        }
        posted.pop_back().map_or(Ok(()), |last| self.session.await_quiet_copy(last))
    }

    fn carry_pieces(&mut self, block: u64, bytes: &[u8], pieces: &[Range<usize>]) -> Result {
        // SAFETY: the transfer memory is longer than a block.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.transfer as *mut u8, bytes.len());
        }
        let post = |piece: &Range<usize>| {
            let (at, size_bytes) = (piece.start as u64, (piece.end - piece.start) as u64);
            self.session.post_quiet_copy(block + at, self.transfer + at, size_bytes)
        };
        // They are done in their order.
        let last = pieces.iter().map(post).reduce(|before, last| before.and(last));
        last.map_or(Ok(()), |last| self.session.await_quiet_copy(last?))
    }

    fn drop(&mut self, range: Range<u64>) {
        discard(&range);
    }
}
