//! All that a process has on one device: the session, the memory on both sides, the numbers of its
//! objects.

use crate::memory::device_heap::DeviceHeap;
use crate::memory::host_heap::{HostHeap, Region};
use crate::numbers::Numbers;
use crate::result::Result;
use crate::session::Session;
use crate::session::expected_wait::CopyRate;
use crate::session::slots::Mark;
use crate::session::staging::{Piece, Staging};
use crate::stream::callbacks::Callbacks;
use crate::stream::late::Late;
use crate::stream::spare_events::SpareEvents;
use link::shm::Reservation;
use link::wire::command::REGION_PLAIN;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, TryLockError};

/// What is kept for lending: longer images have a region of their own.
const LENT_BYTES: u64 = 4 << 20;

/// See the module's description. Lives, once opened, as long as the process; after a fault a device
/// gets another one.
pub(crate) struct Backend {
    pub(crate) session: Session,
    pub(crate) device_heap: DeviceHeap,
    /// Of whole pages, for managed memory.
    pub(crate) managed_heap: DeviceHeap,
    pub(crate) host_heap: HostHeap,
    pub(crate) staging: Staging,
    pub(crate) copy_rate: CopyRate,
    pub(crate) events: Numbers,
    pub(crate) spare_events: SpareEvents,
    pub(crate) late: Late,
    pub(crate) modules: Numbers,
    pub(crate) functions: Numbers,
    pub(crate) graphs: Numbers,
    pub(crate) memories: Numbers,
    pub(crate) arrays: Numbers,
    pub(crate) partitions: Numbers,
    pub(crate) callbacks: Callbacks,
    /// For [`Self::lend`]; its pages are there as far as they were needed.
    pub(crate) lent: Mutex<Option<Region>>,
    /// Keeps host memory away from the addresses of device memory, and has mirrors of managed
    /// memory; see [`crate::two_sided::managed`].
    pub(crate) device_window: Option<Reservation>,
}

/// The backend in use, if there is one: set when the first context is opened, and again when the
/// session has failed and the program begins anew.
#[derive(Debug, Default)]
pub(crate) struct Current(AtomicPtr<Backend>);

impl Current {
    pub(crate) fn get(&self) -> Option<&'static Backend> {
        // SAFETY: null, or a reference that `set` was given; Acquire: with the Release there.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn set(&self, backend: &'static Backend) {
        // Release: with the Acquire in `get`.
        self.0.store(core::ptr::from_ref(backend).cast_mut(), Ordering::Release);
    }
}

impl Backend {
    /// A piece of the staging ring.
    pub(crate) fn stage(&self, context: u32, size_bytes: u64) -> Result<Piece> {
        self.staging.take(&self.session, &self.host_heap, context, size_bytes)
    }

    /// A piece of the staging ring, if there is room.
    pub(crate) fn try_stage(&self, context: u32, size_bytes: u64) -> Result<Option<Piece>> {
        self.staging.try_take(&self.session, &self.host_heap, context, size_bytes)
    }

    /// Frees a staging piece when work is done.
    pub(crate) fn unstage(&self, piece: Piece, context: u32, mark: Mark) {
        if piece.is_long() {
            // A session that has failed says so at its next call.
            let _ = self.session.request(context, mark);
        }
        self.staging.free_after(piece, context, mark);
    }

    /// Lends `bytes` to the executor for the time of one call: copied to a region that is kept for
    /// that, or to one of their own. The driver knows of neither: registering memory holds up all
    /// clients' work.
    pub(crate) fn lend<T>(
        &self,
        context: u32,
        bytes: &[u8],
        body: impl FnOnce(u64) -> Result<T>,
    ) -> Result<T> {
        if bytes.len() as u64 <= LENT_BYTES {
            let kept = match self.lent.try_lock() {
                Ok(kept) => Some(kept),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                // Another thread's call may take long.
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(mut kept) = kept {
                let address = match &*kept {
                    Some(region) => region.address,
                    None => {
                        let (session, heap) = (&self.session, &self.host_heap);
                        let made =
                            heap.create_region(session, context, LENT_BYTES, REGION_PLAIN)?;
                        kept.insert(made).address
                    }
                };
                // SAFETY: the region is as long as `bytes` at least, mapped, and ours until `kept`
                // is dropped.
                unsafe { copy_in(bytes, address) };
                return body(address);
            }
        }
        let region = self.host_heap.create_region(
            &self.session,
            context,
            bytes.len() as u64,
            REGION_PLAIN,
        )?;
        // SAFETY: the region is at least as long as `bytes`, just mapped, and nobody else's.
        unsafe { copy_in(bytes, region.address) };
        let result = body(region.address);
        self.host_heap.destroy_region(&self.session, context, region.address, region.size_bytes)?;
        result
    }
}

/// # Safety
/// `address` is mapped for `bytes.len()` bytes and overlaps nothing in use.
unsafe fn copy_in(bytes: &[u8], address: u64) {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}
