//! The few driver calls that a worker makes, with Rust's manners.

use crate::timer::CallCost;
use cuda_abi::table::DriverTable;
use cuda_abi::types::{CUcontext, CUdevice_attribute, CUfunction, CUmodule, CUresult, CUstream};
use libloading::Library;
use std::ffi::{CStr, OsStr, c_void};
use std::time::Instant;
use thiserror::Error;

/// What went wrong with the driver under test.
#[derive(Debug, Error)]
pub enum DriverError {
    /// The library cannot be opened.
    #[error("cannot open the driver library {path}: {source}")]
    Open {
        /// As given.
        path: String,
        /// The loader's word.
        source: libloading::Error,
    },
    /// A call failed.
    #[error("{call} failed: {code}")]
    Call {
        /// Which.
        call: &'static str,
        /// Its result.
        code: CUresult,
    },
}

/// An open driver library with a context, a stream and a module with the kernels of the workloads.
pub struct Driver {
    pub(crate) table: Box<DriverTable>,
    pub(crate) stream: CUstream,
    pub(crate) module: CUmodule,
    pub(crate) empty: CUfunction,
    spin: CUfunction,
    work: CUfunction,
    /// What the steps of making ready took.
    pub(crate) steps: Vec<CallCost>,
    _library: Library,
}

/// Times the steps of making ready.
struct Steps {
    since: Instant,
    costs: Vec<CallCost>,
}

impl Steps {
    /// What has passed since the last step was this one.
    fn done(&mut self, call: &str) {
        let now = Instant::now();
        let time_ns = now.duration_since(self.since).as_secs_f64() * 1e9;
        self.costs.push(CallCost { call: format!("start: {call}"), time_ns });
        self.since = now;
    }
}

/// Which kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Does nothing.
    Empty,
    /// Each thread looks at the clock until so much time has passed: kernels that run at once do
    /// not slow each other.
    Spin {
        /// Clock cycles.
        cycles: u64,
    },
    /// Each thread computes: kernels that run at once share what the device can do.
    Work {
        /// Multiplications and additions.
        steps: u64,
    },
}

/// The kernels of the workloads, as PTX.
pub(crate) const KERNELS: &CStr = text(concat!(include_str!("kernels.ptx"), "\0"));
/// A kernel `increase` that counts in a variable.
pub(crate) const COUNTING: &CStr = text(concat!(include_str!("counting.ptx"), "\0"));

const fn text(with_nul: &str) -> &CStr {
    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the PTX text has an inner NUL"),
    }
}

/// Makes a call of the driver's table; a failure names it.
macro_rules! check {
    ($table:expr, $call:ident($($argument:expr),*)) => {{
        // SAFETY: handles come from this very driver; pointers are to live locals of the types that
        // the driver's prototype names.
        let code = unsafe { $table.$call($($argument),*) };
        code.ok().map_err(|code| $crate::driver::DriverError::Call { call: stringify!($call), code })
    }};
}
pub(crate) use check;

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Driver {
    /// Opens the library and makes ready: initialises, retains the primary context of device 0,
    /// loads the kernels.
    pub fn open(path: &OsStr) -> Result<Self, DriverError> {
        let mut steps = Steps { since: Instant::now(), costs: Vec::new() };
        let opening =
            |source| DriverError::Open { path: path.to_string_lossy().into_owned(), source };
        // SAFETY: a CUDA driver library; its constructors are as safe as any program's that links
        // to it.
        let library = unsafe { Library::new(path) }.map_err(opening)?;
        // SAFETY: the symbols are a CUDA driver's, with the prototypes of its API; the library is
        // kept open beside the table.
        let table = Box::new(unsafe {
            DriverTable::load(|symbol| {
                library
                    .get::<*const c_void>(symbol.to_bytes_with_nul())
                    .map_or(std::ptr::null(), |found| *found)
            })
        });
        steps.done("the library is opened");
        check!(table, cuInit(0))?;
        steps.done("cuInit");
        let mut context = CUcontext::default();
        check!(table, cuDevicePrimaryCtxRetain(&mut context, 0))?;
        check!(table, cuCtxSetCurrent(context))?;
        steps.done("the context");
        let mut module = CUmodule::default();
        check!(table, cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()))?;
        steps.done("the module");
        let [mut empty, mut spin, mut work] = [CUfunction::default(); 3];
        let mut stream = CUstream::default();
        check!(table, cuModuleGetFunction(&mut empty, module, c"empty".as_ptr()))?;
        check!(table, cuModuleGetFunction(&mut spin, module, c"spin".as_ptr()))?;
        check!(table, cuModuleGetFunction(&mut work, module, c"work".as_ptr()))?;
        const NON_BLOCKING: u32 = 1;
        check!(table, cuStreamCreate(&mut stream, NON_BLOCKING))?;
        steps.done("functions and a stream");
        let steps = steps.costs;
        let driver = Self { table, stream, module, empty, spin, work, steps, _library: library };
        Ok(driver)
    }

    /// Launches `blocks` of `threads`.
    pub fn launch(&self, blocks: u32, threads: u32, kernel: Kernel) -> Result<(), DriverError> {
        let (function, mut parameter) = match kernel {
            Kernel::Empty => (self.empty, 0),
            Kernel::Spin { cycles } => (self.spin, cycles),
            Kernel::Work { steps } => (self.work, steps),
        };
        let mut parameters = [(&raw mut parameter).cast::<c_void>()];
        self.launch_function(function, blocks, threads, &mut parameters)
    }

    /// Launches a function with pointers to what it takes, or more.
    pub(crate) fn launch_function(
        &self,
        function: CUfunction,
        blocks: u32,
        threads: u32,
        parameters: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let (parameters, extra) = (parameters.as_mut_ptr(), std::ptr::null_mut());
        check!(
            self.table,
            cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                self.stream,
                parameters,
                extra
            )
        )
    }

    /// Bytes of the device that nobody uses.
    pub fn free_bytes(&self) -> Result<u64, DriverError> {
        let (mut free_bytes, mut total_bytes) = (0, 0);
        check!(self.table, cuMemGetInfo_v2(&mut free_bytes, &mut total_bytes))?;
        Ok(free_bytes as u64)
    }

    /// The SMs that this client is told it has.
    pub fn multiprocessors(&self) -> Result<u32, DriverError> {
        let mut count = 0;
        let attribute = CUdevice_attribute::MULTIPROCESSOR_COUNT;
        check!(self.table, cuDeviceGetAttribute(&mut count, attribute, 0))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// Waits for everything launched.
    pub fn wait(&self) -> Result<(), DriverError> {
        check!(self.table, cuStreamSynchronize(self.stream))
    }
}
