//! The few driver calls that a worker makes, with Rust's manners.

use cuda_abi::table::DriverTable;
use cuda_abi::types::{CUcontext, CUdevice_attribute, CUfunction, CUmodule, CUresult, CUstream};
use libloading::Library;
use std::ffi::{CStr, OsStr, c_void};
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

/// An open driver library with a context, a stream and a module with the two kernels of the workloads.
pub struct Driver {
    pub(crate) table: Box<DriverTable>,
    pub(crate) stream: CUstream,
    pub(crate) module: CUmodule,
    pub(crate) empty: CUfunction,
    spin: CUfunction,
    _library: Library,
}

/// The kernels of the workloads, as PTX.
pub(crate) const KERNELS: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("kernels.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the PTX text has an inner NUL"),
    };

/// Makes a call of the driver's table; a failure names it.
macro_rules! check {
    ($table:expr, $call:ident($($argument:expr),*)) => {{
        // SAFETY: handles come from this very driver; pointers are to live locals of the types that the driver's prototype names.
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
    /// Opens the library and makes ready: initialises, retains the primary context of device 0, loads the kernels.
    pub fn open(path: &OsStr) -> Result<Self, DriverError> {
        let opening =
            |source| DriverError::Open { path: path.to_string_lossy().into_owned(), source };
        // SAFETY: a CUDA driver library; its constructors are as safe as any program's that links to it.
        let library = unsafe { Library::new(path) }.map_err(opening)?;
        // SAFETY: the symbols are a CUDA driver's, with the prototypes of its API; the library is kept open beside the table.
        let table = Box::new(unsafe {
            DriverTable::load(|symbol| {
                library
                    .get::<*const c_void>(symbol.to_bytes_with_nul())
                    .map_or(std::ptr::null(), |found| *found)
            })
        });
        check!(table, cuInit(0))?;
        let mut context = CUcontext::default();
        check!(table, cuDevicePrimaryCtxRetain(&mut context, 0))?;
        check!(table, cuCtxSetCurrent(context))?;
        let mut module = CUmodule::default();
        check!(table, cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()))?;
        let (mut empty, mut spin, mut stream) =
            (CUfunction::default(), CUfunction::default(), CUstream::default());
        check!(table, cuModuleGetFunction(&mut empty, module, c"empty".as_ptr()))?;
        check!(table, cuModuleGetFunction(&mut spin, module, c"spin".as_ptr()))?;
        const NON_BLOCKING: u32 = 1;
        check!(table, cuStreamCreate(&mut stream, NON_BLOCKING))?;
        Ok(Self { table, stream, module, empty, spin, _library: library })
    }

    /// Launches `blocks` of `threads`, spinning `spin_cycles` each, or empty ones for 0.
    pub fn launch(&self, blocks: u32, threads: u32, spin_cycles: u64) -> Result<(), DriverError> {
        let mut cycles = spin_cycles;
        let mut parameters = [(&raw mut cycles).cast::<c_void>()];
        let function = if spin_cycles == 0 { self.empty } else { self.spin };
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
                parameters.as_mut_ptr(),
                std::ptr::null_mut()
            )
        )
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
