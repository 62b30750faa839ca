//! Contents are saved, and written back.

use super::*;
use crate::objects::array::{Held, texel_bytes};
use crate::recovery::replay::ReplayError;
use crate::residency::moving::Direction;
use crate::session::failure::Failure;
use crate::session::state::State;
use executor_link::log::log_server;

/// Copies between two looks for commands.
const STEP_BYTES: u64 = 2 << 20;
/// What was saved is saved again after so many times the time that it took.
const PAUSE: u32 = 9;
/// After a copy that failed.
const COPY_RETRY: Duration = Duration::from_millis(100);

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
