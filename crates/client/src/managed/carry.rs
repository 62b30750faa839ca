//! The bytes of managed memory between the mirror and the device, through memory that this process
//! shares with the executor.

use super::blocks::{Carrier, Guard, Hole};
use super::faults::{Faults, discard};
use crate::session::{Result, Session, StreamPlan};
use link::wire::command::{Copy, CopyNow, LEGACY_STREAM, Opcode};
use std::ops::Range;
use std::sync::OnceLock;
use zerocopy::IntoBytes;

/// How much goes at once.
pub(super) const TRANSFER_BYTES: u64 = super::blocks::LONGEST_FETCH_BYTES;

/// Pieces that are copied by a call each. More are posted to a stream, and waited for together.
const MOST_CALLS: usize = 4;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// All SMs that the client has.
const WHOLE_SHARE: u32 = 0;
/// Copies are no context's work.
const NO_CONTEXT: u32 = 0;

/// Who has it has the books, so that the transfer memory is one user's at a time.
pub(super) struct Carriage<'a> {
    pub(super) faults: &'a Faults,
    pub(super) session: &'a Session,
    /// Shared memory of [`TRANSFER_BYTES`].
    pub(super) transfer: u64,
    /// As many zeros.
    pub(super) zeros: &'a [u8],
    /// A stream for pieces, once it was needed.
    pub(super) stream: &'a OnceLock<u32>,
}

/// The pieces of a range that fit into the transfer memory.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(TRANSFER_BYTES as usize).map(move |at| at..(at + TRANSFER_BYTES).min(end))
}

impl Carriage<'_> {
    fn copy_now(&self, destination: u64, source: u64, size_bytes: u64) -> Result {
        let body = CopyNow { destination, source, size_bytes };
        self.session.call(NO_CONTEXT, Opcode::CopyNow, &[body.as_bytes()]).map(drop)
    }

    /// A stream that waits for none of the program's.
    fn stream(&self) -> Result<u32> {
        if let Some(&stream) = self.stream.get() {
            return Ok(stream);
        }
        let plan = StreamPlan {
            flags: NON_BLOCKING,
            priority: 0,
            partition: WHOLE_SHARE,
            default_stream: LEGACY_STREAM,
        };
        let made = self.session.create_stream(NO_CONTEXT, plan)?;
        // Whoever is here has the books: nobody else makes one.
        Ok(*self.stream.get_or_init(|| made))
    }
}

impl Carrier for Carriage<'_> {
    fn fetch(&mut self, range: Range<u64>, guard: Guard) {
        for piece in pieces(range) {
            let size_bytes = piece.end - piece.start;
            if let Err(error) = self.copy_now(self.transfer, piece.start, size_bytes) {
                // The session has failed, as every call of the program's says.
                crate::error!("managed memory at {:#x} is lost: {error}", piece.start);
                // SAFETY: the transfer memory, which is as long as a piece, and ours.
                unsafe {
                    core::ptr::write_bytes(self.transfer as *mut u8, 0, size_bytes as usize);
                }
            }
            self.faults.copy(piece, self.transfer, guard);
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
        pieces(range).try_for_each(|piece| {
            let size_bytes = piece.end - piece.start;
            // SAFETY: pages that the mirror has; the transfer memory is as long as a piece.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    piece.start as *const u8,
                    self.transfer as *mut u8,
                    size_bytes as usize,
                );
            }
            self.copy_now(piece.start, self.transfer, size_bytes)
        })
    }

    fn carry_pieces(&mut self, block: u64, bytes: &[u8], pieces: &[Range<usize>]) -> Result {
        // SAFETY: the transfer memory is longer than a block.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.transfer as *mut u8, bytes.len());
        }
        let ends = |piece: &Range<usize>| {
            let (at, size_bytes) = (piece.start as u64, (piece.end - piece.start) as u64);
            (block + at, self.transfer + at, size_bytes)
        };
        if pieces.len() <= MOST_CALLS {
            return pieces
                .iter()
                .map(ends)
                .try_for_each(|(to, from, size_bytes)| self.copy_now(to, from, size_bytes));
        }
        let stream = self.stream()?;
        for (destination, source, size_bytes) in pieces.iter().map(ends) {
            let body = Copy { stream, reserved: 0, destination, source, size_bytes };
            self.session.post_work(NO_CONTEXT, stream, Opcode::Copy, &[body.as_bytes()])?;
        }
        let mark = self.session.mark(NO_CONTEXT, stream)?;
        self.session.wait_quietly(NO_CONTEXT, mark)
    }

    fn drop(&mut self, range: Range<u64>) {
        discard(&range);
    }
}
