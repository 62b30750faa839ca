//! What is in a session's arrays. Arrays are the driver's and go with its context; so their
//! contents are saved, once the session's work has ended, to files that the keeper has, and the
//! next executor writes them back.
//!
//! Saved is what work may have changed since: arrays that were copied to, and those with a surface
//! when kernels have run. That is done in pieces, between which the session takes commands, and in
//! a tenth of its time at most. What cannot be saved (more than [`FaultSettings::saved_arrays_mib`]
//! allows together, formats of which only the driver knows the texels) leaves the session marked as
//! having something that a fault would cost it.

use super::array::{Held, texel_bytes};
use crate::recovery::replay::ReplayError;
use crate::residency::moving::Direction;
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::log::log_server;
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
/// Copies between two looks for commands.
const STEP_BYTES: u64 = 2 << 20;
/// What was saved is saved again after so many times the time that it took.
const PAUSE: u32 = 9;
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

impl State {
    /// Before work that may change an array.
    pub(crate) fn touch_array(&mut self, number: u32) {
        self.contents.touch(self.arrays.owner(number));
        self.standing.note_arrays(Saved::InPart);
    }

    /// Before kernels that may write to arrays through surfaces.
    pub(crate) fn touch_surfaces(&mut self) {
        if self.objects.have_surfaces() {
            self.contents.surfaces_at_work = true;
            self.standing.note_arrays(Saved::InPart);
        }
    }

    /// Before surfaces or arrays end: kernels may have written to what they are now.
    pub(crate) fn settle_surfaces(&mut self) {
        if std::mem::take(&mut self.contents.surfaces_at_work) {
            for number in self.objects.written_arrays() {
                self.contents.touch(self.arrays.owner(number));
            }
        }
    }

    /// The array ends.
    pub(crate) fn forget_contents(&mut self, number: u32) {
        self.settle_surfaces();
        self.contents.forget(number);
        self.standing.note_arrays(self.contents.saved());
    }

    /// All work has ended: saves a part of what it may have changed.
    pub(crate) fn save_arrays(&mut self) {
        let began = Instant::now();
        if self.contents.saved() == Saved::Whole
            || self.contents.not_before.is_some_and(|at| began < at)
        {
            return;
        }
        self.settle_surfaces();
        let mut left = STEP_BYTES;
        while left > 0
            && let Some(&number) = self.contents.changed.first()
        {
            match self.save_piece(number) {
                Ok(bytes) => left = left.saturating_sub(bytes),
                // The next look tries again; the context may be lost.
                Err(_) => return self.contents.not_before = Some(began + COPY_RETRY),
            }
        }
        self.contents.spent += began.elapsed();
        if self.contents.changed.is_empty() {
            let spent = std::mem::take(&mut self.contents.spent);
            self.contents.not_before = Some(Instant::now() + PAUSE * spent);
            self.standing.note_arrays(self.contents.saved());
        }
    }

    /// Saves all of it now, as far as that is possible.
    pub(crate) fn save_all_arrays(&mut self) {
        while self.contents.saved() == Saved::InPart && self.contents.are_due() {
            self.contents.not_before = None;
            self.save_arrays();
            if self.contents.not_before.is_some_and(|_| self.contents.are_due()) {
                return;
            }
        }
    }

    /// Saves one piece of an array; says how long it is.
    fn save_piece(&mut self, number: u32) -> Result<u64, Failure> {
        if !self.contents.copies.contains_key(&number) && !self.open_copy(number)? {
            self.contents.changed.remove(&number);
            self.contents.unsavable.insert(number);
            return Ok(0);
        }
        let next = self.contents.copies.get(&number).and_then(|copy| {
            let plane = copy.planes.get(copy.done.0)?;
            Some((*plane, plane.piece(copy.done.1), copy.mapping.base()))
        });
        let Some((plane, piece, base)) = next else {
            self.contents.changed.remove(&number);
            return Ok(0);
        };
        let copied = piece.map(|piece| self.copy_piece(&plane, piece, base, Direction::Out));
        if let Some(Err(Failure::Cuda(CUresult::ERROR_NOT_READY))) = copied
            && let Some(copy) = self.contents.remove(number)
        {
            // The driver may write to it yet.
            std::mem::forget(copy.mapping);
            self.contents.changed.remove(&number);
            self.contents.unsavable.insert(number);
        }
        let bytes = copied.unwrap_or(Ok(0))?;
        if let Some(copy) = self.contents.copies.get_mut(&number) {
            copy.done = match piece {
                Some(piece) => (copy.done.0, copy.done.1 + piece.rows * piece.slices),
                None => (copy.done.0 + 1, 0),
            };
        }
        Ok(bytes)
    }

    /// Makes the file that an array is saved in; says whether there can be one.
    fn open_copy(&mut self, number: u32) -> Result<bool, Failure> {
        let Some(planes) = self.planes(number) else { return Ok(false) };
        let size_bytes: u64 = planes.iter().map(Plane::size_bytes).sum();
        if !self.contents.have_room(size_bytes, self.shared.most_saved_bytes) {
            return Ok(false);
        }
        let Some((file, mapping)) = make_file(size_bytes) else {
            log_server!("{}: the host has no memory for an array's copy", self.handle.label);
            return Ok(false);
        };
        if self.note_contents(number, file.as_fd()).is_err() {
            return Ok(false);
        }
        self.contents.insert(number, Copy { planes, mapping, done: (0, 0) });
        Ok(true)
    }

