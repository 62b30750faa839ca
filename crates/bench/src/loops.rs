//! Loops that are more than launches: what a program mixes, and what disturbs others.

use std::ffi::c_void;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cuda_abi::types::{CUevent, CUfunction, CUmodule};

use crate::driver::{COUNTING, Driver, DriverError, KERNELS, Kernel, check};
use crate::worker::{Task, WorkerError};
use crate::workload::Workload;

const TO_DEVICE_BYTES: usize = 1 << 20;
const TO_HOST_BYTES: usize = 64 << 10;
const SCRATCH_BYTES: usize = 4 << 20;
/// Between the beginnings of two loads.
const LOAD_INTERVAL: Duration = Duration::from_millis(2);

/// One iteration after the other of a workload that is a loop.
pub(crate) trait Iterate {
    /// Kernels of an iteration.
    const KERNELS: u64;

    /// Not part of an iteration's time.
    fn pause(&mut self) {}

    /// Does one, and waits for it.
    fn iterate(&mut self, driver: &Driver) -> Result<(), WorkerError>;
}

/// [`Workload::Mixed`].
pub(crate) struct Mixed {
    device: u64,
    pinned: *mut c_void,
    event: CUevent,
}

impl Mixed {
    /// Takes its memory, which goes with the process.
    pub(crate) fn new(driver: &Driver) -> Result<Self, DriverError> {
        let mut mixed = Self { device: 0, pinned: std::ptr::null_mut(), event: CUevent::default() };
        check!(driver.table, cuMemAlloc_v2(&mut mixed.device, TO_DEVICE_BYTES))?;
        check!(driver.table, cuMemHostAlloc(&mut mixed.pinned, TO_DEVICE_BYTES, 0))?;
        check!(driver.table, cuEventCreate(&mut mixed.event, 0))?;
        Ok(mixed)
    }
}

impl Iterate for Mixed {
    const KERNELS: u64 = 6;

    fn iterate(&mut self, driver: &Driver) -> Result<(), WorkerError> {
        let Self { device, pinned, event } = *self;
        let (table, stream) = (&driver.table, driver.stream);
        let mut scratch = 0;
        check!(table, cuMemcpyHtoDAsync_v2(device, pinned, TO_DEVICE_BYTES, stream))?;
        check!(table, cuMemAllocAsync(&mut scratch, SCRATCH_BYTES, stream))?;
        check!(table, cuMemsetD8Async(scratch, 0, SCRATCH_BYTES, stream))?;
        for (blocks, steps) in [(1, 100), (16, 1_000), (64, 300)].into_iter().cycle().take(6) {
            driver.launch(blocks, 128, Kernel::Work { steps })?;
        }
        check!(table, cuMemFreeAsync(scratch, stream))?;
        check!(table, cuEventRecord(event, stream))?;
        check!(table, cuMemcpyDtoHAsync_v2(pinned, device, TO_HOST_BYTES, stream))?;
        Ok(driver.wait()?)
    }
}

/// [`Workload::Load`] and [`Workload::Reload`].
pub(crate) struct Loads {
    next: Instant,
    variable: Variable,
}

/// Whether the module has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variable {
    With,
    Without,
}

impl Loads {
    pub(crate) fn new(variable: Variable) -> Self {
        Self { next: Instant::now(), variable }
    }
}

impl Iterate for Loads {
    const KERNELS: u64 = 1;

    fn pause(&mut self) {
        std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
        self.next = Instant::now() + LOAD_INTERVAL;
    }

    fn iterate(&mut self, driver: &Driver) -> Result<(), WorkerError> {
        let (image, name) = match self.variable {
            Variable::With => (COUNTING, c"increase"),
            Variable::Without => (KERNELS, c"empty"),
        };
        let (mut module, mut function) = (CUmodule::default(), CUfunction::default());
        check!(driver.table, cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
        check!(driver.table, cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
        driver.launch_function(function, 1, 32, &mut [])?;
        driver.wait()?;
        Ok(check!(driver.table, cuModuleUnload(module))?)
    }
}

/// [`Workload::Starts`].
pub(crate) struct Starts {
    command: Command,
}

impl Starts {
    /// Starts this very program as a client of the same driver, in the same environment.
    pub(crate) fn new(task: &Task) -> Result<Self, WorkerError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bench-worker").arg("--driver").arg(&task.driver);
        command.args(["--workload", Workload::Start.name(), "--duration-ms", "0"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self { command })
    }
}

impl Iterate for Starts {
    const KERNELS: u64 = 1;

    fn iterate(&mut self, _: &Driver) -> Result<(), WorkerError> {
        let status = self.command.status()?;
        if status.success() { Ok(()) } else { Err(WorkerError::Child(status)) }
    }
}
