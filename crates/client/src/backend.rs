//! All that a process has on one device: the session, the memory on both sides, the numbers of its objects.

use crate::callbacks::Callbacks;
use crate::device_heap::DeviceHeap;
use crate::host_heap::HostHeap;
use crate::late::Late;
use crate::numbers::Numbers;
use crate::session::{Result, Session};
use crate::slots::Mark;
use crate::spare_events::SpareEvents;
use crate::staging::{self, Piece, Staging};
use link::shm::Reservation;
use link::wire::command::REGION_PLAIN;

/// See the module's description. Lives, once opened, as long as the process.
pub(crate) struct Backend {
    pub(crate) session: Session,
    pub(crate) device_heap: DeviceHeap,
    pub(crate) host_heap: HostHeap,
    pub(crate) staging: Staging,
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
    /// Keeps host memory away from the addresses of device memory.
    pub(crate) _device_window: Option<Reservation>,
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
        self.staging.free_after(piece, context, mark);
    }

    /// Lends `bytes` to the executor for the time of one call: copied to the staging ring, or to a region of their own.
    pub(crate) fn lend<T>(
        &self,
        context: u32,
        bytes: &[u8],
        body: impl FnOnce(u64) -> Result<T>,
    ) -> Result<T> {
        if staging::fits(bytes.len()) {
            let piece = self.stage(context, bytes.len() as u64)?;
            // SAFETY: the piece is as long as `bytes`, mapped, and ours until it is freed.
            unsafe { copy_in(bytes, piece.address) };
            let result = body(piece.address);
            self.staging.free(piece);
            return result;
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
