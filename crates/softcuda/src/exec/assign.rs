//! Register assignment: virtual registers that are never live together share a slot, so that a
//! frame stays in the cache.
//!
//! A warp's lanes may be in different places at once, but a slot is shared only among registers of
//! one width, and lane by lane: each lane sees what a scalar machine would. So ordinary liveness
//! over the control-flow graph is enough.

use super::code::Width;
use super::ir::{Ir, Kind, VReg};

/// Above this many bits of liveness sets, every register gets a slot of its own.
const SET_LIMIT_BITS: u64 = 1 << 30;

/// Slot numbers of all virtual registers, counted per width; prefilled registers have none.
pub(super) struct Slots {
    pub(super) slot: Vec<u32>,
    pub(super) predicates: u32,
    pub(super) words: u32,
    pub(super) doubles: u32,
}

struct Block {
    start: usize,
    end: usize,
    next: Vec<usize>,
}

/// Assigns slots.
pub(super) fn assign(ir: &Ir) -> Slots {
    let blocks = blocks(ir);
    let intervals = if blocks.len() as u64 * ir.vregs.len() as u64 > SET_LIMIT_BITS {
        vec![Some((0, u32::MAX)); ir.vregs.len()]
    } else {
        intervals(ir, &blocks)
    };
    scan(ir, &intervals)
}

fn blocks(ir: &Ir) -> Vec<Block> {
    let mut block_of_label = vec![0usize; ir.labels as usize];
    let mut blocks: Vec<Block> = Vec::new();
    let mut fresh = true;
    for (index, inst) in ir.insts.iter().enumerate() {
        if fresh || matches!(inst.kind, Kind::Label(_)) {
            blocks.push(Block { start: index, end: index, next: Vec::new() });
        }
        let current = blocks.len() - 1;
        blocks[current].end = index + 1;
        if let Kind::Label(label) = inst.kind {
            block_of_label[label as usize] = current;
        }
        fresh = matches!(inst.kind, Kind::Branch(_) | Kind::Indexed(_) | Kind::End);
    }
    for current in 0..blocks.len() {
        let last = ir.insts[blocks[current].end - 1];
        let mut next = Vec::new();
        match last.kind {
            Kind::Branch(label) => next.push(block_of_label[label as usize]),
            Kind::Indexed(table) => {
                next.extend(
                    ir.tables[table as usize].iter().map(|&label| block_of_label[label as usize]),
                );
            }
            _ => {}
        }
        let falls = !matches!(last.kind, Kind::Branch(_) | Kind::Indexed(_) | Kind::End)
            || last.guard.is_some();
        if falls && current + 1 < blocks.len() {
            next.push(current + 1);
        }
        blocks[current].next = next;
    }
    blocks
}

/// A set of registers.
#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn insert(&mut self, reg: VReg) {
        self.0[reg as usize / 64] |= 1 << (reg % 64);
    }

    fn contains(&self, reg: VReg) -> bool {
        self.0[reg as usize / 64] >> (reg % 64) & 1 != 0
    }

    fn each(&self, mut f: impl FnMut(VReg)) {
        for (index, &word) in self.0.iter().enumerate() {
            let mut word = word;
            while word != 0 {
                f(index as u32 * 64 + word.trailing_zeros());
                word &= word - 1;
            }
        }
    }
}

