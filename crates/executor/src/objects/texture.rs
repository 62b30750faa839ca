//! A session's texture and surface objects: how a kernel sees arrays and memory.
//!
//! Kernels are given the driver's own values, so the next executor must come to the same ones
//! ([`super::claims`]). It makes them when all else is there, in the order of their values. What
//! was made of something that is gone since cannot be used and is not made again; its value is
//! nobody's until the client ends it.

mod commands;

use super::array::row_bytes;
use super::claims::{Kind, Value};
use cuda_abi::types::*;
use link::wire::array::{SURFACE, TEXTURE, TextureCreate, TextureHandle};
use std::collections::HashMap;

/// What an object of a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// The driver's; a surface writes to the array of this number.
    Live(Option<u32>),
    /// A value that the driver has given for something that is gone.
    Gone,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    made: HashMap<Value, Made>,
    surfaces: usize,
}

impl Objects {
    pub(crate) fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    fn insert(&mut self, value: Value, made: Made) {
        self.surfaces += usize::from(matches!(made, Made::Live(Some(_))));
        self.made.insert(value, made);
    }

    fn remove(&mut self, value: Value) -> Option<Made> {
        let made = self.made.remove(&value)?;
        self.surfaces -= usize::from(matches!(made, Made::Live(Some(_))));
        Some(made)
    }

    /// Whether kernels can write to arrays.
    pub(crate) fn have_surfaces(&self) -> bool {
        self.surfaces > 0
    }

    /// Arrays that kernels can write to.
    pub(crate) fn written_arrays(&self) -> Vec<u32> {
        let arrays = self.made.values().filter_map(|made| match made {
            Made::Live(array) => *array,
            Made::Gone => None,
        });
        arrays.collect()
    }
}

/// What its object is known by.
fn value(handle: TextureHandle) -> Value {
    (Kind::Object(handle.object), handle.handle)
}

/// Up to where rows of a pitched texture reach: the last one may be shorter than the pitch.
fn pitched_bytes(wanted: &TextureCreate) -> Option<u64> {
    let before = wanted.pitch_bytes.checked_mul(wanted.height.checked_sub(1)?)?;
    before.checked_add(row_bytes(wanted.width, wanted.format, wanted.channels)?)
}

/// Structures without pointers and handles, of which any bytes are a value.
///
/// # Safety
/// As said.
unsafe trait PlainNumbers {}
// SAFETY: numbers alone.
unsafe impl PlainNumbers for CUDA_TEXTURE_DESC {}
// SAFETY: numbers alone.
unsafe impl PlainNumbers for CUDA_RESOURCE_VIEW_DESC {}

const _: () = assert!(size_of::<CUDA_TEXTURE_DESC>() == 26 * 4);
const _: () = assert!(size_of::<CUDA_RESOURCE_VIEW_DESC>() == 28 * 4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pitched_texture_reaches_to_the_last_byte_of_its_last_row() {
        let wanted = TextureCreate {
            width: 100,
            height: 3,
            pitch_bytes: 2048,
            format: CUarray_format::FLOAT.0,
            channels: 4,
            ..Default::default()
        };
        assert_eq!(pitched_bytes(&wanted), Some(2 * 2048 + 1600));
        let bytes = TextureCreate { format: CUarray_format::UNSIGNED_INT8.0, ..wanted };
        assert_eq!(pitched_bytes(&TextureCreate { channels: 1, ..bytes }), Some(2 * 2048 + 100));
        assert_eq!(pitched_bytes(&TextureCreate { height: 0, ..wanted }), None);
        assert_eq!(pitched_bytes(&TextureCreate { width: u64::MAX / 4, ..wanted }), None);
    }

    #[test]
    fn surfaces_are_counted_while_they_live() {
        let mut objects = Objects::default();
        let [texture, surface, gone] =
            [(TEXTURE, 1), (SURFACE, 2), (SURFACE, 3)].map(|(kind, it)| (Kind::Object(kind), it));
        objects.insert(texture, Made::Live(None));
        objects.insert(gone, Made::Gone);
        assert!(!objects.have_surfaces());
        objects.insert(surface, Made::Live(Some(9)));
        assert!(objects.have_surfaces());
        assert_eq!(objects.written_arrays(), [9]);
        assert_eq!(objects.remove(surface), Some(Made::Live(Some(9))));
        assert!(!objects.have_surfaces() && objects.remove(surface).is_none());
    }
}
