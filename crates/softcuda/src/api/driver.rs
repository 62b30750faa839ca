//! The driver of this process: configuration, engine, devices and the tables of handles.

mod contexts;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLockWriteGuard};

use cuda_abi::graph::registry::{Naming, Registry};
use cuda_abi::managed_advice::Advices;
use cuda_abi::types::{CUcontext, CUdevice, CUresult, CUstream};

use super::answer::Answer;
use super::graph::{Executable, GraphMemories, HighWater, NodeKind};
use super::objects::{
    Array, Context, Event, Function, GreenContext, Kernel, Library, LinkState, MemoryHandle,
    MipmappedArray, Module, Opened, Pool, ResourceDescription, Stream, SurfaceObject,
    TextureObject,
};
use super::table::{Table, fresh_handle};
use crate::api::context::context_stack::current_handle;
use crate::api::stream::stalls::Stalls;
use crate::device::config::Config;
use crate::device::engine::Engine;
use crate::device::machine::Machine;
use crate::device::memory::{Account, AddressSpace};
use crate::device::placement::Placement;
use crate::device::sm_sets::Loads;
use crate::device::{footprint, worker};

/// Driver version reported to programs: CUDA 13.0.
pub(crate) const VERSION: i32 = 13000;

/// One device and its primary context.
#[derive(Debug)]
pub(crate) struct Device {
    /// Index among all configured devices; identity (UUID, PCI) follows it.
    pub(crate) physical: u32,
    pub(crate) account: Arc<Account>,
    pub(crate) primary_handle: CUcontext,
    /// Handle of the pool that is there from the start.
    pub(crate) default_pool: usize,
    /// High-water marks of memory that graphs allocate.
    pub(crate) graph_memory: HighWater,
    current_pool: AtomicUsize,
    /// Contexts with a number of SMs, by SM.
    sm_loads: Mutex<Loads>,
    primary: Mutex<Primary>,
}

#[derive(Debug, Default)]
struct Primary {
    retains: u32,
    flags: u32,
    context: Option<Arc<Context>>,
}

/// The driver once `cuInit` has succeeded.
pub(crate) struct Driver {
    pub(crate) config: Config,
    pub(crate) stalls: Stalls,
    pub(crate) engine: Arc<Engine>,
    pub(crate) space: Arc<AddressSpace>,
    pub(crate) devices: Vec<Device>,
    /// What is shared with other processes, if anything.
    machine: Option<Arc<Machine>>,
    pub(crate) contexts: Table<Context>,
    /// (who reaches, whose memory): contexts by number, with their devices.
    peers: Mutex<BTreeSet<(u64, u64, u32, u32)>>,
    /// Handles of contexts that were destroyed: using one is another error than using no handle.
    destroyed: Mutex<HashSet<usize>>,
    /// SM resource descriptions; they are never destroyed.
    pub(crate) descriptions: Table<ResourceDescription>,
    pub(crate) green_contexts: Table<GreenContext>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) libraries: Table<Library>,
    pub(crate) kernels: Table<Kernel>,
    pub(crate) links: Table<LinkState>,
    pub(crate) pools: Table<Pool>,
    /// `CUmemGenericAllocationHandle`s.
    pub(crate) physicals: Table<MemoryHandle>,
    /// Memory of other processes, by its address here.
    pub(crate) opened: Table<Opened>,
    pub(crate) arrays: Table<Array>,
    pub(crate) mipmapped_arrays: Table<MipmappedArray>,
    pub(crate) texture_objects: Table<TextureObject>,
    pub(crate) surface_objects: Table<SurfaceObject>,
    pub(crate) graphs: Registry<NodeKind>,
    pub(crate) advices: Advices,
    pub(crate) executables: Table<Executable>,
    pub(crate) graph_memory: GraphMemories,
}

static DRIVER: OnceLock<Result<Driver, CUresult>> = OnceLock::new();
/// Set in a child of `fork`: threads and locks of the parent are gone.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The driver; CUDA_ERROR_NOT_INITIALIZED before `cuInit` and in a forked child.
pub(crate) fn driver() -> Answer<&'static Driver> {
    // Relaxed: set before the child's only thread goes on.
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUresult::ERROR_NOT_INITIALIZED);
    }
    if worker::is_in_host_call() {
        return Err(CUresult::ERROR_NOT_PERMITTED);
    }
    match DRIVER.get() {
        Some(Ok(driver)) => Ok(driver),
        _ => Err(CUresult::ERROR_NOT_INITIALIZED),
    }
}

