//! Forms of the integer instructions.

use super::CarryOut;
use super::Visitor;
use super::pick::{Form, with_int, with_type};
use crate::exec::alu::int;
use crate::exec::alu::lane::{S16x2, U16x2};

pub(super) fn visit<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    let t = *form.types.last()?;
    match form.opcode {
        "add" | "sub" if form.has("sat") => {
            form.only(&["sat"])?;
            match (form.opcode, t) {
                ("add", "s32") => Some(v.binary::<int::AddSat<i32>>()),
                ("sub", "s32") => Some(v.binary::<int::SubSat<i32>>()),
                _ => None,
            }
        }
        "addc" | "subc" | "madc" => carry(form, t, v),
        "add" | "sub" | "mad" if form.has("cc") => carry(form, t, v),
        "mul" | "mad" | "mul24" | "mad24" => multiply(form, t, v),
        "min" | "max" if form.has("relu") => match (form.opcode, t) {
            ("min", "s32") => Some(v.binary::<int::MinRelu<i32>>()),
            ("max", "s32") => Some(v.binary::<int::MaxRelu<i32>>()),
            ("min", "s16x2") => Some(v.binary::<int::MinRelu16x2<S16x2>>()),
            ("max", "s16x2") => Some(v.binary::<int::MaxRelu16x2<S16x2>>()),
            _ => None,
        },
        _ => {
            form.only(&[])?;
            plain(form, t, v)
        }
    }
}

/// Condition-code forms: `.cc` writes it, the opcodes that end in `c` read it.
fn carry<V: Visitor>(form: &Form<'_>, t: &str, v: V) -> Option<V::Output> {
    form.only(&["cc", "lo", "hi"])?;
    let out = if form.has("cc") { CarryOut::Write } else { CarryOut::Discard };
    // Signs matter to the high half of a product alone.
    macro_rules! chain {
        ($op:ident, $link:ident) => {
            with_type!(t, T in ["u32" | "s32" => u32, "u64" | "s64" => u64], v.carry::<int::$op<T, int::$link>>(out))
        };
    }
    macro_rules! high_chain {
        ($link:ident) => {
            with_type!(t, T in ["u32" => u32, "s32" => i32, "u64" => u64, "s64" => i64], v.carry::<int::MadHiCarry<T, int::$link>>(out))
        };
    }
    match (form.opcode, form.one_of(&["lo", "hi"])) {
        ("add", None) => chain!(AddCarry, Start),
        ("addc", None) => chain!(AddCarry, Continue),
        ("sub", None) => chain!(SubBorrow, Start),
        ("subc", None) => chain!(SubBorrow, Continue),
        ("mad", Some("lo")) => chain!(MadLoCarry, Start),
        ("madc", Some("lo")) => chain!(MadLoCarry, Continue),
        ("mad", Some("hi")) => high_chain!(Start),
        ("madc", Some("hi")) => high_chain!(Continue),
        _ => None,
    }
}

fn plain<V: Visitor>(form: &Form<'_>, t: &str, v: V) -> Option<V::Output> {
    match (form.opcode, t) {
        ("add", "u16x2") => return Some(v.binary::<int::Add16x2<U16x2>>()),
        ("add", "s16x2") => return Some(v.binary::<int::Add16x2<S16x2>>()),
        ("min", "u16x2") => return Some(v.binary::<int::Min16x2<U16x2>>()),
        ("min", "s16x2") => return Some(v.binary::<int::Min16x2<S16x2>>()),
        ("max", "u16x2") => return Some(v.binary::<int::Max16x2<U16x2>>()),
        ("max", "s16x2") => return Some(v.binary::<int::Max16x2<S16x2>>()),
        _ => {}
    }
    match form.opcode {
        "add" => with_int!(t, T, Some(v.binary::<int::Add<T>>())),
        "sub" => with_int!(t, T, Some(v.binary::<int::Sub<T>>())),
        "div" => with_int!(t, T, Some(v.binary::<int::Div<T>>())),
        "rem" => with_int!(t, T, Some(v.binary::<int::Rem<T>>())),
        "min" => with_int!(t, T, Some(v.binary::<int::Min<T>>())),
        "max" => with_int!(t, T, Some(v.binary::<int::Max<T>>())),
        "sad" => with_int!(t, T, Some(v.ternary::<int::Sad<T>>())),
        "abs" => {
            with_type!(t, T in ["s16" => i16, "s32" => i32, "s64" => i64], Some(v.unary::<int::Abs<T>>()))
        }
        "neg" => {
            with_type!(t, T in ["s16" => i16, "s32" => i32, "s64" => i64], Some(v.unary::<int::Neg<T>>()))
        }
        "mov" => with_type!(
            t,
            T in ["b8" | "u8" | "s8" => u8, "b16" | "u16" | "s16" => u16, "b32" | "u32" | "s32" => u32, "b64" | "u64" | "s64" => u64],
            Some(v.unary::<int::Move<T>>())
        ),
        _ => None,
    }
}

fn multiply<V: Visitor>(form: &Form<'_>, t: &str, v: V) -> Option<V::Output> {
    form.only(&["lo", "hi", "wide", "sat"])?;
    let part = form.one_of(&["lo", "hi", "wide"])?;
    if form.has("sat") {
        return match (form.opcode, part, t) {
            ("mad", "hi", "s32") => Some(v.ternary::<int::MadHiSat<i32>>()),
            ("mad24", "hi", "s32") => Some(v.ternary::<int::Mad24HiSat<i32>>()),
            _ => None,
        };
    }
    match (form.opcode, part) {
        ("mul", "lo") => with_int!(t, T, Some(v.binary::<int::MulLo<T>>())),
        ("mul", "hi") => with_int!(t, T, Some(v.binary::<int::MulHi<T>>())),
        ("mad", "lo") => with_int!(t, T, Some(v.ternary::<int::MadLo<T>>())),
        ("mad", "hi") => with_int!(t, T, Some(v.ternary::<int::MadHi<T>>())),
        ("mul", "wide") => {
            with_type!(t, T in ["u16" => u16, "s16" => i16, "u32" => u32, "s32" => i32], Some(v.binary::<int::MulWide<T>>()))
        }
        ("mad", "wide") => {
            with_type!(t, T in ["u16" => u16, "s16" => i16, "u32" => u32, "s32" => i32], Some(v.ternary::<int::MadWide<T>>()))
        }
        ("mul24", "lo") => {
            with_type!(t, T in ["u32" => u32, "s32" => i32], Some(v.binary::<int::Mul24Lo<T>>()))
        }
        ("mul24", "hi") => {
            with_type!(t, T in ["u32" => u32, "s32" => i32], Some(v.binary::<int::Mul24Hi<T>>()))
        }
        ("mad24", "lo") => {
            with_type!(t, T in ["u32" => u32, "s32" => i32], Some(v.ternary::<int::Mad24Lo<T>>()))
        }
        ("mad24", "hi") => {
            with_type!(t, T in ["u32" => u32, "s32" => i32], Some(v.ternary::<int::Mad24Hi<T>>()))
        }
        _ => None,
    }
}
