//! What exported functions need at run time: a stop for panics, the meaning of no stream, a count
//! of absent functions.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::functions::{DefaultStream, FUNCTION_COUNT, FUNCTIONS, Function};
use crate::types::CUresult;

/// Runs `body`; a panic becomes `CUDA_ERROR_UNKNOWN` instead of crossing the C ABI.
#[inline]
pub fn guard(body: impl FnOnce() -> CUresult) -> CUresult {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(CUresult::ERROR_UNKNOWN)
}

thread_local! {
    static DEFAULT_STREAM: Cell<DefaultStream> = const { Cell::new(DefaultStream::Legacy) };
}

/// Which stream a function without stream parameter works in, in the call that this thread is in:
/// per-thread within a `_ptds` variant. Synchronous copies and fills ask for it.
pub fn default_stream() -> DefaultStream {
    // While the thread ends there may be no value any more; legacy order is right then, too.
    DEFAULT_STREAM.try_with(Cell::get).unwrap_or(DefaultStream::Legacy)
}

/// As [`guard`], with [`default_stream`] per-thread meanwhile.
pub fn guard_per_thread(body: impl FnOnce() -> CUresult) -> CUresult {
    let set = |stream| _ = DEFAULT_STREAM.try_with(|cell| cell.set(stream));
    set(DefaultStream::PerThread);
    let result = guard(body);
    set(DefaultStream::Legacy);
    result
}

/// How often programs called functions that are absent, one counter per function.
pub struct AbsentCalls([AtomicU64; FUNCTION_COUNT]);

impl Default for AbsentCalls {
    fn default() -> Self {
        Self::new()
    }
}

impl AbsentCalls {
    /// All counters at zero.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; FUNCTION_COUNT])
    }

    /// Counts a call of the function at `index` of [`FUNCTIONS`]; returns the function on its first
    /// call, when it should be logged.
    pub fn count(&self, index: usize) -> Option<&'static Function> {
        // Relaxed: a statistic that orders nothing else.
        let before = self.0.get(index)?.fetch_add(1, Ordering::Relaxed);
        (before == 0).then(|| &FUNCTIONS[index])
    }

    /// The functions that were called, each with its number of calls.
    pub fn called(&self) -> impl Iterator<Item = (&'static Function, u64)> {
        // Relaxed: as above.
        let counts = self.0.iter().map(|counter| counter.load(Ordering::Relaxed));
        FUNCTIONS.iter().zip(counts).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_code() {
        assert_eq!(guard(|| CUresult::ERROR_NOT_FOUND), CUresult::ERROR_NOT_FOUND);
        assert_eq!(guard(|| panic!("on purpose")), CUresult::ERROR_UNKNOWN);
    }

    #[test]
    fn the_default_stream_is_per_thread_within_the_call_alone() {
        assert_eq!(default_stream(), DefaultStream::Legacy);
        let inside = guard_per_thread(|| {
            assert_eq!(default_stream(), DefaultStream::PerThread);
            panic!("on purpose")
        });
        assert_eq!(inside, CUresult::ERROR_UNKNOWN);
        assert_eq!(default_stream(), DefaultStream::Legacy);
    }

    #[test]
    fn absent_calls_are_told_once_and_counted_always() {
        let calls = AbsentCalls::new();
        assert_eq!(calls.count(3).map(|f| f.symbol), Some(FUNCTIONS[3].symbol));
        assert!(calls.count(3).is_none());
        assert!(calls.count(FUNCTION_COUNT).is_none());
        let called: Vec<_> = calls.called().map(|(f, n)| (f.symbol, n)).collect();
        assert_eq!(called, [(FUNCTIONS[3].symbol, 2)]);
    }
}
