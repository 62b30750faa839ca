//! Occupancy: pure functions of kernel and device, by the scheduler's own accounting.

use cuda_abi::types::{CUfunction, CUlaunchConfig, CUoccupancyB2DSize, CUresult};

use super::kernel_work::Shape;
use super::loading::resolve;
use crate::api::answer::Answer;
use crate::api::driver::current;
use crate::api::objects::max_threads;
use crate::api::{out, stream};
use crate::device::footprint::{SM_CAPACITY, block_footprint, blocks_per_sm};
use crate::device::grid::count;
use crate::device::properties::limits;
use crate::device::sm_sets::active_clusters;
use crate::exec;

api! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(numBlocks: *mut i32, func: CUfunction, blockSize: i32, dynamicSMemSize: usize) {
        // SAFETY: the caller's pointer.
        unsafe { out::write(numBlocks, blocks(func, blockSize, dynamicSMemSize)?) }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks: *mut i32, func: CUfunction, blockSize: i32, dynamicSMemSize: usize, flags: u32) {
        if flags & !1 != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer.
        unsafe { out::write(numBlocks, blocks(func, blockSize, dynamicSMemSize)?) }
    }

    fn cuOccupancyMaxPotentialBlockSize(
        minGridSize: *mut i32, blockSize: *mut i32, func: CUfunction,
        blockSizeToDynamicSMemSize: CUoccupancyB2DSize, dynamicSMemSize: usize, blockSizeLimit: i32,
    ) {
        // SAFETY: the caller's pointers and function.
        unsafe { best(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit) }
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        minGridSize: *mut i32, blockSize: *mut i32, func: CUfunction,
        blockSizeToDynamicSMemSize: CUoccupancyB2DSize, dynamicSMemSize: usize, blockSizeLimit: i32, flags: u32,
    ) {
        if flags & !1 != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointers and function.
        unsafe { best(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit) }
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(dynamicSmemSize: *mut usize, func: CUfunction, numBlocks: i32, blockSize: i32) {
        let (driver, context) = current()?;
        let function = resolve(driver, &context, func)?;
        let kernel = function.kernel.clone();
        if numBlocks < 1 || blockSize < 1 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let per_block = (limits::SHARED_PER_SM / numBlocks as u32 / limits::SHARED_UNIT * limits::SHARED_UNIT)
            .saturating_sub(limits::RESERVED_SHARED_PER_BLOCK)
            .min(limits::SHARED_PER_BLOCK_OPTIN);
        // SAFETY: the caller's pointer.
        unsafe {
            let most = function.settings.max_dynamic_shared_bytes(&kernel);
            let left = per_block.saturating_sub(kernel.static_shared_bytes);
            out::write(dynamicSmemSize, left.min(most) as usize)
        }
    }

    fn cuOccupancyMaxPotentialClusterSize(clusterSize: *mut i32, func: CUfunction, config: *const CUlaunchConfig) {
        let (driver, context) = current()?;
        resolve(driver, &context, func)?;
        // SAFETY: the caller's pointers.
        unsafe {
            out::read(config)?;
            out::write(clusterSize, limits::BLOCKS_PER_CLUSTER as i32)
        }
    }

    fn cuOccupancyMaxActiveClusters(numClusters: *mut i32, func: CUfunction, config: *const CUlaunchConfig) {
        let (_, context) = current()?;
        // SAFETY: the caller's structure.
        let config = unsafe { out::read(config)? };
        // SAFETY: as above.
        let shape = unsafe { Shape::from_config(&config)? };
        let threads = config.blockDimX.saturating_mul(config.blockDimY).saturating_mul(config.blockDimZ);
        let threads = i32::try_from(threads).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        let per_sm = blocks(func, threads, config.sharedMemBytes as usize)? as u32;
        let (driver, _, stream) = stream::find(config.hStream)?;
        let context = if stream.context == context.handle { context } else { driver.context(stream.context)? };
        let cluster = count(shape.cluster.map(|blocks| blocks.max(1))) as u32;
        let clusters = match context.is_cut() {
            true => active_clusters(context.mask, cluster, per_sm),
            false => per_sm * context.mask.count() / cluster,
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(numClusters, clusters as i32) }
    }
}

fn blocks_of(kernel: &exec::Kernel, threads: u32, dynamic_shared_bytes: usize) -> u32 {
    let shared = dynamic_shared_bytes as u64 + u64::from(kernel.static_shared_bytes);
    if threads > max_threads(kernel) || shared > u64::from(limits::SHARED_PER_BLOCK_OPTIN) {
        return 0;
    }
    blocks_per_sm(block_footprint(threads, kernel.registers, shared as u32), SM_CAPACITY)
}

fn blocks(function: CUfunction, threads: i32, dynamic_shared_bytes: usize) -> Answer<i32> {
    let (driver, context) = current()?;
    let kernel = resolve(driver, &context, function)?.kernel.clone();
    match u32::try_from(threads) {
        Ok(threads) if threads > 0 => Ok(blocks_of(&kernel, threads, dynamic_shared_bytes) as i32),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// The block size with most resident threads; the largest of equals.
///
/// # Safety
/// As for [`out::write`]; `shared_of` is a function of the program.
unsafe fn best(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared_bytes: usize,
    limit: i32,
) -> Answer {
    let (driver, context) = current()?;
    let kernel = resolve(driver, &context, function)?.kernel.clone();
    let most = match u32::try_from(limit) {
        Ok(0) | Err(_) => max_threads(&kernel),
        Ok(limit) => limit.min(max_threads(&kernel)),
    };
    let mut found = (0, 0, 0);
    let mut threads = most.next_multiple_of(limits::WARP_THREADS);
    while threads > 0 {
        let size = threads.min(most);
        // SAFETY: the program's own function.
        let shared = shared_of.map_or(shared_bytes, |shared_of| unsafe { shared_of(size as i32) });
        let resident = blocks_of(&kernel, size, shared);
        if resident * size > found.0 {
            found = (resident * size, size, resident);
        }
        threads -= limits::WARP_THREADS;
    }
    // SAFETY: by the caller's promise.
    unsafe {
        out::write(block, found.1 as i32)?;
        out::write(grid, (found.2 * context.mask.count()) as i32)
    }
}
