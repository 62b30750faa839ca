//! A session's arrays and their copies. What is in them outlives the executor by
//! [`super::array_contents`]; how kernels see them is [`super::texture`].
//!
//! Arrays are the driver's, so the keeper does not count them: this module does, by an estimate
//! that is not below what they take.

use crate::session::failure::{Failure, INVALID, below};
use crate::session::state::State;
use crate::submit::copy::volume_bytes;
use cuda_abi::types::*;
use link::wire::array::{
    ArrayCopy, ArrayCreate, ArrayEnd, ArrayLevel, ArrayMemoryReply, ArrayNumber, MAX_ARRAYS,
    NO_ARRAY,
};
use std::collections::HashMap;

/// Longest side of an array, in any unit.
const MAX_EXTENT: u64 = 1 << 20;
/// Memory arrays, and their rows, come in units.
const UNIT_BYTES: u64 = 64 << 10;
/// Sparse and deferred: memory comes later, from outside.
const LATER_MEMORY_FLAGS: u32 = 0x40 | 0x80;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    Array(CUarray),
    Mipmapped(CUmipmappedArray),
    /// Ends with its mipmapped array of that number.
    Level(CUarray, u32),
}

#[derive(Debug)]
struct Entry {
    held: Held,
    levels: u32,
    charged_bytes: u64,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Arrays {
    entries: HashMap<u32, Entry>,
}

impl Arrays {
    fn get(&self, number: u32) -> Result<Held, Failure> {
        below("array", number, MAX_ARRAYS)?;
        let found = self.entries.get(&number).map(|entry| entry.held);
        found.ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    /// What a number stands for.
    pub(crate) fn held(&self, number: u32) -> Option<Held> {
        self.entries.get(&number).map(|entry| entry.held)
    }

    /// How many levels a mipmapped array was to have.
    pub(crate) fn levels(&self, number: u32) -> u32 {
        self.entries.get(&number).map_or(0, |entry| entry.levels)
    }

    /// Whose memory an array's texels are in: its mipmapped array's, or its own.
    pub(crate) fn owner(&self, number: u32) -> u32 {
        match self.held(number) {
            Some(Held::Level(_, mipmapped)) => mipmapped,
            _ => number,
        }
    }

    pub(crate) fn array(&self, number: u32) -> Result<CUarray, Failure> {
        match self.get(number)? {
            Held::Array(array) | Held::Level(array, _) => Ok(array),
            Held::Mipmapped(_) => Err(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE)),
        }
    }

    pub(crate) fn mipmapped(&self, number: u32) -> Result<CUmipmappedArray, Failure> {
        match self.get(number)? {
            Held::Mipmapped(array) => Ok(array),
            _ => Err(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE)),
        }
    }

    fn check_new(&self, number: u32) -> Result<(), Failure> {
        if number == NO_ARRAY || number >= MAX_ARRAYS || self.entries.contains_key(&number) {
            return Err(Failure::Protocol(format!(
                "array {number} is in use, or none of 1 to {MAX_ARRAYS}"
            )));
        }
        Ok(())
    }
}

/// Bytes of a channel; `None` for formats that only the driver knows.
fn channel_bytes(format: CUarray_format) -> Option<u64> {
    Some(match format {
        CUarray_format::UNSIGNED_INT8 | CUarray_format::SIGNED_INT8 => 1,
        CUarray_format::UNSIGNED_INT16 | CUarray_format::SIGNED_INT16 | CUarray_format::HALF => 2,
        CUarray_format::UNSIGNED_INT32 | CUarray_format::SIGNED_INT32 | CUarray_format::FLOAT => 4,
        _ => return None,
    })
}

/// Bytes of a texel; `None` for formats that only the driver knows.
pub(crate) fn texel_bytes(format: CUarray_format, channels: u32) -> Option<u64> {
    Some(channel_bytes(format)? * u64::from(channels))
}

/// What a row takes, at most where the format is not known here.
pub(crate) fn row_bytes(width: u64, format: u32, channels: u32) -> Option<u64> {
    let channel_bytes = channel_bytes(CUarray_format(format)).unwrap_or(4);
    width.checked_mul(channel_bytes)?.checked_mul(channels.into())
}

/// What an array takes at most.
fn estimated_bytes(wanted: &ArrayCreate) -> Option<u64> {
    let row = row_bytes(wanted.width, wanted.format, wanted.channels)?;
    let slice = row.checked_next_multiple_of(512)?.checked_mul(wanted.height.max(1))?;
    let all = slice.checked_mul(wanted.depth.max(1))?.checked_next_multiple_of(UNIT_BYTES)?;
    // A quarter more for each dimension that is halved, all levels together.
    if wanted.levels > 1 { all.checked_mul(2) } else { Some(all) }
}

