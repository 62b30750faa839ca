//! Extended precision: `add sub mad` with the condition code's carry bit, one bit a lane.

use super::Int;
use crate::exec::alu::{LANES, Lane, Regs};
use core::marker::PhantomData;

/// An operation of three sources (two-source ones ignore `c`) that reads and writes the carry bit.
pub trait Carry {
    /// Type of all operands.
    type T: Lane;
    /// The number of sources: 2 or 3.
    const SOURCES: usize;
    /// Whether the carry bit takes part: `addc`, `subc`, `madc`.
    const READS: bool;
    /// The result and the carry (or borrow) out of one lane; `carry` is false where the operation
    /// does not read it.
    fn lane(a: Self::T, b: Self::T, c: Self::T, carry: bool) -> (Self::T, bool);
}

/// Applies `O` to every lane. Returns the mask of carries out, to be blended into the condition
/// code if the instruction has `.cc`; `carries` is the condition code before it.
#[inline(always)]
pub fn carry<O: Carry>(
    a: &Regs<O::T>,
    b: &Regs<O::T>,
    c: &Regs<O::T>,
    carries: u32,
    d: &mut Regs<O::T>,
) -> u32 {
    let mut out = 0;
    for i in 0..LANES {
        let carry = O::READS && carries >> i & 1 != 0;
        let (result, carry) =
            O::lane(O::T::from_reg(a[i]), O::T::from_reg(b[i]), O::T::from_reg(c[i]), carry);
        d[i] = result.into_reg();
        out |= u32::from(carry) << i;
    }
    out
}

/// Whether the carry bit is read.
pub trait CarryIn: 'static {
    /// Whether it is.
    const READS: bool;
}

/// `add.cc`, `sub.cc`, `mad.cc`: the chain begins.
#[derive(Debug, Clone, Copy)]
pub struct Start;
impl CarryIn for Start {
    const READS: bool = false;
}

/// `addc`, `subc`, `madc`: the chain goes on.
#[derive(Debug, Clone, Copy)]
pub struct Continue;
impl CarryIn for Continue {
    const READS: bool = true;
}

/// `a + b + carry` and the carry out, on the unsigned words.
#[inline(always)]
fn sum<T: Int>(a: T, b: T, carry: bool) -> (T, bool) {
    let mask = u128::from(u64::MAX >> (64 - T::BITS));
    let total =
        (u128::from(a.extend()) & mask) + (u128::from(b.extend()) & mask) + u128::from(carry);
    (T::truncate(total as u64), total > mask)
}

/// `add.cc`, `addc{.cc}`
#[derive(Debug, Clone, Copy)]
pub struct AddCarry<T, I>(PhantomData<(T, I)>);
impl<T: Int, I: CarryIn> Carry for AddCarry<T, I> {
    type T = T;
    const SOURCES: usize = 2;
    const READS: bool = I::READS;
    #[inline(always)]
    fn lane(a: T, b: T, _: T, carry: bool) -> (T, bool) {
        sum(a, b, carry)
    }
}

/// `sub.cc`, `subc{.cc}`: `a + !b + carry`, so that a clear carry bit is a borrow
#[derive(Debug, Clone, Copy)]
pub struct SubBorrow<T, I>(PhantomData<(T, I)>);
impl<T: Int, I: CarryIn> Carry for SubBorrow<T, I> {
    type T = T;
    const SOURCES: usize = 2;
    const READS: bool = I::READS;
    #[inline(always)]
    fn lane(a: T, b: T, _: T, carry: bool) -> (T, bool) {
        sum(a, T::truncate(!b.extend()), carry || !I::READS)
    }
}

/// `mad.lo.cc`, `madc.lo{.cc}`
#[derive(Debug, Clone, Copy)]
pub struct MadLoCarry<T, I>(PhantomData<(T, I)>);
impl<T: Int, I: CarryIn> Carry for MadLoCarry<T, I> {
    type T = T;
    const SOURCES: usize = 3;
    const READS: bool = I::READS;
    #[inline(always)]
    fn lane(a: T, b: T, c: T, carry: bool) -> (T, bool) {
        sum(a.mul_lo(b), c, carry)
    }
}

/// `mad.hi.cc`, `madc.hi{.cc}`
#[derive(Debug, Clone, Copy)]
pub struct MadHiCarry<T, I>(PhantomData<(T, I)>);
impl<T: Int, I: CarryIn> Carry for MadHiCarry<T, I> {
    type T = T;
    const SOURCES: usize = 3;
    const READS: bool = I::READS;
    #[inline(always)]
    fn lane(a: T, b: T, c: T, carry: bool) -> (T, bool) {
        sum(a.mul_hi(b), c, carry)
    }
}
