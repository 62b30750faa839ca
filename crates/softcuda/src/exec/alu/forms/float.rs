//! Forms of the `.f32` and `.f64` instructions.

use super::Visitor;
use super::pick::{Form, with_extremum, with_range, with_rounding, with_subnormals, with_type};
use crate::exec::alu::float::{
    self, Ftz, Full, Keep, NanLoses, NanWins, OwnSign, Rm, Rn, Rp, Rz, Sat, XorSign,
};
use crate::exec::alu::int;

pub(super) fn visit<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    match form.opcode {
        _ if form.types.last() == Some(&"f32x2") => packed(form, v),
        "add" | "sub" | "mul" | "fma" | "mad" => arithmetic(form, v),
        "min" | "max" | "min3" | "max3" => extremum(form, v),
        "div" | "rcp" | "sqrt" => quotient(form, v),
        "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => approximate(form, v),
        _ => simple(form, v),
    }
}

fn arithmetic<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    form.only(&["rn", "rz", "rm", "rp", "ftz", "sat"])?;
    macro_rules! arithmetic {
        ($method:ident $op:ident) => {
            match form.types.as_slice() {
                ["f64"] if !form.has("ftz") && !form.has("sat") => {
                    with_rounding!(form, R, Some(v.$method::<float::$op<f64, R, Keep, Full>>()))
                }
                ["f32"] => with_rounding!(
                    form,
                    R,
                    with_subnormals!(
                        form,
                        Z,
                        with_range!(form, S, Some(v.$method::<float::$op<f32, R, Z, S>>()))
                    )
                ),
                _ => None,
            }
        };
    }
    match form.opcode {
        "add" => arithmetic!(binary Add),
        "sub" => arithmetic!(binary Sub),
        "mul" => arithmetic!(binary Mul),
        _ => arithmetic!(ternary Fma),
    }
}

fn simple<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    form.only(&["ftz"])?;
    macro_rules! simple {
        ($method:ident $op:ident) => {
            match form.types.as_slice() {
                ["f64"] if !form.has("ftz") => Some(v.$method::<float::$op<f64, Keep>>()),
                ["f32"] => with_subnormals!(form, Z, Some(v.$method::<float::$op<f32, Z>>())),
                _ => None,
            }
        };
    }
    let t = *form.types.last()?;
    match form.opcode {
        "abs" => simple!(unary Abs),
        "neg" => simple!(unary Neg),
        "copysign" => {
            with_type!(t, T in ["f32" => f32, "f64" => f64], Some(v.binary::<float::CopySign<T>>()))
        }
        "mov" => with_type!(t, T in ["f32" => f32, "f64" => f64], Some(v.unary::<int::Move<T>>())),
        _ => None,
    }
}

fn extremum<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    form.only(&["ftz", "NaN", "xorsign", "abs"])?;
    macro_rules! extremum {
        ($method:ident $op:ident) => {
            match form.types.as_slice() {
                ["f64"] => {
                    form.only(&[])?;
                    Some(v.$method::<float::$op<f64, Keep, NanLoses, OwnSign>>())
                }
                ["f32"] => with_subnormals!(
                    form,
                    Z,
                    with_extremum!(form, N, X, Some(v.$method::<float::$op<f32, Z, N, X>>()))
                ),
                _ => None,
            }
        };
    }
    match form.opcode {
        "min" => extremum!(binary Min),
        "max" => extremum!(binary Max),
        "min3" => extremum!(ternary Min3),
        _ => extremum!(ternary Max3),
    }
}

/// `div rcp sqrt`, exactly rounded or approximate.
fn quotient<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    form.only(&["rn", "rz", "rm", "rp", "approx", "full", "ftz"])?;
    let t = *form.types.last()?;
    if (form.opcode, t) == ("rcp", "f64") && form.has("approx") {
        return form.has("ftz").then(|| v.unary::<float::RcpGross>());
    }
    if t == "f64" && (form.has("ftz") || form.has("approx") || form.has("full")) {
        return None;
    }
    macro_rules! quotient {
        ($method:ident $op:ident) => {
            match t {
                "f64" => with_rounding!(form, R, Some(v.$method::<float::$op<f64, R, Keep>>())),
                "f32" => with_rounding!(
                    form,
                    R,
                    with_subnormals!(form, Z, Some(v.$method::<float::$op<f32, R, Z>>()))
                ),
                _ => None,
            }
        };
    }
    match form.opcode {
        "div" => quotient!(binary Div),
        "rcp" => quotient!(unary Rcp),
        _ => quotient!(unary Sqrt),
    }
}

fn approximate<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    form.only(&["approx", "ftz"])?;
    form.has("approx").then_some(())?;
    match (form.opcode, *form.types.last()?, form.has("ftz")) {
        ("rsqrt", "f64", true) => Some(v.unary::<float::RsqrtGross>()),
        ("rsqrt", "f64", false) => Some(v.unary::<float::RsqrtDouble>()),
        ("rsqrt", "f32", _) => with_subnormals!(form, Z, Some(v.unary::<float::Rsqrt<Z>>())),
        ("sin", "f32", _) => with_subnormals!(form, Z, Some(v.unary::<float::Sin<Z>>())),
        ("cos", "f32", _) => with_subnormals!(form, Z, Some(v.unary::<float::Cos<Z>>())),
        ("lg2", "f32", _) => with_subnormals!(form, Z, Some(v.unary::<float::Lg2<Z>>())),
        ("ex2", "f32", _) => with_subnormals!(form, Z, Some(v.unary::<float::Ex2<Z>>())),
        ("tanh", "f32", false) => Some(v.unary::<float::Tanh>()),
        _ => None,
    }
}

/// `.f32x2`: two independent `.f32`.
fn packed<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    form.only(&["rn", "rz", "rm", "rp", "ftz"])?;
    match form.opcode {
        "add" => with_rounding!(
            form,
            R,
            with_subnormals!(form, Z, Some(v.binary::<float::AddPair<R, Z>>()))
        ),
        "sub" => with_rounding!(
            form,
            R,
            with_subnormals!(form, Z, Some(v.binary::<float::SubPair<R, Z>>()))
        ),
        "mul" => with_rounding!(
            form,
            R,
            with_subnormals!(form, Z, Some(v.binary::<float::MulPair<R, Z>>()))
        ),
        "fma" => with_rounding!(
            form,
            R,
            with_subnormals!(form, Z, Some(v.ternary::<float::FmaPair<R, Z>>()))
        ),
        _ => None,
    }
}