impl State {
    pub(crate) fn array_create(&mut self, wanted: ArrayCreate) -> Result<(), Failure> {
        self.arrays.check_new(wanted.array)?;
        if [wanted.width, wanted.height, wanted.depth].iter().any(|side| *side > MAX_EXTENT)
            || wanted.channels > 4
        {
            return Err(INVALID);
        }
        if wanted.flags & LATER_MEMORY_FLAGS != 0 {
            return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED));
        }
        let charged_bytes = estimated_bytes(&wanted).ok_or(INVALID)?;
        match self.records.replaying {
            // It has had it all along.
            true => self.handle.allowance.hold(charged_bytes),
            false => self.memory.charge(charged_bytes)?,
        }
        let description = CUDA_ARRAY3D_DESCRIPTOR {
            Width: wanted.width as usize,
            Height: wanted.height as usize,
            Depth: wanted.depth as usize,
            Format: CUarray_format(wanted.format),
            NumChannels: wanted.channels,
            Flags: wanted.flags,
        };
        let driver = self.driver();
        let made = if wanted.levels == 0 {
            let mut array = CUarray::NULL;
            // SAFETY: a complete description; the result is written.
            self.check(unsafe { driver.cuArray3DCreate_v2(&mut array, &description) })
                .map(|()| Held::Array(array))
        } else {
            let mut array = CUmipmappedArray::NULL;
            // SAFETY: as above.
            self.check(unsafe {
                driver.cuMipmappedArrayCreate(&mut array, &description, wanted.levels)
            })
            .map(|()| Held::Mipmapped(array))
        };
        match made {
            Ok(held) => {
                self.arrays
                    .entries
                    .insert(wanted.array, Entry { held, levels: wanted.levels, charged_bytes });
                Ok(())
            }
            Err(failure) => {
                self.memory.discharge(charged_bytes);
                Err(failure)
            }
        }
    }

    pub(crate) fn array_level(&mut self, wanted: ArrayLevel) -> Result<(), Failure> {
        self.arrays.check_new(wanted.array)?;
        let mipmapped = self.arrays.mipmapped(wanted.mipmapped)?;
        let mut array = CUarray::NULL;
        // SAFETY: a live mipmapped array of this session; the result is written.
        self.check(unsafe {
            self.driver().cuMipmappedArrayGetLevel(&mut array, mipmapped, wanted.level)
        })?;
        let held = Held::Level(array, wanted.mipmapped);
        self.arrays.entries.insert(wanted.array, Entry { held, levels: 0, charged_bytes: 0 });
        Ok(())
    }

    pub(crate) fn array_destroy(&mut self, wanted: ArrayNumber) -> Result<(), Failure> {
        let number = wanted.array;
        if let Held::Level(..) = self.arrays.get(number)? {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE));
        }
        self.forget_contents(number);
        let Some(entry) = self.arrays.entries.remove(&number) else { return Err(INVALID) };
        self.arrays
            .entries
            .retain(|_, level| !matches!(level.held, Held::Level(_, of) if of == number));
        self.memory.discharge(entry.charged_bytes);
        let _quiet = self.quiet_here()?;
        self.destroy_array(entry.held)
    }

    pub(crate) fn array_memory(&mut self, wanted: ArrayNumber) -> Result<(), Failure> {
        let held = self.arrays.get(wanted.array)?;
        let mut needed = CUDA_ARRAY_MEMORY_REQUIREMENTS::default();
        let (driver, device) = (self.driver(), self.context().device());
        // SAFETY: a live array of this session; the result is written.
        self.check(unsafe {
            match held {
                Held::Array(array) | Held::Level(array, _) => {
                    driver.cuArrayGetMemoryRequirements(&mut needed, array, device)
                }
                Held::Mipmapped(array) => {
                    driver.cuMipmappedArrayGetMemoryRequirements(&mut needed, array, device)
                }
            }
        })?;
        let reply = ArrayMemoryReply {
            size_bytes: needed.size as u64,
            alignment_bytes: needed.alignment as u64,
        };
        self.answer(&reply)
    }

    fn destroy_array(&self, held: Held) -> Result<(), Failure> {
        let driver = self.driver();
        // SAFETY: a live array of this session; its client has waited for its work.
        self.check(unsafe {
            match held {
                Held::Array(array) => driver.cuArrayDestroy(array),
                Held::Mipmapped(array) => driver.cuMipmappedArrayDestroy(array),
                Held::Level(..) => CUresult::SUCCESS,
            }
        })
    }

    pub(crate) fn array_copy(&mut self, wanted: ArrayCopy) -> Result<(), Failure> {
        let ArrayCopy { stream: slot, destination, source, width_bytes, height, depth, .. } =
            wanted;
        let stream = self.stream_for_work(slot)?;
        if width_bytes == 0 || height == 0 || depth == 0 {
            return Ok(());
        }
        let mut copy = CUDA_MEMCPY3D {
            WidthInBytes: width_bytes as usize,
            Height: height as usize,
            Depth: depth as usize,
            ..Default::default()
        };
        let check_memory = |end: &ArrayEnd| {
            let slice = end.pitch_bytes.checked_mul(end.rows).ok_or(INVALID)?;
            let extent = volume_bytes(width_bytes, height, depth, end.pitch_bytes, slice);
            self.check_range(end.address, extent.ok_or(INVALID)?)
        };
        if destination.array == NO_ARRAY {
            check_memory(&destination)?;
            copy.dstMemoryType = CUmemorytype::UNIFIED;
            copy.dstDevice = destination.address;
            copy.dstPitch = destination.pitch_bytes as usize;
            copy.dstHeight = destination.rows as usize;
        } else {
            copy.dstMemoryType = CUmemorytype::ARRAY;
            copy.dstArray = self.arrays.array(destination.array)?;
            copy.dstXInBytes = destination.x_bytes as usize;
            copy.dstY = destination.y as usize;
            copy.dstZ = destination.z as usize;
        }
        if source.array == NO_ARRAY {
            check_memory(&source)?;
            copy.srcMemoryType = CUmemorytype::UNIFIED;
            copy.srcDevice = source.address;
            copy.srcPitch = source.pitch_bytes as usize;
            copy.srcHeight = source.rows as usize;
        } else {
            copy.srcMemoryType = CUmemorytype::ARRAY;
            copy.srcArray = self.arrays.array(source.array)?;
            copy.srcXInBytes = source.x_bytes as usize;
            copy.srcY = source.y as usize;
            copy.srcZ = source.z as usize;
        }
        if destination.array != NO_ARRAY {
            self.touch_array(destination.array);
        }
        let copied_bytes = width_bytes.saturating_mul(height).saturating_mul(depth);
        // SAFETY: memory ends are this client's, arrays live; that a box lies in its array the
        // driver checks.
        self.submit_copy(slot, copied_bytes, |driver| unsafe {
            driver.cuMemcpy3DAsync_v2(&copy, stream)
        })
    }

    /// Destroys everything; nobody uses it any more.
    pub(crate) fn clear_arrays(&mut self) {
        let Arrays { entries } = std::mem::take(&mut self.arrays);
        for entry in entries.values() {
            self.memory.discharge(entry.charged_bytes);
        }
        self.quietly_each(entries.into_values(), |entry| {
            // What cannot be destroyed in a living context is lost to it.
            let _ = self.destroy_array(entry.held);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_count_rows_slices_and_levels_and_never_wrap() {
        let plain = ArrayCreate {
            width: 100,
            height: 10,
            depth: 3,
            format: CUarray_format::FLOAT.0,
            channels: 4,
            ..Default::default()
        };
        // 1600 bytes of a row are 2048 in units of 512, 30 rows are one unit of memory.
        assert_eq!(estimated_bytes(&plain), Some(UNIT_BYTES));
        assert_eq!(estimated_bytes(&ArrayCreate { levels: 4, ..plain }), Some(2 * UNIT_BYTES));
        assert_eq!(estimated_bytes(&ArrayCreate { height: 100, ..plain }), Some(10 * UNIT_BYTES));
        assert_eq!(estimated_bytes(&ArrayCreate { width: u64::MAX, ..plain }), None);
        assert_eq!(estimated_bytes(&ArrayCreate { height: u64::MAX / 2, ..plain }), None);
    }

    #[test]
    fn numbers_name_what_they_were_given_to() {
        let mut arrays = Arrays::default();
        let held = Held::Mipmapped(CUmipmappedArray(7));
        arrays.entries.insert(3, Entry { held, levels: 1, charged_bytes: 0 });
        assert!(
            arrays.mipmapped(3).is_ok() && arrays.array(3).is_err() && arrays.array(4).is_err()
        );
        assert!(arrays.check_new(4).is_ok());
        for number in [NO_ARRAY, 3, MAX_ARRAYS] {
            assert!(matches!(arrays.check_new(number), Err(Failure::Protocol(_))));
        }
        assert!(matches!(arrays.array(MAX_ARRAYS), Err(Failure::Protocol(_))));
    }
}
