//! A kernel launch that was checked and packed, to be done in a stream now or in a graph later, any
//! number of times.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cuda_abi::types::{
    CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END, CUcontext,
    CUlaunchAttributeID as Id, CUlaunchAttributeValue, CUlaunchConfig, CUresult,
};

use crate::api::answer::Answer;
use crate::api::objects::{Context, Function, GREATEST_PRIORITY, LEAST_PRIORITY, max_threads};
use crate::api::out;
use crate::device::footprint::{Footprint, SM_CAPACITY, block_footprint, blocks_per_sm};
use crate::device::grid::{Grid, Residency, SmMask, count};
use crate::device::memory::{AddressSpace, touch};
use crate::device::ops::{Op, Step, Task};
use crate::device::properties::limits;
use crate::device::services::ContextServices;
use crate::device::sm_sets::active_clusters;
use crate::exec::{self, Launch};

/// Bytes of the workspace that cooperative grids synchronise in.
const GRID_WORKSPACE_BYTES: u64 = 512;

/// Dimensions and attributes of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// In blocks; 0 in a direction that was not asked for.
    pub(crate) cluster: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) residency: Residency,
    pub(crate) priority: Option<i32>,
}

impl Shape {
    /// A launch without attributes.
    pub(crate) fn plain(grid: [u32; 3], block: [u32; 3], dynamic_shared_bytes: u32) -> Self {
        Shape {
            grid,
            block,
            cluster: [0; 3],
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
            shape.set(attribute.id, &attribute.value)?;
        }
        Ok(shape)
    }

