//! Files that go to the executor and come from it, each with the command that is about it.

use super::{SEND_TIMEOUT, Session};
use crate::result::Result;
use cuda_abi::types::CUresult;
use link::wire::attach::RegionFile;
use link::wire::command::{Opcode, RegionMap, RegionUnmap};
use link::wire::trace::{TraceControl, TraceFile};
use link::wire::virtual_memory::{MemoryFile, MemoryNumber};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

impl Session {
    /// Maps a file of ours into the executor, at the address where we have it.
    pub(crate) fn map_region(
        &self,
        context: u32,
        file: BorrowedFd<'_>,
        region: RegionMap,
    ) -> Result {
        let _together = self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.check()?;
        let packet = RegionFile { address: region.address };
        self.executor.send(&packet, &[file], SEND_TIMEOUT).map_err(|error| {
            crate::error!("a region's file could not be sent: {error}");
            CUresult::ERROR_MPS_RPC_FAILURE
        })?;
        self.call(context, Opcode::RegionMap, &[region.as_bytes()]).map(drop)
    }

    /// Takes a region out of the executor; its work is done.
    pub(crate) fn unmap_region(&self, context: u32, address: u64, size_bytes: u64) -> Result {
        let body = RegionUnmap { address, size_bytes };
        self.call(context, Opcode::RegionUnmap, &[body.as_bytes()]).map(drop)
    }

    /// Gives the executor memory of another process, as number `memory`.
    pub(crate) fn import_memory(&self, file: BorrowedFd<'_>, memory: u32) -> Result {
        let _together = self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.check()?;
        self.executor.send(&MemoryFile { memory }, &[file], SEND_TIMEOUT).map_err(|error| {
            crate::error!("a descriptor of memory could not be sent: {error}");
            CUresult::ERROR_INVALID_VALUE
        })?;
        let body = MemoryNumber { memory, reserved: 0 };
        self.call(0, Opcode::MemoryImport, &[body.as_bytes()]).map(drop)
    }

    /// A descriptor of the memory with that number.
    pub(crate) fn export_memory(&self, memory: u32) -> Result<OwnedFd> {
        let _together = self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let body = MemoryNumber { memory, reserved: 0 };
        self.call(0, Opcode::MemoryExport, &[body.as_bytes()])?;
        let received = self.executor.receive::<MemoryFile>(SEND_TIMEOUT);
        let mut received = received.map_err(|_| CUresult::ERROR_MPS_RPC_FAILURE)?;
        received.descriptors.pop().ok_or(CUresult::ERROR_MPS_RPC_FAILURE)
    }

    /// Has the executor tell of this session's work in a ring. `traced_as` is what calls that post
    /// commands here are known by.
    pub(crate) fn start_trace(&self, ring: BorrowedFd<'_>, traced_as: u32) -> Result {
        let _together = self.mapping.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.check()?;
        // Relaxed: a name.
        self.traced_as.store(traced_as, Ordering::Relaxed);
        self.executor
            .send(&TraceFile { trace: () }, &[ring], SEND_TIMEOUT)
            .map_err(|_| CUresult::ERROR_MPS_RPC_FAILURE)?;
        let body = TraceControl::default();
        self.call(0, Opcode::TraceStart, &[body.as_bytes()]).map(drop)
    }

    /// Ends that; the ring is closed when all that was submitted before has been told.
    pub(crate) fn stop_trace(&self) {
        // A session that is lost tells nothing more anyway.
        let _ = self.call(0, Opcode::TraceStop, &[TraceControl::default().as_bytes()]);
    }
}
