//! From an opcode and its modifiers, as PTX writes them, to the operation type.
//!
//! [`visit`] is the only place where spellings are known: it calls the method of a [`Visitor`] that fits the operation's
//! arity, with the operation as type parameter, so that an executor can instantiate its own handlers for it.

mod float;
mod int;
mod pick;
mod predicate;

use super::{Binary, BoolOp, Compare, Lane, Ternary, Unary, compare::Truth};

/// Receives the operation of a form. The methods' contracts name the operands in PTX order.
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
    /// `setp p{|q}, a, b{, {!}c}`: `p` is the comparison, `q` its opposite, each joined with `c` if there is a `join`
    fn set_predicate<C: Compare>(self, join: Option<BoolOp>) -> Self::Output;
    /// `set d, a, b{, {!}c}`: the true value of `D` where the joined comparison holds, else zero
    fn set<C: Compare, D: Truth>(self, join: Option<BoolOp>) -> Self::Output;
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

/// Calls the method of `visitor` for the operation that `opcode` with `modifiers` (without dots, in any order among
/// those before the types) denotes.
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
        "setp" | "set" | "selp" | "slct" => predicate::visit(&form, visitor),
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "sad" | "rem" | "mul24"
        | "mad24" => int::visit(&form, visitor),
        "add" | "sub" | "mul" | "mad" | "fma" | "div" | "abs" | "neg" | "min" | "max"
        | "copysign" | "cvt" | "mov" => {
            if form.last_is_float() {
                float::visit(&form, visitor)
            } else {
                int::visit(&form, visitor)
            }
        }
        _ => return Err(FormError::Opcode(opcode.to_owned())),
    };
    found.ok_or_else(|| FormError::Modifiers {
        opcode: opcode.to_owned(),
        modifiers: modifiers.join("."),
    })
}