    /// Where an array's texels are; `None` if they cannot be copied by rows.
    fn planes(&self, number: u32) -> Option<Vec<Plane>> {
        let arrays = match self.arrays.held(number)? {
            Held::Array(array) | Held::Level(array, _) => vec![array],
            Held::Mipmapped(mipmapped) => {
                let (mut levels, most) = (Vec::new(), self.arrays.levels(number));
                while (levels.len() as u32) < most {
                    let (mut array, level) = (CUarray::NULL, levels.len() as u32);
                    // SAFETY: a live mipmapped array of this session; the result is written.
                    let got = unsafe {
                        self.driver().cuMipmappedArrayGetLevel(&mut array, mipmapped, level)
                    };
                    // Drivers make no more levels than the sides can be halved.
                    if !got.is_success() {
                        break;
                    }
                    levels.push(array);
                }
                levels
            }
        };
        let (mut planes, mut offset) = (Vec::new(), 0);
        for array in arrays {
            let mut told = CUDA_ARRAY3D_DESCRIPTOR::default();
            // SAFETY: a live array of this session; the result is written.
            let got = unsafe { self.driver().cuArray3DGetDescriptor_v2(&mut told, array) };
            if !got.is_success() {
                return None;
            }
            let texel = texel_bytes(told.Format, told.NumChannels)?;
            let plane = Plane {
                array,
                row_bytes: told.Width as u64 * texel,
                rows: told.Height.max(1) as u64,
                slices: told.Depth.max(1) as u64,
                offset,
            };
            offset += plane.size_bytes();
            planes.push(plane);
        }
        (offset > 0).then_some(planes)
    }

    /// Copies rows between an array and its copy, and waits; returns how much that is.
    fn copy_piece(
        &mut self,
        plane: &Plane,
        piece: Piece,
        base: *mut u8,
        direction: Direction,
    ) -> Result<u64, Failure> {
        let at = plane.offset + (piece.slice * plane.rows + piece.row) * plane.row_bytes;
        let host = base.wrapping_add(at as usize);
        let mut copy = CUDA_MEMCPY3D {
            WidthInBytes: plane.row_bytes as usize,
            Height: piece.rows as usize,
            Depth: piece.slices as usize,
            ..Default::default()
        };
        let (pitch, rows) = (plane.row_bytes as usize, plane.rows as usize);
        let (y, z) = (piece.row as usize, piece.slice as usize);
        match direction {
            Direction::Out => {
                (copy.srcMemoryType, copy.dstMemoryType) =
                    (CUmemorytype::ARRAY, CUmemorytype::HOST);
                (copy.srcArray, copy.srcY, copy.srcZ) = (plane.array, y, z);
                (copy.dstHost, copy.dstPitch, copy.dstHeight) = (host.cast(), pitch, rows);
            }
            Direction::Back => {
                (copy.srcMemoryType, copy.dstMemoryType) =
                    (CUmemorytype::HOST, CUmemorytype::ARRAY);
                (copy.dstArray, copy.dstY, copy.dstZ) = (plane.array, y, z);
                (copy.srcHost, copy.srcPitch, copy.srcHeight) =
                    (host.cast_const().cast(), pitch, rows);
            }
        }
        let stream = self.side_stream()?;
        // SAFETY: a live array of this session, and a mapping of its size that stays until the copy
        // has ended.
        let copied = unsafe { self.driver().cuMemcpy3DAsync_v2(&copy, stream) };
        let has_ended = self.await_copies(stream);
        self.check(copied)?;
        match has_ended {
            true => Ok(plane.row_bytes * piece.rows * piece.slices),
            false => Err(Failure::Cuda(CUresult::ERROR_NOT_READY)),
        }
    }

    /// Writes an array that was just made again as it was saved.
    pub(crate) fn restore_array(&mut self, body: &[u8], file: OwnedFd) -> Result<(), ReplayError> {
        let different = ReplayError::Different("an array");
        let Some(number) = body.first_chunk::<4>().copied().map(u32::from_le_bytes) else {
            return Err(different);
        };
        let Some(planes) = self.planes(number) else { return Err(different) };
        let size_bytes: u64 = planes.iter().map(Plane::size_bytes).sum();
        let mapping = shm::check(file.as_fd(), size_bytes)
            .and_then(|()| Mapping::new(file.as_fd(), size_bytes as usize, Access::ReadWrite));
        let Ok(mapping) = mapping else { return Err(different) };
        for plane in &planes {
            let mut done = 0;
            while let Some(piece) = plane.piece(done) {
                let copied = self.copy_piece(plane, piece, mapping.base(), Direction::Back);
                if let Err(failure) = copied {
                    // The driver may read it yet.
                    std::mem::forget(mapping);
                    log_server!("{}: an array is not written: {failure:?}", self.handle.label);
                    return Err(different);
                }
                done += piece.rows * piece.slices;
            }
        }
        let done = (planes.len(), 0);
        self.contents.insert(number, Copy { planes, mapping, done });
        Ok(())
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

/// After a copy that failed.
const COPY_RETRY: Duration = Duration::from_millis(100);

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
