//! A visible device: what the server said of it, its primary context, and its backend once a
//! context has been opened.

pub(crate) mod opening;

use crate::code::attributes::Attributes;
use crate::context::backend::{Backend, Current};
use crate::context::{Context, Lifetime};
use crate::handles::Table;
use crate::memory::pool::{Pool, Sharing};
use crate::result::Result;
use cuda_abi::types::{CUdevice_attribute, CUresult};
use link::wire::attach::DeviceInfo;
use std::sync::{Arc, Mutex};

/// See the module's description.
pub(crate) struct Device {
    pub(crate) ordinal: i32,
    /// Its place in the server's list.
    pub(crate) index: u32,
    pub(crate) info: DeviceInfo,
    attributes: Attributes,
    pub(crate) launch_limits: LaunchLimits,
    pub(crate) primary: Arc<Context>,
    /// `cuDeviceGetDefaultMemPool`.
    pub(crate) default_pool: Arc<Pool>,
    /// `cuDeviceGetMemPool`.
    pub(crate) pool: Mutex<Arc<Pool>>,
    backend: Current,
    opening: Mutex<()>,
}

/// What a launch may have of a device of this kind, looked at by every launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchLimits {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block, by direction.
    pub(crate) block: [u32; 3],
    /// Threads of a block, all in all.
    pub(crate) block_threads: u32,
}

impl LaunchLimits {
    fn of(attributes: &Attributes) -> Self {
        type Known = CUdevice_attribute;
        let limit = |attribute, otherwise| limit(attributes, attribute, otherwise);
        Self {
            grid: [
                limit(Known::MAX_GRID_DIM_X, i32::MAX.unsigned_abs()),
                limit(Known::MAX_GRID_DIM_Y, 65535),
                limit(Known::MAX_GRID_DIM_Z, 65535),
            ],
            block: [
                limit(Known::MAX_BLOCK_DIM_X, 1024),
                limit(Known::MAX_BLOCK_DIM_Y, 1024),
                limit(Known::MAX_BLOCK_DIM_Z, 64),
            ],
            block_threads: limit(Known::MAX_THREADS_PER_BLOCK, 1024),
        }
    }
}

/// An attribute that every driver knows, with what to assume if not.
fn limit(attributes: &Attributes, attribute: CUdevice_attribute, otherwise: u32) -> u32 {
    let known = attributes.get(attribute.0);
    known.and_then(|value| u32::try_from(value).ok()).unwrap_or(otherwise)
}

/// What a client is told otherwise than the driver says it, since it does not hold behind a server:
/// kernels reach only memory of the session, registered memory has another device address, handles
/// of other processes cannot be opened.
const OVERRIDES: [(CUdevice_attribute, i32); 13] = [
    (CUdevice_attribute::PAGEABLE_MEMORY_ACCESS, 0),
    (CUdevice_attribute::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0),
    (CUdevice_attribute::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0),
    (CUdevice_attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0),
    // Descriptors: `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
    (CUdevice_attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES, 1),
    (CUdevice_attribute::HANDLE_TYPE_FABRIC_SUPPORTED, 0),
    (CUdevice_attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0),
    (CUdevice_attribute::GPU_DIRECT_RDMA_SUPPORTED, 0),
    (CUdevice_attribute::DMA_BUF_SUPPORTED, 0),
    (CUdevice_attribute::HOST_ALLOC_DMA_BUF_SUPPORTED, 0),
    (CUdevice_attribute::MULTICAST_SUPPORTED, 0),
    // Host and device agree on managed memory when work is posted and when it has been waited for:
    // see `two_sided::managed`.
    (CUdevice_attribute::CONCURRENT_MANAGED_ACCESS, 0),
    // It is taken for the hint that it is, and no memory is made so.
    (CUdevice_attribute::GENERIC_COMPRESSION_SUPPORTED, 0),
];

impl Device {
    pub(crate) fn new(
        ordinal: usize,
        index: usize,
        info: DeviceInfo,
        contexts: &Table<Context>,
        pools: &Table<Pool>,
    ) -> Result<Self> {
        let ordinal = i32::try_from(ordinal).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
        let index = u32::try_from(index).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
        let mut attributes: Attributes = info.attributes.iter().copied().collect();
        for (attribute, value) in OVERRIDES {
            attributes.override_with(attribute.0, value);
        }
        let full = CUresult::ERROR_OUT_OF_MEMORY;
        let primary = contexts
            .insert_with(|token| Context::new(token, ordinal, Lifetime::Primary, 0))
            .ok_or(full)?;
        let default_pool =
            pools.insert_with(|token| Pool::new(token, ordinal, Sharing::Private)).ok_or(full)?;
        Ok(Self {
            ordinal,
            index,
            info,
            launch_limits: LaunchLimits::of(&attributes),
            attributes,
            primary,
            pool: Mutex::new(Arc::clone(&default_pool)),
            default_pool,
            backend: Current::default(),
            opening: Mutex::new(()),
        })
    }

    /// The value of an attribute, if the device's driver knows it.
    pub(crate) fn attribute(&self, attribute: CUdevice_attribute) -> Option<i32> {
        self.attributes.get(attribute.0)
    }

    /// An attribute that every driver knows, with what to assume if not.
    pub(crate) fn limit(&self, attribute: CUdevice_attribute, otherwise: u32) -> u32 {
        limit(&self.attributes, attribute, otherwise)
    }

    /// SMs that this client's work runs on: what it was told when it attached, or what an
    /// administrator has made of that since.
    pub(crate) fn multiprocessors(&self) -> u32 {
        let now = self.opened().and_then(|backend| backend.session.multiprocessors());
        now.unwrap_or_else(|| self.limit(CUdevice_attribute::MULTIPROCESSOR_COUNT, 1))
    }

    /// The backend, if any context has been opened.
    pub(crate) fn opened(&self) -> Option<&'static Backend> {
        self.backend.get()
    }
}
