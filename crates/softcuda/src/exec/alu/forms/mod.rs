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

use super::compare::Truth;
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
    fn set_predicate<C: Compare>(self, join: Option<BoolOp>) -> Self::Output;
    /// `set d, a, b{, {!}c}`: the true value of `D` where the joined comparison holds, else zero
    fn set<C: Compare, D: Truth>(self, join: Option<BoolOp>) -> Self::Output;
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
    fn set_predicate_pair<C>(self, join: Option<BoolOp>) -> Option<Self::Output>
    where
        C: Compare,
        C::A: Lane<Reg = u32>,
    {
        let _ = join;
        None
    }
    /// `set d, a, b{, {!}c}` of packed halves into packed halves
    fn set_pair<C, D>(self, join: Option<BoolOp>) -> Option<Self::Output>
    where
        C: Compare,
        C::A: Lane<Reg = u32>,
        D: Truth<Reg = u32>,
    {
        let _ = join;
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
