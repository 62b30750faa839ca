//! Forms of `setp set selp slct`.

use super::pick::{Form, with_int, with_subnormals, with_type};
use super::{Comparison, Order, Sense, Visitor};
use crate::exec::alu::compare::{self, Comparable};
use crate::exec::alu::float::{self, Subnormals};
use crate::exec::alu::float::{Ftz, Keep};
use crate::exec::alu::lane::{Bf16, F16};
use crate::exec::alu::{BoolOp, Compare, Lane};

/// What to do with a comparison.
trait Sink {
    type Output;
    fn take<C: Compare>(self, how: Comparison) -> Self::Output;
}

/// What to do with a comparison of packed halves.
trait SinkPair {
    type Output;
    fn take<C: Compare<A: Lane<Reg = u32>>>(self, how: Comparison) -> Option<Self::Output>;
}

struct SetPredicate<V>(V);

impl<V: Visitor> Sink for SetPredicate<V> {
    type Output = V::Output;
    fn take<C: Compare>(self, how: Comparison) -> V::Output {
        self.0.set_predicate::<C>(how)
    }
}

impl<V: Visitor> SinkPair for SetPredicate<V> {
    type Output = V::Output;
    fn take<C: Compare<A: Lane<Reg = u32>>>(self, how: Comparison) -> Option<V::Output> {
        self.0.set_predicate_pair::<C>(how)
    }
}

/// With the true value.
struct Set<V>(V, u32);

impl<V: Visitor> Sink for Set<V> {
    type Output = V::Output;
    fn take<C: Compare>(self, how: Comparison) -> V::Output {
        self.0.set::<C>(how, self.1)
    }
}

impl<V: Visitor> SinkPair for Set<V> {
    type Output = V::Output;
    fn take<C: Compare<A: Lane<Reg = u32>>>(self, how: Comparison) -> Option<V::Output> {
        self.0.set_pair::<C>(how, self.1)
    }
}

/// What `set` writes where its comparison is true, by the type of its destination.
fn truth(to: &str) -> Option<u32> {
    match to {
        "u16" | "s16" => Some(0xffff),
        "u32" | "s32" => Some(!0),
        "f16" | "f16x2" => Some(0x3c00),
        "bf16" | "bf16x2" => Some(0x3f80),
        "f32" => Some(1.0f32.to_bits()),
        _ => None,
    }
}

