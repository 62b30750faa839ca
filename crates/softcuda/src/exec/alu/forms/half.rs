//! Forms of the `.f16` and `.bf16` instructions, single and packed.

use super::Visitor;
use super::pick::{Form, with_extremum, with_subnormals, with_type};
use crate::exec::alu::float::{Ftz, Full, Keep, NanLoses, NanWins, OwnSign, Sat, XorSign};
use crate::exec::alu::half::{self, Relu};
use crate::exec::alu::int;
use crate::exec::alu::lane::{Bf16, Bf16x2, F16, F16x2};

/// The four half types.
macro_rules! with_half {
    ($name:expr, $T:ident, $body:expr) => {
        with_type!($name, $T in ["f16" => F16, "bf16" => Bf16, "f16x2" => F16x2, "bf16x2" => Bf16x2], $body)
    };
}

pub(super) fn visit<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    let &[t] = form.types.as_slice() else { return None };
    if t.starts_with('b') && form.has("ftz") && form.opcode != "ex2" {
        return None;
    }
    match form.opcode {
        "add" | "sub" | "mul" => {
            form.only(&["rn", "ftz", "sat"])?;
            macro_rules! arithmetic {
                ($op:ident) => {
                    with_half!(
                        t,
                        T,
                        with_subnormals!(
                            form,
                            Z,
                            if form.has("sat") {
                                Some(v.binary::<half::$op<T, Z, Sat>>())
                            } else {
                                Some(v.binary::<half::$op<T, Z, Full>>())
                            }
                        )
                    )
                };
            }
            match form.opcode {
                "add" => arithmetic!(Add),
                "sub" => arithmetic!(Sub),
                _ => arithmetic!(Mul),
            }
        }
        "fma" => {
            // `.oob` is absent: the NaN that it looks for is not documented, and neither 0x7fff nor
            // 0xffff.
            form.only(&["rn", "ftz", "sat", "relu"])?;
            with_half!(
                t,
                T,
                with_subnormals!(
                    form,
                    Z,
                    match (form.has("sat"), form.has("relu")) {
                        (false, false) => Some(v.ternary::<half::Fma<T, Z, Full>>()),
                        (true, false) => Some(v.ternary::<half::Fma<T, Z, Sat>>()),
                        (false, true) => Some(v.ternary::<half::Fma<T, Z, Relu>>()),
                        (true, true) => None,
                    }
                )
            )
        }
        "abs" => {
            form.only(&["ftz"])?;
            with_half!(t, T, with_subnormals!(form, Z, Some(v.unary::<half::Abs<T, Z>>())))
        }
        "neg" => {
            form.only(&["ftz"])?;
            with_half!(t, T, with_subnormals!(form, Z, Some(v.unary::<half::Neg<T, Z>>())))
        }
        "min" => {
            form.only(&["ftz", "NaN", "xorsign", "abs"])?;
            with_half!(
                t,
                T,
                with_subnormals!(
                    form,
                    Z,
                    with_extremum!(form, N, X, Some(v.binary::<half::Min<T, Z, N, X>>()))
                )
            )
        }
        "max" => {
            form.only(&["ftz", "NaN", "xorsign", "abs"])?;
            with_half!(
                t,
                T,
                with_subnormals!(
                    form,
                    Z,
                    with_extremum!(form, N, X, Some(v.binary::<half::Max<T, Z, N, X>>()))
                )
            )
        }
        "ex2" => {
            form.only(&["approx", "ftz"])?;
            with_half!(t, T, with_subnormals!(form, Z, Some(v.unary::<half::Ex2<T, Z>>())))
        }
        "tanh" => {
            form.only(&["approx"])?;
            with_half!(t, T, Some(v.unary::<half::Tanh<T>>()))
        }
        "mov" => with_half!(t, T, Some(v.unary::<int::Move<T>>())),
        _ => None,
    }
}
