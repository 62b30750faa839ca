//! The kernels of good and bad clients, as PTX. The good ones' have no variables: those are lost
//! with a context.

use crate::driver::{Driver, DriverError, check};
use cuda_abi::types::{CUfunction, CUmodule};
use std::ffi::CStr;

/// Threads of a block.
pub(super) const THREADS: u32 = 128;

pub(super) const STEP: &str = concat!(include_str!("step.ptx"), "\0");
const FAULTS: &str = concat!(include_str!("faults.ptx"), "\0");

/// A module with kernels that fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults(CUmodule);

impl Faults {
    pub(super) fn load(driver: &Driver) -> Result<Self, DriverError> {
        load(driver, FAULTS).map(Self)
    }

    pub(super) fn function(&self, driver: &Driver, name: &CStr) -> Result<CUfunction, DriverError> {
        function(driver, self.0, name)
    }
}

/// The kernel `values[i] = values[i] * 3 + i`.
pub(super) fn step(driver: &Driver) -> Result<CUfunction, DriverError> {
    function(driver, load(driver, STEP)?, c"step")
}

fn load(driver: &Driver, text: &str) -> Result<CUmodule, DriverError> {
    let mut module = CUmodule::default();
    check!(driver.table, cuModuleLoadData(&mut module, text.as_ptr().cast()))?;
    Ok(module)
}

fn function(driver: &Driver, module: CUmodule, name: &CStr) -> Result<CUfunction, DriverError> {
    let mut function = CUfunction::default();
    check!(driver.table, cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
    Ok(function)
}
