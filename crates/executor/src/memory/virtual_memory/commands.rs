//! What clients ask of memory without addresses.

use super::*;
use crate::memory::FILE_TIMEOUT;
use crate::memory::virtual_journal::Thing;
use crate::session::descriptors::{OF_MEMORY, Room};
use crate::session::failure::{Failure, INVALID, below};
use crate::session::state::State;
use executor_link::log::log_server;
use executor_link::messages::Placement;
use link::shm;
use link::wire::command::Opcode;
use link::wire::virtual_memory::{
    MAX_MEMORIES, MemoryCreate, MemoryCreateReply, MemoryFile, MemoryNumber, SHARING_DESCRIPTOR,
};
use rustix::fd::{AsFd, BorrowedFd};

/// Pieces and mappings that a session may have at a time where descriptors are kept, of which the
/// process has only so many.
const MAX_SHAREABLE: usize = 1 << 15;
/// Distinguishes keys of imported memory from the keeper's.
const IMPORTED: u64 = 1 << 63;

impl State {
    fn new_number(&self, memory: u32) -> Result<(), Failure> {
        if memory >= MAX_MEMORIES || self.virtual_memory.pieces.contains_key(&memory) {
            return Err(Failure::Protocol(format!(
                "memory {memory} is in use, or beyond {MAX_MEMORIES}"
            )));
        }
        Ok(())
    }

    pub(super) fn piece(&self, memory: u32) -> Result<Arc<Piece>, Failure> {
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
