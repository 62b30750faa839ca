//! From an opcode and its modifiers, as PTX writes them, to the operation type.
//!
//! [`visit`] is the only place where spellings are known: it calls the method of a [`Visitor`] that
//! fits the operation's arity, with the operation as type parameter, so that an executor can
//! instantiate its own handlers for it.

mod bits;
mod convert;
mod float;
mod half;
mod int;
mod pick;
mod predicate;

use super::int::Carry;
use super::{Binary, BoolOp, Compare, Lane, Quaternary, Ternary, Test, Unary};

/// Whether an instruction of a carry chain writes the condition code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarryOut {
    /// `.cc`
    Write,
    /// Without `.cc`
    Discard,
}

/// Which way round a comparison takes its sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As the form has them.
    AsWritten,
    /// The second before the first.
    Exchanged,
}

/// Whether a form is true where its comparison holds, or where it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sense {
    /// Where it holds.
    Holds,
    /// Where it does not.
    Fails,
}

impl Sense {
    /// The lanes in which the form is true.
    #[inline(always)]
    pub fn apply(self, compared: u32) -> u32 {
        match self {
            Self::Holds => compared,
            Self::Fails => !compared,
        }
    }
}

/// How `setp` and `set` use their comparison: most of those that PTX knows are others turned round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// Order of the sources.
    pub order: Order,
    /// Where it is true.
    pub sense: Sense,
    /// What joins it with the predicate operand `c`.
    pub join: Option<BoolOp>,
}

impl Comparison {
    /// The sources as the comparison takes them.
    pub fn sources<T>(self, [a, b]: [T; 2]) -> [T; 2] {
        match self.order {
            Order::AsWritten => [a, b],
            Order::Exchanged => [b, a],
        }
    }
}

/// Receives the operation of a form. The methods' contracts name the operands in PTX order. Those
/// that return an `Option` need not be there: their forms are then refused.
pub trait Visitor: Sized {
    /// What the visitor makes of an operation.
    type Output;
    /// `op d, a`
    fn unary<O: Unary>(self) -> Self::Output;
    /// `op d, a, b`
    fn binary<O: Binary>(self) -> Self::Output;
    /// `op d, a, b, c`
    fn ternary<O: Ternary>(self) -> Self::Output;
    /// `selp d, a, b, p`
    fn select<T: Lane>(self) -> Self::Output;
    /// `setp p{|q}, a, b{, {!}c}`: `p` is the comparison, `q` its opposite, each joined with `c` if
    /// there is a `join`
    fn set_predicate<C: Compare>(self, how: Comparison) -> Self::Output;
    /// `set d, a, b{, {!}c}`: `truth` where the joined comparison is true, else zero
    fn set<C: Compare>(self, how: Comparison, truth: u32) -> Self::Output;
    /// `op d, a, b, c, e`
    fn quaternary<O: Quaternary>(self) -> Option<Self::Output> {
        None
    }
    /// `testp p, a`
    fn test<O: Test>(self) -> Option<Self::Output> {
        None
    }
    /// `setp p|q, a, b{, {!}c}` of packed halves: `p` is the comparison of the low halves, `q` that
    /// of the high ones
    fn set_predicate_pair<C>(self, how: Comparison) -> Option<Self::Output>
    where
        C: Compare,
        C::A: Lane<Reg = u32>,
    {
        let _ = how;
        None
    }
    /// `set d, a, b{, {!}c}` of packed halves into packed halves
    fn set_pair<C>(self, how: Comparison, truth: u32) -> Option<Self::Output>
    where
        C: Compare,
        C::A: Lane<Reg = u32>,
    {
        let _ = (how, truth);
        None
    }
    /// `op{.cc} d, a, b{, c}` of a carry chain; [`Carry::SOURCES`] tells how many sources there are
    fn carry<O: Carry>(self, out: CarryOut) -> Option<Self::Output> {
        let _ = out;
        None
    }
}

/// Why a form has no operation here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The opcode is none of the computational instructions.
    #[error("{0} is no computational instruction")]
    Opcode(String),
    /// The opcode does not go with these modifiers.
    #[error("{opcode} does not take the modifiers {modifiers}")]
    Modifiers {
        /// The opcode.
        opcode: String,
        /// Its modifiers, joined by dots.
        modifiers: String,
    },
}

/// Calls the method of `visitor` for the operation that `opcode` with `modifiers` (without dots, in
/// any order among those before the types) denotes. `min` and `max` of three sources are asked for
/// as `min3` and `max3`.
///
/// # Errors
/// The opcode is not one of this module's, or not with these modifiers.
pub fn visit<V: Visitor>(
    opcode: &str,
    modifiers: &[&str],
    visitor: V,
) -> Result<V::Output, FormError> {
    let form = pick::Form::new(opcode, modifiers);
    let found = match opcode {
        "cvt" => convert::visit(&form, visitor),
        "setp" | "set" | "selp" | "slct" | "testp" => predicate::visit(&form, visitor),
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "popc" | "clz" | "brev"
        | "bfind" | "bfe" | "bfi" | "szext" | "bmsk" | "shf" | "fns" | "lop3" | "prmt" | "dp4a"
        | "dp2a" | "vabsdiff4" | "vabsdiff2" => bits::visit(&form, visitor),
        "sad" | "rem" | "mul24" | "mad24" | "addc" | "subc" | "madc" => int::visit(&form, visitor),
        "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "min3" | "max3" => {
            float::visit(&form, visitor)
        }
        "add" | "sub" | "mul" | "mad" | "fma" | "div" | "abs" | "neg" | "min" | "max"
        | "copysign" | "mov" | "ex2" | "tanh" => match form.types.last() {
            Some(&("f16" | "bf16" | "f16x2" | "bf16x2")) => half::visit(&form, visitor),
            Some(&("f32" | "f64" | "f32x2")) => float::visit(&form, visitor),
            _ => int::visit(&form, visitor),
        },
        _ => return Err(FormError::Opcode(opcode.to_owned())),
    };
    found.ok_or_else(|| FormError::Modifiers {
        opcode: opcode.to_owned(),
        modifiers: modifiers.join("."),
    })
}
