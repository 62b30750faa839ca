//! softcuda: a CUDA driver that executes PTX on the CPU.
//!
//! `ptx` reads PTX text, `exec` runs it, `device` is the software GPU (memory, streams, SMs) and
//! `api` its C ABI.

mod api;
mod device;
pub mod exec;
pub mod ptx;

use cuda_abi::classes::Library;
use cuda_abi::record::Record;
use cuda_abi::types::CUresult;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// What a server knows this driver by: it runs PTX and no machine code.
#[unsafe(no_mangle)]
pub extern "C" fn openmps_software_gpu() -> u32 {
    1
}

static CALLS: Record = Record::new(Library::Software);

/// Passes on what a function answers.
#[inline(always)]
fn answered(index: usize, result: CUresult) -> CUresult {
    if result == CUresult::SUCCESS && !CALLS.is_off() {
        CALLS.success(index);
    }
    result
}

/// Counts a call of a function that is not there; the first of each is named in the log.
fn absent(index: usize) {
    static CALLS: cuda_abi::boundary::AbsentCalls = cuda_abi::boundary::AbsentCalls::new();
    if let Some(function) = CALLS.count(index)
        && std::env::var("OPENMPS_SOFT_LOG").is_ok_and(|level| level == "info")
    {
        device::fault::write_line(&format!("softcuda: {} is not supported", function.symbol));
    }
}
