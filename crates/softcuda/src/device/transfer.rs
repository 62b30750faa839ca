//! Copies and fills: their shapes, and doing them in bounded pieces on whichever thread.

use std::sync::Arc;

use super::fault::Sticky;
use super::memory::{AddressSpace, touch};
use super::ops::{Step, Task};

/// Bytes of one piece; bounds how long an unmap waits for a copy.
const PIECE_BYTES: u64 = 2 << 20;

/// What kind of address one end of a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Checked against what is accessible, piece by piece.
    Device,
    /// The program's own memory, used as given.
    Host,
}

/// One end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) address: u64,
    pub(crate) side: Side,
    /// Bytes from one row to the next.
    pub(crate) row_bytes: u64,
    /// Bytes from one slice (of rows) to the next.
    pub(crate) slice_bytes: u64,
}

impl End {
    /// An end of a plain copy.
    pub(crate) fn linear(address: u64, side: Side) -> Self {
        End { address, side, row_bytes: 0, slice_bytes: 0 }
    }

    fn row(&self, row: u64, height: u64) -> u64 {
        let (slice, row) = (row / height, row % height);
        self.address
            .wrapping_add(slice.wrapping_mul(self.slice_bytes))
            .wrapping_add(row.wrapping_mul(self.row_bytes))
    }
}

/// A copy of `width_bytes` x `height` rows x `depth` slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) from: End,
    pub(crate) to: End,
    pub(crate) width_bytes: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

impl Copy {
    /// A plain copy.
    pub(crate) fn linear(from: End, to: End, size_bytes: u64) -> Self {
        Copy { from, to, width_bytes: size_bytes, height: 1, depth: 1 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.width_bytes == 0 || self.height == 0 || self.depth == 0
    }

    /// Whether both device ends lie in accessible memory now.
    pub(crate) fn is_accessible(&self, space: &AddressSpace) -> bool {
        let table = space.accessible().snapshot();
        let rows = self.height.saturating_mul(self.depth);
        [&self.from, &self.to].iter().filter(|end| end.side == Side::Device).all(|end| {
            // First and last row; the rows between are checked as they are copied.
            [0, rows.saturating_sub(1)]
                .iter()
                .all(|&row| table.covers(end.row(row, self.height.max(1)), self.width_bytes))
        })
    }
}

/// A fill of rows with a repeated element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) address: u64,
    /// Bytes from one row to the next.
    pub(crate) row_bytes: u64,
    pub(crate) value: u32,
    /// 1, 2 or 4.
    pub(crate) element_bytes: u64,
    /// Elements per row.
    pub(crate) width: u64,
    pub(crate) height: u64,
}

/// A transfer in progress.
#[derive(Debug)]
pub(crate) struct Transfer {
    space: Arc<AddressSpace>,
    work: Work,
    row: u64,
    /// Bytes of the current row that are done.
    done_bytes: u64,
    /// Host memory that was staged for this transfer and lives as long.
    _staged: Option<Box<[u8]>>,
}

#[derive(Debug, Clone, Copy)]
enum Work {
    Copy(Copy),
    Fill(Fill),
}

impl Transfer {
    pub(crate) fn copy(space: Arc<AddressSpace>, copy: Copy) -> Self {
        Transfer { space, work: Work::Copy(copy), row: 0, done_bytes: 0, _staged: None }
    }

    /// A copy whose source is `staged`, which the transfer keeps.
    pub(crate) fn copy_staged(space: Arc<AddressSpace>, mut copy: Copy, staged: Box<[u8]>) -> Self {
        copy.from = End::linear(staged.as_ptr() as u64, Side::Host);
        Transfer { space, work: Work::Copy(copy), row: 0, done_bytes: 0, _staged: Some(staged) }
    }

    pub(crate) fn fill(space: Arc<AddressSpace>, fill: Fill) -> Self {
        Transfer { space, work: Work::Fill(fill), row: 0, done_bytes: 0, _staged: None }
    }

    /// Does all of it on the calling thread.
    pub(crate) fn run(mut self) -> Result<(), Sticky> {
        loop {
            match self.step() {
                Step::More => {}
                Step::Done | Step::Then(_) => return Ok(()),
                Step::Fault(sticky) => return Err(sticky),
            }
        }
    }

    fn width_bytes(&self) -> u64 {
        match &self.work {
            Work::Copy(copy) => copy.width_bytes,
            Work::Fill(fill) => fill.width * fill.element_bytes,
        }
    }

    fn rows(&self) -> u64 {
        match &self.work {
            Work::Copy(copy) => copy.height * copy.depth,
            Work::Fill(fill) => fill.height,
        }
    }

    /// Does up to `size_bytes` of the current row; `false`: it touches what is not accessible.
    fn piece(&self, size_bytes: u64) -> bool {
        let memory = self.space.accessible().enter();
        let is_fine = |address, side| side == Side::Host || memory.covers(address, size_bytes);
        match &self.work {
            Work::Copy(copy) => {
                let from = copy.from.row(self.row, copy.height).wrapping_add(self.done_bytes);
                let to = copy.to.row(self.row, copy.height).wrapping_add(self.done_bytes);
                if !is_fine(from, copy.from.side) || !is_fine(to, copy.to.side) {
                    return false;
                }
                // SAFETY: device ends are covered while `memory` is held; host ends are the
                // program's promise.
                unsafe { touch::copy(from, to, size_bytes as usize) };
            }
            Work::Fill(fill) => {
                let at = fill
                    .address
                    .wrapping_add(self.row.wrapping_mul(fill.row_bytes))
                    .wrapping_add(self.done_bytes);
                if at % fill.element_bytes != 0 || !is_fine(at, Side::Device) {
                    return false;
                }
                let count = (size_bytes / fill.element_bytes) as usize;
                // SAFETY: covered while `memory` is held, and aligned.
                unsafe { touch::fill(at, fill.value, fill.element_bytes as usize, count) };
            }
        }
        true
    }
}

impl Task for Transfer {
    fn step(&mut self) -> Step {
        let (width, rows) = (self.width_bytes(), self.rows());
        if width == 0 {
            return Step::Done;
        }
        let mut budget = PIECE_BYTES;
        while self.row < rows {
            let size = (width - self.done_bytes).min(PIECE_BYTES);
            if size > budget {
                return Step::More;
            }
            if !self.piece(size) {
                return Step::Fault(Sticky::IllegalAddress);
            }
            budget -= size;
            self.done_bytes += size;
            if self.done_bytes == width {
                self.done_bytes = 0;
                self.row += 1;
            }
        }
        Step::Done
    }
}
