//! What a driver call costs that need not leave the process: questions about contexts, devices,
//! pointers, functions and streams, which libraries ask between any two launches.
//!
//! A call is timed in batches, so that reading the clock does not count; its cost is the median
//! batch's. The processor is kept busy first, until its clock has risen, and how fast it then is
//! stands beside the costs: nanoseconds of two drivers compare only where that is equal.

use std::ffi::{c_char, c_void};
use std::hint::black_box;
use std::time::{Duration, Instant};

use cuda_abi::types::{
    CUcontext, CUdevice_attribute, CUevent, CUfunction, CUfunction_attribute, CUkernel, CUlibrary,
    CUlimit, CUpointer_attribute, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::driver::{Driver, DriverError, KERNELS, check};
use crate::timer::{CallCost, Timer};

/// How long the processor is kept busy before anything is timed: governors raise a clock within
/// some milliseconds.
const WARM_UP: Duration = Duration::from_millis(150);

/// Keeps the processor busy; returns how high its clock was seen, in MHz: less was seen where
/// another thread had the processor, too.
pub(crate) fn warm_up() -> f64 {
    const STEPS: u32 = 1 << 18;
    /// Shifts and exclusive ors take a cycle each, and none can begin before the one in front of it
    /// has ended.
    const CYCLES_PER_STEP: u32 = 6;
    let start = Instant::now();
    let (mut state, mut clock_mhz) = (black_box(1_u64), 0.0_f64);
    loop {
        let began = Instant::now();
        for _ in 0..STEPS {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        state = black_box(state);
        let time = began.elapsed();
        clock_mhz = clock_mhz.max(f64::from(STEPS * CYCLES_PER_STEP) / time.as_secs_f64() / 1e6);
        if start.elapsed() >= WARM_UP {
            return clock_mhz;
        }
    }
}

/// Calls between two looks at the clock.
const BATCH: u32 = 200;

/// A size for memory of no use but to be asked about.
const SIZE_BYTES: usize = 1 << 20;

/// Times all calls, within about this time altogether.
///
/// # Errors
/// A call that the driver refuses.
pub(crate) fn measure(driver: &Driver, duration_ms: u64) -> Result<Vec<CallCost>, DriverError> {
    let mut timer = Timer::new(Duration::from_millis(duration_ms) / CALLS, BATCH);
    let objects = Objects::new(driver)?;
    contexts(driver, &objects, &mut timer)?;
    devices(driver, &mut timer)?;
    pointers(driver, &objects, &mut timer)?;
    functions(driver, &objects, &mut timer)?;
    streams_and_events(driver, &objects, &mut timer)?;
    objects.release(driver)?;
    Ok(timer.costs)
}

/// How many calls share the time; roughly is enough.
const CALLS: u32 = 42;

/// Times one call under its own name, or under one that is given first.
macro_rules! time {
    ($timer:expr, $driver:expr, $call:ident($($argument:expr),*)) => {
        $timer.time(stringify!($call), || check!($driver.table, $call($($argument),*)))
    };
    ($timer:expr, $name:literal, $body:block) => {
        $timer.time($name, || $body)
    };
}

/// What is asked about.
struct Objects {
    context: CUcontext,
    device_memory: u64,
    host_memory: *mut c_void,
    finished: CUevent,
    library: CUlibrary,
    kernel: CUkernel,
}

impl Objects {
    fn new(driver: &Driver) -> Result<Self, DriverError> {
        let mut objects = Self {
            context: CUcontext::default(),
            device_memory: 0,
            host_memory: std::ptr::null_mut(),
            finished: CUevent::default(),
            library: CUlibrary::default(),
            kernel: CUkernel::default(),
        };
        check!(driver.table, cuCtxGetCurrent(&mut objects.context))?;
        check!(driver.table, cuMemAlloc_v2(&mut objects.device_memory, SIZE_BYTES))?;
        check!(driver.table, cuMemHostAlloc(&mut objects.host_memory, SIZE_BYTES, 0))?;
        check!(driver.table, cuEventCreate(&mut objects.finished, 0))?;
        check!(driver.table, cuEventRecord(objects.finished, driver.stream))?;
        check!(driver.table, cuStreamSynchronize(driver.stream))?;
        let (nothing, no_options) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (no_values, code) = (std::ptr::null_mut(), KERNELS.as_ptr().cast());
        check!(
            driver.table,
            cuLibraryLoadData(
                &mut objects.library,
                code,
                nothing,
                no_values,
                0,
                no_options,
                no_values,
                0
            )
        )?;
        let name = c"empty".as_ptr();
        check!(driver.table, cuLibraryGetKernel(&mut objects.kernel, objects.library, name))?;
        Ok(objects)
    }

    fn release(self, driver: &Driver) -> Result<(), DriverError> {
        check!(driver.table, cuLibraryUnload(self.library))?;
        check!(driver.table, cuMemFree_v2(self.device_memory))?;
        check!(driver.table, cuMemFreeHost(self.host_memory))?;
        check!(driver.table, cuEventDestroy_v2(self.finished))
    }
}

fn contexts(driver: &Driver, objects: &Objects, timer: &mut Timer) -> Result<(), DriverError> {
    let (mut context, mut device, mut flags, mut version) = (objects.context, 0, 0, 0);
    let (mut limit, mut least, mut greatest) = (0, 0, 0);
    time!(timer, driver, cuCtxGetCurrent(&mut context))?;
    time!(timer, driver, cuCtxSetCurrent(objects.context))?;
    time!(timer, "cuCtxPushCurrent, cuCtxPopCurrent", {
        check!(driver.table, cuCtxPushCurrent_v2(objects.context))?;
        check!(driver.table, cuCtxPopCurrent_v2(&mut context))
    })?;
    time!(timer, driver, cuCtxGetDevice(&mut device))?;
    time!(timer, driver, cuCtxGetFlags(&mut flags))?;
    time!(timer, driver, cuCtxGetApiVersion(objects.context, &mut version))?;
    time!(timer, driver, cuCtxGetLimit(&mut limit, CUlimit::STACK_SIZE))?;
    time!(timer, driver, cuCtxGetStreamPriorityRange(&mut least, &mut greatest))
}

fn devices(driver: &Driver, timer: &mut Timer) -> Result<(), DriverError> {
    let (mut device, mut count, mut value) = (0, 0, 0);
    let (mut flags, mut active, mut version) = (0, 0, 0);
    let mut size_bytes = 0;
    let mut text: *const c_char = std::ptr::null();
    let mut name = [0; 64];
    const FLAGS: u64 = 0;
    let (mut function, mut status) = (std::ptr::null_mut(), Default::default());
    time!(timer, driver, cuDeviceGet(&mut device, 0))?;
    time!(timer, driver, cuDeviceGetCount(&mut count))?;
    let attribute = CUdevice_attribute::MULTIPROCESSOR_COUNT;
    time!(timer, driver, cuDeviceGetAttribute(&mut value, attribute, device))?;
    time!(timer, driver, cuDeviceGetName(name.as_mut_ptr(), 64, device))?;
    time!(timer, driver, cuDeviceTotalMem_v2(&mut size_bytes, device))?;
    time!(timer, driver, cuDevicePrimaryCtxGetState(device, &mut flags, &mut active))?;
    time!(timer, driver, cuDriverGetVersion(&mut version))?;
    time!(timer, driver, cuGetErrorName(CUresult::ERROR_INVALID_VALUE, &mut text))?;
    let symbol = c"cuLaunchKernel".as_ptr();
    time!(timer, driver, cuGetProcAddress_v2(symbol, &mut function, version, FLAGS, &mut status))
}

fn pointers(driver: &Driver, objects: &Objects, timer: &mut Timer) -> Result<(), DriverError> {
    let inside = objects.device_memory + SIZE_BYTES as u64 / 2;
    let (mut kind, mut ordinal, mut base, mut size_bytes) = (0_u32, 0_i32, 0, 0);
    let mut context = CUcontext::default();
    let kind_place = (&raw mut kind).cast::<c_void>();
    let asked = CUpointer_attribute::MEMORY_TYPE;
    time!(timer, driver, cuPointerGetAttribute(kind_place, asked, inside))?;
    time!(timer, "cuPointerGetAttribute (pinned)", {
        check!(
            driver.table,
            cuPointerGetAttribute(
                kind_place,
                asked,
                objects.host_memory.expose_provenance() as u64
            )
        )
    })?;
    let mut kinds = [
        CUpointer_attribute::CONTEXT,
        CUpointer_attribute::MEMORY_TYPE,
        CUpointer_attribute::DEVICE_POINTER,
        CUpointer_attribute::DEVICE_ORDINAL,
    ];
    let mut device_pointer = 0_u64;
    let mut places = [
        (&raw mut context).cast(),
        kind_place,
        (&raw mut device_pointer).cast(),
        (&raw mut ordinal).cast(),
    ];
    time!(timer, "cuPointerGetAttributes (4)", {
        check!(
            driver.table,
            cuPointerGetAttributes(4, kinds.as_mut_ptr(), places.as_mut_ptr(), inside)
        )
    })?;
    // Ordinary memory: libraries ask so of each pointer that they are given.
    let ordinary = (&raw const kinds).expose_provenance() as u64;
    time!(timer, "cuPointerGetAttributes (4, ordinary)", {
        check!(
            driver.table,
            cuPointerGetAttributes(4, kinds.as_mut_ptr(), places.as_mut_ptr(), ordinary)
        )
    })?;
    time!(timer, driver, cuMemGetAddressRange_v2(&mut base, &mut size_bytes, inside))?;
    time!(timer, driver, cuMemHostGetDevicePointer_v2(&mut base, objects.host_memory, 0))
}

fn functions(driver: &Driver, objects: &Objects, timer: &mut Timer) -> Result<(), DriverError> {
    let mut kernel = CUkernel::default();
    let (mut value, mut blocks, mut threads) = (0, 0, 0);
    let mut function = CUfunction::default();
    let asked = CUfunction_attribute::NUM_REGS;
    let (empty, name) = (driver.empty, c"empty".as_ptr());
    time!(timer, driver, cuFuncGetAttribute(&mut value, asked, empty))?;
    time!(timer, driver, cuModuleGetFunction(&mut function, driver.module, name))?;
    time!(timer, driver, cuLibraryGetKernel(&mut kernel, objects.library, name))?;
    time!(timer, driver, cuKernelGetFunction(&mut function, objects.kernel))?;
    time!(timer, driver, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, empty, 128, 0))?;
    time!(
        timer,
        driver,
        cuOccupancyMaxPotentialBlockSize(&mut blocks, &mut threads, empty, None, 0, 0)
    )
}

fn streams_and_events(
    driver: &Driver,
    objects: &Objects,
    timer: &mut Timer,
) -> Result<(), DriverError> {
    let stream = driver.stream;
    let (mut context, mut flags, mut priority, mut id) = (CUcontext::default(), 0, 0, 0);
    let mut capture = CUstreamCaptureStatus::default();
    let mut mode = CUstreamCaptureMode::RELAXED;
    let mut event = CUevent::default();
    time!(timer, driver, cuStreamGetCtx(stream, &mut context))?;
    time!(timer, driver, cuStreamGetFlags(stream, &mut flags))?;
    time!(timer, driver, cuStreamGetPriority(stream, &mut priority))?;
    time!(timer, driver, cuStreamGetId(stream, &mut id))?;
    time!(timer, driver, cuStreamIsCapturing(stream, &mut capture))?;
    time!(timer, "cuStreamIsCapturing (NULL)", {
        check!(driver.table, cuStreamIsCapturing(CUstream::NULL, &mut capture))
    })?;
    time!(timer, "cuStreamGetCaptureInfo_v2", {
        check!(
            driver.table,
            cuStreamGetCaptureInfo_v2(
                stream,
                &mut capture,
                &mut id,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut()
            )
        )
    })?;
    time!(timer, "cuThreadExchangeStreamCaptureMode, twice", {
        check!(driver.table, cuThreadExchangeStreamCaptureMode(&mut mode))?;
        check!(driver.table, cuThreadExchangeStreamCaptureMode(&mut mode))
    })?;
    time!(timer, driver, cuStreamQuery(stream))?;
    time!(timer, driver, cuStreamSynchronize(stream))?;
    time!(timer, driver, cuEventQuery(objects.finished))?;
    time!(timer, driver, cuEventSynchronize(objects.finished))?;
    time!(timer, "cuEventCreate, cuEventDestroy", {
        check!(driver.table, cuEventCreate(&mut event, 0))?;
        check!(driver.table, cuEventDestroy_v2(event))
    })
}
