//! The interpreter's inner loop: runs one fragment until something happens that concerns others.

use super::code::{Flow, Frame, Function};
use super::context::Context;

/// Why the inner loop stopped. The program counter that comes with it is that of the instruction
/// meant, except for `Fuel` and `Join`, where it is the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The fuel is spent.
    Fuel,
    /// A block that several paths reach starts here (only while the warp has several fragments).
    Join,
    /// Some lanes branch, some do not.
    Diverge(u32),
    /// An instruction needs the scheduler, for these lanes.
    Flow(Flow, u32),
}

/// Whether other fragments of the warp exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    Alone,
    Others,
}

/// Runs `mask` from `pc` in `frame` of `function`. Returns the event, the program counter and the
/// backward branches taken; `fuel` is what remains.
///
/// # Safety
/// `frame` is a filled frame of `function`, `pc` inside its code, and `cx` describes the warp.
pub(super) unsafe fn execute(
    cx: &mut Context<'_>,
    function: &Function,
    frame: Frame,
    mask: u32,
    pc: u32,
    fuel: &mut u64,
    company: Company,
) -> (Event, u32, u32) {
    let code = function.ins.as_ptr();
    cx.extras = function.extras.as_ptr();
    cx.active = mask;
    let start_executed = cx.executed;
    let start_fuel = *fuel;
    let mut left = start_fuel;
    let mut pc = pc as usize;
    let mut spins = 0;
    let result = loop {
        if left == 0 {
            break (Event::Fuel, pc);
        }
        left -= 1;
        // SAFETY: `pc` stays inside the code: branches lead to labels in it and the last
        // instruction never falls through.
        let ins = unsafe { &*code.add(pc) };
        // SAFETY: offset of a predicate, by the emitter.
        let lanes = mask & (unsafe { frame.predicate(ins.guard) } ^ ins.guard_xor);
        if lanes == 0 {
            pc += 1;
        } else {
            cx.executed = start_executed + (start_fuel - left);
            // SAFETY: the handler's contract is this function's.
            match unsafe { (ins.run)(cx, ins, frame, lanes) } {
                Flow::Next => pc += 1,
                Flow::Jump if lanes == mask => {
                    let target = ins.imm as usize;
                    spins += u32::from(target <= pc);
                    pc = target;
                }
                Flow::Jump => break (Event::Diverge(lanes), pc),
                flow => break (Event::Flow(flow, lanes), pc),
            }
        }
        if company == Company::Others && function.joins[pc] {
            break (Event::Join, pc);
        }
    };
    cx.executed = start_executed + (start_fuel - left);
    *fuel = left;
    (result.0, result.1 as u32, spins)
}
