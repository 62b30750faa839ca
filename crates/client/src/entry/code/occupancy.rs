//! Occupancy: asked of the executor once per question.

use crate::client::{Client, run};
use crate::code::libraries::{function_of, look_at_function};
use crate::entry::arguments::not_null;
use crate::result::Result;
use crate::stream::targets;
use crate::thread::current;
use cuda_abi::types::*;
use link::wire::command::{Occupancy, OccupancyReply};
use link::wire::query::{
    AVAILABLE_SHARED, ClusterOccupancy, MAX_ACTIVE_CLUSTERS, MAX_CLUSTER_SIZE,
};

fn ask(client: &Client, func: CUfunction, question: Occupancy) -> Result<OccupancyReply> {
    current::look_alive(|_| Ok(()))?;
    look_at_function(client, func.0, |function| function.occupancy(question))
}

pub(crate) unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    numBlocks: *mut i32,
    func: CUfunction,
    blockSize: i32,
    dynamicSMemSize: usize,
    flags: u32,
) -> CUresult {
    run(|client| {
        not_null(numBlocks)?;
        let block_threads = u32::try_from(blockSize).ok().filter(|&threads| threads > 0);
        let question = Occupancy {
            block_threads: block_threads.ok_or(CUresult::ERROR_INVALID_VALUE)?,
            dynamic_shared_bytes: dynamicSMemSize as u64,
            flags,
            ..Default::default()
        };
        put!(numBlocks, ask(client, func, question)?.blocks);
        Ok(())
    })
}

pub(crate) unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    numBlocks: *mut i32,
    func: CUfunction,
    blockSize: i32,
    dynamicSMemSize: usize,
) -> CUresult {
    // SAFETY: the same function without flags.
    unsafe {
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            numBlocks,
            func,
            blockSize,
            dynamicSMemSize,
            0,
        )
    }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    minGridSize: *mut i32,
    blockSize: *mut i32,
    func: CUfunction,
    blockSizeToDynamicSMemSize: CUoccupancyB2DSize,
    dynamicSMemSize: usize,
    blockSizeLimit: i32,
    flags: u32,
) -> CUresult {
    run(|client| {
        not_null(minGridSize)?;
        not_null(blockSize)?;
        let block_limit =
            u32::try_from(blockSizeLimit).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        let found = match blockSizeToDynamicSMemSize {
            None => {
                let dynamic_shared_bytes = dynamicSMemSize as u64;
                ask(
                    client,
                    func,
                    Occupancy { dynamic_shared_bytes, flags, block_limit, ..Default::default() },
                )?
            }
            Some(shared_of) => {
                // SAFETY: the caller's own function, which it wants called with block sizes.
                let shared_of = |threads: u32| unsafe { shared_of(threads.cast_signed()) } as u64;
                search(client, func, flags, block_limit, shared_of)?
            }
        };
        put!(minGridSize, found.blocks);
        put!(blockSize, found.block_threads);
        Ok(())
    })
}

/// The block size, in whole warps, with the most threads on a multiprocessor; the larger of equals.
fn search(
    client: &Client,
    func: CUfunction,
    flags: u32,
    block_limit: u32,
    shared_of: impl Fn(u32) -> u64,
) -> Result<OccupancyReply> {
    let device = client.device(current::owner()?.device)?;
    let function = function_of(client, func.0, &current::owner()?)?;
    let most = function.count(CUfunction_attribute::MAX_THREADS_PER_BLOCK).unwrap_or(1024);
    let most = if block_limit == 0 { most } else { most.min(block_limit) };
    let warp = device.limit(CUdevice_attribute::WARP_SIZE, 32);
    let mut best = OccupancyReply { blocks: 0, block_threads: 0 };
    let mut threads = most;
    while threads > 0 {
        let dynamic_shared_bytes = shared_of(threads);
        let question =
            Occupancy { block_threads: threads, dynamic_shared_bytes, flags, ..Default::default() };
        let blocks = function.occupancy(question)?.blocks;
        if i64::from(blocks) * i64::from(threads)
            > i64::from(best.blocks) * i64::from(best.block_threads)
        {
            best = OccupancyReply { blocks, block_threads: threads.cast_signed() };
        }
        threads = (threads - 1) / warp * warp;
    }
    let processors = current::context()?.multiprocessors(client)?.cast_signed();
    Ok(OccupancyReply { blocks: best.blocks * processors, ..best })
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSize(
    minGridSize: *mut i32,
    blockSize: *mut i32,
    func: CUfunction,
    blockSizeToDynamicSMemSize: CUoccupancyB2DSize,
    dynamicSMemSize: usize,
    blockSizeLimit: i32,
) -> CUresult {
    // SAFETY: the same function without flags.
    unsafe {
        cuOccupancyMaxPotentialBlockSizeWithFlags(
            minGridSize,
            blockSize,
            func,
            blockSizeToDynamicSMemSize,
            dynamicSMemSize,
            blockSizeLimit,
            0,
        )
    }
}

pub(crate) unsafe fn cuOccupancyAvailableDynamicSMemPerBlock(
    dynamicSmemSize: *mut usize,
    func: CUfunction,
    numBlocks: i32,
    blockSize: i32,
) -> CUresult {
    run(|client| {
        not_null(dynamicSmemSize)?;
        let positive = |number: i32| {
            u32::try_from(number)
                .ok()
                .filter(|&number| number > 0)
                .ok_or(CUresult::ERROR_INVALID_VALUE)
        };
        let function = function_of(client, func.0, &current::owner()?)?;
        let question = ClusterOccupancy {
            question: AVAILABLE_SHARED,
            grid: [positive(numBlocks)?, 1, 1],
            block: [positive(blockSize)?, 1, 1],
            ..Default::default()
        };
        let found_bytes = function.cluster_occupancy(question, &[])?;
        put!(dynamicSmemSize, found_bytes.max(0) as usize);
        Ok(())
    })
}

/// Asks a question about clusters.
///
/// # Safety
/// `config` is null or valid, with its attributes.
unsafe fn ask_cluster(
    out: *mut i32,
    func: CUfunction,
    config: *const CUlaunchConfig,
    question: u32,
) -> CUresult {
    run(|client| {
        not_null(out)?;
        not_null(config)?;
        // SAFETY: not null; the caller's structure.
        let c = unsafe { config.read() };
        // SAFETY: the caller's array.
        let attributes = unsafe { super::launch::attributes(c.attrs, c.numAttrs) }?;
        let context = current::owner()?;
        let function = function_of(client, func.0, &context)?;
        let target = targets::located(client, c.hStream)?;
        let question = ClusterOccupancy {
            question,
            stream: target.slot,
            multiprocessors: target.context.multiprocessors(client)?,
            grid: [c.gridDimX, c.gridDimY, c.gridDimZ],
            block: [c.blockDimX, c.blockDimY, c.blockDimZ],
            dynamic_shared_bytes: c.sharedMemBytes,
            attributes: attributes.len() as u32,
            ..Default::default()
        };
        put!(out, function.cluster_occupancy(question, &attributes)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuOccupancyMaxActiveClusters(
    numClusters: *mut i32,
    func: CUfunction,
    config: *const CUlaunchConfig,
) -> CUresult {
    // SAFETY: the caller's structure.
    unsafe { ask_cluster(numClusters, func, config, MAX_ACTIVE_CLUSTERS) }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialClusterSize(
    clusterSize: *mut i32,
    func: CUfunction,
    config: *const CUlaunchConfig,
) -> CUresult {
    // SAFETY: the caller's structure.
    unsafe { ask_cluster(clusterSize, func, config, MAX_CLUSTER_SIZE) }
}
