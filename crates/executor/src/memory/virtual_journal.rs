//! Virtual memory in a session's journal: what [`super::virtual_memory`] has, as things and not as
//! commands, and how the next executor makes it again.
//!
//! A mapping outlives the number of its memory, and parts of what was mapped or made accessible by
//! one command can be unmapped by another. So there is an entry for each reservation, piece of
//! memory, mapping and its access, found by the first word of its body; entries end with the
//! things. The memory itself is the keeper's, or lies in a file that the client had sent and the
//! keeper has.

use super::virtual_memory::{Mapping, Origin, Piece, Reach};
use crate::recovery::replay::{Grants, ReplayError};
use crate::session::descriptors::{OF_MEMORY, Room};
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::*;
use link::wire::attach::Window;
use link::wire::command::{Effect, Opcode};
use link::wire::owner::Owner;
use link::wire::virtual_memory::SHARING_DESCRIPTOR;
use policy::memory::reservations::Reservations;
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Places where a driver reserves instead, until it does so where it is asked.
const PLACES_TRIED: usize = 16;

/// A thing that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// Addresses: what the client asked for, and what is reserved with the driver.
    Reservation {
        base: u64,
        size_bytes: u64,
        reserved_bytes: u64,
    },
    /// Memory of the keeper's. `sharing`: as the client's command has it.
    Memory {
        key: u64,
        size_bytes: u64,
        number: u32,
        sharing: u32,
    },
    /// Memory of somebody else's, in the entry's file.
    Imported {
        key: u64,
        number: u32,
    },
    /// Its number is used no more, but it is mapped.
    Unnumbered {
        key: u64,
        number: u32,
    },
    Mapped {
        address: u64,
        size_bytes: u64,
        offset_bytes: u64,
        key: u64,
    },
    Access {
        address: u64,
        access: u32,
    },
}

impl Thing {
    /// Under which opcode it is written down, and its words, the first of which is the key.
    fn entry(self) -> (Opcode, [u64; 4]) {
        match self {
            Self::Reservation { base, size_bytes, reserved_bytes } => {
                (Opcode::AddressReserve, [base, size_bytes, reserved_bytes, 0])
            }
            Self::Memory { key, size_bytes, number, sharing } => {
                (Opcode::MemoryCreate, [key, size_bytes, number.into(), sharing.into()])
            }
            Self::Imported { key, number } => (Opcode::MemoryImport, [key, number.into(), 0, 0]),
            Self::Unnumbered { key, number } => (Opcode::MemoryRelease, [key, number.into(), 0, 0]),
            Self::Mapped { address, size_bytes, offset_bytes, key } => {
                (Opcode::MemoryMap, [address, size_bytes, offset_bytes, key])
            }
            Self::Access { address, access } => {
                (Opcode::MemorySetAccess, [address, access.into(), 0, 0])
            }
        }
    }

    /// Reads an entry; `None` if it is none of these.
    pub(crate) fn read(opcode: Opcode, body: &[u8]) -> Option<Self> {
        let Effect::Thing(_) = opcode.facts().journal else { return None };
        let ([first, second, third, fourth], _) = <[u64; 4]>::read_from_prefix(body).ok()?;
        Some(match opcode {
            Opcode::AddressReserve => {
                Self::Reservation { base: first, size_bytes: second, reserved_bytes: third }
            }
            Opcode::MemoryCreate => Self::Memory {
                key: first,
                size_bytes: second,
                number: third as u32,
                sharing: fourth as u32,
            },
            Opcode::MemoryImport => Self::Imported { key: first, number: second as u32 },
            Opcode::MemoryRelease => Self::Unnumbered { key: first, number: second as u32 },
            Opcode::MemoryMap => Self::Mapped {
                address: first,
                size_bytes: second,
                offset_bytes: third,
                key: fourth,
            },
            Opcode::MemorySetAccess => Self::Access { address: first, access: second as u32 },
            _ => return None,
        })
    }

    /// What an entry is found by.
    pub(crate) fn key(body: &[u8]) -> Option<u64> {
        body.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

/// Takes the addresses of a session that another executor has served, before anybody else is given
/// them. Returns them by their first.
pub(crate) fn claim<'a>(
    reservations: &mut Reservations,
    owner: &Owner,
    entries: impl Iterator<Item = (u16, &'a [u8])>,
) -> HashMap<u64, Window> {
    let of = |(opcode, body): (u16, &'a [u8])| match Thing::read(Opcode::from_number(opcode)?, body)
    {
        Some(Thing::Reservation { base, reserved_bytes, .. }) => {
            Some(Window { base, size_bytes: reserved_bytes })
        }
        _ => None,
    };
    let windows = entries.filter_map(of);
    windows.filter(|window| reservations.claim(owner, *window)).map(|it| (it.base, it)).collect()
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::virtual_memory::ACCESS_READ_WRITE;

    #[test]
    fn things_come_back_as_they_were_written() {
        for thing in [
            Thing::Reservation { base: 1 << 45, size_bytes: 3, reserved_bytes: 4 },
            Thing::Memory { key: u64::MAX, size_bytes: 2 << 20, number: 7, sharing: 1 },
            Thing::Imported { key: 5, number: 6 },
            Thing::Unnumbered { key: 5, number: 6 },
            Thing::Mapped { address: 1, size_bytes: 2, offset_bytes: 3, key: 4 },
            Thing::Access { address: 1, access: ACCESS_READ_WRITE },
        ] {
            let (opcode, words) = thing.entry();
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(Thing::read(opcode, &body), Some(thing));
        }
        assert_eq!(Thing::read(Opcode::Launch, &[]), None);
    }

    #[test]
    fn addresses_are_claimed_before_they_are_given_to_others() {
        let owner = Owner::user(1);
        let mut reservations = Reservations::of_first(0, 1);
        let before = reservations.take(&owner, 1, 0).unwrap();
        let mut next = Reservations::of_first(0, 1);
        let (opcode, words) = Thing::Reservation {
            base: before.base,
            size_bytes: 1,
            reserved_bytes: before.size_bytes,
        }
        .entry();
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let entries = [(opcode as u16, body.as_slice()), (Opcode::Launch as u16, &[][..])];
        let claimed = claim(&mut next, &owner, entries.into_iter());
        assert_eq!(claimed.get(&before.base), Some(&before));
        assert_ne!(next.take(&owner, 1, 0).unwrap().base, before.base);
        assert!(!next.claim(&owner, before), "it is taken");
    }
}
