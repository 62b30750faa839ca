//! `mbarrier` objects: 64 bits in shared memory, changed with host atomics.
//!
//! Layout, ours alone (PTX leaves it opaque): bits 0-19 arrivals pending, 20-39 arrivals expected
//! in each phase, 40-62 transaction bytes outstanding (signed), 63 phase parity.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::address::{Generic, Space};
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::Access;
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;

const COUNT: u64 = (1 << 20) - 1;

/// Operations, in `ins.x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::exec) enum BarrierObjectOp {
    /// `init [a], b`
    Init,
    /// `inval [a]`
    Invalidate,
    /// `arrive d, [a], b`
    Arrive,
    /// `arrive_drop d, [a], b`
    ArriveDrop,
    /// `expect_tx [a], b`
    ExpectTx,
    /// `complete_tx [a], b`
    CompleteTx,
    /// `arrive.expect_tx d, [a], b`
    ArriveExpectTx,
    /// `test_wait`, `try_wait d, [a], state`
    TestState,
    /// `test_wait.parity`, `try_wait.parity d, [a], parity`
    TestParity,
}

const OPS: [BarrierObjectOp; 9] = [
    BarrierObjectOp::Init,
    BarrierObjectOp::Invalidate,
    BarrierObjectOp::Arrive,
    BarrierObjectOp::ArriveDrop,
    BarrierObjectOp::ExpectTx,
    BarrierObjectOp::CompleteTx,
    BarrierObjectOp::ArriveExpectTx,
    BarrierObjectOp::TestState,
    BarrierObjectOp::TestParity,
];

/// `ins.x` flag: there is a destination.
pub(in crate::exec) const WITH_RESULT: u32 = 1 << 8;

struct State {
    pending: u64,
    expected: u64,
    bytes: i64,
    parity: u64,
}

impl State {
    fn decode(bits: u64) -> Self {
        Self {
            pending: bits & COUNT,
            expected: bits >> 20 & COUNT,
            bytes: ((bits << 1) as i64) >> 41,
            parity: bits >> 63,
        }
    }

    fn encode(&self) -> u64 {
        self.pending
            | self.expected << 20
            | (self.bytes as u64 & ((1 << 23) - 1)) << 40
            | self.parity << 63
    }

    /// Ends the phase when everything has arrived.
    fn settle(mut self) -> Self {
        if self.pending == 0 && self.bytes == 0 {
            self.pending = self.expected;
            self.parity ^= 1;
        }
        self
    }
}

/// Changes the object at `p`; returns its old bits.
///
/// # Safety
/// `p` is 8 valid, aligned bytes.
unsafe fn update(p: *mut u8, change: impl Fn(&mut State)) -> u64 {
    // SAFETY: by the caller's contract. Pairs with other blocks' updates of the object.
    let cell = unsafe { AtomicU64::from_ptr(p.cast()) };
    let mut old = cell.load(SeqCst);
    loop {
        let mut state = State::decode(old);
        change(&mut state);
        match cell.compare_exchange_weak(old, state.settle().encode(), SeqCst, SeqCst) {
            Ok(old) => return old,
            Err(now) => old = now,
        }
    }
}

/// Subtracts `bytes` from what the object at generic address `addr` waits for.
pub(super) fn complete_bytes(
    cx: &mut Context<'_>,
    ins: &Ins,
    addr: u64,
    lane: u32,
    bytes: i64,
) -> bool {
    match Generic::lane(cx, ins, addr, lane, 8, Access::Atomic) {
        // SAFETY: checked for 8 aligned bytes.
        Some(p) => unsafe {
            update(p, |s| s.bytes -= bytes);
            true
        },
        None => false,
    }
}

/// All `mbarrier` operations: sources generic address, then a 32-bit count or 64-bit state.
pub(in crate::exec) struct BarrierObject;

impl Body for BarrierObject {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let op = OPS[(ins.x & 0xff) as usize % OPS.len()];
        let mut all_true = true;
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let at = lane as usize;
            // SAFETY: operands by the emitter; the pointer is checked by the space.
            unsafe {
                let addr = (*frame.at::<u64>(ins.a).add(at)).wrapping_add_signed(ins.imm);
                let Some(p) = Generic::lane(cx, ins, addr, lane, 8, Access::Atomic) else {
                    return Flow::Fault;
                };
                let count = || u64::from(*frame.at::<u32>(ins.b).add(at));
                let arrivals = |s: &mut State, n: u64| s.pending = s.pending.saturating_sub(n);
                let old = match op {
                    BarrierObjectOp::Init => {
                        let n = count() & COUNT;
                        let state = State { pending: n, expected: n, bytes: 0, parity: 0 };
                        AtomicU64::from_ptr(p.cast()).store(state.encode(), SeqCst);
                        continue;
                    }
                    BarrierObjectOp::Invalidate => continue,
                    BarrierObjectOp::Arrive => update(p, |s| arrivals(s, count())),
                    BarrierObjectOp::ArriveDrop => update(p, |s| {
                        s.expected = s.expected.saturating_sub(count());
                        arrivals(s, count());
                    }),
                    BarrierObjectOp::ExpectTx => {
                        // The arrival that belongs to the bytes is still to come: the phase cannot
                        // end here.
                        update(p, |s| s.bytes += count() as i64)
                    }
                    BarrierObjectOp::CompleteTx => update(p, |s| s.bytes -= count() as i64),
                    BarrierObjectOp::ArriveExpectTx => update(p, |s| {
                        s.bytes += count() as i64;
                        arrivals(s, 1);
                    }),
                    BarrierObjectOp::TestState | BarrierObjectOp::TestParity => {
                        let now = State::decode(AtomicU64::from_ptr(p.cast()).load(SeqCst)).parity;
                        let then = if op == BarrierObjectOp::TestState {
                            *frame.at::<u64>(ins.b).add(at) >> 63
                        } else {
                            count() & 1
                        };
                        let done = now != then;
                        all_true &= done;
                        frame.set_predicate(ins.d, if done { u32::MAX } else { 0 }, 1 << lane);
                        continue;
                    }
                };
                if ins.x & WITH_RESULT != 0 {
                    *frame.at::<u64>(ins.d).add(at) = old;
                }
            }
        }
        // Who waits lets others run.
        if all_true { Flow::Next } else { Flow::Pause }
    }
}

/// `mbarrier.pending_count d, state`
pub(in crate::exec) struct PendingCount;

impl Body for PendingCount {
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            // SAFETY: operands by the emitter.
            unsafe {
                *frame.at::<u32>(ins.d).add(lane) =
                    (*frame.at::<u64>(ins.a).add(lane) & COUNT) as u32
            };
        }
        Flow::Next
    }
}
