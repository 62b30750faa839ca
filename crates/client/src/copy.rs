//! Copies, of whatever shape, between whatever ends.
//!
//! What the executor reaches at both ends is one posted command. Private memory goes through the
//! staging ring, in pieces, so that copying here and the device's work overlap. What the caller may
//! rely on when the call returns: a synchronous copy with a host end has arrived; an asynchronous
//! one from pageable memory has been taken; a copy within the device has only been ordered; a copy
//! between two host ends is done. CUDA's table promises less for synchronous copies from pageable
//! memory (taken, too), but drivers wait, and programs read them in streams that wait for nobody.

pub(crate) mod array;
pub(crate) mod array_copy;
pub(crate) mod cross_copy;
pub(crate) mod texture;

use crate::client::Client;
use crate::graph::{CopyWork, NodeKind};
use crate::memory::memory_map::{Kind, Reach};
use crate::memory::peer;
use crate::session::Result;
use crate::session::portions::in_portions;
use crate::session::slots::Mark;
use crate::session::staging::{PIECE_BYTES, Piece, piece_bytes};
use crate::stream::Target;
use cuda_abi::types::CUresult;
use link::wire::command::{Copy, Copy3d, Opcode};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pieces in flight from the device.
const DEPTH: usize = 4;

/// Whether the call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// The plain form of a function.
    Synchronous,
    /// The `Async` form.
    Asynchronous,
}

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

/// A copy between checked ends, as a node of a graph does it.
pub(crate) fn copy_work(client: &Client, to: End, from: End, extent: Extent) -> Result<CopyWork> {
    let reaches = reaches(client, to, from, extent)?;
    let is_host = [reaches[0].is_host(), reaches[1].is_host()];
    Ok(CopyWork { to, from, extent: extent.joined(to, from), asked: extent, is_host })
}

/// Copies in stream order. The ends are checked: each lies in one range, or is taken for pageable
/// memory.
///
/// # Safety
/// Private ends are the caller's to read or write, as the API says.
pub(crate) unsafe fn copy(
    client: &'static Client,
    target: &Target,
    destination: End,
    source: End,
    extent: Extent,
    timing: Timing,
) -> Result {
    if timing == Timing::Synchronous {
        target.refuse_capture(client)?;
    }
    if extent.is_empty() {
        return target.backend.session.check();
    }
    let [to, from] = reaches(client, destination, source, extent)?;
    let node = || copy_work(client, destination, source, extent).map(NodeKind::Memcpy);
    if target.capture(client, node)? {
        return Ok(());
    }
    let extent = extent.joined(destination, source);
    let device = target.context.device;
    let (to, from) = (to.seen_from(device), from.seen_from(device));
    let foreign: Vec<i32> =
        [&to, &from].into_iter().filter_map(|end| end.foreign(device)).collect();
    if !foreign.is_empty() {
        let reaches = |end: End, reach: &Reach| {
            let span_bytes = end.span_bytes(extent).unwrap_or(u64::MAX);
            peer::reaches(client, device, reach, end.address, span_bytes)
        };
        if !(reaches(destination, &to) && reaches(source, &from)) {
            // SAFETY: the caller's promise.
            return unsafe {
                cross_copy::copy(client, target, (destination, &to), (source, &from), extent)
            };
        }
        if timing == Timing::Synchronous {
            // Such a copy comes after all work of both devices.
            for &device in &foreign {
                client.device(device)?.session(client)?.session.wait_all(0)?;
            }
        }
    }
    match (&to, &from) {
        (Reach::Shared(_), Reach::Shared(_)) => {
            let mark = post(target, destination, source, extent)?;
            let is_awaited = to.is_host() || from.is_host() || !foreign.is_empty();
            if timing == Timing::Synchronous && is_awaited {
                target.wait_for_copy(mark, extent.size_bytes())?;
            }
            Ok(())
        }
        (Reach::Shared(area), Reach::Private) => {
            let last = AtomicU64::new(0);
            in_portions(destination, source, extent, |(to, from, extent)| {
                // SAFETY: the caller's promise, here and below.
                let mark = unsafe { stage_in(target, to, from, extent, timing) }?;
                // Relaxed: the portions' threads have ended when it is read.
                last.fetch_max(mark.number, Ordering::Relaxed);
                Ok(())
            })?;
            match (timing, &area.kind) {
                (Timing::Asynchronous, _) => Ok(()),
                // The host may look at such a variable next.
                (Timing::Synchronous, Kind::ManagedGlobal) => target.synchronize(),
                (Timing::Synchronous, _) => {
                    target.wait(Mark { slot: target.slot, number: last.into_inner() })
                }
            }
        }
        (Reach::Private, Reach::Shared(_)) => {
            in_portions(destination, source, extent, |(to, from, extent)| {
                // SAFETY: as above; portions do not overlap.
                unsafe { stage_out(target, to, from, extent) }
            })
        }
        (Reach::Private, Reach::Private) => {
            target.synchronize()?;
            // SAFETY: as above.
            unsafe { copy_here(destination, source, extent) };
            Ok(())
        }
    }
}

/// How both ends of a copy are reached, destination first; CUDA_ERROR_INVALID_VALUE where one runs
/// over the end of its range.
pub(crate) fn reaches(
    client: &Client,
    destination: End,
    source: End,
    extent: Extent,
) -> Result<[Reach; 2]> {
    let reach = |end: End| {
        let span_bytes = end.span_bytes(extent).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        client.memory.reach(end.address, span_bytes)
    };
    Ok([reach(destination)?, reach(source)?])
}

