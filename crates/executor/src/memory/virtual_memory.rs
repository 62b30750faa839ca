//! A session's memory without addresses and addresses without memory (`cuMemCreate`,
//! `cuMemAddressReserve`), checked against what is the client's. Addresses are in [`reserving`],
//! what brings the two together in [`mapping_pieces`].
//!
//! Memory is the keeper's, as all device memory: it outlives this process and counts for the client
//! as long as a number or a mapping holds it. Imported memory belongs to whoever made it. A
//! descriptor that a client sends is handed to the driver, which knows its own.

mod commands;
mod mapping_pieces;
mod reserving;

use crate::session::descriptors::Kept;
use cuda_abi::types::*;
use link::wire::attach::Window;
use link::wire::virtual_memory::ACCESS_READ_WRITE;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Mappings, and reservations, that a session may have at a time.
const MAX_MAPPINGS: usize = 1 << 16;

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
