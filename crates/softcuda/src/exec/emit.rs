//! From lowered form to executable code: frame layout, operand offsets, branch targets.

use super::assign::{Slots, assign};
use super::code::{Fill, Function, Ins, Width};
use super::ir::{Ir, Kind, VReg};
use super::optimise::optimise;

/// Largest frame, bytes.
const FRAME_LIMIT: u64 = 64 << 20;

/// Frame offset of the always-true predicate.
pub(super) const TRUE: u32 = 0;

struct Layout {
    offset: Vec<u32>,
    fills: Vec<Fill>,
    bytes: u32,
}

/// Optimises `ir` and makes it executable. The error is a reason for refusal.
pub(super) fn emit(mut ir: Ir) -> Result<Function, String> {
    optimise(&mut ir);
    let slots = assign(&ir);
    let layout = layout(&ir, &slots)?;
    let mut target_of = vec![0u32; ir.labels as usize];
    let mut count = 0u32;
    for inst in &ir.insts {
        match inst.kind {
            Kind::Label(label) => target_of[label as usize] = count,
            _ => count += 1,
        }
    }
    let mut joins = vec![false; count as usize + 1];
    let mut code = Vec::with_capacity(count as usize);
    let mut lines = Vec::with_capacity(count as usize);
    let mut extras = Vec::new();
    for inst in &ir.insts {
        let imm = match inst.kind {
            Kind::Label(_) => continue,
            Kind::Branch(label) => {
                joins[target_of[label as usize] as usize] = true;
                i64::from(target_of[label as usize])
            }
            _ => inst.imm,
        };
        let at = |reg: &VReg| layout.offset[*reg as usize];
        let (dsts, srcs) = (ir.dsts(inst), ir.srcs(inst));
        let mut e = 0;
        if dsts.len() > 1 || srcs.len() > 3 {
            e = extras.len() as u32;
            extras.extend(dsts.iter().chain(srcs).map(at));
        }
        let source = |index: usize| srcs.get(index).map_or(TRUE, at);
        code.push(Ins {
            run: inst.run,
            guard: inst.guard.map_or(TRUE, |guard| at(&guard.reg)),
            guard_xor: if inst.guard.is_some_and(|guard| guard.negated) { u32::MAX } else { 0 },
            d: dsts.first().map_or(TRUE, at),
            a: source(0),
            b: source(1),
            c: source(2),
            imm,
            x: if let Kind::Indexed(table) = inst.kind { table } else { inst.x },
            e,
        });
        lines.push(inst.line);
    }
    let mut tables = Vec::with_capacity(ir.tables.len());
    for table in &ir.tables {
        let targets: Box<[u32]> = table.iter().map(|&label| target_of[label as usize]).collect();
        for &target in &targets {
            joins[target as usize] = true;
        }
        tables.push(targets);
    }
    let block_fills = layout.fills.partition_point(|fill| fill.value.is_per_block());
    Ok(Function {
        name: ir.name,
        ins: code.into(),
        lines: lines.into(),
        joins: joins.into(),
        extras: extras.into(),
        tables,
        frame_bytes: layout.bytes,
        fills: layout.fills,
        block_fills,
        formals: ir.formals.iter().map(|&reg| layout.offset[reg as usize]).collect(),
        local_bytes: ir.local_bytes,
        waits: ir.waits,
        refused: None,
    })
}

fn layout(ir: &Ir, slots: &Slots) -> Result<Layout, String> {
    let mut used = vec![false; ir.vregs.len()];
    for inst in &ir.insts {
        for &reg in ir.srcs(inst).iter().chain(inst.guard.map(|g| g.reg).iter()) {
            used[reg as usize] = true;
        }
    }
    let fill_predicates = ir
        .vregs
        .iter()
        .zip(&used)
        .filter(|(v, u)| **u && v.fill.is_some() && v.width == Width::Pred);
    let predicates = 1 + u64::from(slots.predicates) + fill_predicates.count() as u64;
    let words = (predicates * 4).next_multiple_of(128);
    let doubles = words + u64::from(slots.words) * 128;
    let mut next = doubles + u64::from(slots.doubles) * 256;
    let mut next_predicate = 4 + slots.predicates * 4;
    let mut offset = vec![0u32; ir.vregs.len()];
    let mut fills = Vec::new();
    for (reg, info) in ir.vregs.iter().enumerate() {
        if next > FRAME_LIMIT {
            return Err(format!("it needs more than {FRAME_LIMIT} bytes of registers per warp"));
        }
        let slot = slots.slot[reg];
        offset[reg] = match (info.fill, info.width) {
            (None, Width::Pred) => 4 + slot * 4,
            (None, Width::W32) => words as u32 + slot * 128,
            (None, Width::W64) => doubles as u32 + slot * 256,
            (Some(_), _) if !used[reg] => continue,
            (Some(_), Width::Pred) => {
                next_predicate += 4;
                next_predicate - 4
            }
            (Some(_), width) => {
                let at = next as u32;
                next += if width == Width::W64 { 256 } else { 128 };
                at
            }
        };
        if let Some(value) = info.fill {
            fills.push(Fill { offset: offset[reg], width: info.width, value });
        }
    }
    fills.sort_by_key(|fill| !fill.value.is_per_block());
    Ok(Layout { offset, fills, bytes: next.next_multiple_of(128) as u32 })
}
