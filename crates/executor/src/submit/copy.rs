//! Copies and fills, checked against what the client may address.

use crate::session::failure::{Failure, INVALID};
use crate::session::state::State;
use cuda_abi::types::*;
use link::wire::command::{Copy, Copy3d, Fill};

/// Slices are submitted one by one; no array of CUDA has more.
const MAX_SLICES: u64 = 1 << 16;

impl State {
    pub(crate) fn copy(&mut self, wanted: Copy) -> Result<(), Failure> {
        let Copy { stream: slot, destination, source, size_bytes, .. } = wanted;
        let stream = self.stream_for_work(slot)?;
        if size_bytes == 0 {
            return Ok(());
        }
        let written = (destination, size_bytes);
        let destination = self.reach(destination, size_bytes)?;
        let source = self.reach(source, size_bytes)?;
        // SAFETY: both ranges are this client's, in memory that the driver knows.
        self.submit_copy(slot, written, size_bytes, |driver| unsafe {
            driver.cuMemcpyAsync(destination, source, size_bytes as usize, stream)
        })
    }

    /// The stream for what waits for none of the client's.
    pub(crate) fn side_stream(&mut self) -> Result<CUstream, Failure> {
        if let Some(stream) = self.side_stream {
            return Ok(stream);
        }
        Ok(*self.side_stream.insert(self.shared.context.new_stream(0)?))
    }

    pub(crate) fn copy_3d(&mut self, wanted: Copy3d) -> Result<(), Failure> {
        let stream = self.stream_for_work(wanted.stream)?;
        let Copy3d { width_bytes, height, depth, .. } = wanted;
        if depth > MAX_SLICES {
            return Err(INVALID);
        }
        if width_bytes == 0 || height == 0 || depth == 0 {
            return Ok(());
        }
        let extent = |pitch: u64, slice: u64| {
            extent_bytes(width_bytes, height, depth, pitch, slice).ok_or(INVALID)
        };
        let to_bytes = extent(wanted.destination_pitch_bytes, wanted.destination_slice_bytes)?;
        let from_bytes = extent(wanted.source_pitch_bytes, wanted.source_slice_bytes)?;
        let destination = self.reach(wanted.destination, to_bytes)?;
        let source = self.reach(wanted.source, from_bytes)?;
        let copied_bytes = width_bytes.saturating_mul(height).saturating_mul(depth);
        let written = (wanted.destination, to_bytes);
        self.submit_copy(wanted.stream, written, copied_bytes, |driver| {
            let mut copies = (0..depth).map(|slice| {
                let copy = CUDA_MEMCPY2D {
                    srcMemoryType: CUmemorytype::UNIFIED,
                    srcDevice: source + slice * wanted.source_slice_bytes,
                    srcPitch: wanted.source_pitch_bytes as usize,
                    dstMemoryType: CUmemorytype::UNIFIED,
                    dstDevice: destination + slice * wanted.destination_slice_bytes,
                    dstPitch: wanted.destination_pitch_bytes as usize,
                    WidthInBytes: width_bytes as usize,
                    Height: height as usize,
                    ..Default::default()
                };
                // SAFETY: both extents are this client's, in memory that the driver knows.
                unsafe { driver.cuMemcpy2DAsync_v2(&copy, stream) }
            });
            copies.find(|copied| !copied.is_success()).unwrap_or(CUresult::SUCCESS)
        })
    }

    pub(crate) fn fill(&mut self, wanted: Fill) -> Result<(), Failure> {
        let Fill {
            stream: slot,
            element_bytes,
            destination,
            pitch_bytes,
            width,
            height,
            value,
            ..
        } = wanted;
        let stream = self.stream_for_work(slot)?;
        if !matches!(element_bytes, 1 | 2 | 4) {
            return Err(Failure::Protocol(format!("a fill has elements of {element_bytes} bytes")));
        }
        if width == 0 || height == 0 {
            return Ok(());
        }
        let row_bytes = width.checked_mul(element_bytes.into()).ok_or(INVALID)?;
        let extent = extent_bytes(row_bytes, height, 1, pitch_bytes, 0).ok_or(INVALID)?;
        let written = (destination, extent);
        let destination = self.reach(destination, extent)?;
        let (n, pitch, rows) = (width as usize, pitch_bytes as usize, height as usize);
        // SAFETY: the extent is this client's, in memory that the driver knows.
        self.submit_copy(slot, written, 0, |driver| unsafe {
            match (element_bytes, rows) {
                (1, 1) => driver.cuMemsetD8Async(destination, value as u8, n, stream),
                (2, 1) => driver.cuMemsetD16Async(destination, value as u16, n, stream),
                (_, 1) => driver.cuMemsetD32Async(destination, value, n, stream),
                (1, _) => {
                    driver.cuMemsetD2D8Async(destination, pitch, value as u8, n, rows, stream)
                }
                (2, _) => {
                    driver.cuMemsetD2D16Async(destination, pitch, value as u16, n, rows, stream)
                }
                _ => driver.cuMemsetD2D32Async(destination, pitch, value, n, rows, stream),
            }
        })
    }
}

/// Bytes from the first to the last that such a copy touches; `None` on overflow, and for rows that
/// overlap: a driver may take such a pitch, as it does 0, for rows without gaps, and would reach
/// further.
pub(crate) fn extent_bytes(
    width: u64,
    height: u64,
    depth: u64,
    pitch: u64,
    slice: u64,
) -> Option<u64> {
    if height > 1 && pitch < width {
        return None;
    }
    let rows = (height - 1).checked_mul(pitch)?;
    let slices = (depth - 1).checked_mul(slice)?;
    rows.checked_add(slices)?.checked_add(width)
}

/// As [`extent_bytes`], for a driver that is told of slices as well: they must not overlap either.
pub(crate) fn volume_bytes(
    width: u64,
    height: u64,
    depth: u64,
    pitch: u64,
    slice: u64,
) -> Option<u64> {
    let whole_slice = pitch.max(width).checked_mul(height)?;
    if depth > 1 && slice < whole_slice {
        return None;
    }
    extent_bytes(width, height, depth, pitch, slice)
}

#[cfg(test)]
mod tests {
    use super::{extent_bytes, volume_bytes};

    #[test]
    fn extents_end_with_the_last_row_and_never_wrap() {
        assert_eq!(extent_bytes(10, 1, 1, 0, 0), Some(10));
        assert_eq!(extent_bytes(10, 3, 2, 16, 100), Some(142));
        assert_eq!(extent_bytes(10, u64::MAX, 2, 16, 100), None);
        assert_eq!(extent_bytes(u64::MAX, 2, 1, 1, 0), None);
    }

    #[test]
    fn what_a_driver_could_take_for_dense_is_refused() {
        assert_eq!(extent_bytes(10, 3, 1, 0, 0), None, "no pitch");
        assert_eq!(extent_bytes(10, 3, 1, 9, 0), None);
        assert_eq!(extent_bytes(10, 1, 1, 0, 0), Some(10), "a pitch that nobody looks at");
        assert_eq!(volume_bytes(10, 3, 2, 16, 48), Some(90));
        assert_eq!(volume_bytes(10, 3, 2, 16, 47), None);
        assert_eq!(volume_bytes(10, 1, 2, 0, 0), None);
        assert_eq!(volume_bytes(10, u64::MAX, 2, 16, u64::MAX), None);
    }
}