/// Reads the configuration and starts the engine, once.
pub(crate) fn initialise() -> Answer {
    // Relaxed: as in `driver`.
    if FORKED.load(Ordering::Relaxed) {
        return Err(CUresult::ERROR_NOT_INITIALIZED);
    }
    match DRIVER.get_or_init(Driver::start) {
        Ok(_) => Ok(()),
        Err(code) => Err(*code),
    }
}

extern "C" fn after_fork_in_child() {
    // Relaxed: the child has one thread.
    FORKED.store(true, Ordering::Relaxed);
}

/// Driver and current context; a sticky error of the context is returned as such.
pub(crate) fn current() -> Answer<(&'static Driver, Arc<Context>)> {
    let (driver, context) = current_even_failed()?;
    match driver.engine.context_error(context.id) {
        Some(sticky) => Err(sticky.into()),
        None => Ok((driver, context)),
    }
}

/// The same; on a thread without a context, that of what a call names.
pub(crate) fn current_or(context_id: u64) -> Answer<(&'static Driver, Arc<Context>)> {
    if !current_handle().is_null() {
        return current();
    }
    let driver = driver()?;
    let context = driver.contexts.find_by(|it| it.id == context_id && it.is_alive());
    let context = context.ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)?;
    match driver.engine.context_error(context.id) {
        Some(sticky) => Err(sticky.into()),
        None => Ok((driver, context)),
    }
}