/// First and last position at which each register matters: uses of instruction `i` are at `2i`,
/// definitions at `2i + 1`.
fn intervals(ir: &Ir, blocks: &[Block]) -> Vec<Option<(u32, u32)>> {
    let regs = ir.vregs.len();
    let mut uses: Vec<Set> = Vec::with_capacity(blocks.len());
    let mut kills: Vec<Set> = Vec::with_capacity(blocks.len());
    for block in blocks {
        let (mut used, mut killed) = (Set::new(regs), Set::new(regs));
        for inst in &ir.insts[block.start..block.end] {
            let guard = inst.guard.map(|g| g.reg);
            for &reg in ir.srcs(inst).iter().chain(guard.iter()) {
                if !killed.contains(reg) {
                    used.insert(reg);
                }
            }
            // A guarded instruction leaves the register of other lanes as it was.
            if inst.guard.is_none() {
                for &reg in ir.dsts(inst) {
                    killed.insert(reg);
                }
            }
        }
        uses.push(used);
        kills.push(killed);
    }
    let mut live_in = uses;
    let mut live_out: Vec<Set> = vec![Set::new(regs); blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for current in (0..blocks.len()).rev() {
            let mut out = std::mem::replace(&mut live_out[current], Set(Vec::new()));
            let mut grew = false;
            for &next in &blocks[current].next {
                for (word, &more) in out.0.iter_mut().zip(&live_in[next].0) {
                    grew |= more & !*word != 0;
                    *word |= more;
                }
            }
            if grew {
                for ((word, &o), &k) in
                    live_in[current].0.iter_mut().zip(&out.0).zip(&kills[current].0)
                {
                    let new = *word | o & !k;
                    changed |= new != *word;
                    *word = new;
                }
            }
            live_out[current] = out;
        }
    }
    let mut intervals: Vec<Option<(u32, u32)>> = vec![None; regs];
    let mut touch = |reg: VReg, at: u32| {
        let interval = &mut intervals[reg as usize];
        *interval = Some(interval.map_or((at, at), |(a, b)| (a.min(at), b.max(at))));
    };
    for &formal in &ir.formals {
        touch(formal, 0);
    }
    for (index, block) in blocks.iter().enumerate() {
        live_in[index].each(|reg| touch(reg, block.start as u32 * 2));
        live_out[index].each(|reg| touch(reg, block.end as u32 * 2 - 1));
        for at in block.start..block.end {
            let inst = &ir.insts[at];
            let position = at as u32 * 2;
            for &reg in ir.srcs(inst).iter().chain(inst.guard.map(|g| g.reg).iter()) {
                touch(reg, position);
            }
            // Destinations may reuse a dying source's slot only where lanes are read before they
            // are written.
            let early = inst.dst > 1 || inst.kind == Kind::CrossLane || inst.kind == Kind::Effect;
            for &reg in ir.dsts(inst) {
                touch(reg, if early { position } else { position + 1 });
            }
        }
    }
    intervals
}

/// Linear scan.
fn scan(ir: &Ir, intervals: &[Option<(u32, u32)>]) -> Slots {
    let mut order: Vec<(u32, u32, VReg)> = intervals
        .iter()
        .enumerate()
        .filter(|&(reg, _)| ir.vregs[reg].fill.is_none())
        .filter_map(|(reg, interval)| interval.map(|(start, end)| (start, end, reg as VReg)))
        .collect();
    order.sort_unstable();
    let mut slots = Slots { slot: vec![0; ir.vregs.len()], predicates: 0, words: 0, doubles: 0 };
    let mut active: [std::collections::BinaryHeap<std::cmp::Reverse<(u32, u32)>>; 3] =
        Default::default();
    let mut free: [std::collections::BinaryHeap<std::cmp::Reverse<u32>>; 3] = Default::default();
    for (start, end, reg) in order {
        let (class, total) = match ir.vregs[reg as usize].width {
            Width::Pred => (0, &mut slots.predicates),
            Width::W32 => (1, &mut slots.words),
            Width::W64 => (2, &mut slots.doubles),
        };
        while let Some(&std::cmp::Reverse((last, slot))) = active[class].peek() {
            if last >= start {
                break;
            }
            active[class].pop();
            free[class].push(std::cmp::Reverse(slot));
        }
        let slot = match free[class].pop() {
            Some(std::cmp::Reverse(slot)) => slot,
            None => {
                *total += 1;
                *total - 1
            }
        };
        slots.slot[reg as usize] = slot;
        active[class].push(std::cmp::Reverse((end, slot)));
    }
    slots
}
