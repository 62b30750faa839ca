//! Questions that only the driver can answer: clusters, tensor maps.

use crate::session::failure::Failure;
use crate::session::state::State;
use crate::submit::launch::{MAX_ATTRIBUTES, translate};
use cuda_abi::types::*;
use link::wire::command::LaunchAttribute;
use link::wire::query::{
    AVAILABLE_SHARED, ClusterOccupancy, ClusterReply, MAX_ACTIVE_CLUSTERS, MAX_CLUSTER_SIZE,
    TENSOR_IM2COL, TENSOR_IM2COL_WIDE, TENSOR_TILED, TensorMapAddress, TensorMapEncode,
    TensorMapReply,
};
use std::ptr;
use zerocopy::FromBytes;

impl State {
    pub(crate) fn cluster_occupancy(
        &mut self,
        wanted: ClusterOccupancy,
        mut rest: &[u8],
    ) -> Result<(), Failure> {
        let function = self.modules.function(wanted.function)?.handle;
        if wanted.attributes > MAX_ATTRIBUTES {
            return Err(Failure::Protocol(format!(
                "a question has {} attributes",
                wanted.attributes
            )));
        }
        let mut attributes = Vec::new();
        for _ in 0..wanted.attributes {
            let (attribute, after) = LaunchAttribute::read_from_prefix(rest)
                .map_err(|_| Failure::Protocol("a question lacks its attributes".into()))?;
            rest = after;
            attributes.push(translate(&attribute)?);
        }
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (wanted.grid, wanted.block);
        let partition = self.streams.partition(wanted.stream).clone();
        let config = CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: wanted.dynamic_shared_bytes,
            hStream: self.streams.handle(wanted.stream).unwrap_or(CUstream::NULL),
            attrs: if attributes.is_empty() { ptr::null_mut() } else { attributes.as_mut_ptr() },
            numAttrs: attributes.len() as u32,
        };
        let (driver, mut value, mut bytes) = (self.driver(), 0, 0);
        if let Some(partition) = &partition {
            partition.make_current()?;
        }
        // SAFETY: a live function of this session; the attributes hold no handles; the result is
        // written.
        let answered = unsafe {
            match wanted.question {
                MAX_ACTIVE_CLUSTERS => {
                    driver.cuOccupancyMaxActiveClusters(&mut value, function, &config)
                }
                MAX_CLUSTER_SIZE => {
                    driver.cuOccupancyMaxPotentialClusterSize(&mut value, function, &config)
                }
                AVAILABLE_SHARED => driver.cuOccupancyAvailableDynamicSMemPerBlock(
                    &mut bytes,
                    function,
                    grid_x.cast_signed(),
                    block_x.cast_signed(),
                ),
                _ => CUresult::ERROR_INVALID_VALUE,
            }
        };
        self.shared.context.make_current()?;
        self.check(answered)?;
        if wanted.question == AVAILABLE_SHARED {
            value = i32::try_from(bytes).unwrap_or(i32::MAX);
        }
        self.answer(&ClusterReply { value, reserved: 0 })
    }

    /// Encodes only: the driver does not look at the address, and a kernel reaches with it what it
    /// reaches anyway.
    pub(crate) fn tensor_map_encode(&mut self, wanted: TensorMapEncode) -> Result<(), Failure> {
        let driver = self.driver();
        if wanted.rank == 0 || wanted.rank > 5 {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        }
        let mut map = CUtensorMap::default();
        let data_type = CUtensorMapDataType(wanted.data_type);
        let address = ptr::without_provenance_mut(wanted.address as usize);
        let (dimensions, strides) = (wanted.dimensions.as_ptr(), wanted.strides_bytes.as_ptr());
        let steps = wanted.element_strides.as_ptr();
        let interleave = CUtensorMapInterleave(wanted.interleave);
        let swizzle = CUtensorMapSwizzle(wanted.swizzle);
        let promotion = CUtensorMapL2promotion(wanted.l2_promotion);
        let fill = CUtensorMapFloatOOBfill(wanted.fill);
        // SAFETY: every array is as long as the largest rank takes it; the map is written.
        self.check(unsafe {
            match wanted.mode {
                TENSOR_TILED => driver.cuTensorMapEncodeTiled(
                    &mut map,
                    data_type,
                    wanted.rank,
                    address,
                    dimensions,
                    strides,
                    wanted.box_dimensions.as_ptr(),
                    steps,
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                ),
                TENSOR_IM2COL => driver.cuTensorMapEncodeIm2col(
                    &mut map,
                    data_type,
                    wanted.rank,
                    address,
                    dimensions,
                    strides,
                    wanted.lower_corner.as_ptr(),
                    wanted.upper_corner.as_ptr(),
                    wanted.channels_per_pixel,
                    wanted.pixels_per_column,
                    steps,
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                ),
                TENSOR_IM2COL_WIDE => driver.cuTensorMapEncodeIm2colWide(
                    &mut map,
                    data_type,
                    wanted.rank,
                    address,
                    dimensions,
                    strides,
                    wanted.lower_corner[0],
                    wanted.upper_corner[0],
                    wanted.channels_per_pixel,
                    wanted.pixels_per_column,
                    steps,
                    interleave,
                    CUtensorMapIm2ColWideMode(wanted.wide_mode),
                    swizzle,
                    promotion,
                    fill,
                ),
                _ => CUresult::ERROR_INVALID_VALUE,
            }
        })?;
        self.answer(&TensorMapReply { bytes: map.opaque })
    }

    /// Likewise.
    pub(crate) fn tensor_map_address(&mut self, wanted: TensorMapAddress) -> Result<(), Failure> {
        let mut map = CUtensorMap { opaque: wanted.bytes };
        let address = ptr::without_provenance_mut(wanted.address as usize);
        // SAFETY: the map is read and written; the address is put into it.
        self.check(unsafe { self.driver().cuTensorMapReplaceAddress(&raw mut map, address) })?;
        self.answer(&TensorMapReply { bytes: map.opaque })
    }
}
