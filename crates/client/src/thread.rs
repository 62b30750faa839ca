//! Threads: the library's own, and what it keeps for each of the program's.
//!
//! The library's own take no signals: those belong to the program's own threads, whose handlers
//! must not run here.

pub(crate) mod callback;
pub(crate) mod current;
pub(crate) mod here;
pub(crate) mod remembered;
pub(crate) mod thread_end;

use core::mem::MaybeUninit;

/// Starts a thread on which all signals are blocked.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(256 * 1024);
    without_signals(|| thread.spawn(body)).map(drop)
}

/// Does what starts a thread with all signals blocked, as the new thread inherits it.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid places to write to; the mask is put back below.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = start();
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    started
}
