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
pub(crate) mod arrays;
pub(crate) mod cross_copy;
pub(crate) mod shape;
pub(crate) mod texture;

use crate::client::Client;
use crate::copy::shape::{End, Extent, Part, parts};
use crate::graph::kinds::{CopyWork, NodeKind};
use crate::memory::memory_map::{Kind, Reach};
use crate::memory::peer;
use crate::result::Result;
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
