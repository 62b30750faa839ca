//! Forms of `cvt`.

use super::Visitor;
use super::pick::{
    Form, with_any_int, with_integral_rounding, with_range, with_rounding, with_subnormals,
    with_type,
};
use crate::exec::alu::cvt;
use crate::exec::alu::float::{Ftz, Full, Keep, Rm, Rn, Rna, Rp, Rz, Sat};
use crate::exec::alu::half::{self, Infinite, Relu, SatFinite};
use crate::exec::alu::lane::{Bf16, F16};

const ARITHMETIC: &[&str] = &["rn", "rz", "rm", "rp", "ftz", "sat"];
const INTEGRAL: &[&str] = &["rni", "rzi", "rmi", "rpi", "ftz", "sat"];

pub(super) fn visit<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    if form.has("pack") {
        return pack(form, v);
    }
    let &[to, from] = form.types.as_slice() else { return None };
    match (to, from) {
        ("f16" | "bf16", "f16" | "bf16" | "f32" | "f64") => to_half(form, to, from, v),
        ("f16x2" | "bf16x2", "f32") => to_half_pair(form, to, v),
        ("tf32", "f32") => to_tf32(form, v),
        ("e4m3x2" | "e5m2x2", _) | (_, "e4m3x2" | "e5m2x2") => eight_bit(form, to, from, v),
        (_, "f16" | "bf16") => from_half(form, to, from, v),
        ("f16" | "bf16", _) => {
            form.only(&["rn", "rz", "rm", "rp", "sat"])?;
            if form.has("sat") {
                return with_any_int!(
                    from,
                    S,
                    with_type!(to, H in ["f16" => F16, "bf16" => Bf16], Some(v.unary::<half::IntToHalfSat<H, S>>()))
                );
            }
            with_rounding!(
                form,
                R,
                with_any_int!(
                    from,
                    S,
                    with_type!(to, H in ["f16" => F16, "bf16" => Bf16], Some(v.unary::<half::IntToHalf<H, S, R>>()))
                )
            )
        }
        ("f32" | "f64", "f32" | "f64") => between_floats(form, to, from, v),
        (_, "f32") => {
            form.only(INTEGRAL)?;
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
            form.only(ARITHMETIC)?;
            with_rounding!(
                form,
                R,
                with_range!(
                    form,
                    C,
                    with_any_int!(
                        from,
                        S,
                        with_type!(
                            to,
                            D in ["f32" => f32, "f64" => f64],
                            Some(v.unary::<cvt::IntToFloat<D, S, R, C>>())
                        )
                    )
                )
            )
        }
        _ => {
            form.only(&["sat"])?;
            if form.has("sat") {
                with_any_int!(
                    to,
                    D,
                    with_any_int!(from, S, Some(v.unary::<cvt::IntToIntSat<D, S>>()))
                )
            } else {
                with_any_int!(to, D, with_any_int!(from, S, Some(v.unary::<cvt::IntToInt<D, S>>())))
            }
        }
    }
}

