//! Forms of the `.f32` and `.f64` instructions.

use super::Visitor;
use super::pick::{
    Form, with_any_int, with_integral_rounding, with_range, with_rounding, with_subnormals,
    with_type,
};
use crate::exec::alu::cvt;
use crate::exec::alu::float::{self, Ftz, Full, Keep, Rm, Rn, Rp, Rz, Sat};
use crate::exec::alu::int;

pub(super) fn visit<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    match form.opcode {
        "add" | "sub" | "mul" | "fma" | "mad" => arithmetic(form, v),
        "cvt" => convert(form, v),
        _ => {
            form.only(&["ftz"])?;
            simple(form, v)
        }
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
    macro_rules! simple {
        ($method:ident $op:ident) => {
            match form.types.as_slice() {
                ["f64"] if !form.has("ftz") => Some(v.$method::<float::$op<f64, Keep>>()),
                ["f32"] => with_subnormals!(form, Z, Some(v.$method::<float::$op<f32, Z>>())),
                _ => None,
            }
        };
    }
    match form.opcode {
        "abs" => simple!(unary Abs),
        "neg" => simple!(unary Neg),
        "min" => simple!(binary Min),
        "max" => simple!(binary Max),
        "copysign" => {
            with_type!(*form.types.last()?, T in ["f32" => f32, "f64" => f64], Some(v.binary::<float::CopySign<T>>()))
        }
        "mov" => {
            with_type!(*form.types.last()?, T in ["f32" => f32, "f64" => f64], Some(v.unary::<int::Move<T>>()))
        }
        _ => None,
    }
}

pub(super) fn convert<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    let &[to, from] = form.types.as_slice() else { return None };
    match (to, from) {
        ("f64", "f32") => {
            form.only(&["ftz", "sat"])?;
            with_subnormals!(form, Z, with_range!(form, C, Some(v.unary::<cvt::Widen<Z, C>>())))
        }
        ("f32", "f64") => {
            form.only(&["rn", "rz", "rm", "rp", "ftz", "sat"])?;
            with_rounding!(
                form,
                R,
                with_subnormals!(
                    form,
                    Z,
                    with_range!(form, C, Some(v.unary::<cvt::Narrow<R, Z, C>>()))
                )
            )
        }
        ("f32", "f32") => {
            form.only(&["rni", "rzi", "rmi", "rpi", "ftz", "sat"])?;
            with_subnormals!(
                form,
                Z,
                with_range!(
                    form,
                    C,
                    match form.one_of(&["rni", "rzi", "rmi", "rpi"]) {
                        None => Some(v.unary::<cvt::Same<f32, Z, C>>()),
                        _ => with_integral_rounding!(
                            form,
                            R,
                            Some(v.unary::<cvt::RoundToIntegral<f32, R, Z, C>>())
                        ),
                    }
                )
            )
        }
        ("f64", "f64") => {
            form.only(&["rni", "rzi", "rmi", "rpi", "sat"])?;
            with_range!(
                form,
                C,
                match form.one_of(&["rni", "rzi", "rmi", "rpi"]) {
                    None => Some(v.unary::<cvt::Same<f64, Keep, C>>()),
                    _ => with_integral_rounding!(
                        form,
                        R,
                        Some(v.unary::<cvt::RoundToIntegral<f64, R, Keep, C>>())
                    ),
                }
            )
        }
        (_, "f32") => {
            form.only(&["rni", "rzi", "rmi", "rpi", "ftz", "sat"])?;
            with_integral_rounding!(
                form,
                R,
                with_subnormals!(
                    form,
                    Z,
                    with_any_int!(to, D, Some(v.unary::<cvt::FloatToInt<D, f32, R, Z>>()))
                )
            )
        }
        (_, "f64") => {
            form.only(&["rni", "rzi", "rmi", "rpi", "sat"])?;
            with_integral_rounding!(
                form,
                R,
                with_any_int!(to, D, Some(v.unary::<cvt::FloatToInt<D, f64, R, Keep>>()))
            )
        }
        ("f32" | "f64", _) => {
            form.only(&["rn", "rz", "rm", "rp", "sat"])?;
            with_rounding!(
                form,
                R,
                with_range!(
                    form,
                    C,
                    with_any_int!(
                        from,
                        S,
                        with_type!(to, D in ["f32" => f32, "f64" => f64], Some(v.unary::<cvt::IntToFloat<D, S, R, C>>()))
                    )
                )
            )
        }
        _ => None,
    }
}
