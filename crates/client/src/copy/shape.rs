//! What a copy's ends look like, and how it is cut into parts.

/// One end: where it starts, and how rows and slices follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) address: u64,
    pub(crate) pitch_bytes: u64,
    pub(crate) slice_bytes: u64,
}

/// What is copied: `depth` slices of `height` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) width_bytes: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

impl End {
    /// An end without rows.
    pub(crate) fn linear(address: u64) -> Self {
        Self { address, pitch_bytes: 0, slice_bytes: 0 }
    }

    /// Bytes from the first to the last that is touched; `None` on overflow.
    pub(crate) fn span_bytes(&self, extent: Extent) -> Option<u64> {
        let slices = self.slice_bytes.checked_mul(extent.depth - 1)?;
        let rows = self.pitch_bytes.checked_mul(extent.height - 1)?;
        slices.checked_add(rows)?.checked_add(extent.width_bytes)
    }

    /// The first byte of a row.
    pub(crate) fn row(&self, slice: u64, row: u64) -> u64 {
        self.address + slice * self.slice_bytes + row * self.pitch_bytes
    }
}

impl Extent {
    /// So many bytes in a row.
    pub(crate) fn linear(size_bytes: u64) -> Self {
        Self { width_bytes: size_bytes, height: 1, depth: 1 }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.width_bytes.saturating_mul(self.height).saturating_mul(self.depth)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.width_bytes == 0 || self.height == 0 || self.depth == 0
    }

    /// Rows that follow each other without gaps at both ends are one long row.
    pub(crate) fn joined(self, one: End, other: End) -> Self {
        let Self { width_bytes, height, depth } = self;
        let dense_rows =
            height == 1 || (one.pitch_bytes == width_bytes && other.pitch_bytes == width_bytes);
        let slice = width_bytes * height;
        let dense_slices = depth == 1 || (one.slice_bytes == slice && other.slice_bytes == slice);
        if dense_rows && dense_slices { Self::linear(slice * depth) } else { self }
    }
}

/// Some rows of one slice, or a part of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) destination: u64,
    pub(crate) source: u64,
    pub(crate) width_bytes: u64,
    pub(crate) rows: u64,
}

/// Cuts a copy into parts that fit into staging pieces of such a length.
pub(crate) fn parts(
    destination: End,
    source: End,
    extent: Extent,
    piece_bytes: u64,
) -> impl Iterator<Item = Part> {
    let Extent { width_bytes, height, depth } = extent;
    let rows_at_once = (piece_bytes / width_bytes).max(1);
    let width_at_once = width_bytes.min(piece_bytes);
    (0..depth).flat_map(move |slice| {
        (0..height).step_by(usize::try_from(rows_at_once).unwrap_or(usize::MAX)).flat_map(
            move |row| {
                let rows = rows_at_once.min(height - row);
                (0..width_bytes).step_by(piece_bytes as usize).map(move |x| Part {
                    destination: destination.row(slice, row) + x,
                    source: source.row(slice, row) + x,
                    width_bytes: width_at_once.min(width_bytes - x),
                    rows,
                })
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::staging::{PIECE_BYTES, piece_bytes};

    #[test]
    fn dense_rows_are_one_row() {
        let end = End { address: 0, pitch_bytes: 8, slice_bytes: 32 };
        let extent = Extent { width_bytes: 8, height: 4, depth: 2 };
        assert_eq!(extent.joined(end, end), Extent::linear(64));
        let padded = End { pitch_bytes: 16, ..end };
        assert_eq!(extent.joined(end, padded), extent);
        assert_eq!(end.span_bytes(extent), Some(64));
    }

    #[test]
    fn parts_cover_everything_once_and_fit_a_piece() {
        let destination = End { address: 1 << 40, pitch_bytes: 5000, slice_bytes: 5000 * 700 };
        let source = End { address: 0, pitch_bytes: 3000, slice_bytes: 3000 * 700 };
        let extent = Extent { width_bytes: 3000, height: 700, depth: 3 };
        let all: Vec<_> = parts(destination, source, extent, PIECE_BYTES).collect();
        assert!(all.iter().all(|part| part.width_bytes * part.rows <= PIECE_BYTES));
        assert_eq!(
            all.iter().map(|part| part.width_bytes * part.rows).sum::<u64>(),
            3000 * 700 * 3
        );
        assert!(piece_bytes(1 << 20) < 1 << 20, "the device takes one while the next is filled");
        let long = Extent::linear(5 * PIECE_BYTES + 5);
        let all: Vec<_> = parts(End::linear(100), End::linear(7), long, PIECE_BYTES).collect();
        assert_eq!(all.len(), 6);
        assert_eq!(
            all[5],
            Part {
                destination: 100 + 5 * PIECE_BYTES,
                source: 7 + 5 * PIECE_BYTES,
                width_bytes: 5,
                rows: 1
            }
        );
    }

    #[test]
    fn spans_that_overflow_are_noticed() {
        let end = End { address: 0, pitch_bytes: u64::MAX / 2, slice_bytes: 0 };
        assert_eq!(end.span_bytes(Extent { width_bytes: 1, height: 4, depth: 1 }), None);
    }
}
