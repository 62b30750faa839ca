//! `__managed__` variables: memory that host and device both name by one address.
//!
//! Where such a variable lies only the driver decides, in the executor. At the same address this
//! process keeps a *mirror* of it. What the host has changed is written to the device before the
//! next work is posted, so that work of any stream finds it; what the device has changed is fetched
//! when the host has waited for work. Both directions carry only the bytes that changed since the
//! two agreed, so neither side's writes undo the other's. That is all that devices without
//! concurrent managed access promise; a kernel and the host do not see each other's writes while
//! the kernel runs.

use super::changes::changes;
use crate::memory::host_heap::HostHeap;
use crate::result::Result;
use crate::session::Session;
use crate::session::slots::Mark;
use cuda_abi::types::CUresult;
use link::pages::Pages;
use link::shm::Reservation;
use link::wire::attach::Window;
use link::wire::command::REGION_PINNED;
use rustix::mm::MprotectFlags;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So many pieces of a variable are written one by one; more, where nothing of the device can
/// change what lies between them, as one.
const MOST_PIECES: usize = 32;

/// See the module's description.
#[derive(Default)]
pub(crate) struct Mirrors {
    /// Whether there is any; spares the lock.
    any: AtomicBool,
    /// Whether the device may have changed a variable since the last fetch. Cleared under the lock:
    /// who finds it cleared there finds what was fetched, too.
    stale: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    mirrors: Vec<Mirror>,
    /// Pages that are ours; they stay, as a later module's variables may lie there.
    pages: Vec<Reservation>,
}

struct Mirror {
    address: u64,
    /// What both sides agreed on last.
    agreed: Box<[u8]>,
    /// Shared memory, twice as long: what is on its way to the device, then what came from it.
    transfer: u64,
}

