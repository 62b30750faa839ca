//! Copies with an array at one end or both; [`crate::copy`] says what the caller may rely on.

use crate::client::Client;
use crate::copy::Timing;
use crate::copy::array::{Array, Corner};
use crate::copy::shape::{End, Extent};
use crate::memory::memory_map::Reach;
use crate::result::Result;
use crate::session::slots::Mark;
use crate::session::staging::PIECE_BYTES;
use crate::stream::Target;
use cuda_abi::types::CUresult;
use link::wire::array::{ArrayCopy, ArrayEnd, NO_ARRAY};
use link::wire::command::Opcode;
use std::sync::Arc;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

/// One end of a copy.
#[derive(Clone)]
pub(crate) enum Side {
    Memory(End),
    Array(Arc<Array>, Corner),
}

impl Side {
    /// The end as it starts some slices and rows further on.
    fn at(&self, slice: u64, row: u64) -> ArrayEnd {
        match self {
            Self::Memory(end) => memory_end(end.row(slice, row), end.pitch_bytes, end.slice_bytes),
            Self::Array(array, Corner { x_bytes, y, z }) => ArrayEnd {
                x_bytes: *x_bytes,
                y: y + row,
                z: z + slice,
                array: array.number,
                ..Default::default()
            },
        }
    }

    fn check(&self, target: &Target, extent: Extent) -> Result {
        let Self::Array(array, corner) = self else { return Ok(()) };
        if array.context.device != target.context.device {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        let inside = array.contains(*corner, extent.width_bytes, extent.height, extent.depth);
        if inside { Ok(()) } else { Err(INVALID) }
    }

    /// How memory is reached; arrays are always shared.
    fn reach(&self, client: &Client, device: i32, extent: Extent) -> Result<Option<Reach>> {
        let Self::Memory(end) = self else { return Ok(None) };
        let span = end.span_bytes(extent).ok_or(INVALID)?;
        let reach = client.memory.reach(end.address, span)?.seen_from(device);
        if reach.is_foreign(device) {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        Ok(Some(reach))
    }
}

fn memory_end(address: u64, pitch_bytes: u64, slice_bytes: u64) -> ArrayEnd {
    let rows = slice_bytes.checked_div(pitch_bytes).unwrap_or(0);
    ArrayEnd { address, pitch_bytes, rows, array: NO_ARRAY, ..Default::default() }
}

fn post(target: &Target, to: ArrayEnd, from: ArrayEnd, extent: Extent) -> Result<Mark> {
    let body = ArrayCopy {
        stream: target.slot,
        reserved: 0,
        destination: to,
        source: from,
        width_bytes: extent.width_bytes,
        height: extent.height,
        depth: extent.depth,
    };
    target.post(Opcode::ArrayCopy, &body)
}

/// Copies in stream order.
///
/// # Safety
/// Private memory is the caller's to read or write, as the API says.
pub(crate) unsafe fn copy(
    client: &Client,
    target: &Target,
    to: &Side,
    from: &Side,
    extent: Extent,
    timing: Timing,
) -> Result {
    // Copies of arrays are absent from graphs.
    target.refuse_capture(client)?;
    if extent.is_empty() {
        return target.backend.session.check();
    }
    to.check(target, extent)?;
    from.check(target, extent)?;
    let device = target.context.device;
    let reach_to = to.reach(client, device, extent)?;
    let reach_from = from.reach(client, device, extent)?;
    let is_private = |reach: &Option<Reach>| matches!(reach, Some(Reach::Private));
    match (is_private(&reach_to), is_private(&reach_from)) {
        (false, false) => {
            let mark = post(target, to.at(0, 0), from.at(0, 0), extent)?;
            let is_host = |reach: &Option<Reach>| reach.as_ref().is_some_and(Reach::is_host);
            if timing == Timing::Synchronous && (is_host(&reach_to) || is_host(&reach_from)) {
                target.wait(mark)?;
            }
            Ok(())
        }
        (false, true) => {
            // SAFETY: the caller's promise, here and below.
            let last = unsafe { stage(target, to, from, extent, Way::In) }?;
            match timing {
                // As of memory: see `crate::copy`.
                Timing::Synchronous => target.wait(last),
                Timing::Asynchronous => Ok(()),
            }
        }
        // SAFETY: as above.
        (true, false) => unsafe { stage(target, to, from, extent, Way::Out) }.map(drop),
        // One end is an array.
        (true, true) => Err(INVALID),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// Copies through staging pieces, as many rows at a time as one holds; returns the last one's mark.
/// The private end is memory.
///
/// # Safety
/// The private end is the caller's.
unsafe fn stage(target: &Target, to: &Side, from: &Side, extent: Extent, way: Way) -> Result<Mark> {
    let mut last = Mark { slot: target.slot, number: 0 };
    let width = extent.width_bytes;
    // The longest rows that arrays have are shorter.
    let rows_at_once = PIECE_BYTES / width;
    let private = match if way == Way::In { from } else { to } {
        Side::Memory(end) if rows_at_once > 0 => *end,
        _ => return Err(CUresult::ERROR_NOT_SUPPORTED),
    };
    for slice in 0..extent.depth {
        let mut row = 0;
        while row < extent.height {
            let rows = rows_at_once.min(extent.height - row);
            let piece = target.backend.stage(target.id, width * rows)?;
            let dense = memory_end(piece.address, width, width * rows);
            let part = Extent { width_bytes: width, height: rows, depth: 1 };
            let place = |line: u64| private.row(slice, row + line) as *mut u8;
            let staged = |line: u64| (piece.address + line * width) as *mut u8;
            if way == Way::In {
                for line in 0..rows {
                    // SAFETY: the piece is ours and long enough; the caller's promise for the
                    // source.
                    unsafe {
                        core::ptr::copy_nonoverlapping(place(line), staged(line), width as usize)
                    };
                }
            }
            let posted = match way {
                Way::In => post(target, to.at(slice, row), dense, part),
                Way::Out => post(target, dense, from.at(slice, row), part),
            };
            let arrived = posted.and_then(|mark| match way {
                Way::In => Ok(mark),
                Way::Out => target.wait(mark).map(|()| mark),
            });
            let Ok(mark) = arrived else {
                target.backend.staging.free(piece);
                return arrived;
            };
            if way == Way::Out {
                for line in 0..rows {
                    // SAFETY: the piece holds the rows; the caller's promise for the destination.
                    unsafe {
                        core::ptr::copy_nonoverlapping(staged(line), place(line), width as usize)
                    };
                }
            }
            target.backend.unstage(piece, target.id, mark);
            last = mark;
            row += rows;
        }
    }
    Ok(last)
}
