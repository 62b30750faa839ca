//! Device memory in the client's window, regions of its host window, copies and fills between them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::wire_struct;

wire_struct! {
    /// See [`super::Opcode::Grow`].
    struct Grow {
        /// At least this much.
        size_bytes: u64,
    }
    /// Answer to [`super::Opcode::Grow`].
    struct GrowReply {
        /// First address, inside the device window.
        address: u64,
        /// Length; a multiple of the driver's granularity.
        size_bytes: u64,
    }
    /// See [`super::Opcode::Release`].
    struct Release {
        /// First address of a grant.
        address: u64,
        /// Length of that grant.
        size_bytes: u64,
    }
    /// Answer to [`super::Opcode::MemoryInfo`].
    struct MemoryInfoReply {
        /// What this client can still take.
        free_bytes: u64,
        /// The device's memory.
        total_bytes: u64,
    }
    /// See [`super::Opcode::RegionMap`].
    struct RegionMap {
        /// First address, inside the host window, page-aligned.
        address: u64,
        /// Length, whole pages; the file is exactly as long.
        size_bytes: u64,
        /// [`REGION_PLAIN`] or [`REGION_PINNED`].
        kind: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::Opcode::RegionUnmap`].
    struct RegionUnmap {
        /// First address.
        address: u64,
        /// Length.
        size_bytes: u64,
    }
    /// See [`super::Opcode::Copy`]. Either end lies in device memory or in a pinned region of this
    /// client.
    struct Copy {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
        /// To.
        destination: u64,
        /// From.
        source: u64,
        /// Length.
        size_bytes: u64,
    }
    /// See [`super::Opcode::Copy3d`]: `height * depth` rows.
    struct Copy3d {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
        /// To.
        destination: u64,
        /// Bytes from row to row.
        destination_pitch_bytes: u64,
        /// Bytes from slice to slice.
        destination_slice_bytes: u64,
        /// From.
        source: u64,
        /// Bytes from row to row.
        source_pitch_bytes: u64,
        /// Bytes from slice to slice.
        source_slice_bytes: u64,
        /// Bytes of a row.
        width_bytes: u64,
        /// Rows of a slice.
        height: u64,
        /// Slices.
        depth: u64,
    }
    /// See [`super::Opcode::Fill`].
    struct Fill {
        /// Slot.
        stream: u32,
        /// 1, 2 or 4.
        element_bytes: u32,
        /// To.
        destination: u64,
        /// Bytes from row to row; unused when `height` is 1.
        pitch_bytes: u64,
        /// Elements of a row.
        width: u64,
        /// Rows.
        height: u64,
        /// What to write.
        value: u32,
        /// Zero.
        reserved: u32,
    }
}

/// [`RegionMap::kind`]: read by the executor only (module images).
pub const REGION_PLAIN: u32 = 0;
/// [`RegionMap::kind`]: registered with the device: copies and kernels reach it.
pub const REGION_PINNED: u32 = 1;
