//! Forms of `setp set selp slct`.

use super::Visitor;
use super::pick::{Form, with_int, with_subnormals, with_type};
use crate::exec::alu::BoolOp;
use crate::exec::alu::compare::{self, Truth};
use crate::exec::alu::float::{Ftz, Keep};

/// What to do with a comparison.
trait Sink {
    type Output;
    fn take<C: crate::exec::alu::Compare>(self) -> Self::Output;
}

struct SetPredicate<V>(V, Option<BoolOp>);

impl<V: Visitor> Sink for SetPredicate<V> {
    type Output = V::Output;
    fn take<C: crate::exec::alu::Compare>(self) -> V::Output {
        self.0.set_predicate::<C>(self.1)
    }
}

struct Set<V, D>(V, Option<BoolOp>, core::marker::PhantomData<D>);

impl<V: Visitor, D: Truth> Sink for Set<V, D> {
    type Output = V::Output;
    fn take<C: crate::exec::alu::Compare>(self) -> V::Output {
        self.0.set::<C, D>(self.1)
    }
}

pub(super) fn visit<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    let join = match form.one_of(&["and", "or", "xor"]) {
        Some("and") => Some(BoolOp::And),
        Some("or") => Some(BoolOp::Or),
        Some(_) => Some(BoolOp::Xor),
        None => None,
    };
    match form.opcode {
        "setp" => {
            let &[from] = form.types.as_slice() else { return None };
            comparison(form, from, SetPredicate(v, join))
        }
        "set" => {
            let &[to, from] = form.types.as_slice() else { return None };
            with_type!(
                to,
                D in ["u32" | "s32" => u32, "f32" => f32],
                comparison(form, from, Set(v, join, core::marker::PhantomData::<D>))
            )
        }
        "selp" => with_type!(
            *form.types.last()?,
            T in [
                "b8" | "u8" | "s8" => u8,
                "b16" | "u16" | "s16" | "f16" | "bf16" => u16,
                "b32" | "u32" | "s32" | "f32" => u32,
                "b64" | "u64" | "s64" | "f64" => u64
            ],
            Some(v.select::<T>())
        ),
        _ => None,
    }
}

const COMPARISONS: &[&str] = &[
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
    "geu", "num", "nan",
];

fn comparison<S: Sink>(form: &Form<'_>, from: &str, sink: S) -> Option<S::Output> {
    let op = form.one_of(COMPARISONS)?;
    match from {
        "f32" | "f64" => {
            with_type!(from, T in ["f32" => f32, "f64" => f64], with_subnormals!(form, Z, float::<T, Z, S>(op, sink)))
        }
        "b16" | "b32" | "b64" => {
            with_type!(from, T in ["b16" => u16, "b32" => u32, "b64" => u64], match op {
                "eq" => Some(sink.take::<compare::Eq<T>>()),
                "ne" => Some(sink.take::<compare::Ne<T>>()),
                _ => None,
            })
        }
        _ => with_int!(
            from,
            T,
            match op {
                "eq" => Some(sink.take::<compare::Eq<T>>()),
                "ne" => Some(sink.take::<compare::Ne<T>>()),
                "lt" | "lo" => Some(sink.take::<compare::Lt<T>>()),
                "le" | "ls" => Some(sink.take::<compare::Le<T>>()),
                "gt" | "hi" => Some(sink.take::<compare::Gt<T>>()),
                "ge" | "hs" => Some(sink.take::<compare::Ge<T>>()),
                _ => None,
            }
        ),
    }
}

fn float<T, Z, S>(op: &str, sink: S) -> Option<S::Output>
where
    T: crate::exec::alu::float::Float,
    Z: crate::exec::alu::float::Subnormals,
    S: Sink,
{
    Some(match op {
        "eq" => sink.take::<compare::FEq<T, Z>>(),
        "ne" => sink.take::<compare::FNe<T, Z>>(),
        "lt" => sink.take::<compare::FLt<T, Z>>(),
        "le" => sink.take::<compare::FLe<T, Z>>(),
        "gt" => sink.take::<compare::FGt<T, Z>>(),
        "ge" => sink.take::<compare::FGe<T, Z>>(),
        "equ" => sink.take::<compare::FEqu<T, Z>>(),
        "neu" => sink.take::<compare::FNeu<T, Z>>(),
        "ltu" => sink.take::<compare::FLtu<T, Z>>(),
        "leu" => sink.take::<compare::FLeu<T, Z>>(),
        "gtu" => sink.take::<compare::FGtu<T, Z>>(),
        "geu" => sink.take::<compare::FGeu<T, Z>>(),
        "num" => sink.take::<compare::FNum<T, Z>>(),
        "nan" => sink.take::<compare::FNan<T, Z>>(),
        _ => return None,
    })
}
