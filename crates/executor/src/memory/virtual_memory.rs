//! A session's memory without addresses and addresses without memory (`cuMemCreate`,
//! `cuMemAddressReserve`), checked against what is the client's. Addresses are in [`reserving`],
//! what brings the two together in [`mapping_pieces`].
//!
//! Memory is the keeper's, as all device memory: it outlives this process and counts for the client
//! as long as a number or a mapping holds it. Imported memory belongs to whoever made it. A
//! descriptor that a client sends is handed to the driver, which knows its own.

mod mapping_pieces;
mod reserving;

use super::virtual_journal::Thing;
use crate::memory::FILE_TIMEOUT;
use crate::session::descriptors::{Kept, OF_MEMORY, Room};
use crate::session::failure::{Failure, INVALID, below};
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::log::log_server;
use executor_link::messages::Placement;
use link::shm;
use link::wire::attach::Window;
use link::wire::command::Opcode;
use link::wire::virtual_memory::{
    ACCESS_READ_WRITE, MAX_MEMORIES, MemoryCreate, MemoryCreateReply, MemoryFile, MemoryNumber,
    SHARING_DESCRIPTOR,
};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Mappings, and reservations, that a session may have at a time.
const MAX_MAPPINGS: usize = 1 << 16;
/// Pieces and mappings that a session may have at a time where descriptors are kept, of which the
/// process has only so many.
const MAX_SHAREABLE: usize = 1 << 15;
/// Distinguishes keys of imported memory from the keeper's.
const IMPORTED: u64 = 1 << 63;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The keeper's, under this key.
    Own { key: u64 },
    /// Somebody else's; the key is the session's own.
    Imported { key: u64 },
}

#[derive(Debug)]
pub(crate) struct Piece {
    /// `None` while it is moved out to the host. Locked by the session's thread alone.
    handle: Mutex<Option<CUmemGenericAllocationHandle>>,
    /// `u64::MAX` for imported memory: the driver knows.
    pub(crate) size_bytes: u64,
    origin: Origin,
    /// For exports.
    file: Option<Kept>,
}

impl Piece {
    /// What the session's journal names it by.
    pub(crate) fn key(&self) -> u64 {
        let (Origin::Own { key } | Origin::Imported { key }) = self.origin;
        key
    }

    pub(crate) fn new(
        handle: CUmemGenericAllocationHandle,
        size_bytes: u64,
        origin: Origin,
        file: Option<Kept>,
    ) -> Self {
        Self { handle: Mutex::new(Some(handle)), size_bytes, origin, file }
    }

    pub(crate) fn handle(&self) -> Option<CUmemGenericAllocationHandle> {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_handle(&self, handle: Option<CUmemGenericAllocationHandle>) {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = handle;
    }

    fn is_own(&self, wanted: u64) -> bool {
        matches!(self.origin, Origin::Own { key } if key == wanted)
    }
}

/// Where a piece is mapped, or a part of it.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) size_bytes: u64,
    /// From which byte of the piece on.
    pub(crate) offset_bytes: u64,
    pub(crate) piece: Arc<Piece>,
    pub(crate) is_accessible: bool,
}

/// What a device may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    None,
    ReadWrite,
}

impl Reach {
    /// As a client says it.
    pub(crate) fn of(access: u32) -> Self {
        if access == ACCESS_READ_WRITE { Self::ReadWrite } else { Self::None }
    }
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct VirtualMemory {
    /// First address to the length asked for, and what is reserved with the driver.
    pub(crate) reservations: BTreeMap<u64, (u64, Window)>,
    pub(crate) pieces: HashMap<u32, Arc<Piece>>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    /// What another executor had reserved, until it is reserved again.
    pub(crate) claimed: HashMap<u64, Window>,
    /// Pieces that are made again, by their keys, as long as that goes on.
    pub(crate) remade: HashMap<u64, Arc<Piece>>,
    /// Whether the log has it that there are no more descriptors for this session.
    is_refusal_said: bool,
}

impl VirtualMemory {
    /// Nothing, but for addresses that are to be reserved again.
    pub(crate) fn claiming(claimed: HashMap<u64, Window>) -> Self {
        Self { claimed, ..Self::default() }
    }

    /// Whether nothing is reserved, nor made without an address.
    pub(crate) fn is_empty(&self) -> bool {
        self.reservations.is_empty() && self.pieces.is_empty() && self.mappings.is_empty()
    }

    /// The keeper's piece of this key, which numbers or mappings hold.
    pub(crate) fn piece_of(&self, key: u64) -> Option<&Arc<Piece>> {
        let mapped = self.mappings.values().map(|mapping| &mapping.piece);
        self.pieces.values().chain(mapped).find(|piece| piece.is_own(key))
    }

    /// Whether other processes may have a piece.
    pub(crate) fn is_shareable(&self, key: u64) -> bool {
        self.piece_of(key).is_some_and(|piece| piece.file.is_some())
    }