/// As [`current`], for calls that work on a failed context, too.
pub(crate) fn current_even_failed() -> Answer<(&'static Driver, Arc<Context>)> {
    let driver = driver()?;
    let handle = current_handle();
    if handle.is_null() {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    Ok((driver, driver.context(handle)?))
}

impl Driver {
    fn start() -> Result<Self, CUresult> {
        let config = Config::from_environment().map_err(|error| {
            crate::device::fault::write_line(&format!("softcuda: {error}"));
            CUresult::ERROR_INVALID_VALUE
        })?;
        if config.visible.is_empty() {
            return Err(CUresult::ERROR_NO_DEVICE);
        }
        let space = Arc::new(AddressSpace::with_devices(config.precision, config.visible.len()));
        let placements =
            config.visible.iter().map(|_| Placement::new(config.sm_count, footprint::SM_CAPACITY));
        let engine = Arc::new(Engine::new(placements.collect(), space.clone(), &config));
        worker::start(&engine, config.workers).map_err(|error| {
            crate::device::fault::write_line(&format!(
                "softcuda: cannot start worker threads: {error}"
            ));
            CUresult::ERROR_OPERATING_SYSTEM
        })?;
        let machine = match config.machine.as_deref().map(Machine::join).transpose() {
            Ok(machine) => machine.map(Arc::new),
            Err(error) => {
                crate::device::fault::write_line(&format!("softcuda: {error}"));
                return Err(CUresult::ERROR_OPERATING_SYSTEM);
            }
        };
        let account = |physical: u32| match &machine {
            Some(machine) => Account::shared(config.memory_bytes, machine.clone(), physical),
            None => Account::new(config.memory_bytes),
        };
        // SAFETY: registers a handler that only stores to an atomic.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        let pools = Table::default();
        let devices = config.visible.iter().enumerate().map(|(ordinal, &physical)| {
            let pool = fresh_handle();
            pools.insert(pool, Arc::new(Pool::on(ordinal as u32)));
            Device {
                physical,
                account: Arc::new(account(physical)),
                primary_handle: CUcontext(fresh_handle()),
                default_pool: pool,
                graph_memory: HighWater::default(),
                current_pool: AtomicUsize::new(pool),
                sm_loads: Mutex::default(),
                primary: Mutex::default(),
            }
        });
        let devices = devices.collect();
        Ok(Driver {
            devices,
            machine,
            stalls: Stalls::new(config.stalls),
            config,
            engine,
            space,
            contexts: Table::default(),
            peers: Mutex::default(),
            destroyed: Mutex::default(),
            descriptions: Table::default(),
            green_contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            libraries: Table::default(),
            kernels: Table::default(),
            links: Table::default(),
            pools,
            physicals: Table::default(),
            opened: Table::default(),
            arrays: Table::default(),
            mipmapped_arrays: Table::default(),
            texture_objects: Table::default(),
            surface_objects: Table::default(),
            advices: Advices::default(),
            graphs: Registry::new(Naming {
                graph: fresh_handle,
                node: fresh_handle,
                object: fresh_handle,
            }),
            executables: Table::default(),
            graph_memory: GraphMemories::default(),
        })
    }

    /// Whether a stream takes part in a capture, also an invalidated one.
    pub(crate) fn is_capturing(&self, stream: &Stream) -> bool {
        self.graphs.captures.find(stream.captured()).is_some()
    }

    /// The device of an ordinal, or CUDA_ERROR_INVALID_DEVICE.
    pub(crate) fn device(&self, ordinal: CUdevice) -> Answer<&Device> {
        let index = usize::try_from(ordinal).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
        self.devices.get(index).ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    /// What a device's memory is taken from.
    pub(crate) fn account(&self, device: u32) -> Option<&Arc<Account>> {
        self.devices.get(device as usize).map(|found| &found.account)
    }

    /// Waits for all work of a context. What is returned is to be held to the end of the call.
    pub(crate) fn wait_for_work(&self, context: u64) -> Option<RwLockWriteGuard<'_, ()>> {
        let stall = self.stalls.stall();
        // What failed there is for those to hear who wait for it.
        let _ = self.engine.synchronize_context(context);
        stall
    }

    /// The same for calls that wait only where others' work is held meanwhile.
    pub(crate) fn wait_if_stalling(&self, context: u64) -> Option<RwLockWriteGuard<'_, ()>> {
        if self.stalls.are_as_hardware() { self.wait_for_work(context) } else { None }
    }

    /// The context of a handle: 709 when it was destroyed, 201 when it never was one.
    pub(crate) fn context(&self, handle: CUcontext) -> Answer<Arc<Context>> {
        if let Some(context) = self.contexts.find(handle.0).filter(|context| context.is_alive()) {
            return Ok(context);
        }
        let was_destroyed =
            self.destroyed.lock().unwrap_or_else(PoisonError::into_inner).contains(&handle.0);
        let is_primary = self.devices.iter().any(|device| device.primary_handle == handle);
        Err(if was_destroyed || is_primary {
            CUresult::ERROR_CONTEXT_IS_DESTROYED
        } else {
            CUresult::ERROR_INVALID_CONTEXT
        })
    }

    /// The context that the engine knows by this number; not the green ones of it.
    pub(crate) fn context_by_id(&self, id: u64) -> Option<Arc<Context>> {
        self.contexts.find_by(|context| context.id == id && !context.is_green())
    }

    /// Whether a handle is, or may become, a context.
    pub(crate) fn is_context(&self, handle: CUcontext) -> bool {
        self.contexts.find(handle.0).is_some()
            || self.devices.iter().any(|device| device.primary_handle == handle)
    }

    /// The stream that a handle names, in the current context for the default ones.
    pub(crate) fn stream(&self, context: &Context, handle: CUstream) -> Answer<Arc<Stream>> {
        match handle {
            CUstream::NULL | CUstream::LEGACY => Ok(context.legacy_stream()),
            CUstream::PER_THREAD => context.per_thread_stream(&self.engine),
            other => self.streams.get(other.0),
        }
    }
}

impl Device {
    /// Which SMs contexts with a number of SMs are on.
    pub(crate) fn sm_loads(&self) -> MutexGuard<'_, Loads> {
        self.sm_loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handle of the pool that `cuMemAllocAsync` takes from.
    pub(crate) fn current_pool(&self) -> usize {
        // Relaxed: a number alone.
        self.current_pool.load(Ordering::Relaxed)
    }

    pub(crate) fn set_pool(&self, pool: usize) {
        // Relaxed: as in `current_pool`.
        self.current_pool.store(pool, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Primary> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flags for the next time that the primary context opens, and now.
    pub(crate) fn set_flags(&self, flags: u32) {
        let mut primary = self.lock();
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.set(|settings| settings.flags = flags);
        }
    }

    /// Flags and whether the primary context is open.
    pub(crate) fn state(&self) -> (u32, bool) {
        let primary = self.lock();
        (primary.flags, primary.context.is_some())
    }
}
