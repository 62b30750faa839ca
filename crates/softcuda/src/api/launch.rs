//! Kernel launches: everything that is refused at the call, then one operation in a stream.

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::types::{
    CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END, CUfunction,
    CUlaunchAttributeID as Id, CUlaunchConfig, CUresult, CUstream,
};

use super::function::max_threads;
use super::module_image::{Function, resolve};
use super::stream::find;
use super::{Answer, out};
use crate::device::config::LaunchMode;
use crate::device::grid::{Grid, Residency, count};
use crate::device::ops::Op;
use crate::device::placement::blocks_per_sm;
use crate::device::properties::{SM_CAPACITY, block_footprint, limits};
use crate::exec::{self, Launch};

/// Bytes of the workspace that cooperative grids synchronise in.
const GRID_WORKSPACE_BYTES: u64 = 512;

api! {
    fn cuLaunchKernel(
        f: CUfunction,
        gridDimX: u32, gridDimY: u32, gridDimZ: u32,
        blockDimX: u32, blockDimY: u32, blockDimZ: u32,
        sharedMemBytes: u32,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let shape = Shape::plain([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ], sharedMemBytes);
        // SAFETY: the caller's parameters.
        unsafe { launch(f, hStream, &shape, kernelParams, extra) }
    }

    fn cuLaunchCooperativeKernel(
        f: CUfunction,
        gridDimX: u32, gridDimY: u32, gridDimZ: u32,
        blockDimX: u32, blockDimY: u32, blockDimZ: u32,
        sharedMemBytes: u32,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
    ) {
        let mut shape = Shape::plain([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ], sharedMemBytes);
        shape.residency = Residency::Cooperative;
        // SAFETY: the caller's parameters.
        unsafe { launch(f, hStream, &shape, kernelParams, std::ptr::null_mut()) }
    }

    fn cuLaunchKernelEx(config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) {
        // SAFETY: the caller's structure and parameters.
        unsafe {
            let config = out::read(config)?;
            launch(f, config.hStream, &Shape::from_config(&config)?, kernelParams, extra)
        }
    }
}

/// Dimensions and attributes of a launch.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    pub(crate) cluster: [u32; 3],
    dynamic_shared_bytes: u32,
    residency: Residency,
    priority: Option<i32>,
}

impl Shape {
    fn plain(grid: [u32; 3], block: [u32; 3], dynamic_shared_bytes: u32) -> Self {
        Shape {
            grid,
            block,
            cluster: [1; 3],
            dynamic_shared_bytes,
            residency: Residency::Independent,
            priority: None,
        }
    }

    /// # Safety
    /// `config.attrs` has `config.numAttrs` elements.
    pub(crate) unsafe fn from_config(config: &CUlaunchConfig) -> Answer<Self> {
        let mut shape = Shape::plain(
            [config.gridDimX, config.gridDimY, config.gridDimZ],
            [config.blockDimX, config.blockDimY, config.blockDimZ],
            config.sharedMemBytes,
        );
        // SAFETY: by the caller's promise.
        for attribute in unsafe { out::read_array(config.attrs, config.numAttrs as usize)? } {
            // SAFETY: the identifier says which member the caller filled in.
            unsafe {
                match attribute.id {
                    Id::COOPERATIVE if attribute.value.cooperative != 0 => {
                        shape.residency = Residency::Cooperative
                    }
                    Id::CLUSTER_DIMENSION => {
                        let dim = attribute.value.clusterDim;
                        shape.cluster = [dim.x.max(1), dim.y.max(1), dim.z.max(1)];
                    }
                    Id::PRIORITY => shape.priority = Some(attribute.value.priority),
                    Id::PROGRAMMATIC_EVENT
                    | Id::LAUNCH_COMPLETION_EVENT
                    | Id::DEVICE_UPDATABLE_KERNEL_NODE => {
                        return Err(CUresult::ERROR_NOT_SUPPORTED);
                    }
                    // The others are hints; programmatic overlap is allowed, not demanded.
                    Id(0..=16) => {}
                    _ => return Err(CUresult::ERROR_INVALID_VALUE),
                }
            }
        }
        Ok(shape)
    }

