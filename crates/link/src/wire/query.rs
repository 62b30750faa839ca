//! Questions about functions and tensors that only the driver can answer; see [`super::command`]
//! for how commands are made.

use super::command::wire_struct;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// [`ClusterOccupancy::question`]: `cuOccupancyMaxActiveClusters`.
pub const MAX_ACTIVE_CLUSTERS: u32 = 0;
/// [`ClusterOccupancy::question`]: `cuOccupancyMaxPotentialClusterSize`.
pub const MAX_CLUSTER_SIZE: u32 = 1;
/// [`ClusterOccupancy::question`]: `cuOccupancyAvailableDynamicSMemPerBlock`, of as many blocks as
/// the grid has in its first dimension.
pub const AVAILABLE_SHARED: u32 = 2;
/// [`TensorMapEncode::mode`]: `cuTensorMapEncodeTiled`.
pub const TENSOR_TILED: u32 = 0;
/// [`TensorMapEncode::mode`]: `cuTensorMapEncodeIm2col`.
pub const TENSOR_IM2COL: u32 = 1;
/// [`TensorMapEncode::mode`]: `cuTensorMapEncodeIm2colWide`.
pub const TENSOR_IM2COL_WIDE: u32 = 2;

wire_struct! {
    /// See [`super::command::Opcode::ClusterOccupancy`]; `attributes` times
    /// [`super::command::LaunchAttribute`] follow.
    struct ClusterOccupancy {
        /// Number of the function.
        function: u32,
        /// [`MAX_ACTIVE_CLUSTERS`], [`MAX_CLUSTER_SIZE`] or [`AVAILABLE_SHARED`].
        question: u32,
        /// Blocks.
        grid: [u32; 3],
        /// Threads per block.
        block: [u32; 3],
        /// Dynamic shared memory per block.
        dynamic_shared_bytes: u32,
        /// How many attributes.
        attributes: u32,
        /// On whose SMs the clusters would be.
        stream: u32,
        /// How many these are, as far as the client knows: an answer for another number is another
        /// answer.
        multiprocessors: u32,
    }
    /// Answer to [`ClusterOccupancy`].
    struct ClusterReply {
        /// Clusters, blocks per cluster, or bytes.
        value: i32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::command::Opcode::TensorMapEncode`]: the arguments of the function that `mode`
    /// names, dimension by dimension; what it does not take is zero.
    struct TensorMapEncode {
        /// Where the tensor lies; encoded, not looked at.
        address: u64,
        /// Elements per dimension.
        dimensions: [u64; 5],
        /// Bytes per dimension but the first.
        strides_bytes: [u64; 4],
        /// Tiled: elements of a box.
        box_dimensions: [u32; 5],
        /// Elements from one to the next.
        element_strides: [u32; 5],
        /// Im2col: corners of the pixel box; wide: the first is the width.
        lower_corner: [i32; 3],
        /// Likewise.
        upper_corner: [i32; 3],
        /// `CUtensorMapDataType`.
        data_type: u32,
        /// Dimensions in use, 5 at most.
        rank: u32,
        /// Im2col.
        channels_per_pixel: u32,
        /// Im2col.
        pixels_per_column: u32,
        /// `CUtensorMapInterleave`.
        interleave: u32,
        /// `CUtensorMapSwizzle`.
        swizzle: u32,
        /// `CUtensorMapL2promotion`.
        l2_promotion: u32,
        /// `CUtensorMapFloatOOBfill`.
        fill: u32,
        /// `CUtensorMapIm2ColWideMode`.
        wide_mode: u32,
        /// [`TENSOR_TILED`], [`TENSOR_IM2COL`] or [`TENSOR_IM2COL_WIDE`].
        mode: u32,
    }
    /// See [`super::command::Opcode::TensorMapAddress`]: a map that shall be of a tensor elsewhere.
    struct TensorMapAddress {
        /// `CUtensorMap`.
        bytes: [u64; 16],
        /// Where the tensor lies; encoded, not looked at.
        address: u64,
    }
    /// Answer to [`TensorMapEncode`] and [`TensorMapAddress`].
    struct TensorMapReply {
        /// `CUtensorMap`.
        bytes: [u64; 16],
    }
}
