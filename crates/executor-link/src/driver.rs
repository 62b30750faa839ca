//! The native driver: NVIDIA's or the software GPU, opened by path.

use cuda_abi::table::DriverTable;
use cuda_abi::types::{CUdevice, CUresult};
use std::ffi::c_void;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Where no MPS daemon can be: a server must never become a client, NVIDIA's or ours.
const NO_PIPE_DIRECTORY: &str = "/dev/null/none";

/// A symbol that the software GPU's driver exports besides CUDA's.
const SOFTWARE_MARK: &std::ffi::CStr = c"openmps_software_gpu";

/// How many hardware queues a context gets; the clients of a server share those of its context (MPS
/// guide, 4.2.4).
const CONNECTIONS_VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// When a context gets the code of a library: eager loading would wait for all running kernels
/// before anything is known of the code.
const LOADING_VARIABLE: &str = "CUDA_MODULE_LOADING";
const LOADING: &str = "LAZY";

/// As many as there are.
const MOST_CONNECTIONS: u32 = 32;

/// The number of queues that the daemon's environment asks for; all, if it does not say or says
/// what is no such number.
fn connections(wanted: Option<&str>) -> u32 {
    wanted.and_then(policy::limits::connections).unwrap_or(MOST_CONNECTIONS)
}

/// Why there is no driver.
#[derive(Debug, Error)]
pub enum DriverError {
    /// No such library, or not loadable.
    #[error("cannot load the native driver {}: {source}; set OPENMPS_NATIVE_DRIVER to another", path.display())]
    Load {
        /// Where it should be.
        path: PathBuf,
        /// The loader's word.
        source: libloading::Error,
    },
    /// The driver itself refuses.
    #[error("{call} of the native driver failed: {result}")]
    Refused {
        /// Which function.
        call: &'static str,
        /// What it said.
        result: CUresult,
    },
}

/// An open, initialised driver. It stays loaded until the process ends: drivers do not survive
/// unloading.
#[derive(Clone, Copy)]
pub struct Driver {
    table: &'static DriverTable,
    is_software: bool,
}

impl Deref for Driver {
    type Target = DriverTable;

    fn deref(&self) -> &DriverTable {
        self.table
    }
}

impl Driver {
    /// Loads and initialises the driver at `path`. To be called once, before there are other
    /// threads.
    pub fn open(path: &Path) -> Result<Self, DriverError> {
        // SAFETY: no other thread exists yet that could read the environment.
        unsafe {
            std::env::set_var("CUDA_MPS_PIPE_DIRECTORY", NO_PIPE_DIRECTORY);
            std::env::set_var(LOADING_VARIABLE, LOADING);
            std::env::set_var(
                CONNECTIONS_VARIABLE,
                connections(std::env::var(CONNECTIONS_VARIABLE).ok().as_deref()).to_string(),
            );
        }
        let failed = |source| DriverError::Load { path: path.to_owned(), source };
        // SAFETY: loading a driver runs its constructors; the administrator named it.
        let library = unsafe { libloading::Library::new(path) }.map_err(failed)?;
        let resolve = |symbol: &std::ffi::CStr| {
            // SAFETY: only the address is taken here.
            let found = unsafe { library.get::<*const c_void>(symbol.to_bytes_with_nul()) };
            found.map_or(std::ptr::null(), |address| *address)
        };
        // SAFETY: a CUDA driver's symbols have the prototypes of the CUDA driver API, and the
        // library is never closed.
        let table = unsafe { DriverTable::load(resolve) };
        // SAFETY: only looked for.
        let is_software =
            unsafe { library.get::<*const c_void>(SOFTWARE_MARK.to_bytes_with_nul()) }.is_ok();
        std::mem::forget(library);
        let driver = Self { table: Box::leak(Box::new(table)), is_software };
        // SAFETY: no arguments but flags.
        let initialised = unsafe { driver.cuInit(0) };
        initialised.ok().map_err(|result| DriverError::Refused { call: "cuInit", result })?;
        Ok(driver)
    }

    /// A test's driver.
    pub fn of_table(table: &'static DriverTable) -> Self {
        Self { table, is_software: false }
    }

    /// Whether it is the software GPU, which runs PTX and no machine code.
    pub fn is_software(self) -> bool {
        self.is_software
    }

    /// The handle of device `ordinal`.
    pub fn device(self, ordinal: u32) -> Result<CUdevice, DriverError> {
        let mut device = 0;
        // SAFETY: `device` is written.
        let got = unsafe { self.cuDeviceGet(&mut device, ordinal as i32) };
        got.ok().map_err(|result| DriverError::Refused { call: "cuDeviceGet", result })?;
        Ok(device)
    }
}

#[cfg(test)]
mod tests {
    use super::connections;

    #[test]
    fn the_environment_of_the_server_sets_its_hardware_queues() {
        for (wanted, got) in [
            (None, 32),
            (Some("8"), 8),
            (Some(" 1 "), 1),
            (Some("0"), 32),
            (Some("33"), 32),
            (Some("x"), 32),
        ] {
            assert_eq!(connections(wanted), got, "{wanted:?}");
        }
    }
}
