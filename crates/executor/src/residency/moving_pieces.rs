//! Memory without an address of its own (`cuMemCreate`) that is moved out to the host and back
//! ([`super::moving`]): its mappings go, and come again at the same addresses. What is mapped
//! nowhere as a whole, or may not be used, is copied through a mapping made for that.

use super::moving::{Direction, HostCopy};
use crate::memory::virtual_memory::{Mapping, Piece};
use crate::session::state::State;
use cuda_abi::types::*;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;

type Mappings = Vec<(u64, Mapping)>;

impl State {
    /// Copies a piece and takes it out of the driver. After an error it is as it was.
    pub(crate) fn take_piece_out(
        &mut self,
        key: u64,
        size_bytes: u64,
        copy: &mut HostCopy,
    ) -> Result<(), CUresult> {
        let (piece, mappings) = self.piece_with_mappings(key, size_bytes)?;
        let handle = piece.handle().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        self.transfer_piece(handle, size_bytes, &mappings, copy, Direction::Out)?;
        for (place, (at, mapping)) in mappings.iter().enumerate() {
            // SAFETY: mapped by this session, which has nothing in flight and takes no command.
            let unmapped = unsafe { self.driver().cuMemUnmap(*at, mapping.size_bytes as usize) };
            if let Err(code) = self.context().check(unmapped) {
                // Only a context that is lost refuses both; then the session ends anyway.
                let _ = self.map_all(handle, &mappings[..place]);
                return Err(code);
            }
        }
        // SAFETY: a live handle that is used no more.
        let _ = self.context().check(unsafe { self.driver().cuMemRelease(handle) });
        piece.set_handle(None);
        Ok(())
    }

    /// Puts a piece back into new memory, which the descriptor stands for. After an error it is as
    /// it was.
    pub(crate) fn put_piece_back(
        &mut self,
        key: u64,
        size_bytes: u64,
        file: &OwnedFd,
        copy: &mut HostCopy,
    ) -> Result<(), CUresult> {
        let (piece, mappings) = self.piece_with_mappings(key, size_bytes)?;
        let handle = self.import_memory(file.as_fd())?;
        let back = self.map_all(handle, &mappings).and_then(|()| {
            self.transfer_piece(handle, size_bytes, &mappings, copy, Direction::Back)
                .inspect_err(|_| self.unmap_all(&mappings))
        });
        match back {
            Ok(()) => piece.set_handle(Some(handle)),
            Err(_) => {
                // SAFETY: a live handle that is used no more.
                let _ = unsafe { self.driver().cuMemRelease(handle) };
            }
        }
        back
    }

    fn piece_with_mappings(
        &self,
        key: u64,
        size_bytes: u64,
    ) -> Result<(Arc<Piece>, Mappings), CUresult> {
        let piece = self.virtual_memory.piece_of(key).cloned();
        let piece = piece.filter(|piece| piece.size_bytes == size_bytes);
        let piece = piece.ok_or(CUresult::ERROR_MPS_RPC_FAILURE)?;
        Ok((piece, self.virtual_memory.mappings_of_piece(key)))
    }

    /// Maps memory where a piece was mapped: everywhere or nowhere.
    fn map_all(
        &self,
        handle: CUmemGenericAllocationHandle,
        mappings: &[(u64, Mapping)],
    ) -> Result<(), CUresult> {
        for (place, (at, mapping)) in mappings.iter().enumerate() {
            if let Err(code) = self.map_part(handle, *at, mapping) {
                self.unmap_all(&mappings[..place]);
                return Err(code);
            }
        }
        Ok(())
    }

    fn map_part(
        &self,
        handle: CUmemGenericAllocationHandle,
        at: u64,
        mapping: &Mapping,
    ) -> Result<(), CUresult> {
        let &Mapping { size_bytes, offset_bytes, is_accessible, .. } = mapping;
        let (length, offset) = (size_bytes as usize, offset_bytes as usize);
        let (driver, context) = (self.driver(), self.context());
        // SAFETY: the range lies in a reservation of this session, and nothing is mapped there; the
        // handle is live.
        context.check(unsafe { driver.cuMemMap(at, length, offset, handle, 0) })?;
        if !is_accessible {
            return Ok(());
        }
        // SAFETY: mapped just now.
        let allowed = unsafe { self.allow(at, size_bytes, CUmemAccess_flags::READWRITE) };
        allowed.inspect_err(|_| {
            // SAFETY: mapped just now, and nothing of the session is in flight.
            let _ = unsafe { driver.cuMemUnmap(at, length) };
        })
    }

    fn unmap_all(&self, mappings: &[(u64, Mapping)]) {
        for (at, mapping) in mappings {
            // SAFETY: mapped by this session, which has nothing in flight and takes no command.
            // What stays mapped ends with the context.
            let _ = unsafe { self.driver().cuMemUnmap(*at, mapping.size_bytes as usize) };
        }
    }

    fn transfer_piece(
        &mut self,
        handle: CUmemGenericAllocationHandle,
        size_bytes: u64,
        mappings: &[(u64, Mapping)],
        copy: &mut HostCopy,
        direction: Direction,
    ) -> Result<(), CUresult> {
        let is_whole =
            |mapping: &Mapping| mapping.is_accessible && mapping.size_bytes == size_bytes;
        if let Some(&(at, _)) = mappings.iter().find(|(_, mapping)| is_whole(mapping)) {
            return self.transfer(copy, at, size_bytes, direction);
        }
        let (driver, length, mut at) = (self.driver(), size_bytes as usize, 0);
        // SAFETY: the result is written.
        let reserved = unsafe { driver.cuMemAddressReserve(&mut at, length, 0, 0, 0) };
        self.context().check(reserved)?;
        // SAFETY: the range was reserved just now; the handle is live.
        let mapped = unsafe { driver.cuMemMap(at, length, 0, handle, 0) };
        let done = self.context().check(mapped).and_then(|()| {
            // SAFETY: mapped just now.
            let allowed = unsafe { self.allow(at, size_bytes, CUmemAccess_flags::READWRITE) };
            let copied = allowed.and_then(|()| self.transfer(copy, at, size_bytes, direction));
            // SAFETY: mapped above; the copies have been waited for.
            let _ = unsafe { driver.cuMemUnmap(at, length) };
            copied
        });
        // SAFETY: reserved above, nothing is mapped there.
        let _ = unsafe { driver.cuMemAddressFree(at, length) };
        done
    }
}
