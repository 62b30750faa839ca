//! Copies between devices where the one does not reach the other's memory
//! ([`crate::memory::peer`]): the bytes pass through this process, from the source's executor into
//! memory shared with it, over to memory shared with the destination's, and on. All work of both
//! devices is waited for first.

use crate::client::Client;
use crate::context::backend::Backend;
use crate::copy::shape::{End, Extent, parts};
use crate::memory::memory_map::Reach;
use crate::result::Result;
use crate::session::staging::PIECE_BYTES;
use crate::stream::Target;

/// Where the bytes of an end are.
enum Place {
    /// Memory that this process reaches.
    Host,
    /// Memory of a device.
    Device(&'static Backend),
}

fn place(client: &'static Client, reach: &Reach) -> Result<Place> {
    match reach {
        Reach::Shared(area) if !reach.is_host() => {
            let backend = client.device(area.device)?.session(client)?;
            backend.session.wait_all(0)?;
            Ok(Place::Device(backend))
        }
        _ => Ok(Place::Host),
    }
}

/// Copies at once; the ends are checked.
///
/// # Safety
/// Ends that are no device memory are the caller's to read or write.
pub(crate) unsafe fn copy(
    client: &'static Client,
    target: &Target,
    (destination, to): (End, &Reach),
    (source, from): (End, &Reach),
    extent: Extent,
) -> Result {
    target.synchronize()?;
    let (to, from) = (place(client, to)?, place(client, from)?);
    for part in parts(destination, source, extent, PIECE_BYTES) {
        for row in 0..part.rows {
            let at = part.destination + row * destination.pitch_bytes;
            let of = part.source + row * source.pitch_bytes;
            let mut bytes = vec![0; part.width_bytes as usize];
            // SAFETY: the caller's promise; the vector is as long as the row.
            unsafe {
                read(&from, of, &mut bytes)?;
                write(&to, at, &bytes)?;
            }
        }
    }
    Ok(())
}

/// # Safety
/// Host memory at `from` is as long as `bytes`.
unsafe fn read(place: &Place, from: u64, bytes: &mut [u8]) -> Result {
    let length = bytes.len();
    let Place::Device(backend) = place else {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(from as *const u8, bytes.as_mut_ptr(), length) };
        return Ok(());
    };
    let piece = backend.stage(0, length as u64)?;
    let copied = backend.session.copy_quietly(piece.address, from, length as u64);
    if copied.is_ok() {
        // SAFETY: the piece is ours and as long.
        unsafe {
            core::ptr::copy_nonoverlapping(piece.address as *const u8, bytes.as_mut_ptr(), length);
        }
    }
    backend.staging.free(piece);
    copied
}

/// # Safety
/// Host memory at `to` is as long as `bytes`.
unsafe fn write(place: &Place, to: u64, bytes: &[u8]) -> Result {
    let length = bytes.len();
    let Place::Device(backend) = place else {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, length) };
        return Ok(());
    };
    let piece = backend.stage(0, length as u64)?;
    // SAFETY: the piece is ours and as long.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), piece.address as *mut u8, length) };
    let copied = backend.session.copy_quietly(to, piece.address, length as u64);
    backend.staging.free(piece);
    copied
}
