//! The instructions that programs are made of, by family. Meaning is written from the PTX ISA's
//! text alone.

mod bits;
mod compare;
mod convert;
mod float;
mod half;
mod integer;
mod moves;
mod video;

use crate::operation::{Chooser, Class, Operation, Source};

/// An integer type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Int {
    pub(crate) bits: u32,
    pub(crate) signed: bool,
}

impl Int {
    pub(crate) const fn new(bits: u32, signed: bool) -> Self {
        Self { bits, signed }
    }

    /// 16, 32 or 64 bits.
    fn any(chooser: &mut Chooser) -> Self {
        Self::new(chooser.pick(&[16, 32, 32, 32, 64, 64]), chooser.chance(50))
    }

    fn name(self) -> String {
        format!("{}{}", if self.signed { "s" } else { "u" }, self.bits)
    }

    fn class(self) -> Class {
        Class::of_bits(self.bits)
    }

    fn source(self) -> Source {
        Source::integer(self.class())
    }

    /// The value of the low bits.
    pub(crate) fn value(self, bits: u64) -> i128 {
        let low = u128::from(bits) & (u128::MAX >> (128 - self.bits));
        if self.signed && low >> (self.bits - 1) & 1 == 1 {
            low as i128 - (1i128 << self.bits)
        } else {
            low as i128
        }
    }

    pub(crate) fn least(self) -> i128 {
        if self.signed { -(1i128 << (self.bits - 1)) } else { 0 }
    }

    pub(crate) fn greatest(self) -> i128 {
        if self.signed { (1i128 << (self.bits - 1)) - 1 } else { (1i128 << self.bits) - 1 }
    }

    pub(crate) fn clamped(self, value: i128) -> u64 {
        value.clamp(self.least(), self.greatest()) as u64
    }
}

const U32: Int = Int::new(32, false);
const S32: Int = Int::new(32, true);

type Family = fn(&mut Chooser) -> Operation;

/// Each family with its weight.
const FAMILIES: &[(usize, Family)] = &[
    (10, integer::arithmetic),
    (8, integer::products),
    (3, integer::division),
    (4, integer::packed),
    (3, integer::carry_chain),
    (6, bits::logic),
    (4, bits::shifts),
    (8, bits::fields),
    (10, float::arithmetic),
    (5, float::fused),
    (4, float::division),
    (6, float::extremes),
    (3, float::signs),
    (8, half::arithmetic),
    (5, half::fused),
    (4, half::extremes),
    (9, compare::set_predicate),
    (4, compare::set_value),
    (5, compare::select),
    (3, compare::predicates),
    (10, convert::scalar),
    (4, convert::packed),
    (4, moves::packing),
    (3, moves::plain),
    (0, video::scalar),
];

/// Any operation.
pub(crate) fn any(chooser: &mut Chooser) -> Operation {
    let total: usize = FAMILIES.iter().map(|family| family.0).sum();
    let mut at = chooser.random.below(total);
    for (weight, family) in FAMILIES {
        if at < *weight {
            return family(chooser);
        }
        at -= weight;
    }
    integer::arithmetic(chooser)
}

/// An operation with a predicate as its only result.
pub(crate) fn condition(chooser: &mut Chooser) -> Operation {
    loop {
        let operation = compare::set_predicate(chooser);
        if operation.results == [Class::Predicate] {
            return operation;
        }
    }
}
