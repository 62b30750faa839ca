//! Passes over the lowered form: copies of prefilled and single-assignment registers disappear,
//! then what nobody reads.

use super::ir::{Ir, Kind, VReg};

const NONE: VReg = VReg::MAX;

/// Runs all passes.
pub(super) fn optimise(ir: &mut Ir) {
    propagate_fills(ir);
    remove_dead(ir);
}

fn definitions(ir: &Ir) -> Vec<u8> {
    let mut count = vec![0u8; ir.vregs.len()];
    for inst in &ir.insts {
        for &d in ir.dsts(inst) {
            count[d as usize] = count[d as usize].saturating_add(1);
        }
    }
    for &formal in &ir.formals {
        count[formal as usize] = count[formal as usize].saturating_add(1);
    }
    count
}

/// Replaces a register whose only assignment copies a prefilled register or a parameter word that
/// is never written: where the copy has not been executed the register is undefined, so any value
/// will do.
fn propagate_fills(ir: &mut Ir) {
    let count = definitions(ir);
    let mut formal = vec![false; ir.vregs.len()];
    for &word in &ir.formals {
        formal[word as usize] = count[word as usize] == 1;
    }
    let mut replaced = vec![NONE; ir.vregs.len()];
    for inst in &ir.insts {
        if inst.kind != Kind::Copy {
            continue;
        }
        let (d, a) = (ir.dsts(inst)[0], ir.srcs(inst)[0]);
        let a = if replaced[a as usize] == NONE { a } else { replaced[a as usize] };
        if count[d as usize] == 1 && (ir.vregs[a as usize].fill.is_some() || formal[a as usize]) {
            replaced[d as usize] = a;
        }
    }
    for index in 0..ir.insts.len() {
        let inst = ir.insts[index];
        for operand in inst.src_range() {
            let reg = ir.operands[operand] as usize;
            if replaced[reg] != NONE {
                ir.operands[operand] = replaced[reg];
            }
        }
        if let Some(guard) = &mut ir.insts[index].guard
            && replaced[guard.reg as usize] != NONE
        {
            guard.reg = replaced[guard.reg as usize];
        }
    }
}

/// Removes pure instructions whose results nobody reads, transitively.
fn remove_dead(ir: &mut Ir) {
    let mut uses = vec![0u32; ir.vregs.len()];
    for inst in &ir.insts {
        for &s in ir.srcs(inst) {
            uses[s as usize] += 1;
        }
        if let Some(guard) = inst.guard {
            uses[guard.reg as usize] += 1;
        }
    }
    let mut dead = vec![false; ir.insts.len()];
    // Users mostly follow definitions, so one backward sweep finds nearly everything.
    for index in (0..ir.insts.len()).rev() {
        let inst = ir.insts[index];
        if !matches!(inst.kind, Kind::Pure | Kind::Copy)
            || ir.dsts(&inst).iter().any(|&d| uses[d as usize] > 0)
        {
            continue;
        }
        dead[index] = true;
        for &s in ir.srcs(&inst) {
            uses[s as usize] -= 1;
        }
        if let Some(guard) = inst.guard {
            uses[guard.reg as usize] -= 1;
        }
    }
    let mut index = 0;
    ir.insts.retain(|_| {
        index += 1;
        !dead[index - 1]
    });
}
