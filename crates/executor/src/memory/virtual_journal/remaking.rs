//! Things are written down, and made again.

use super::*;
use crate::memory::virtual_memory::{Mapping, Origin, Piece, Reach};
use crate::recovery::replay::{Grants, ReplayError};
use crate::session::descriptors::{OF_MEMORY, Room};
use crate::session::failure::Failure;
use crate::session::state::State;
use link::wire::virtual_memory::SHARING_DESCRIPTOR;
use rustix::fd::AsFd;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Places where a driver reserves instead, until it does so where it is asked.
const PLACES_TRIED: usize = 16;

impl State {
    /// Writes down what was made.
    pub(crate) fn note_thing(&mut self, thing: Thing) -> Result<(), Failure> {
        let (opcode, words) = thing.entry();
        self.note_made(opcode, words.as_bytes())
    }

    /// Makes a thing again.
    pub(crate) fn remake(
        &mut self,
        thing: Thing,
        file: u64,
        grants: &mut Grants,
    ) -> Result<(), ReplayError> {
        let failed = |opcode| move |failure| ReplayError::Failed { opcode, failure };
        let gone = ReplayError::Different;
        match thing {
            Thing::Reservation { base, size_bytes, reserved_bytes } => {
                let window = Window { base, size_bytes: reserved_bytes };
                let claimed = self.virtual_memory.claimed.remove(&base) == Some(window);
                if !claimed || !self.reserve_exactly(window) {
                    return Err(gone("a range of reserved addresses"));
                }
                self.virtual_memory.reservations.insert(base, (size_bytes, window));
                Ok(())
            }
            Thing::Memory { key, size_bytes, number, sharing } => {
                let memory = grants.remove(&key).filter(|(length, _)| *length == size_bytes);
                let (_, file) = memory.ok_or(gone("a piece of memory"))?;
                let handle = self.import_memory(file.as_fd());
                let handle =
                    handle.map_err(|code| failed(Opcode::MemoryCreate)(Failure::Cuda(code)))?;
                self.handle.allowance.hold(size_bytes);
                let file = (sharing == SHARING_DESCRIPTOR).then(|| self.room_again().keep(file));
                let origin = Origin::Own { key };
                self.insert_again(number, Piece::new(handle, size_bytes, origin, file));
                Ok(())
            }
            Thing::Imported { key, number } => {
                let file = self.take_file(file)?;
                let handle = self.import_memory(file.as_fd());
                let handle =
                    handle.map_err(|code| failed(Opcode::MemoryImport)(Failure::Cuda(code)))?;
                let file = Some(self.room_again().keep(file));
                let origin = Origin::Imported { key };
                self.insert_again(number, Piece::new(handle, u64::MAX, origin, file));
                Ok(())
            }
            Thing::Unnumbered { key, number } => {
                let pieces = &mut self.virtual_memory.pieces;
                if pieces.get(&number).is_some_and(|piece| piece.key() == key) {
                    pieces.remove(&number);
                }
                Ok(())
            }
            Thing::Mapped { address, size_bytes, offset_bytes, key } => {
                let piece = self.virtual_memory.remade.get(&key).cloned();
                let piece = piece.ok_or(gone("a piece of mapped memory"))?;
                let handle = piece.handle().ok_or(gone("a piece of mapped memory"))?;
                let (length, offset, driver) =
                    (size_bytes as usize, offset_bytes as usize, self.driver());
                // SAFETY: the range lies in a reservation of this session, made again before, and
                // was free; the handle is live.
                let mapped = unsafe { driver.cuMemMap(address, length, offset, handle, 0) };
                self.check(mapped).map_err(failed(Opcode::MemoryMap))?;
                let mapping = Mapping { size_bytes, offset_bytes, piece, is_accessible: false };
                self.virtual_memory.mappings.insert(address, mapping);
                Ok(())
            }
            Thing::Access { address, access } => {
                let mapping = self.virtual_memory.mappings.get(&address);
                let size_bytes = mapping.ok_or(gone("a mapping"))?.size_bytes;
                self.set_access(address, size_bytes, Reach::of(access))
                    .map_err(failed(Opcode::MemorySetAccess))
            }
        }
    }

    fn room_again(&self) -> Room {
        self.shared.descriptors.take_again(self.memory.owner(), OF_MEMORY)
    }

    fn insert_again(&mut self, number: u32, piece: Piece) {
        let (key, piece) = (piece.key(), Arc::new(piece));
        self.virtual_memory.remade.insert(key, Arc::clone(&piece));
        self.virtual_memory.pieces.insert(number, piece);
    }

    /// All is made again.
    pub(crate) fn end_remaking(&mut self) {
        for piece in std::mem::take(&mut self.virtual_memory.remade).into_values() {
            self.let_go(piece);
        }
        for (_, window) in std::mem::take(&mut self.virtual_memory.claimed) {
            self.reservations().give_back(self.memory.owner(), window);
        }
    }

    /// Reserves a range with the driver, there and nowhere else.
    fn reserve_exactly(&self, window: Window) -> bool {
        let mut fillers = Vec::new();
        let is_there = loop {
            match self.reserve_at(window) {
                Ok(None) => break true,
                Ok(Some(elsewhere)) if fillers.len() < PLACES_TRIED => fillers.push(elsewhere),
                Ok(Some(elsewhere)) => {
                    fillers.push(elsewhere);
                    break false;
                }
                Err(_) => break false,
            }
        };
        for at in fillers {
            let (driver, length): (_, usize) = (self.driver(), window.size_bytes as usize);
            // SAFETY: reserved above, nothing mapped.
            let _: CUresult = unsafe { driver.cuMemAddressFree(at, length) };
        }
        is_there
    }
}
