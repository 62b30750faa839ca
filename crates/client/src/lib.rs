//! The client runtime: the `libcuda.so.1` that a CUDA program loads.
//!
//! Exported functions (`exports`, written by `cuda_abi::build` from `functions.tsv`) jump through
//! one table. `cuInit` makes the one [`choice`](attach::choice): attached to an OpenMPS server, or
//! native, where the table is filled with the functions of the native driver.
//!
//! Attached, an API function ([`entry`]) finds the thread's context
//! ([`current`](thread::current)) and that context's [`backend`](context::backend): the
//! [`session`] with the device's executor, and this process's share of memory on both sides.
//! Handles are tokens ([`handles`]); nothing that a program passes as a handle is ever followed.
//!
//! Host functions of streams run on a thread of this process; work that follows one in its stream
//! is posted when it has returned ([`gates`](stream::gates)), so that posting may wait. Streams
//! that wait for a value in memory are held by the executor, in software.

mod attach;
mod client;
mod code;
mod context;
mod copy;
mod entry;
mod export;
mod graph;
mod handles;
mod log;
mod memory;
mod numbers;
mod recorder;
mod result;
mod session;
mod stream;
#[cfg(test)]
mod tests;
mod thread;
mod two_sided;

use core::sync::atomic::{AtomicBool, Ordering};
use cuda_abi::boundary::AbsentCalls;
use cuda_abi::classes::Library;
use cuda_abi::functions::{FUNCTIONS, Function};
use cuda_abi::record::Record;
use cuda_abi::types::CUresult;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

static ABSENT_CALLS: AbsentCalls = AbsentCalls::new();

static CALLS: Record = Record::new(Library::Client);

/// Whether nobody asked for calls that succeed; false until that is known.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Passes on what a call of an attached program answers. Programs and libraries often keep a
/// failure to themselves: whoever asks for it reads which call it was (`OPENMPS_LOG=debug`), or all
/// calls (`OPENMPS_LOG=trace`).
#[inline(always)]
fn answered(index: usize, result: CUresult) -> CUresult {
    // Relaxed: who reads an old value asks once more.
    if result != CUresult::SUCCESS || !QUIET.load(Ordering::Relaxed) {
        tell(index, result);
    }
    result
}

#[cold]
#[inline(never)]
fn tell(index: usize, result: CUresult) {
    let Some(Function { symbol, .. }) = FUNCTIONS.get(index) else { return };
    let name = result.name().map_or("an unknown code".into(), |name| name.to_string_lossy());
    match result {
        // Not ready is an answer, not a failure.
        CUresult::SUCCESS | CUresult::ERROR_NOT_READY => trace!("{symbol} returns {name}"),
        _ => debug!("{symbol} returns {name}"),
    }
    // What is answered before the choice, or by the native driver, is no work of ours.
    if result == CUresult::SUCCESS
        && matches!(crate::attach::choice::made(), Some(crate::attach::choice::Choice::Attached(_)))
    {
        CALLS.success(index);
        // Relaxed: the flag orders nothing.
        QUIET.store(CALLS.is_off() && !log::enabled(log::Level::Trace), Ordering::Relaxed);
    }
}

/// Counts a call of a function that we do not have.
fn absent(index: usize) {
    if let Some(Function { symbol, .. }) = ABSENT_CALLS.count(index) {
        warn!("{symbol} is not supported: it returns CUDA_ERROR_NOT_SUPPORTED");
    }
}
