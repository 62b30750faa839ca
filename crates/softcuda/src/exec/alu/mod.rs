//! The computational instructions of PTX as pure functions over a warp's lanes.
//!
//! An operation is a zero-sized type (`int::Add<i32>`, `float::Fma<f32, Rz, Ftz, Sat>`) that
//! implements one of the arity traits below for a single lane; [`unary`], [`binary`], [`ternary`]
//! and [`compare`] apply it to all 32. Everything is `#[inline(always)]` without a target feature
//! of its own, so it takes those of the caller it is inlined into and LLVM vectorises the loops.
//! All lanes are computed; the caller blends by its active mask ([`blend`]). No operation touches
//! memory, control flow or the host's floating-point environment.
//!
//! [`forms`] maps an opcode and its modifiers, as written in PTX, to the operation type.
//!
//! Source of behaviour: the PTX ISA's instruction descriptions; where it leaves the result open
//! (NaN bits, division by zero, accumulation order) the results recorded from an H200, see [`lane`]
//! and the operations' own notes.

pub mod compare;
pub mod cvt;
pub mod float;
pub mod forms;
pub mod half;
pub mod int;
pub mod lane;
mod op;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod testing;

pub use lane::{Lane, Register};

use super::lanes::{CHUNK, Vectors};

/// Threads in a warp.
pub const LANES: usize = 32;

/// One register of a whole warp, as instructions of type `L` see it.
pub type Regs<L> = [<L as Lane>::Reg; LANES];

/// An operation with one source.
pub trait Unary {
    /// Whether programs seldom ask for it; it then goes lane by lane, which compiles in a tenth of
    /// the time.
    const IS_RARE: bool = false;
    /// Type of the source.
    type A: Lane;
    /// Type of the destination.
    type D: Lane;
    /// The result of one lane.
    fn lane(a: Self::A) -> Self::D;
}

/// An operation with two sources.
pub trait Binary {
    /// As [`Unary::IS_RARE`].
    const IS_RARE: bool = false;
    /// Type of the first source.
    type A: Lane;
    /// Type of the second source.
    type B: Lane;
    /// Type of the destination.
    type D: Lane;
    /// The result of one lane.
    fn lane(a: Self::A, b: Self::B) -> Self::D;
}

/// An operation with three sources.
pub trait Ternary {
    /// Type of the first source.
    type A: Lane;
    /// Type of the second source.
    type B: Lane;
    /// Type of the third source.
    type C: Lane;
    /// Type of the destination.
    type D: Lane;
    /// The result of one lane.
    fn lane(a: Self::A, b: Self::B, c: Self::C) -> Self::D;
}

/// An operation with four sources.
pub trait Quaternary {
    /// Type of the first source.
    type A: Lane;
    /// Type of the second source.
    type B: Lane;
    /// Type of the third source.
    type C: Lane;
    /// Type of the fourth source.
    type E: Lane;
    /// Type of the destination.
    type D: Lane;
    /// The result of one lane.
    fn lane(a: Self::A, b: Self::B, c: Self::C, e: Self::E) -> Self::D;
}

/// A comparison, the core of `setp` and `set`.
pub trait Compare {
    /// Type of both sources.
    type A: Lane;
    /// The result of one lane.
    fn lane(a: Self::A, b: Self::A) -> bool;
}

/// A property of one source, `testp`.
pub trait Test {
    /// Type of the source.
    type A: Lane;
    /// The result of one lane.
    fn lane(a: Self::A) -> bool;
}

/// Applies `O` to every lane.
#[inline(always)]
pub fn unary<O: Unary>(a: &Regs<O::A>, d: &mut Regs<O::D>) {
    for i in 0..LANES {
        d[i] = O::lane(O::A::from_reg(a[i])).into_reg();
    }
}

/// Applies `O` to every lane.
#[inline(always)]
pub fn binary<O: Binary>(a: &Regs<O::A>, b: &Regs<O::B>, d: &mut Regs<O::D>) {
    for i in 0..LANES {
        d[i] = O::lane(O::A::from_reg(a[i]), O::B::from_reg(b[i])).into_reg();
    }
}

/// Applies `O` to every lane.
#[inline(always)]
pub fn ternary<O: Ternary>(a: &Regs<O::A>, b: &Regs<O::B>, c: &Regs<O::C>, d: &mut Regs<O::D>) {
    for i in 0..LANES {
        d[i] = O::lane(O::A::from_reg(a[i]), O::B::from_reg(b[i]), O::C::from_reg(c[i])).into_reg();
    }
}

