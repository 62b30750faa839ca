//! The kernels of good and bad clients, as PTX.

use crate::driver::{Driver, DriverError, check};
use cuda_abi::types::{CUfunction, CUmodule};
use std::ffi::CStr;

/// Threads of a block.
pub(super) const THREADS: u32 = 128;

const TEXT: &str = concat!(include_str!("kernels.ptx"), "\0");

/// The module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    module: CUmodule,
    /// `values[i] = values[i] * 3 + i`.
    pub(super) step: CUfunction,
}

impl Kernels {
    pub(super) fn load(driver: &Driver) -> Result<Self, DriverError> {
        let mut module = CUmodule::default();
        check!(driver.table, cuModuleLoadData(&mut module, TEXT.as_ptr().cast()))?;
        let mut kernels = Self { module, step: CUfunction::default() };
        kernels.step = kernels.function(driver, c"step")?;
        Ok(kernels)
    }

    pub(super) fn function(&self, driver: &Driver, name: &CStr) -> Result<CUfunction, DriverError> {
        let mut function = CUfunction::default();
        check!(driver.table, cuModuleGetFunction(&mut function, self.module, name.as_ptr()))?;
        Ok(function)
    }
}
