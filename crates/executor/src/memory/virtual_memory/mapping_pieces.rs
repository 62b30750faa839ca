//! Maps memory to reserved addresses, and says who may use it there.

use super::{MAX_MAPPINGS, Mapping, Reach};
use crate::memory::mapping;
use crate::memory::virtual_journal::Thing;
use crate::session::failure::{Failure, INVALID};
use crate::session::state::State;
use cuda_abi::types::*;
use link::wire::command::Opcode;
use link::wire::virtual_memory::{
    ACCESS_NONE, ACCESS_READ_WRITE, MemoryMap, MemorySetAccess, MemoryUnmap,
};

impl State {
    pub(crate) fn memory_map(&mut self, wanted: MemoryMap) -> Result<(), Failure> {
        let MemoryMap { address, size_bytes, offset_bytes, memory, .. } = wanted;
        let piece = self.piece(memory)?;
        let known = &self.virtual_memory;
        let fits = offset_bytes.checked_add(size_bytes).is_some_and(|end| end <= piece.size_bytes);
        if size_bytes == 0
            || !fits
            || !known.is_reserved(address, size_bytes)
            || known.is_mapped(address, size_bytes)
        {
            return Err(INVALID);
        }
        if known.mappings.len() >= MAX_MAPPINGS {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        let (length, offset) = (size_bytes as usize, offset_bytes as usize);
        let handle = piece.handle().ok_or(CUresult::ERROR_MPS_RPC_FAILURE)?;
        // SAFETY: the range lies in a reservation of this session and is free; the handle is live.
        self.check(unsafe { self.driver().cuMemMap(address, length, offset, handle, 0) })?;
        let key = piece.key();
        let mapping = Mapping { size_bytes, offset_bytes, piece, is_accessible: false };
        self.virtual_memory.mappings.insert(address, mapping);
        self.note_thing(Thing::Mapped { address, size_bytes, offset_bytes, key })
    }

    pub(crate) fn memory_unmap(&mut self, wanted: MemoryUnmap) -> Result<(), Failure> {
        let MemoryUnmap { address, size_bytes } = wanted;
        let found = self.virtual_memory.mappings_of(address, size_bytes).ok_or(INVALID)?;
        for at in found {
            self.unmap(at)?;
        }
        Ok(())
    }

    pub(super) fn unmap(&mut self, at: u64) -> Result<(), Failure> {
        let Some(mapping) = self.virtual_memory.mappings.get(&at) else { return Ok(()) };
        if mapping.piece.handle().is_some() {
            // SAFETY: mapped by this session; its client has waited for its work.
            self.check(unsafe { self.driver().cuMemUnmap(at, mapping.size_bytes as usize) })?;
        }
        if let Some(mapping) = self.virtual_memory.mappings.remove(&at) {
            self.memory.addressable.remove(at, mapping.size_bytes);
            self.note_ended(&[Opcode::MemoryMap, Opcode::MemorySetAccess], at);
            self.let_go(mapping.piece);
        }
        Ok(())
    }

    pub(crate) fn memory_set_access(&mut self, wanted: MemorySetAccess) -> Result<(), Failure> {
        let MemorySetAccess { address, size_bytes, access, .. } = wanted;
        if ![ACCESS_NONE, ACCESS_READ_WRITE].contains(&access) {
            return Err(Failure::Protocol(format!("access {access} does not exist")));
        }
        let found = self.virtual_memory.mappings_of(address, size_bytes).ok_or(INVALID)?;
        self.set_access(address, size_bytes, Reach::of(access))?;
        found.into_iter().try_for_each(|address| self.note_thing(Thing::Access { address, access }))
    }

    /// Lets whole mappings be read and written, or not be touched.
    pub(crate) fn set_access(
        &mut self,
        address: u64,
        size_bytes: u64,
        reach: Reach,
    ) -> Result<(), Failure> {
        let found = self.virtual_memory.mappings_of(address, size_bytes).ok_or(INVALID)?;
        let flags = match reach {
            Reach::None => CUmemAccess_flags::NONE,
            Reach::ReadWrite => CUmemAccess_flags::READWRITE,
        };
        // SAFETY: whole mappings of this session.
        unsafe { self.allow(address, size_bytes, flags) }?;
        for at in found {
            let Some(mapping) = self.virtual_memory.mappings.get_mut(&at) else { continue };
            let accessible = reach == Reach::ReadWrite;
            match (mapping.is_accessible, accessible) {
                // Mappings do not overlap, nor does anything else lie in reservations.
                (false, true) => drop(self.memory.addressable.insert(at, mapping.size_bytes)),
                (true, false) => drop(self.memory.addressable.remove(at, mapping.size_bytes)),
                _ => {}
            }
            mapping.is_accessible = accessible;
        }
        Ok(())
    }

    /// Says who may use mapped memory: this device, or nobody.
    ///
    /// # Safety
    /// The range is that of whole mappings which this session has made.
    pub(crate) unsafe fn allow(
        &self,
        address: u64,
        size_bytes: u64,
        flags: CUmemAccess_flags,
    ) -> Result<(), CUresult> {
        // SAFETY: as the caller says.
        unsafe { mapping::allow(self.context(), address, size_bytes, flags) }
    }
}
