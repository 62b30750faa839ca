//! Forms of `setp set selp slct`.

use super::Visitor;
use super::pick::{Form, with_int, with_subnormals, with_type};
use crate::exec::alu::compare::{self, Comparable, Truth};
use crate::exec::alu::float::{self, Subnormals};
use crate::exec::alu::float::{Ftz, Keep};
use crate::exec::alu::lane::{Bf16, F16};
use crate::exec::alu::{BoolOp, Compare, Lane};
use core::marker::PhantomData;

/// What to do with a comparison.
trait Sink {
    type Output;
    fn take<C: Compare>(self) -> Self::Output;
}

/// What to do with a comparison of packed halves.
trait SinkPair {
    type Output;
    fn take<C: Compare<A: Lane<Reg = u32>>>(self) -> Option<Self::Output>;
}

struct SetPredicate<V>(V, Option<BoolOp>);

impl<V: Visitor> Sink for SetPredicate<V> {
    type Output = V::Output;
    fn take<C: Compare>(self) -> V::Output {
        self.0.set_predicate::<C>(self.1)
    }
}

struct Set<V, D>(V, Option<BoolOp>, PhantomData<D>);

impl<V: Visitor, D: Truth> Sink for Set<V, D> {
    type Output = V::Output;
    fn take<C: Compare>(self) -> V::Output {
        self.0.set::<C, D>(self.1)
    }
}

struct SetPredicatePair<V>(V, Option<BoolOp>);

impl<V: Visitor> SinkPair for SetPredicatePair<V> {
    type Output = V::Output;
    fn take<C: Compare<A: Lane<Reg = u32>>>(self) -> Option<V::Output> {
        self.0.set_predicate_pair::<C>(self.1)
    }
}

struct SetPair<V, D>(V, Option<BoolOp>, PhantomData<D>);

impl<V: Visitor, D: Truth<Reg = u32>> SinkPair for SetPair<V, D> {
    type Output = V::Output;
    fn take<C: Compare<A: Lane<Reg = u32>>>(self) -> Option<V::Output> {
        self.0.set_pair::<C, D>(self.1)
    }
}

/// Binds `$C` to the comparison of `$T` that `$op` spells.
macro_rules! with_comparison {
    ($op:expr, $T:ty, $Z:ty, $C:ident, $body:expr) => {
        with_type!($op, $C in [
            "eq" => compare::FEq<$T, $Z>, "ne" => compare::FNe<$T, $Z>, "lt" => compare::FLt<$T, $Z>,
            "le" => compare::FLe<$T, $Z>, "gt" => compare::FGt<$T, $Z>, "ge" => compare::FGe<$T, $Z>,
            "equ" => compare::FEqu<$T, $Z>, "neu" => compare::FNeu<$T, $Z>, "ltu" => compare::FLtu<$T, $Z>,
            "leu" => compare::FLeu<$T, $Z>, "gtu" => compare::FGtu<$T, $Z>, "geu" => compare::FGeu<$T, $Z>,
            "num" => compare::FNum<$T, $Z>, "nan" => compare::FNan<$T, $Z>
        ], $body)
    };
}

pub(super) fn visit<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    let join = match form.one_of(&["and", "or", "xor"]) {
        Some("and") => Some(BoolOp::And),
        Some("or") => Some(BoolOp::Or),
        Some(_) => Some(BoolOp::Xor),
        None => None,
    };
    match form.opcode {
        "setp" => match form.types.as_slice() {
            ["f16x2"] => comparison_pair::<F16, _>(form, SetPredicatePair(v, join)),
            ["bf16x2"] => comparison_pair::<Bf16, _>(form, SetPredicatePair(v, join)),
            [from] => comparison(form, from, SetPredicate(v, join)),
            _ => None,
        },
        "set" => match form.types.as_slice() {
            ["f16x2", "f16x2"] => {
                comparison_pair::<F16, _>(form, SetPair(v, join, PhantomData::<F16>))
            }
            ["bf16x2", "bf16x2"] => {
                comparison_pair::<Bf16, _>(form, SetPair(v, join, PhantomData::<Bf16>))
            }
            // All ones in each half where its comparison holds.
            ["u32" | "s32", "f16x2"] => {
                comparison_pair::<F16, _>(form, SetPair(v, join, PhantomData::<u16>))
            }
            ["u32" | "s32", "bf16x2"] => {
                comparison_pair::<Bf16, _>(form, SetPair(v, join, PhantomData::<u16>))
            }
            [to, from] => with_type!(
                *to,
                D in ["u16" | "s16" => u16, "u32" | "s32" => u32, "f16" => F16, "bf16" => Bf16, "f32" => f32],
                comparison(form, from, Set(v, join, PhantomData::<D>))
            ),
            _ => None,
        },
        "slct" => {
            let &[t, c] = form.types.as_slice() else { return None };
            form.only(&["ftz"])?;
            with_type!(
                t,
                T in ["b16" | "u16" | "s16" => u16, "b32" | "u32" | "s32" | "f32" => u32, "b64" | "u64" | "s64" | "f64" => u64],
                match c {
                    "s32" => Some(v.ternary::<compare::SelectInt<T>>()),
                    "f32" => with_subnormals!(form, Z, Some(v.ternary::<compare::SelectFloat<T, Z>>())),
                    _ => None,
                }
            )
        }
        "testp" => {
            with_type!(*form.types.last()?, T in ["f32" => f32, "f64" => f64], match form.one_of(PROPERTIES)? {
                "finite" => v.test::<float::TestProperty<T, float::Finite>>(),
                "infinite" => v.test::<float::TestProperty<T, float::Infinite>>(),
                "number" => v.test::<float::TestProperty<T, float::Number>>(),
                "notanumber" => v.test::<float::TestProperty<T, float::NotANumber>>(),
                "normal" => v.test::<float::TestProperty<T, float::Normal>>(),
                _ => v.test::<float::TestProperty<T, float::Subnormal>>(),
            })
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

const PROPERTIES: &[&str] = &["finite", "infinite", "number", "notanumber", "normal", "subnormal"];

fn comparison<S: Sink>(form: &Form<'_>, from: &str, sink: S) -> Option<S::Output> {
    let op = form.one_of(COMPARISONS)?;
    match from {
        "f16" | "bf16" | "f32" | "f64" => with_type!(
            from,
            T in ["f16" => F16, "bf16" => Bf16, "f32" => f32, "f64" => f64],
            with_subnormals!(form, Z, with_comparison!(op, T, Z, C, Some(sink.take::<C>())))
        ),
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

fn comparison_pair<T: Comparable<Reg = u32>, S: SinkPair>(
    form: &Form<'_>,
    sink: S,
) -> Option<S::Output> {
    let op = form.one_of(COMPARISONS)?;
    with_subnormals!(form, Z, pair::<T, Z, S>(op, sink))
}

fn pair<T: Comparable<Reg = u32>, Z: Subnormals, S: SinkPair>(
    op: &str,
    sink: S,
) -> Option<S::Output> {
    match op {
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
        _ => None,
    }
}
