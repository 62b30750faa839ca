//! Each thread's stack of contexts.
//!
//! It has no destructor of its own: those of the program's older thread-locals, and, in the thread
//! that calls `exit`, its exit handlers, call CUDA later, and NVIDIA's driver (580, H200) still has
//! the current context then. A pthread key frees it after all of them.

use core::ffi::c_void;
use cuda_abi::types::CUcontext;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

thread_local! {
    /// Handles of the thread's contexts, current last.
    static STACK: ManuallyDrop<RefCell<Vec<CUcontext>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    /// Whether the key will free it.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Values of the key: others' keys may end after ours in a round, and call CUDA.
const FIRST_ROUND: usize = 1;
const LAST_ROUND: usize = 3;

/// The current context's handle, or NULL.
pub(crate) fn current_handle() -> CUcontext {
    STACK.with(|stack| stack.borrow().last().copied()).unwrap_or_default()
}

/// Changes the thread's context stack.
pub(crate) fn with_stack<T>(change: impl FnOnce(&mut Vec<CUcontext>) -> T) -> T {
    if !IS_WATCHED.replace(true)
        && let Some(key) = key()
    {
        // Where there are no more keys, the stack outlives its thread.
        set(key, FIRST_ROUND);
    }
    STACK.with(|stack| change(&mut stack.borrow_mut()))
}

fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: a place to write to, and a function that stays: the library is never unloaded.
        let status = unsafe { libc::pthread_key_create(&mut key, Some(end)) };
        (status == 0).then_some(key)
    })
}

fn set(key: libc::pthread_key_t, round: usize) {
    // SAFETY: our own key. What cannot be set outlives the thread.
    unsafe { libc::pthread_setspecific(key, round as *const c_void) };
}

extern "C" fn end(round: *mut c_void) {
    let round = round as usize;
    match key() {
        Some(key) if round < LAST_ROUND => set(key, round + 1),
        _ => drop(
            STACK.with(|stack| stack.try_borrow_mut().map(|mut stack| std::mem::take(&mut *stack))),
        ),
    }
}