    /// What CUDA refuses at the call.
    fn check(&self, function: &Function) -> Answer {
        let kernel = &function.kernel;
        let within = |have: [u32; 3], limit: [u32; 3]| {
            (0..3).all(|axis| have[axis] >= 1 && have[axis] <= limit[axis])
        };
        let threads = count(self.block);
        if !within(self.grid, limits::GRID)
            || !within(self.block, limits::BLOCK)
            || threads > u64::from(kernel.max_threads_per_block.min(limits::THREADS_PER_BLOCK))
            || kernel.required_block.is_some_and(|block| block != self.block)
            || self.dynamic_shared_bytes > function.settings.max_dynamic_shared_bytes(kernel)
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if threads > u64::from(max_threads(kernel))
            || self.dynamic_shared_bytes + kernel.static_shared_bytes
                > limits::SHARED_PER_BLOCK_OPTIN
        {
            return Err(CUresult::ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        let divides = (0..3).all(|axis| self.grid[axis].is_multiple_of(self.cluster[axis]));
        if count(self.cluster) > u64::from(limits::BLOCKS_PER_CLUSTER) || !divides {
            return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
        }
        Ok(())
    }
}

/// # Safety
/// `params` and `extra` are as `cuLaunchKernel` demands for this function.
unsafe fn launch(
    handle: CUfunction,
    stream: CUstream,
    shape: &Shape,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let (driver, context, stream) = find(stream)?;
    let function = resolve(driver, &context, handle)?;
    let owner = if stream.context_id == context.id {
        context.clone()
    } else {
        driver.context(stream.context)?
    };
    if function.context_id() != owner.id {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    let mut shape = shape.clone();
    if let Some(cluster) = function.kernel.required_cluster {
        shape.cluster = cluster.map(|size| size.max(1));
    }
    shape.check(&function)?;
    // SAFETY: by the caller's promise.
    let buffer = unsafe { pack(&function.kernel, params, extra)? };
    let mut launch = Launch::new(function.kernel.clone(), shape.grid, shape.block, buffer);
    launch.cluster = shape.cluster;
    launch.dynamic_shared_bytes = shape.dynamic_shared_bytes;
    launch.stack_bytes = owner.settings().stack_bytes.clamp(1 << 16, 1 << 20) as u32;
    let threads = launch.threads_per_block();
    let shared = function.kernel.static_shared_bytes + shape.dynamic_shared_bytes;
    let footprint = block_footprint(threads, function.kernel.registers, shared);
    let mut after = None;
    if shape.residency == Residency::Cooperative {
        let room =
            u64::from(blocks_per_sm(footprint, SM_CAPACITY)) * u64::from(stream.mask.count());
        if count(shape.grid) > room {
            return Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let account = &driver.device(owner.device as i32)?.account;
        // Fresh memory of its own for each launch: zero, and no other grid's barrier.
        let workspace =
            driver.space.allocate(owner.device, account, owner.id, GRID_WORKSPACE_BYTES)?;
        // SAFETY: allocated just now.
        unsafe {
            crate::device::memory::touch::fill(workspace, 0, 1, GRID_WORKSPACE_BYTES as usize)
        };
        launch.grid_workspace = workspace;
        after = Some(FreeWorkspace { space: driver.space.clone(), address: workspace });
    }
    let priority = shape.priority.unwrap_or(stream.priority);
    let services = owner.services.clone();
    let grid = Grid::new(
        launch,
        owner.device,
        stream.mask,
        priority,
        shape.residency,
        footprint,
        services,
    );
    let mut ops = vec![Op::Launch(Arc::new(grid))];
    if let Some(task) = after {
        ops.push(Op::Task(Box::new(task)));
    }
    driver.engine.enqueue_all(stream.id, ops)?;
    if driver.config.launch_mode == LaunchMode::Blocking {
        driver.engine.synchronize_stream(stream.id)?;
        owner.services.flush_console();
    }
    Ok(())
}

/// Gives a cooperative grid's workspace back when the grid is done, or dropped.
struct FreeWorkspace {
    space: Arc<crate::device::memory::AddressSpace>,
    address: u64,
}

impl crate::device::ops::Task for FreeWorkspace {
    fn step(&mut self) -> crate::device::ops::Step {
        let _ = self.space.free(self.address, |_| true);
        crate::device::ops::Step::Done
    }
}

/// Copies the parameters into one buffer, by the kernel's layout.
///
/// # Safety
/// `params` has a valid pointer per parameter, or `extra` is a valid list.
pub(crate) unsafe fn pack(
    kernel: &exec::Kernel,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer<Box<[u8]>> {
    let mut buffer = vec![0u8; kernel.param_bytes as usize];
    if !params.is_null() && !extra.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if !extra.is_null() {
        // SAFETY: by the caller's promise.
        let (pointer, size) = unsafe { packed(extra)? };
        if size < buffer.len() || size > limits::PARAMETER_BYTES || (pointer.is_null() && size > 0)
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's buffer is `size` bytes long, at least as long as ours.
        unsafe { std::ptr::copy_nonoverlapping(pointer, buffer.as_mut_ptr(), buffer.len()) };
        return Ok(buffer.into());
    }
    if params.is_null() && !kernel.params.is_empty() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for (index, parameter) in kernel.params.iter().enumerate() {
        // SAFETY: one pointer per parameter, by the caller's promise.
        let source = unsafe { params.add(index).read() }.cast::<u8>();
        let (start, size) = (parameter.offset_bytes as usize, parameter.size_bytes as usize);
        let target = buffer.get_mut(start..start + size).ok_or(CUresult::ERROR_UNKNOWN)?;
        if source.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: `size` bytes at the caller's pointer.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), size) };
    }
    Ok(buffer.into())
}

/// Reads an `extra` list: address and size of the packed parameters.
///
/// # Safety
/// `extra` is a list that ends with CU_LAUNCH_PARAM_END.
unsafe fn packed(extra: *mut *mut c_void) -> Answer<(*const u8, usize)> {
    let (mut pointer, mut size) = (std::ptr::null(), 0);
    let mut at = extra;
    // Both entries and the end fit into five words; a longer list is malformed.
    for _ in 0..3 {
        // SAFETY: by the caller's promise.
        unsafe {
            match at.read() as usize {
                CU_LAUNCH_PARAM_END => return Ok((pointer, size)),
                CU_LAUNCH_PARAM_BUFFER_POINTER => {
                    pointer = at.add(1).read().cast::<u8>().cast_const()
                }
                CU_LAUNCH_PARAM_BUFFER_SIZE => size = out::read(at.add(1).read().cast::<usize>())?,
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            }
            at = at.add(2);
        }
    }
    Err(CUresult::ERROR_INVALID_VALUE)
}
