//! What clients ask of arrays.

use super::*;
use crate::session::failure::INVALID;
use crate::session::state::State;
use crate::submit::copy::volume_bytes;
use link::wire::array::{ArrayCopy, ArrayEnd, ArrayLevel, ArrayMemoryReply, ArrayNumber};

/// Longest side of an array, in any unit.
const MAX_EXTENT: u64 = 1 << 20;
/// Sparse and deferred: memory comes later, from outside.
const LATER_MEMORY_FLAGS: u32 = 0x40 | 0x80;

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
            let make = || unsafe { driver.cuArray3DCreate_v2(&mut array, &description) };
            self.check(self.context().gate.between(make)).map(|()| Held::Array(array))
        } else {
            let mut array = CUmipmappedArray::NULL;
            // SAFETY: as above.
            let make = || unsafe {
                driver.cuMipmappedArrayCreate(&mut array, &description, wanted.levels)
            };
            self.check(self.context().gate.between(make)).map(|()| Held::Mipmapped(array))
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
        let extent = |end: &ArrayEnd| {
            let slice = end.pitch_bytes.checked_mul(end.rows).ok_or(INVALID)?;
            volume_bytes(width_bytes, height, depth, end.pitch_bytes, slice).ok_or(INVALID)
        };
        let mut written = (0, 0);
        if destination.array == NO_ARRAY {
            written = (destination.address, extent(&destination)?);
            copy.dstMemoryType = CUmemorytype::UNIFIED;
            copy.dstDevice = self.reach(written.0, written.1)?;
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
            copy.srcMemoryType = CUmemorytype::UNIFIED;
            copy.srcDevice = self.reach(source.address, extent(&source)?)?;
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
        self.submit_copy(slot, written, copied_bytes, |driver| unsafe {
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
