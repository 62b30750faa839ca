//! The lowered form of a function: instructions over virtual registers, before optimisation and
//! register assignment.

use super::code::{FillValue, OpFn, Width};

/// A virtual register.
pub(super) type VReg = u32;
/// A branch target.
pub(super) type Label = u32;

/// What is known of a virtual register.
#[derive(Clone, Copy, Debug)]
pub(super) struct VRegInfo {
    pub(super) width: Width,
    /// For prefilled registers, which no instruction writes.
    pub(super) fill: Option<FillValue>,
}

/// What the passes need to know of an instruction beyond its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// No effect but its destinations.
    Pure,
    /// `Pure`, and the destination equals the source.
    Copy,
    /// Has effects, or depends on more than its operands.
    Effect,
    /// `Effect`, and sources are read across lanes while destinations are written.
    CrossLane,
    /// A label; no instruction.
    Label(Label),
    /// Branch; falls through where the guard is false.
    Branch(Label),
    /// Branch by table.
    Indexed(u32),
    /// Ends the path: `ret`, `exit`, `trap`.
    End,
}

/// A guard predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuardReg {
    pub(super) reg: VReg,
    pub(super) negated: bool,
}

/// An instruction. Operands are `dst` registers, then `src` registers of [`Ir::operands`] from
/// `first` on.
#[derive(Clone, Copy)]
pub(super) struct Inst {
    pub(super) run: OpFn,
    pub(super) kind: Kind,
    pub(super) first: u32,
    pub(super) dst: u16,
    pub(super) src: u16,
    pub(super) guard: Option<GuardReg>,
    pub(super) imm: i64,
    pub(super) x: u32,
    pub(super) line: u32,
}

impl Inst {
    fn range(&self, skip: u16, len: u16) -> std::ops::Range<usize> {
        let start = self.first as usize + skip as usize;
        start..start + len as usize
    }

    /// Indices of the destinations in the operand pool.
    pub(super) fn dst_range(&self) -> std::ops::Range<usize> {
        self.range(0, self.dst)
    }

    /// Indices of the sources in the operand pool.
    pub(super) fn src_range(&self) -> std::ops::Range<usize> {
        self.range(self.dst, self.src)
    }
}

/// A function in lowered form.
#[derive(Default)]
pub(super) struct Ir {
    pub(super) name: String,
    pub(super) insts: Vec<Inst>,
    pub(super) operands: Vec<VReg>,
    pub(super) vregs: Vec<VRegInfo>,
    pub(super) tables: Vec<Vec<Label>>,
    pub(super) labels: u32,
    /// Words that parameters arrive in; written by the caller.
    pub(super) formals: Vec<VReg>,
    /// Local memory per thread, bytes.
    pub(super) local_bytes: u32,
    /// Whether it may wait for other threads: atomics, volatile or acquiring loads, sleeps.
    pub(super) waits: bool,
}

impl Ir {
    pub(super) fn dsts(&self, inst: &Inst) -> &[VReg] {
        &self.operands[inst.dst_range()]
    }

    pub(super) fn srcs(&self, inst: &Inst) -> &[VReg] {
        &self.operands[inst.src_range()]
    }

    /// A new register.
    pub(super) fn vreg(&mut self, width: Width) -> VReg {
        self.vregs.push(VRegInfo { width, fill: None });
        (self.vregs.len() - 1) as VReg
    }
}
