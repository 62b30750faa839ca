//! A session's arrays and their copies. What is in them outlives the executor by
//! [`super::array_contents`]; how kernels see them is [`super::texture`].
//!
//! Arrays are the driver's, so the keeper does not count them: this module does, by an estimate
//! that is not below what they take.

mod commands;

use crate::session::failure::{Failure, below};
use cuda_abi::types::*;
use link::wire::array::{ArrayCreate, MAX_ARRAYS, NO_ARRAY};
use std::collections::HashMap;

/// Memory arrays, and their rows, come in units.
const UNIT_BYTES: u64 = 64 << 10;

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