    /// Where a piece is mapped, by first address.
    pub(crate) fn mappings_of_piece(&self, key: u64) -> Vec<(u64, Mapping)> {
        let of_it = self.mappings.iter().filter(|(_, mapping)| mapping.piece.is_own(key));
        of_it.map(|(&at, mapping)| (at, mapping.clone())).collect()
    }

    fn is_reserved(&self, at: u64, size_bytes: u64) -> bool {
        let found = self.reservations.range(..=at).next_back();
        found.is_some_and(|(&base, &(length, _))| {
            Window { base, size_bytes: length }.contains(at, size_bytes)
        })
    }

    fn is_mapped(&self, at: u64, size_bytes: u64) -> bool {
        let before = self.mappings.range(..at.saturating_add(size_bytes)).next_back();
        before.is_some_and(|(base, mapping)| base + mapping.size_bytes > at)
    }

    /// The mappings that make up a range exactly; `None` when there is a gap, or part of one.
    fn mappings_of(&self, at: u64, size_bytes: u64) -> Option<Vec<u64>> {
        let end = at.checked_add(size_bytes)?;
        let (mut next, mut found) = (at, Vec::new());
        while next < end {
            let mapping = self.mappings.get(&next)?;
            found.push(next);
            next += mapping.size_bytes;
        }
        (next == end && !found.is_empty()).then_some(found)
    }
}

impl State {
    fn new_number(&self, memory: u32) -> Result<(), Failure> {
        if memory >= MAX_MEMORIES || self.virtual_memory.pieces.contains_key(&memory) {
            return Err(Failure::Protocol(format!(
                "memory {memory} is in use, or beyond {MAX_MEMORIES}"
            )));
        }
        Ok(())
    }

    fn piece(&self, memory: u32) -> Result<Arc<Piece>, Failure> {
        below("memory", memory, MAX_MEMORIES)?;
        let found = self.virtual_memory.pieces.get(&memory).cloned();
        found.ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    /// Refuses more memory with descriptors than one client, or all of its owner, may have.
    fn room_for_memory(&mut self) -> Result<Room, Failure> {
        let known = &self.virtual_memory;
        if known.pieces.len() + known.mappings.len() < MAX_SHAREABLE
            && let Some(room) = self.shared.descriptors.take(self.memory.owner(), OF_MEMORY)
        {
            return Ok(room);
        }
        if !std::mem::replace(&mut self.virtual_memory.is_refusal_said, true) {
            log_server!(
                "{} gets no more memory that can be shared: it may have {MAX_SHAREABLE} pieces and mappings; {} has its part of the {} files that all clients of a \
                 device may have together, three quarters of the limit of open files",
                self.handle.label,
                self.memory.owner(),
                self.shared.descriptors.most()
            );
        }
        Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY))
    }

    pub(crate) fn memory_create(&mut self, wanted: MemoryCreate) -> Result<(), Failure> {
        self.new_number(wanted.memory)?;
        let room = match wanted.sharing {
            SHARING_DESCRIPTOR => Some(self.room_for_memory()?),
            _ => None,
        };
        let (key, size_bytes, file) = self.ask_keeper(wanted.size_bytes, Placement::Piece)?;
        if size_bytes != wanted.size_bytes {
            self.return_to_keeper(key, size_bytes);
            return Err(INVALID);
        }
        let handle = match self.import_memory(file.as_fd()) {
            Ok(handle) => handle,
            Err(code) => {
                self.return_to_keeper(key, size_bytes);
                return Err(code.into());
            }
        };
        let file = room.map(|room| room.keep(file));
        let piece = Piece::new(handle, size_bytes, Origin::Own { key }, file);
        self.virtual_memory.pieces.insert(wanted.memory, Arc::new(piece));
        let MemoryCreate { memory: number, sharing, .. } = wanted;
        self.note_thing(Thing::Memory { key, size_bytes, number, sharing })?;
        self.answer(&MemoryCreateReply { key })
    }

    pub(crate) fn memory_release(&mut self, wanted: MemoryNumber) -> Result<(), Failure> {
        below("memory", wanted.memory, MAX_MEMORIES)?;
        let piece = self.virtual_memory.pieces.remove(&wanted.memory);
        let piece = piece.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if Arc::strong_count(&piece) > 1 {
            return self.note_thing(Thing::Unnumbered { key: piece.key(), number: wanted.memory });
        }
        self.let_go(piece);
        Ok(())
    }

    /// Gives memory up when nothing else holds it.
    pub(crate) fn let_go(&mut self, piece: Arc<Piece>) {
        let Some(piece) = Arc::into_inner(piece) else { return };
        let noted =
            [Opcode::MemoryCreate, Opcode::MemoryImport, Opcode::MemoryRelease, Opcode::PeerShow];
        self.note_ended(&noted, piece.key());
        if let Some(handle) = piece.handle() {
            // SAFETY: a live handle that is used no more.
            let _ = self.context().check(unsafe { self.driver().cuMemRelease(handle) });
        }
        if let Origin::Own { key } = piece.origin {
            self.moved.forget(key);
            self.peers.shown.remove(&key);
            self.return_to_keeper(key, piece.size_bytes);
        }
    }