/// Copies between ends that this process reaches.
///
/// # Safety
/// Both are valid; they may overlap.
pub(crate) unsafe fn copy_here(destination: End, source: End, extent: Extent) {
    for slice in 0..extent.depth {
        for row in 0..extent.height {
            // SAFETY: the caller's promise.
            unsafe {
                core::ptr::copy(
                    source.row(slice, row) as *const u8,
                    destination.row(slice, row) as *mut u8,
                    extent.width_bytes as usize,
                );
            }
        }
    }
}

fn post(target: &Target, destination: End, source: End, extent: Extent) -> Result<Mark> {
    if extent.height == 1 && extent.depth == 1 {
        let body = Copy {
            stream: target.slot,
            reserved: 0,
            destination: destination.address,
            source: source.address,
            size_bytes: extent.width_bytes,
        };
        return target.post(Opcode::Copy, &body);
    }
    let body = Copy3d {
        stream: target.slot,
        reserved: 0,
        destination: destination.address,
        destination_pitch_bytes: destination.pitch_bytes,
        destination_slice_bytes: destination.slice_bytes,
        source: source.address,
        source_pitch_bytes: source.pitch_bytes,
        source_slice_bytes: source.slice_bytes,
        width_bytes: extent.width_bytes,
        height: extent.height,
        depth: extent.depth,
    };
    target.post(Opcode::Copy3d, &body)
}

/// The command for one part, whose rows lie densely in a staging piece.
fn post_part(target: &Target, part: Part, destination: End, source: End) -> Result<Mark> {
    let extent = Extent { width_bytes: part.width_bytes, height: part.rows, depth: 1 };
    post(target, destination, source, extent.joined(destination, source))
}

fn dense(address: u64, part: Part) -> End {
    End { address, pitch_bytes: part.width_bytes, slice_bytes: part.width_bytes * part.rows }
}

/// Returns the last piece's mark.
///
/// # Safety
/// The source is the caller's to read.
unsafe fn stage_in(
    target: &Target,
    destination: End,
    source: End,
    extent: Extent,
    timing: Timing,
) -> Result<Mark> {
    let mut last = Mark { slot: target.slot, number: 0 };
    let piece_bytes = match timing {
        Timing::Synchronous => piece_bytes(extent.size_bytes()),
        // The short ring has little room: who need not wait would wait for earlier work of the
        // stream.
        Timing::Asynchronous => PIECE_BYTES,
    };
    for part in parts(destination, source, extent, piece_bytes) {
        let piece = target.backend.stage(target.id, part.width_bytes * part.rows)?;
        // SAFETY: the piece is ours and long enough; the caller's promise for the source.
        unsafe {
            copy_rows(part.source, source.pitch_bytes, piece.address, part.width_bytes, part)
        };
        let to = End { address: part.destination, ..destination };
        match post_part(target, part, to, dense(piece.address, part)) {
            Ok(mark) => {
                target.backend.unstage(piece, target.id, mark);
                last = mark;
            }
            Err(error) => {
                target.backend.staging.free(piece);
                return Err(error);
            }
        }
    }
    Ok(last)
}

/// # Safety
/// The destination is the caller's to write.
unsafe fn stage_out(target: &Target, destination: End, source: End, extent: Extent) -> Result {
    let mut in_flight: VecDeque<(Piece, Mark, Part)> = VecDeque::new();
    let finish = |(piece, mark, part): (Piece, Mark, Part)| {
        let arrived = target.wait(mark);
        if arrived.is_ok() {
            // SAFETY: the piece holds the part, densely; the caller's promise for the destination.
            unsafe {
                copy_rows(
                    piece.address,
                    part.width_bytes,
                    part.destination,
                    destination.pitch_bytes,
                    part,
                )
            };
        }
        target.backend.staging.free(piece);
        arrived
    };
    let mut result = Ok(());
    for part in parts(destination, source, extent, piece_bytes(extent.size_bytes())) {
        // Never waits for room with pieces of its own in hand: two such callers would wait for each
        // other.
        let piece = loop {
            if in_flight.len() < DEPTH
                && let Some(piece) =
                    target.backend.try_stage(target.id, part.width_bytes * part.rows)?
            {
                break Ok(piece);
            }
            match in_flight.pop_front() {
                Some(oldest) => result = result.and(finish(oldest)),
                None => break target.backend.stage(target.id, part.width_bytes * part.rows),
            }
        };
        let posted = result.and(piece).and_then(|piece| {
            let from = End { address: part.source, ..source };
            let mark = post_part(target, part, dense(piece.address, part), from);
            let signalled = mark
                .and_then(|mark| target.backend.session.request(target.id, mark).map(|()| mark));
            if signalled.is_err() {
                target.backend.staging.free(piece);
            }
            Ok((piece, signalled?, part))
        });
        match posted {
            Ok(one) => in_flight.push_back(one),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    for one in in_flight {
        result = result.and(finish(one));
    }
    result
}

/// # Safety
/// Both sides are valid for the part's rows and do not overlap.
unsafe fn copy_rows(from: u64, from_pitch: u64, to: u64, to_pitch: u64, part: Part) {
    for row in 0..part.rows {
        // SAFETY: the caller's promise.
        unsafe {
            core::ptr::copy_nonoverlapping(
                (from + row * from_pitch) as *const u8,
                (to + row * to_pitch) as *mut u8,
                part.width_bytes as usize,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
