//! The end of a thread: when what this library keeps for it goes.
//!
//! Thread-locals with destructors would go too early: the program's own thread-locals that are
//! older end later, and so do, in the thread that calls `exit`, all of its exit handlers. They call
//! CUDA, and NVIDIA's driver (580, H200) still has the current context then, also in exit handlers
//! younger than `cuInit`. Keys of pthreads end after all thread-locals, and not at all when the
//! process does.

use crate::thread::here::here;
use crate::thread::remembered;
use core::ffi::c_void;
use cuda_abi::boundary::guard;
use cuda_abi::types::CUresult;
use std::sync::OnceLock;

/// What is known of a thread's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum End {
    /// Nobody has asked to hear of it.
    #[allow(dead_code, reason = "zeros mean it where a thread's state begins as zeros")]
    Unwatched = 0,
    /// It will be heard of.
    Watched,
    /// It is here: nothing may be kept any more.
    Reached,
}

/// What ends with a thread besides what it remembers. Others know of that, above this module.
pub(crate) struct Endings {
    /// Whether the end is passed over: the child of a fork must not speak for its parent, as the
    /// end of some things does.
    pub(crate) is_passed_over: fn() -> bool,
    /// Done while things may still be looked up.
    pub(crate) first: fn(),
    /// Done when nothing is remembered any more.
    pub(crate) last: fn(),
}

/// Those of the process, once a thread keeps something that they are for.
static ENDINGS: OnceLock<&Endings> = OnceLock::new();

/// Values of the key: others' keys may end after ours in a round, so that the last round but one is
/// soon enough.
const FIRST_ROUND: usize = 1;
const LAST_ROUND: usize = 3;

/// Says whether the calling thread may keep things for itself, and hears of its end if it does.
pub(crate) fn may_keep() -> bool {
    match here(|here| here.end.get()) {
        End::Watched => true,
        End::Reached => false,
        End::Unwatched => {
            // Where there are no more keys, what the thread keeps outlives it.
            if let Some(key) = key() {
                set(key, FIRST_ROUND);
            }
            here(|here| here.end.set(End::Watched));
            true
        }
    }
}

/// The same for those whose things have `endings`.
pub(crate) fn may_keep_with(endings: &'static Endings) -> bool {
    ENDINGS.get_or_init(|| endings);
    may_keep()
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
        _ if ENDINGS.get().is_some_and(|endings| (endings.is_passed_over)()) => {}
        _ => _ = guard(end_all),
    }
}

fn end_all() -> CUresult {
    let endings = ENDINGS.get();
    if let Some(endings) = endings {
        (endings.first)();
    }
    here(|here| here.end.set(End::Reached));
    remembered::end();
    if let Some(endings) = endings {
        (endings.last)();
    }
    CUresult::SUCCESS
}
