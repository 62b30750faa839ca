//! Handlers of control flow: each says what the interpreter shall do.

use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::FaultKind;
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;

macro_rules! flow_handlers {
    ($($(#[$m:meta])* $name:ident => $flow:ident;)*) => {$(
        $(#[$m])*
        pub(in crate::exec) struct $name;
        impl Body for $name {
            #[inline(always)]
            unsafe fn run<V: Vectors>(_: &mut Context<'_>, _: &Ins, _: Frame, _: u32) -> Flow {
                Flow::$flow
            }
        }
    )*};
}

flow_handlers! {
    /// `bra`
    Jump => Jump;
    /// `brx.idx`
    JumpIndexed => JumpIndexed;
    /// `ret`
    Return => Return;
    /// `exit`
    Exit => Exit;
    /// `call` of a known function
    Call => Call;
    /// `call` through a register
    CallIndirect => CallIndirect;
    /// `bar`, `barrier`
    Barrier => Barrier;
    /// `nanosleep`, `yield`
    Pause => Pause;
    /// Nothing: directives that order what is ordered anyway.
    Nothing => Next;
}

/// `trap`
pub(in crate::exec) struct Trap;

impl Body for Trap {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, _: &Ins, _: Frame, mask: u32) -> Flow {
        cx.raise(FaultKind::Trap, mask.trailing_zeros(), "");
        Flow::Fault
    }
}

/// `fence`, `membar` and the fences of acquire, release and volatile accesses.
pub(in crate::exec) struct Fence;

impl Body for Fence {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, _: &Ins, _: Frame, _: u32) -> Flow {
        // Pairs with the fences and atomics of other blocks' workers.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Flow::Next
    }
}

/// The ordering part of acquire and release accesses.
pub(in crate::exec) struct LightFence;

impl Body for LightFence {
    #[inline(always)]
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, _: &Ins, _: Frame, _: u32) -> Flow {
        // Pairs with the fences and atomics of other blocks' workers.
        std::sync::atomic::fence(std::sync::atomic::Ordering::AcqRel);
        Flow::Next
    }
}
