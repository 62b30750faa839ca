//! A kernel launch as execution sees it.

use std::sync::Arc;

use super::kernel::Kernel;

/// Everything that all blocks of one launch share. Immutable; shared by the workers.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// Blocks per grid (x, y, z).
    pub grid: [u32; 3],
    /// Threads per block (x, y, z); at most 1024 in all.
    pub block: [u32; 3],
    /// Blocks per cluster (x, y, z); `[1, 1, 1]` without clusters. Divides `grid`.
    pub cluster: [u32; 3],
    /// Dynamic shared memory, bytes, beyond [`Kernel::static_shared_bytes`].
    pub dynamic_shared_bytes: u32,
    /// Parameter buffer, laid out as [`Kernel::params`] says; at least [`Kernel::param_bytes`]
    /// long.
    pub params: Box<[u8]>,
    /// Address of the zero-initialised grid workspace (device memory, at least 256 bytes) of a
    /// cooperative launch, handed to the kernel in `%envreg1` (high) and `%envreg2` (low); 0 for
    /// other launches.
    pub grid_workspace: u64,
    /// `%gridid`.
    pub grid_id: u64,
    /// Depth of the call stack per thread in bytes (`cuCtxSetLimit(STACK_SIZE)`); bounds local
    /// memory of calls.
    pub stack_bytes: u32,
}

impl Launch {
    /// A plain launch: no cluster, no dynamic shared memory, not cooperative.
    pub fn new(kernel: Arc<Kernel>, grid: [u32; 3], block: [u32; 3], params: Box<[u8]>) -> Self {
        Self {
            kernel,
            grid,
            block,
            cluster: [1, 1, 1],
            dynamic_shared_bytes: 0,
            params,
            grid_workspace: 0,
            grid_id: 0,
            stack_bytes: 64 * 1024,
        }
    }

    /// Threads per block.
    pub fn threads_per_block(&self) -> u32 {
        self.block.iter().product()
    }
}
