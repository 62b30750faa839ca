//! What each thread may do while streams are captured.

use std::cell::Cell;

use cuda_abi::types::CUstreamCaptureMode;

thread_local! {
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CUstreamCaptureMode::GLOBAL) };
}

/// What the calling thread may do.
pub(super) fn current() -> CUstreamCaptureMode {
    // A thread that is ending has no mode left.
    MODE.try_with(Cell::get).unwrap_or(CUstreamCaptureMode::RELAXED)
}

/// Sets what the calling thread may do, and returns what it was before.
pub(super) fn replace(mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    MODE.replace(mode)
}
