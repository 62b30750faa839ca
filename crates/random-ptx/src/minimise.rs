//! Smaller programs with the same fault.

use crate::program::{Action, Guard, Instruction, Label, Program};

/// Drops instructions, functions' instructions, guards, blocks and threads as long as `fails` says
/// that the fault is still there.
pub fn minimise(program: &Program, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    loop {
        let before = best.instructions();
        for body in 0..=best.functions.len() {
            drop_instructions(&mut best, body, &mut fails);
            drop_guards(&mut best, body, &mut fails);
        }
        if best.instructions() == before {
            return best;
        }
    }
}

/// Body 0 is the kernel's.
fn body_of(program: &mut Program, body: usize) -> &mut Vec<Instruction> {
    if body == 0 { &mut program.body } else { &mut program.functions[body - 1].body }
}

fn drop_instructions(best: &mut Program, body: usize, fails: &mut impl FnMut(&Program) -> bool) {
    let mut length = body_of(best, body).len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        while at < body_of(best, body).len() {
            let mut trial = best.clone();
            let code = body_of(&mut trial, body);
            let end = (at + length).min(code.len());
            let before = code.len();
            let mut index = 0;
            let used = targets(code);
            code.retain(|instruction| {
                let inside = (at..end).contains(&index);
                index += 1;
                !inside
                    || matches!(&instruction.action, Action::Mark(label) if used.contains(label))
            });
            if code.len() < before && fails(&trial) {
                *best = trial;
            } else {
                at += length;
            }
        }
        if length == 1 {
            return;
        }
        length /= 2;
    }
}

/// Labels that something jumps to.
fn targets(code: &[Instruction]) -> Vec<Label> {
    let of = |instruction: &Instruction| match &instruction.action {
        Action::Jump(label) => vec![*label],
        Action::Switch { targets, .. } => targets.clone(),
        _ => Vec::new(),
    };
    code.iter().flat_map(of).collect()
}

fn drop_guards(best: &mut Program, body: usize, fails: &mut impl FnMut(&Program) -> bool) {
    for at in 0..body_of(best, body).len() {
        let guard: Option<Guard> = body_of(best, body)[at].guard;
        let jump = matches!(body_of(best, body)[at].action, Action::Jump(_) | Action::Return);
        if guard.is_none() || jump {
            continue;
        }
        let mut trial = best.clone();
        body_of(&mut trial, body)[at].guard = None;
        if fails(&trial) {
            *best = trial;
        }
    }
}
