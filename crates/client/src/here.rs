//! What nearly every call asks of its thread, in one place without a destructor: what has one is slower to reach.
//!
//! The pointers are borrowed from thread-locals that own what they point to ([`crate::current`], [`crate::remembered`]), and are null
//! before those have anything and when they have ended.

use crate::context::Context;
use crate::remembered::Remembered;
use std::cell::Cell;
use std::ptr;

/// See the module's description.
pub(crate) struct Here {
    /// Whether a host function of a stream runs.
    pub(crate) in_callback: Cell<bool>,
    /// The current context: the top of the thread's stack, which holds a reference to it.
    pub(crate) top: Cell<*const Context>,
    /// What the thread looked up last.
    pub(crate) remembered: Cell<*const Remembered>,
}

thread_local! {
    static HERE: Here = const {
        Here {
            in_callback: Cell::new(false),
            top: Cell::new(ptr::null()),
            remembered: Cell::new(ptr::null()),
        }
    };
}

/// Uses the calling thread's.
#[inline(always)]
pub(crate) fn here<T>(body: impl FnOnce(&Here) -> T) -> T {
    HERE.with(body)
}