pub(super) fn visit<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    match form.opcode {
        "setp" => match form.types.as_slice() {
            ["f16x2"] => comparison_pair::<F16, _>(form, SetPredicate(v)),
            ["bf16x2"] => comparison_pair::<Bf16, _>(form, SetPredicate(v)),
            [from] => comparison(form, from, SetPredicate(v)),
            _ => None,
        },
        "set" => match form.types.as_slice() {
            ["f16x2", "f16x2"] => comparison_pair::<F16, _>(form, Set(v, truth("f16x2")?)),
            ["bf16x2", "bf16x2"] => comparison_pair::<Bf16, _>(form, Set(v, truth("bf16x2")?)),
            // All ones in each half where its comparison holds.
            ["u32" | "s32", "f16x2"] => comparison_pair::<F16, _>(form, Set(v, truth("u16")?)),
            ["u32" | "s32", "bf16x2"] => comparison_pair::<Bf16, _>(form, Set(v, truth("u16")?)),
            [to, from] => comparison(form, from, Set(v, truth(to)?)),
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

const PROPERTIES: &[&str] = &["finite", "infinite", "number", "notanumber", "normal", "subnormal"];

const JOINS: [(&str, BoolOp); 3] = [("and", BoolOp::And), ("or", BoolOp::Or), ("xor", BoolOp::Xor)];

/// The comparisons of integers that there are operations for.
#[derive(Clone, Copy)]
enum OfInts {
    Equal,
    Less,
}

/// The comparisons of floating-point numbers that there are operations for.
#[derive(Clone, Copy)]
enum OfFloats {
    Equal,
    Unequal,
    Less,
    AtMost,
    Numbers,
}

/// The first comparison of a list that the form spells, and how it uses the operation.
fn spelled<O: Copy>(form: &Form<'_>, list: &[(&str, O, Order, Sense)]) -> Option<(O, Comparison)> {
    let join = JOINS.iter().find(|(name, _)| form.has(name)).map(|(_, join)| *join);
    let &(_, operation, order, sense) = list.iter().find(|(name, ..)| form.has(name))?;
    Some((operation, Comparison { order, sense, join }))
}

fn of_ints(form: &Form<'_>) -> Option<(OfInts, Comparison)> {
    use OfInts::{Equal, Less};
    use Order::{AsWritten, Exchanged};
    use Sense::{Fails, Holds};
    spelled(
        form,
        &[
            ("eq", Equal, AsWritten, Holds),
            ("ne", Equal, AsWritten, Fails),
            ("lt", Less, AsWritten, Holds),
            ("le", Less, Exchanged, Fails),
            ("gt", Less, Exchanged, Holds),
            ("ge", Less, AsWritten, Fails),
            ("lo", Less, AsWritten, Holds),
            ("ls", Less, Exchanged, Fails),
            ("hi", Less, Exchanged, Holds),
            ("hs", Less, AsWritten, Fails),
        ],
    )
}

/// Those that end in `u` are true of NaN: they are the others' opposites.
fn of_floats(form: &Form<'_>) -> Option<(OfFloats, Comparison)> {
    use OfFloats::{AtMost, Equal, Less, Numbers, Unequal};
    use Order::{AsWritten, Exchanged};
    use Sense::{Fails, Holds};
    spelled(
        form,
        &[
            ("eq", Equal, AsWritten, Holds),
            ("ne", Unequal, AsWritten, Holds),
            ("lt", Less, AsWritten, Holds),
            ("le", AtMost, AsWritten, Holds),
            ("gt", Less, Exchanged, Holds),
            ("ge", AtMost, Exchanged, Holds),
            ("equ", Unequal, AsWritten, Fails),
            ("neu", Equal, AsWritten, Fails),
            ("ltu", AtMost, Exchanged, Fails),
            ("leu", Less, Exchanged, Fails),
            ("gtu", AtMost, AsWritten, Fails),
            ("geu", Less, AsWritten, Fails),
            ("num", Numbers, AsWritten, Holds),
            ("nan", Numbers, AsWritten, Fails),
        ],
    )
}

fn comparison<S: Sink>(form: &Form<'_>, from: &str, sink: S) -> Option<S::Output> {
    if let "f16" | "bf16" | "f32" | "f64" = from {
        return with_type!(
            from,
            T in ["f16" => F16, "bf16" => Bf16, "f32" => f32, "f64" => f64],
            with_subnormals!(form, Z, floats::<T, Z, S>(form, sink))
        );
    }
    let (operation, how) = of_ints(form)?;
    match operation {
        // Signs are bits like others.
        OfInts::Equal => with_type!(
            from,
            T in [
                "b16" | "u16" | "s16" => u16,
                "b32" | "u32" | "s32" => u32,
                "b64" | "u64" | "s64" => u64
            ],
            Some(sink.take::<compare::Eq<T>>(how))
        ),
        OfInts::Less => with_int!(from, T, Some(sink.take::<compare::Lt<T>>(how))),
    }
}

fn floats<T: Comparable, Z: Subnormals, S: Sink>(form: &Form<'_>, sink: S) -> Option<S::Output> {
    let (operation, how) = of_floats(form)?;
    Some(match operation {
        OfFloats::Equal => sink.take::<compare::FEq<T, Z>>(how),
        OfFloats::Unequal => sink.take::<compare::FNe<T, Z>>(how),
        OfFloats::Less => sink.take::<compare::FLt<T, Z>>(how),
        OfFloats::AtMost => sink.take::<compare::FLe<T, Z>>(how),
        OfFloats::Numbers => sink.take::<compare::FNum<T, Z>>(how),
    })
}

fn comparison_pair<T: Comparable<Reg = u32>, S: SinkPair>(
    form: &Form<'_>,
    sink: S,
) -> Option<S::Output> {
    with_subnormals!(form, Z, pair::<T, Z, S>(form, sink))
}

fn pair<T: Comparable<Reg = u32>, Z: Subnormals, S: SinkPair>(
    form: &Form<'_>,
    sink: S,
) -> Option<S::Output> {
    let (operation, how) = of_floats(form)?;
    match operation {
        OfFloats::Equal => sink.take::<compare::FEq<T, Z>>(how),
        OfFloats::Unequal => sink.take::<compare::FNe<T, Z>>(how),
        OfFloats::Less => sink.take::<compare::FLt<T, Z>>(how),
        OfFloats::AtMost => sink.take::<compare::FLe<T, Z>>(how),
        OfFloats::Numbers => sink.take::<compare::FNum<T, Z>>(how),
    }
}