    pub(crate) fn memory_export(&mut self, wanted: MemoryNumber) -> Result<(), Failure> {
        let piece = self.piece(wanted.memory)?;
        let file = piece.file.as_ref().ok_or(INVALID)?;
        let packet = MemoryFile { memory: wanted.memory };
        let sent = self.memory.socket.send(&packet, &[file.as_fd()], FILE_TIMEOUT);
        sent.map_err(|error| Failure::Protocol(format!("a descriptor is not taken: {error}")))
    }

    pub(crate) fn memory_import(&mut self, wanted: MemoryNumber) -> Result<(), Failure> {
        let (message, file) = self.receive_file::<MemoryFile>("memory", FILE_TIMEOUT)?;
        let (handle, room) = match self.import_received(wanted, &message, file.as_fd()) {
            Ok(imported) => imported,
            Err(failure) => {
                self.discard(file);
                return Err(failure);
            }
        };
        self.keep_file(file.as_fd());
        let file = Some(room.keep(file));
        // No two commands end at the same position.
        let (key, number) = (IMPORTED | self.records.position, wanted.memory);
        let piece = Piece::new(handle, u64::MAX, Origin::Imported { key }, file);
        self.virtual_memory.pieces.insert(number, Arc::new(piece));
        self.note_thing(Thing::Imported { key, number })
    }

    fn import_received(
        &mut self,
        wanted: MemoryNumber,
        message: &MemoryFile,
        file: BorrowedFd<'_>,
    ) -> Result<(CUmemGenericAllocationHandle, Room), Failure> {
        self.new_number(wanted.memory)?;
        if message.memory != wanted.memory {
            return Err(Failure::Protocol("another descriptor came than was announced".into()));
        }
        shm::refuse_huge_pages(file).map_err(|_| INVALID)?;
        let room = self.room_for_memory()?;
        Ok((self.import_memory(file)?, room))
    }

    /// Takes everything out of the driver; nobody uses it any more.
    pub(crate) fn clear_virtual_memory(&mut self) {
        let mapped: Vec<u64> = self.virtual_memory.mappings.keys().copied().collect();
        for at in mapped {
            // What cannot be unmapped in a living context is lost to it.
            let _ = self.unmap(at);
        }
        let pieces = std::mem::take(&mut self.virtual_memory.pieces);
        for piece in pieces.into_values() {
            self.let_go(piece);
        }
        for (base, (_, window)) in std::mem::take(&mut self.virtual_memory.reservations) {
            let length = window.size_bytes as usize;
            // SAFETY: reserved by this session, nothing is mapped there now.
            let freed =
                self.context().check(unsafe { self.driver().cuMemAddressFree(base, length) });
            if freed.is_ok() {
                self.reservations().give_back(self.memory.owner(), window);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped() -> VirtualMemory {
        let mut memory = VirtualMemory::default();
        let window = Window { base: 0x1000, size_bytes: 0x1_0000 };
        memory.reservations.insert(0x1000, (0x8000, window));
        for (at, size_bytes) in [(0x1000, 0x1000), (0x2000, 0x2000), (0x6000, 0x1000)] {
            let origin = Origin::Imported { key: at };
            let piece = Arc::new(Piece::new(1, size_bytes, origin, None));
            let mapping = Mapping { size_bytes, offset_bytes: 0, piece, is_accessible: false };
            memory.mappings.insert(at, mapping);
        }
        memory
    }

    #[test]
    fn only_whole_mappings_without_gaps_are_taken() {
        let memory = mapped();
        assert_eq!(memory.mappings_of(0x1000, 0x3000), Some(vec![0x1000, 0x2000]));
        assert_eq!(memory.mappings_of(0x2000, 0x2000), Some(vec![0x2000]));
        for (at, size) in [
            (0x1000, 0x2000),
            (0x1000, 0),
            (0x1800, 0x800),
            (0x2000, 0x5000),
            (0x1000, u64::MAX),
            (0x9000, 0x1000),
        ] {
            assert_eq!(memory.mappings_of(at, size), None, "{at:#x} {size:#x}");
        }
    }

    #[test]
    fn reservations_end_where_the_client_asked() {
        let memory = mapped();
        assert!(memory.is_reserved(0x1000, 0x8000) && !memory.is_reserved(0x1000, 0x8001));
        assert!(!memory.is_reserved(0xfff, 2) && !memory.is_reserved(0x8fff, 2));
        assert!(memory.is_mapped(0x1fff, 1) && memory.is_mapped(0, 0x1001));
        assert!(!memory.is_mapped(0x4000, 0x2000) && !memory.is_mapped(0x7000, u64::MAX));
    }
}