fn between_floats<V: Visitor>(form: &Form<'_>, to: &str, from: &str, v: V) -> Option<V::Output> {
    let integral = form.one_of(&["rni", "rzi", "rmi", "rpi"]).is_some();
    match (to, from) {
        ("f64", "f32") => {
            form.only(&["ftz", "sat"])?;
            with_subnormals!(form, Z, with_range!(form, C, Some(v.unary::<cvt::Widen<Z, C>>())))
        }
        ("f32", "f64") => {
            form.only(ARITHMETIC)?;
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
        ("f32", _) if integral => {
            form.only(INTEGRAL)?;
            with_integral_rounding!(
                form,
                R,
                with_subnormals!(
                    form,
                    Z,
                    with_range!(form, C, Some(v.unary::<cvt::RoundToIntegral<f32, R, Z, C>>()))
                )
            )
        }
        (_, _) if integral => {
            form.only(INTEGRAL)?;
            with_integral_rounding!(
                form,
                R,
                with_range!(form, C, Some(v.unary::<cvt::RoundToIntegral<f64, R, Keep, C>>()))
            )
        }
        ("f32", _) => {
            form.only(&["ftz", "sat"])?;
            with_subnormals!(form, Z, with_range!(form, C, Some(v.unary::<cvt::Same<f32, Z, C>>())))
        }
        _ => {
            form.only(&["sat"])?;
            with_range!(form, C, Some(v.unary::<cvt::Same<f64, Keep, C>>()))
        }
    }
}

fn from_half<V: Visitor>(form: &Form<'_>, to: &str, from: &str, v: V) -> Option<V::Output> {
    with_type!(from, H in ["f16" => F16, "bf16" => Bf16], match to {
        "f32" => {
            form.only(&["ftz", "sat"])?;
            with_subnormals!(form, Z, with_range!(form, C, Some(v.unary::<half::HalfToF32<H, Z, C>>())))
        }
        "f64" => {
            form.only(&["sat"])?;
            with_range!(form, C, Some(v.unary::<half::HalfToF64<H, C>>()))
        }
        _ => {
            form.only(INTEGRAL)?;
            with_integral_rounding!(form, R, with_any_int!(to, D, Some(v.unary::<half::HalfToInt<D, H, R>>())))
        }
    })
}

fn to_half<V: Visitor>(form: &Form<'_>, to: &str, from: &str, v: V) -> Option<V::Output> {
    if to == from && form.one_of(&["rni", "rzi", "rmi", "rpi"]).is_some() {
        form.only(INTEGRAL)?;
        return with_integral_rounding!(
            form,
            R,
            with_range!(
                form,
                C,
                with_type!(to, H in ["f16" => F16, "bf16" => Bf16], Some(v.unary::<half::HalfToIntegral<H, R, C>>()))
            )
        );
    }
    form.only(&["rn", "rz", "rm", "rp", "ftz", "sat", "relu", "satfinite"])?;
    with_type!(to, H in ["f16" => F16, "bf16" => Bf16], with_type!(
        from,
        S in ["f16" => F16, "bf16" => Bf16, "f32" => f32, "f64" => f64],
        with_rounding!(form, R, match (form.has("sat"), form.has("relu"), form.has("satfinite")) {
            (false, false, false) => Some(v.unary::<half::ToHalfFrom<H, S, R, Full, Infinite>>()),
            (true, false, false) => Some(v.unary::<half::ToHalfFrom<H, S, R, Sat, Infinite>>()),
            (false, true, false) => Some(v.unary::<half::ToHalfFrom<H, S, R, Relu, Infinite>>()),
            (false, false, true) => Some(v.unary::<half::ToHalfFrom<H, S, R, Full, SatFinite>>()),
            (false, true, true) => Some(v.unary::<half::ToHalfFrom<H, S, R, Relu, SatFinite>>()),
            _ => None,
        })
    ))
}

fn to_half_pair<V: Visitor>(form: &Form<'_>, to: &str, v: V) -> Option<V::Output> {
    form.only(&["rn", "rz", "relu", "satfinite"])?;
    macro_rules! pair {
        ($op:ident) => {
            with_rounding!(
                form,
                R,
                match (form.has("relu"), form.has("satfinite")) {
                    (false, false) => Some(v.binary::<half::$op<R, Full, Infinite>>()),
                    (true, false) => Some(v.binary::<half::$op<R, Relu, Infinite>>()),
                    (false, true) => Some(v.binary::<half::$op<R, Full, SatFinite>>()),
                    (true, true) => Some(v.binary::<half::$op<R, Relu, SatFinite>>()),
                }
            )
        };
    }
    if to == "f16x2" { pair!(ToF16x2) } else { pair!(ToBf16x2) }
}

fn to_tf32<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    form.only(&["rn", "rz", "rna", "relu", "satfinite"])?;
    macro_rules! tf32 {
        ($R:ident) => {
            match (form.has("relu"), form.has("satfinite")) {
                (false, false) => Some(v.unary::<cvt::ToTf32<$R, Full, Infinite>>()),
                (true, false) => Some(v.unary::<cvt::ToTf32<$R, Relu, Infinite>>()),
                (false, true) => Some(v.unary::<cvt::ToTf32<$R, Full, SatFinite>>()),
                (true, true) => Some(v.unary::<cvt::ToTf32<$R, Relu, SatFinite>>()),
            }
        };
    }
    match form.one_of(&["rn", "rz", "rna"])? {
        "rn" => tf32!(Rn),
        "rz" => tf32!(Rz),
        _ => tf32!(Rna),
    }
}

fn eight_bit<V: Visitor>(form: &Form<'_>, to: &str, from: &str, v: V) -> Option<V::Output> {
    form.only(&["rn", "satfinite", "relu"])?;
    macro_rules! format {
        ($name:expr, $E:ident, $body:expr) => {
            with_type!($name, $E in ["e4m3x2" => cvt::E4m3, "e5m2x2" => cvt::E5m2], $body)
        };
    }
    match (to, from, form.has("relu")) {
        (_, "f32", false) => format!(to, E, Some(v.binary::<cvt::ToBytePair<E, Full>>())),
        (_, "f32", true) => format!(to, E, Some(v.binary::<cvt::ToBytePair<E, Relu>>())),
        (_, "f16x2", false) => format!(to, E, Some(v.unary::<cvt::ToBytePairFromF16x2<E, Full>>())),
        (_, "f16x2", true) => format!(to, E, Some(v.unary::<cvt::ToBytePairFromF16x2<E, Relu>>())),
        ("f16x2", _, false) => format!(from, E, Some(v.unary::<cvt::FromBytePair<E, Full>>())),
        ("f16x2", _, true) => format!(from, E, Some(v.unary::<cvt::FromBytePair<E, Relu>>())),
        _ => None,
    }
}

fn pack<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    form.only(&["pack", "sat"])?;
    form.has("sat").then_some(())?;
    match form.types.as_slice() {
        [to, "s32"] => {
            with_type!(*to, D in ["u16" => cvt::PackU16, "s16" => cvt::PackS16], Some(v.binary::<cvt::Pack<D>>()))
        }
        [to, "s32", "b32"] => with_type!(
            *to,
            D in [
                "u16" => cvt::PackU16, "s16" => cvt::PackS16, "u8" => cvt::PackU8, "s8" => cvt::PackS8,
                "u4" => cvt::PackU4, "s4" => cvt::PackS4, "u2" => cvt::PackU2, "s2" => cvt::PackS2
            ],
            Some(v.ternary::<cvt::PackInto<D>>())
        ),
        _ => None,
    }
}
