//! What nearly every call asks of its thread, in one place without a destructor: what has one is
//! slower to reach.
//!
//! The pointers are null before there is anything, and when the thread has ended
//! ([`crate::thread::thread_end`]).
//!
//! # How the place is found
//! Rust gives a shared library's thread-locals the general dynamic model on x86-64: a call of
//! `__tls_get_addr`, which takes about as long as the rest of a short driver call. TLS descriptors
//! (psABI, *TLS Descriptors*; the C compilers' `-mtls-dialect=gnu2`) come down to three
//! instructions where the loader found room in the static TLS block, and to the same as before
//! where it did not. Other architectures have them anyway.

use crate::context::Context;
use crate::thread::remembered::Remembered;
use crate::thread::thread_end::End;
use cuda_abi::types::CUstreamCaptureMode;
use std::cell::Cell;

/// See the module's description. All zeros before its first use, which means: nothing.
#[repr(C)]
pub(crate) struct Here {
    /// The current context: the top of the thread's stack, which holds a reference to it.
    pub(crate) top: Cell<*const Context>,
    /// What the thread looked up last; from `Box::into_raw`.
    pub(crate) remembered: Cell<*mut Remembered>,
    /// Whether a host function of a stream runs.
    pub(crate) in_callback: Cell<bool>,
    /// What the thread may do while captures are going on; 0 is global.
    pub(crate) capture_mode: Cell<CUstreamCaptureMode>,
    /// Whether the thread is ending; 0 is [`End::Unwatched`].
    pub(crate) end: Cell<End>,
}

/// Uses the calling thread's.
#[inline(always)]
pub(crate) fn here<T>(body: impl FnOnce(&Here) -> T) -> T {
    place::with(body)
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod place {
    use super::Here;

    const SIZE_BYTES: usize = size_of::<Here>();
    const _: () = assert!(align_of::<Here>() <= 16);

    core::arch::global_asm!(
        ".pushsection .tbss.openmps_here, \"awT\", @nobits",
        ".balign 16",
        ".hidden openmps_here",
        ".globl openmps_here",
        ".type openmps_here, @object",
        ".size openmps_here, {size}",
        "openmps_here:",
        ".zero {size}",
        ".popsection",
        size = const SIZE_BYTES,
    );

    #[inline(always)]
    pub(crate) fn with<T>(body: impl FnOnce(&Here) -> T) -> T {
        let here: *const Here;
        // SAFETY: the sequence that the psABI prescribes for `openmps_here`, defined above. It
        // keeps all registers but `rax`; vector registers are given up nevertheless, as glibc
        // before 2.40 did not keep them where it had to allocate the thread's block.
        unsafe {
            core::arch::asm!(
                "leaq openmps_here@tlsdesc(%rip), %rax",
                "call *openmps_here@tlscall(%rax)",
                "addq %fs:0, %rax",
                out("rax") here,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(att_syntax, pure, nomem),
            );
            // SAFETY: this thread's `Here`, zeros at first, which is a valid one; there until the
            // thread has ended, and no other thread's.
            body(&*here)
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
mod place {
    use super::{CUstreamCaptureMode, End, Here};
    use std::cell::Cell;
    use std::ptr;

    thread_local! {
        static HERE: Here = const {
            Here {
                top: Cell::new(ptr::null()),
                remembered: Cell::new(ptr::null_mut()),
                in_callback: Cell::new(false),
                capture_mode: Cell::new(CUstreamCaptureMode::GLOBAL),
                end: Cell::new(End::Unwatched),
            }
        };
    }

    #[inline(always)]
    pub(crate) fn with<T>(body: impl FnOnce(&Here) -> T) -> T {
        HERE.with(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_and_it_is_empty_at_first() {
        let is_empty = || {
            here(|here| {
                here.top.get().is_null()
                    && here.remembered.get().is_null()
                    && !here.in_callback.get()
                    && here.capture_mode.get() == CUstreamCaptureMode::GLOBAL
                    && here.end.get() == End::Unwatched
            })
        };
        let place = || here(|here| std::ptr::from_ref(here).addr());
        std::thread::spawn(move || {
            assert!(is_empty());
            here(|here| here.in_callback.set(true));
            assert!(!is_empty());
            assert_eq!(place(), place());
            let others = std::thread::spawn(move || (is_empty(), place())).join().unwrap();
            assert!(others.0);
            assert_ne!(others.1, place());
        })
        .join()
        .unwrap();
    }
}
