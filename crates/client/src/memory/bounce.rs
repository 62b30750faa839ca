//! Memory that the executor reaches, in place of a copy's pageable end.

use crate::memory::host_heap::HostHeap;
use crate::result::Result;
use crate::session::Session;
use link::wire::command::REGION_PINNED;

/// See the module's description.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounce {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
}

impl Bounce {
    /// Takes so many bytes.
    pub(crate) fn take(
        heap: &HostHeap,
        session: &Session,
        context: u32,
        size_bytes: u64,
    ) -> Result<Self> {
        let address = match heap.allocate_small(session, context, size_bytes) {
            Some(small) => small?,
            None => heap.create_region(session, context, size_bytes, REGION_PINNED)?.address,
        };
        Ok(Self { address, size_bytes })
    }

    /// Frees the memory; nothing may use it any more.
    pub(crate) fn free(self, heap: &HostHeap, session: &Session, context: u32) -> Result {
        if heap.free_small(self.address) {
            return Ok(());
        }
        heap.destroy_region(session, context, self.address, self.size_bytes)
    }
}