/// Applies `O` to every lane.
#[inline(always)]
pub fn quaternary<O: Quaternary>(
    a: &Regs<O::A>,
    b: &Regs<O::B>,
    c: &Regs<O::C>,
    e: &Regs<O::E>,
    d: &mut Regs<O::D>,
) {
    for i in 0..LANES {
        d[i] = O::lane(
            O::A::from_reg(a[i]),
            O::B::from_reg(b[i]),
            O::C::from_reg(c[i]),
            O::E::from_reg(e[i]),
        )
        .into_reg();
    }
}

/// The mask of the lanes in which `holds`, asked chunk by chunk: a fold over all lanes becomes
/// dozens of shuffles.
#[inline(always)]
pub(super) fn mask_of<V: Vectors>(holds: impl Fn(usize) -> bool) -> u32 {
    let mut mask = 0;
    for first in (0..LANES).step_by(CHUNK) {
        let mut flags = [0u32; CHUNK];
        for (i, flag) in flags.iter_mut().enumerate() {
            *flag = if holds(first + i) { !0 } else { 0 };
        }
        mask |= V::set(&flags) << first;
    }
    mask
}

/// The mask of the lanes in which `C` holds.
#[inline(always)]
pub(super) fn compare<C: Compare, V: Vectors>(a: &Regs<C::A>, b: &Regs<C::A>) -> u32 {
    mask_of::<V>(|i| C::lane(C::A::from_reg(a[i]), C::A::from_reg(b[i])))
}

/// The mask of the lanes in which `O` holds.
#[inline(always)]
pub(super) fn test<O: Test, V: Vectors>(a: &Regs<O::A>) -> u32 {
    mask_of::<V>(|i| O::lane(O::A::from_reg(a[i])))
}

/// `selp`: per lane `a` where `mask` is set, else `b`.
#[inline(always)]
pub fn select<R: Register>(mask: u32, a: &[R; LANES], b: &[R; LANES], d: &mut [R; LANES]) {
    for i in 0..LANES {
        d[i] = if mask >> i & 1 != 0 { a[i] } else { b[i] };
    }
}

/// Stores `value` into the lanes of `d` that `mask` names.
#[inline(always)]
pub fn blend<R: Register>(mask: u32, value: &[R; LANES], d: &mut [R; LANES]) {
    for i in 0..LANES {
        d[i] = if mask >> i & 1 != 0 { value[i] } else { d[i] };
    }
}

/// How `setp` and `set` join their comparison with the predicate operand `c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoolOp {
    /// `.and`
    And,
    /// `.or`
    Or,
    /// `.xor`
    Xor,
}

impl BoolOp {
    /// Joins two lane masks.
    #[inline(always)]
    pub fn join(self, compared: u32, c: u32) -> u32 {
        match self {
            BoolOp::And => compared & c,
            BoolOp::Or => compared | c,
            BoolOp::Xor => compared ^ c,
        }
    }
}

/// The masks of the lanes in which `C` holds for the low and for the high halves of packed
/// operands.
#[inline(always)]
pub(super) fn compare_pair<C, V: Vectors>(a: &[u32; LANES], b: &[u32; LANES]) -> (u32, u32)
where
    C: Compare,
    C::A: Lane<Reg = u32>,
{
    let high = |x: &[u32; LANES]| -> [u32; LANES] { core::array::from_fn(|i| x[i] >> 16) };
    (compare::<C, V>(a, b), compare::<C, V>(&high(a), &high(b)))
}

/// `set` of packed halves: writes `truth` into each half whose mask is set, zero elsewhere.
#[inline(always)]
pub fn expand_pair(truth: u32, low: u32, high: u32, d: &mut [u32; LANES]) {
    for (i, d) in d.iter_mut().enumerate() {
        let half = |mask: u32| if mask >> i & 1 != 0 { truth & 0xffff } else { 0 };
        *d = half(high) << 16 | half(low);
    }
}

/// `set`: writes `truth` where `mask` is set, zero elsewhere.
#[inline(always)]
pub fn expand(truth: u32, mask: u32, d: &mut [u32; LANES]) {
    for (i, d) in d.iter_mut().enumerate() {
        *d = if mask >> i & 1 != 0 { truth } else { 0 };
    }
}