impl Mirrors {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to mirror a variable, whose value is fetched now.
    pub(crate) fn add(
        &self,
        (heap, session): (&HostHeap, &Session),
        id: u32,
        address: u64,
        size_bytes: u64,
    ) -> Result {
        session.open_quiet_stream()?;
        let region = heap.create_region(session, id, size_bytes * 2, REGION_PINNED)?;
        let mut state = self.lock();
        // Work that nobody counted may be changing it.
        self.stale.store(true, Ordering::Release);
        // Release: with the Acquire in `is_empty`.
        self.any.store(true, Ordering::Release);
        let made = state.map_pages(address, size_bytes, Pages::of_system()).and_then(|()| {
            // SAFETY: just mapped or mapped for a variable that is gone.
            unsafe { core::ptr::write_bytes(address as *mut u8, 0, size_bytes as usize) };
            let agreed = vec![0; size_bytes as usize].into();
            let mut mirror = Mirror { address, agreed, transfer: region.address };
            mirror.fetch(session).map(|()| mirror)
        });
        match made {
            Ok(mirror) => state.mirrors.push(mirror),
            Err(error) => {
                drop(state);
                heap.destroy_region(session, id, region.address, region.size_bytes)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends a mirror whose variable is gone; no work uses it any more.
    pub(crate) fn remove(
        &self,
        (heap, session): (&HostHeap, &Session),
        id: u32,
        address: u64,
    ) -> Result {
        let mut state = self.lock();
        let Some(found) = state.mirrors.iter().position(|mirror| mirror.address == address) else {
            return Ok(());
        };
        let mirror = state.mirrors.swap_remove(found);
        self.any.store(!state.mirrors.is_empty(), Ordering::Release);
        let size_bytes = mirror.agreed.len() as u64 * 2;
        heap.destroy_region(session, id, mirror.transfer, size_bytes)
    }

    /// Whether nothing is mirrored.
    fn is_empty(&self) -> bool {
        // Acquire: with the Release in `add`, should another thread have loaded the module.
        !self.any.load(Ordering::Acquire)
    }

    /// Writes what the host has changed, before work is posted.
    pub(super) fn push(&self, session: &Session) -> Result {
        if self.is_empty() {
            return Ok(());
        }
        let (mut state, mut last) = (self.lock(), None);
        for mirror in &mut state.mirrors {
            last = mirror.write(session, last)?;
        }
        // They are done in their order.
        last.map_or(Ok(()), |last| session.await_quiet_copy(last))
    }

    /// Work was posted, which may change variables.
    pub(super) fn note_work(&self) {
        if !self.is_empty() {
            // Release: with the swap in `pull`. After the post: who finds it set finds the work
            // posted, or done.
            self.stale.store(true, Ordering::Release);
        }
    }

    /// Fetches what the device has changed, once work has been waited for.
    pub(super) fn pull(&self, session: &Session) -> Result {
        if self.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        if !self.stale.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        if session.is_busy() {
            // What still runs may change more: the next wait looks again.
            self.stale.store(true, Ordering::Release);
        }
        state.mirrors.iter_mut().try_for_each(|mirror| mirror.fetch(session))
    }
}

/// Whether nothing of the device can change variables: this thread alone is about to post, as
/// others that begin to meet the lock, and all work is done but copies to variables, which are
/// awaited.
fn is_quiet(session: &Session, posted: Option<Mark>) -> Result<bool> {
    posted.map_or(Ok(()), |posted| session.await_quiet_copy(posted))?;
    Ok(session.two_sided().posting() <= 1 && !session.is_busy())
}

impl State {
    /// Makes the pages of a variable readable and writable memory of this process.
    fn map_pages(&mut self, address: u64, size_bytes: u64, pages: Pages) -> Result {
        let around = pages.around(Window { base: address, size_bytes });
        let Window { base, size_bytes } = around.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let page_bytes = pages.bytes();
        for page in (base..base + size_bytes).step_by(page_bytes as usize) {
            let is_known = |known: &Reservation| known.window().contains(page, page_bytes);
            if self.pages.iter().any(is_known) {
                continue;
            }
            let reserved =
                Reservation::in_pages(Window { base: page, size_bytes: page_bytes }, pages);
            let reserved = reserved.map_err(|error| {
                crate::error!("a __managed__ variable cannot have its address here: {error}");
                CUresult::ERROR_NOT_SUPPORTED
            })?;
            let access = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: a page that was reserved just now and that nobody knows.
            unsafe { rustix::mm::mprotect(page as *mut _, page_bytes as usize, access) }
                .map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
            self.pages.push(reserved);
        }
        Ok(())
    }
}

impl Mirror {
    fn size_bytes(&self) -> u64 {
        self.agreed.len() as u64
    }

    /// The host's bytes now; another thread may be writing.
    fn host_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.agreed.len()];
        // SAFETY: the mirror's pages are mapped; the vector is as long.
        unsafe {
            core::ptr::copy_nonoverlapping(
                self.address as *const u8,
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
        bytes
    }

    /// Returns what is to be waited for: that of this mirror, or else of the one before.
    fn write(&mut self, session: &Session, before: Option<Mark>) -> Result<Option<Mark>> {
        let mut now = self.host_bytes();
        let mut pieces = changes(&self.agreed, &now);
        if pieces.len() > MOST_PIECES && is_quiet(session, before)? {
            // What the device has changed must lie between them.
            self.fetch(session)?;
            now = self.host_bytes();
            pieces = changes(&self.agreed, &now);
            if let (Some(first), Some(last)) = (pieces.first(), pieces.last()) {
                pieces = std::iter::once(first.start..last.end).collect();
            }
        }
        let mut last = before;
        for Range { start, end } in pieces {
            let piece = &now[start..end];
            let source = self.transfer + start as u64;
            // SAFETY: inside the first half of the transfer memory, which no work uses now.
            unsafe {
                core::ptr::copy_nonoverlapping(piece.as_ptr(), source as *mut u8, piece.len());
            }
            let destination = self.address + start as u64;
            last = Some(session.post_quiet_copy(destination, source, piece.len() as u64)?);
            self.agreed[start..end].copy_from_slice(piece);
        }
        Ok(last)
    }

    fn fetch(&mut self, session: &Session) -> Result {
        let fetched = self.transfer + self.size_bytes();
        session.copy_quietly(fetched, self.address, self.size_bytes())?;
        let mut device = vec![0; self.agreed.len()];
        // SAFETY: the second half of the transfer memory, which the device has just filled.
        unsafe {
            core::ptr::copy_nonoverlapping(fetched as *const u8, device.as_mut_ptr(), device.len());
        }
        for Range { start, end } in changes(&self.agreed, &device) {
            let piece = &device[start..end];
            // SAFETY: inside the mirror.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    piece.as_ptr(),
                    (self.address + start as u64) as *mut u8,
                    piece.len(),
                );
            }
            self.agreed[start..end].copy_from_slice(piece);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_one_page_share_it_whatever_its_length() {
        // Where nothing else is.
        const FREE: u64 = 0x0c00_0000_0000;
        for kib in [4, 16, 64] {
            let (pages, mut state) = (Pages::of(kib << 10), State::default());
            let bytes = pages.bytes();
            let at = |page: u64, offset: u64| FREE + page * bytes + offset;
            state.map_pages(at(1, 8), 8, pages).unwrap();
            state.map_pages(at(1, bytes - 8), 8, pages).unwrap();
            assert_eq!(state.pages.len(), 1, "{kib} KiB");
            state.map_pages(at(1, bytes - 4), bytes + 8, pages).unwrap();
            let mapped: Vec<u64> = state.pages.iter().map(|it| it.window().base).collect();
            assert_eq!(mapped, [at(1, 0), at(2, 0), at(3, 0)], "{kib} KiB");
            // SAFETY: mapped above, and this test's own.
            unsafe { core::ptr::write_bytes(at(1, 0) as *mut u8, 7, 3 * bytes as usize) };
            assert_eq!(state.map_pages(u64::MAX, 8, pages), Err(CUresult::ERROR_INVALID_VALUE));
        }
    }
}
