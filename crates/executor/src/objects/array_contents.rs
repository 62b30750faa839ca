//! What is in a session's arrays. Arrays are the driver's and go with its context; so their
//! contents are saved, once the session's work has ended, to files that the keeper has, and the
//! next executor writes them back.
//!
//! Saved is what work may have changed since: arrays that were copied to, and those with a surface
//! when kernels have run. That is done in pieces, between which the session takes commands, and in
//! a tenth of its time at most. What cannot be saved (more than [`FaultSettings::saved_arrays_mib`]
//! allows together, formats of which only the driver knows the texels) leaves the session marked as
//! having something that a fault would cost it.

mod saving;

use cuda_abi::types::*;
use executor_link::standing::Saved;
use link::shm::{self, Access, Mapping};
use policy::faults::fault_settings::FaultSettings;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FallocateFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Marks entries of the journal that are contents and no command: the array's number; the bytes are
/// in the entry's file.
pub(crate) const CONTENTS: u16 = u16::MAX - 1;
/// Arrays of a session that are saved: each takes an open file of the keeper's.
const MOST_COPIES: usize = 4096;
/// A copy.
const PIECE_BYTES: u64 = 1 << 20;
/// While there is something to be saved now.
const SOON: Duration = Duration::from_micros(20);

/// How much of all arrays of a session is saved, in bytes. The keeper says what is wrong with the
/// setting.
pub(crate) fn most_bytes() -> u64 {
    let (settings, _) = FaultSettings::read(|name| std::env::var(name).ok());
    settings.saved_arrays_mib << 20
}

/// An array, or a level of a mipmapped one, row by row in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plane {
    array: CUarray,
    row_bytes: u64,
    rows: u64,
    slices: u64,
    /// In the file.
    offset: u64,
}

/// A box of whole rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    row: u64,
    slice: u64,
    rows: u64,
    slices: u64,
}

impl Plane {
    fn size_bytes(&self) -> u64 {
        self.row_bytes * self.rows * self.slices
    }

    /// What is copied next after so many rows of all slices; `None` at the end.
    fn piece(&self, done: u64) -> Option<Piece> {
        let (slice, row) = (done / self.rows, done % self.rows);
        let fitting = (PIECE_BYTES / self.row_bytes).max(1);
        let piece = match row == 0 && fitting >= self.rows {
            true => {
                let slices = (fitting / self.rows).min(self.slices.saturating_sub(slice));
                Piece { row, slice, rows: self.rows, slices }
            }
            false => Piece { row, slice, rows: fitting.min(self.rows - row), slices: 1 },
        };
        (slice < self.slices).then_some(piece)
    }
}

/// An array's copy in host memory.
#[derive(Debug)]
struct Copy {
    planes: Vec<Plane>,
    mapping: Mapping,
    /// How far it is what the array has: planes, and rows of the next.
    done: (usize, u64),
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    copies: BTreeMap<u32, Copy>,
    /// What they take.
    copied_bytes: u64,
    /// Arrays that may differ from their copies.
    changed: BTreeSet<u32>,
    /// The same, of which there is no copy and can be none.
    unsavable: BTreeSet<u32>,
    /// Kernels may have written to all arrays that have a surface.
    surfaces_at_work: bool,
    /// Since when nothing was finished.
    spent: Duration,
    not_before: Option<Instant>,
}

impl Contents {
    /// How much is saved.
    fn saved(&self) -> Saved {
        match self.are_due() || !self.unsavable.is_empty() {
            true => Saved::InPart,
            false => Saved::Whole,
        }
    }

    /// Whether anything is to be saved.
    pub(crate) fn are_due(&self) -> bool {
        self.surfaces_at_work || !self.changed.is_empty()
    }

    /// How soon an idle session is to look after them.
    pub(crate) fn next_look(&self, longest: Duration, look: Duration) -> Duration {
        match self.not_before {
            _ if !self.are_due() => longest,
            Some(at) if Instant::now() < at => longest.min(look),
            _ => longest.min(SOON),
        }
    }

    /// Whether so many bytes more may be saved.
    fn have_room(&self, size_bytes: u64, most_bytes: u64) -> bool {
        self.copies.len() < MOST_COPIES
            && self.copied_bytes.saturating_add(size_bytes) <= most_bytes
    }

    fn insert(&mut self, array: u32, copy: Copy) {
        self.copied_bytes += copy.mapping.size_bytes() as u64;
        self.copies.insert(array, copy);
    }

    fn remove(&mut self, array: u32) -> Option<Copy> {
        let copy = self.copies.remove(&array)?;
        self.copied_bytes -= copy.mapping.size_bytes() as u64;
        Some(copy)
    }

    fn touch(&mut self, array: u32) {
        self.unsavable.remove(&array);
        self.changed.insert(array);
        if let Some(copy) = self.copies.get_mut(&array) {
            copy.done = (0, 0);
        }
    }

    fn forget(&mut self, array: u32) {
        self.changed.remove(&array);
        self.unsavable.remove(&array);
        if self.remove(array).is_some() {
            // There may be room now.
            self.changed.append(&mut self.unsavable);
        }
    }
}

/// A file of that length whose memory is there, or else none.
fn make_file(size_bytes: u64) -> Option<(OwnedFd, Mapping)> {
    let file = shm::create("openmps-array", size_bytes).ok()?;
    // Else a write could meet the end of the host's memory.
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size_bytes).ok()?;
    let mapping = Mapping::new(file.as_fd(), size_bytes as usize, Access::ReadWrite).ok()?;
    Some((file, mapping))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(row_bytes: u64, rows: u64, slices: u64) -> Vec<Piece> {
        let plane = Plane { array: CUarray::NULL, row_bytes, rows, slices, offset: 0 };
        let mut done = 0;
        let next = || {
            let piece = plane.piece(done)?;
            done += piece.rows * piece.slices;
            Some(piece)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn pieces_are_whole_slices_where_they_are_small_and_rows_else() {
        let half = PIECE_BYTES / 2;
        assert_eq!(pieces(16, 4, 3), [Piece { row: 0, slice: 0, rows: 4, slices: 3 }]);
        let pairs = pieces(half / 4, 4, 3);
        assert_eq!(pairs[0], Piece { row: 0, slice: 0, rows: 4, slices: 2 });
        assert_eq!(pairs[1], Piece { row: 0, slice: 2, rows: 4, slices: 1 });
        let rows = pieces(half, 3, 2);
        let expected = [(0, 0, 2), (2, 0, 1), (0, 1, 2), (2, 1, 1)];
        assert_eq!(rows, expected.map(|(row, slice, rows)| Piece { row, slice, rows, slices: 1 }));
        assert_eq!(pieces(4 * PIECE_BYTES, 2, 1).len(), 2, "a row is copied whole");
    }

    #[test]
    fn what_changes_while_it_is_saved_is_saved_again() {
        let mut contents = Contents::default();
        assert_eq!(contents.saved(), Saved::Whole);
        contents.touch(3);
        let (_, mapping) = make_file(64).unwrap();
        contents.insert(3, Copy { planes: Vec::new(), mapping, done: (2, 7) });
        let taken = contents.copied_bytes;
        assert!(contents.have_room(10, taken + 10) && !contents.have_room(11, taken + 10));
        contents.unsavable.insert(4);
        contents.touch(3);
        assert_eq!(contents.copies[&3].done, (0, 0));
        contents.forget(3);
        assert_eq!(
            (contents.changed.first(), contents.copied_bytes),
            (Some(&4), 0),
            "there is room"
        );
        contents.forget(4);
        assert_eq!(contents.saved(), Saved::Whole);
    }
}