    /// Takes one launch attribute over.
    pub(crate) fn set(&mut self, id: Id, value: &CUlaunchAttributeValue) -> Answer {
        // SAFETY: the identifier says which member the caller filled in; all are plain numbers.
        unsafe {
            match id {
                Id::COOPERATIVE => {
                    self.residency = match value.cooperative {
                        0 => Residency::Independent,
                        _ => Residency::Cooperative,
                    };
                }
                Id::CLUSTER_DIMENSION => {
                    let dim = value.clusterDim;
                    self.cluster = [dim.x, dim.y, dim.z];
                }
                Id::PRIORITY => {
                    self.priority = Some(value.priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY));
                }
                Id::PROGRAMMATIC_EVENT
                | Id::LAUNCH_COMPLETION_EVENT
                | Id::DEVICE_UPDATABLE_KERNEL_NODE => return Err(CUresult::ERROR_NOT_SUPPORTED),
                // The others are hints; programmatic overlap is allowed, not demanded.
                Id(0..=16) => {}
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            }
        }
        Ok(())
    }

    /// One launch attribute, as it was set.
    pub(crate) fn get(&self, id: Id) -> Answer<CUlaunchAttributeValue> {
        let mut value = CUlaunchAttributeValue::default();
        match id {
            Id::COOPERATIVE => {
                value.cooperative = i32::from(self.residency == Residency::Cooperative);
            }
            Id::CLUSTER_DIMENSION => {
                let [x, y, z] = self.cluster;
                value.clusterDim = cuda_abi::types::CUlaunchAttributeValue_clusterDim { x, y, z };
            }
            Id::PRIORITY => value.priority = self.priority.unwrap_or(0),
            Id(1..=16) => {}
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(value)
    }

    /// Takes the attributes of another launch over.
    pub(crate) fn copy_attributes(&mut self, from: &Self) {
        let Shape { cluster, residency, priority, .. } = *from;
        (self.cluster, self.residency, self.priority) = (cluster, residency, priority);
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

/// Packed parameters, and where each is for those who ask for pointers.
#[derive(Debug)]
pub(crate) struct Parameters {
    bytes: Box<[u8]>,
    /// Addresses into `bytes`, made when first asked for.
    pointers: OnceLock<Box<[usize]>>,
}

/// A checked launch.
#[derive(Debug, Clone)]
pub(crate) struct KernelWork {
    pub(crate) function: Arc<Function>,
    /// The context that it runs in; it says which memory, heap and console the kernel sees.
    owner: Arc<Context>,
    /// As the program gave it.
    pub(crate) asked: Shape,
    shape: Shape,
    parameters: Arc<Parameters>,
    mask: SmMask,
}

impl KernelWork {
    /// Checks and packs a launch in `owner` on the SMs of `mask`.
    ///
    /// # Safety
    /// `params` and `extra` are as `cuLaunchKernel` demands for this function.
    pub(crate) unsafe fn prepare(
        function: Arc<Function>,
        owner: &Arc<Context>,
        asked: &Shape,
        mask: SmMask,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Answer<Self> {
        if function.context_id != owner.id {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        // SAFETY: by the caller's promise.
        let bytes = unsafe { pack(&function.kernel, params, extra)? };
        let parameters = Arc::new(Parameters { bytes, pointers: OnceLock::new() });
        let shape = effective(&function, asked);
        let asked = asked.clone();
        let work = KernelWork { function, owner: owner.clone(), asked, shape, parameters, mask };
        work.check()?;
        Ok(work)
    }

    fn check(&self) -> Answer {
        self.shape.check(&self.function)?;
        let blocks = count(self.shape.cluster.map(|blocks| blocks.max(1))) as u32;
        if blocks > 1 && self.owner.is_cut() && active_clusters(self.mask, blocks, 1) == 0 {
            return Err(CUresult::ERROR_INVALID_CLUSTER_SIZE);
        }
        if self.shape.residency == Residency::Cooperative {
            let room = u64::from(blocks_per_sm(self.footprint(), SM_CAPACITY))
                * u64::from(self.mask.count());
            if count(self.shape.grid) > room {
                return Err(CUresult::ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
            }
        }
        Ok(())
    }

    fn footprint(&self) -> Footprint {
        let kernel = &self.function.kernel;
        let shared = kernel.static_shared_bytes + self.shape.dynamic_shared_bytes;
        block_footprint(count(self.shape.block) as u32, kernel.registers, shared)
    }

    /// The same launch with other attributes.
    pub(crate) fn with_shape(&self, asked: Shape) -> Answer<Self> {
        let shape = effective(&self.function, &asked);
        let work = KernelWork { asked, shape, ..self.clone() };
        work.check()?;
        Ok(work)
    }

    /// The same launch at this priority, unless it has one of its own.
    pub(crate) fn prioritised(mut self, priority: i32) -> Self {
        for shape in [&mut self.asked, &mut self.shape] {
            shape.priority = shape.priority.or(Some(priority));
        }
        self
    }

    /// Handle of the context that the kernel runs in.
    pub(crate) fn context(&self) -> CUcontext {
        self.owner.handle
    }

    /// One pointer per parameter, valid while any copy of this launch exists.
    pub(crate) fn parameter_pointers(&self) -> *mut *mut c_void {
        let base = self.parameters.bytes.as_ptr() as usize;
        let places = &self.function.kernel.params;
        let pointers = self.parameters.pointers.get_or_init(|| {
            places.iter().map(|place| base + place.offset_bytes as usize).collect()
        });
        if pointers.is_empty() {
            return std::ptr::null_mut();
        }
        pointers.as_ptr().cast_mut().cast()
    }

    /// The priority that the launch was given itself, if any.
    pub(crate) fn own_priority(&self) -> Option<i32> {
        self.shape.priority
    }

    /// The operations of one launch, at this priority.
    pub(crate) fn ops(&self, priority: i32) -> Answer<Vec<Op>> {
        let owner = &self.owner;
        let shape = &self.shape;
        let parameters = self.parameters.bytes.clone();
        let mut launch =
            Launch::new(self.function.kernel.clone(), shape.grid, shape.block, parameters);
        launch.cluster = shape.cluster;
        launch.dynamic_shared_bytes = shape.dynamic_shared_bytes;
        launch.stack_bytes = owner.settings().stack_bytes.clamp(1 << 16, 1 << 20) as u32;
        let mut after = None;
        if shape.residency == Residency::Cooperative {
            let ContextServices { space, account, .. } = &*owner.services;
            // Fresh memory of its own for each launch: zero, and no other grid's barrier.
            let workspace =
                space.allocate(owner.device, account, owner.id, GRID_WORKSPACE_BYTES)?;
            // SAFETY: allocated just now.
            unsafe { touch::fill(workspace, 0, 1, GRID_WORKSPACE_BYTES as usize) };
            launch.grid_workspace = workspace;
            after = Some(FreeWorkspace { space: space.clone(), address: workspace });
        }
        let grid = Grid::new(
            launch,
            owner.device,
            self.mask,
            priority,
            shape.residency,
            self.footprint(),
            owner.services.clone(),
        );
        let mut ops = vec![Op::Launch(Arc::new(grid))];
        if let Some(task) = after {
            ops.push(Op::Task(Box::new(task)));
        }
        Ok(ops)
    }
}

/// What of a launch's attributes the kernel itself overrides.
fn effective(function: &Function, asked: &Shape) -> Shape {
    let mut shape = asked.clone();
    let cluster = function.kernel.required_cluster.unwrap_or(shape.cluster);
    shape.cluster = cluster.map(|size| size.max(1));
    shape
}

/// Gives a cooperative grid's workspace back when the grid is done, or dropped.
struct FreeWorkspace {
    space: Arc<AddressSpace>,
    address: u64,
}

impl Task for FreeWorkspace {
    fn step(&mut self) -> Step {
        let _ = self.space.free(self.address, |_| true);
        Step::Done
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
