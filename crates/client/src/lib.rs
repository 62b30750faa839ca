//! The client runtime: the `libcuda.so.1` that a CUDA program loads.
//!
//! Exported functions ([`exports`], written by `cuda_abi::build` from `functions.tsv`) jump through one table. `cuInit` makes the
//! one [`choice`]: attached to an OpenMPS server, or native, where the table is filled with the functions of the native driver.

mod allocator;
mod attach;
mod choice;
mod entry;
mod handles;
mod log;
mod native;
mod visible;

use cuda_abi::boundary::AbsentCalls;
use cuda_abi::functions::Function;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

static ABSENT_CALLS: AbsentCalls = AbsentCalls::new();

/// Counts a call of a function that we do not have.
fn absent(index: usize) {
    if let Some(Function { symbol, .. }) = ABSENT_CALLS.count(index) {
        warn!("{symbol} is not supported: it returns CUDA_ERROR_NOT_SUPPORTED");
    }
}
