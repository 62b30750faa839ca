//! Floating-point arithmetic: exact forms against exact arithmetic rounded once, approximations
//! within the ISA's bounds.

use crate::case::{Case, Slot, computation, plain_body};
use crate::exact::{Format, Rounding, Value};
use crate::form::{Form, is_float};
use crate::operands::{Domain, Nans, tuples};

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    if !is_float(form.ty()) {
        return None;
    }
    let approximate = form.has("approx") || form.has("full");
    match form.name {
        "div" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh"
            if approximate =>
        {
            Some(approximation(form))
        }
        "add" | "sub" | "mul" | "fma" | "div" | "sqrt" | "rcp" => Some(rounded(form)),
        "abs" | "neg" | "min" | "max" | "copysign" => Some(signs(form)),
        _ => None,
    }
}

fn slot(bits: Option<u64>, ty: &'static str) -> Slot {
    bits.map_or(Slot::Nan(ty), Slot::Bits)
}

/// The type's name as a constant.
fn static_type(ty: &str) -> &'static str {
    ["f16", "bf16", "f32", "f64", "f16x2", "bf16x2"]
        .into_iter()
        .find(|known| *known == ty)
        .expect("a float type")
}

fn operand_count(name: &str) -> usize {
    match name {
        "fma" => 3,
        "sqrt" | "rcp" | "abs" | "neg" => 1,
        _ => 2,
    }
}

/// Forms with one correct result.
fn rounded(form: &Form<'_>) -> Case {
    let ty = static_type(form.ty());
    let (format, name) = (Format::of(ty), form.name);
    let mode = Rounding::of(form.one_of(&["rz", "rm", "rp"]).unwrap_or("rn"));
    let flush = form.has("ftz");
    let operands = vec![ty; operand_count(name)];
    let pair = ty.ends_with("x2");
    // Sums are exact in the reference as long as their operands are of similar size.
    let aligned = matches!(name, "add" | "sub" | "fma");
    let spread = if ty == "f64" { 6 } else { 12.min(format.bias() - 2) };
    let near =
        if pair { Domain::Pair(format, -3, 4) } else { Domain::Float(format, -spread, spread) };
    let mut all = tuples(&vec![near; operands.len()], |_| true);
    let lowest = 1 - format.bias();
    if !pair {
        let numbers = |t: &[u64]| {
            name != "sqrt" || t[0] >> (format.exponent_bits + format.fraction_bits) == 0
        };
        let wide = if aligned {
            // Around the subnormals.
            Domain::Float(format, lowest, lowest + 6)
        } else {
            Domain::Any(format, Nans::With)
        };
        if name != "fma" {
            all.extend(tuples(&vec![wide; operands.len()], numbers));
        }
        if matches!(name, "mul" | "fma") {
            let half = lowest / 2;
            let factor = Domain::Float(format, half - 4, half + 2);
            let mut domains = vec![factor; 2];
            if name == "fma" {
                domains.push(Domain::Float(format, lowest, lowest + 3));
            }
            all.extend(tuples(&domains, |_| true));
        }
    }
    let reference = move |t: &[u64]| -> Option<u64> {
        let value = |n: usize| Value::decode(if flush { format.flush(t[n]) } else { t[n] }, format);
        let exact = match name {
            "add" => value(0).add(value(1), mode),
            "sub" => value(0).add(value(1).negate(), mode),
            "mul" => value(0).multiply(value(1)),
            "fma" => value(0).multiply(value(1)).add(value(2), mode),
            "div" => value(0).divide(value(1)),
            "sqrt" => value(0).square_root(),
            _ => Value::integer(1).divide(value(0)),
        };
        exact.encode(format, mode).map(|bits| if flush { format.flush(bits) } else { bits })
    };
    computation(&operands, &[ty], plain_body(form.text, &operands, ty), &all, move |t| {
        if !pair {
            return vec![slot(reference(t), ty)];
        }
        let half = |k: u32| {
            let halves: Vec<u64> = t.iter().map(|x| x >> (16 * k) & 0xffff).collect();
            reference(&halves).expect("finite halves")
        };
        vec![Slot::Bits(half(0) | half(1) << 16)]
    })
}

/// Forms that choose or change signs.
fn signs(form: &Form<'_>) -> Case {
    let ty = static_type(form.ty());
    let (format, name) = (Format::of(ty), form.name);
    let flush = form.has("ftz");
    let operands = vec![ty; operand_count(name)];
    let pair = ty.ends_with("x2");
    let domain = if pair { Domain::Pair(format, -3, 4) } else { Domain::Any(format, Nans::With) };
    let all = tuples(&vec![domain; operands.len()], |_| true);
    let sign = 1u64 << (format.exponent_bits + format.fraction_bits);
    let reference = move |t: &[u64]| -> Option<u64> {
        let a = if flush { format.flush(t[0]) } else { t[0] };
        if name == "copysign" {
            return Some(t[0] & sign | t[1] & (sign - 1));
        }
        if operands_are_nan(name, t, format) {
            return None;
        }
        Some(match name {
            "abs" => a & (sign - 1),
            "neg" => a ^ sign,
            _ => {
                // Order by sign and magnitude: -0 lies below +0.
                let key = |x: u64| {
                    let magnitude = (x & (sign - 1)) as i64;
                    if x & sign != 0 { -magnitude - 1 } else { magnitude }
                };
                match (format.is_nan(t[0]), format.is_nan(t[1])) {
                    (true, _) => t[1],
                    (_, true) => t[0],
                    _ if (key(t[0]) < key(t[1])) == (name == "min") => t[0],
                    _ => t[1],
                }
            }
        })
    };
    let body = plain_body(form.text, &vec![ty; operand_count(name)], ty);
    computation(&operands, &[ty], body, &all, move |t| {
        if !pair {
            return vec![slot(reference(t), ty)];
        }
        let half = |k: u32| {
            let halves: Vec<u64> = t.iter().map(|x| x >> (16 * k) & 0xffff).collect();
            reference(&halves).expect("finite halves")
        };
        vec![Slot::Bits(half(0) | half(1) << 16)]
    })
}

/// Whether the result is a NaN: that of one operand, or neither of two is a number.
fn operands_are_nan(name: &str, t: &[u64], format: Format) -> bool {
    match name {
        "abs" | "neg" => format.is_nan(t[0]),
        _ => format.is_nan(t[0]) && format.is_nan(t[1]),
    }
}

/// Approximations: the exact function in double precision, and how far off the ISA lets them be.
fn approximation(form: &Form<'_>) -> Case {
    let ty = static_type(form.ty());
    let (format, name) = (Format::of(ty), form.name);
    let operands = vec![ty; if name == "div" { 2 } else { 1 }];
    let domain = match name {
        "sin" | "cos" | "tanh" => Domain::Float(format, -6, 1),
        "ex2" => Domain::Float(format, -6, 5),
        _ => Domain::Float(format, -40, 40),
    };
    let positive = matches!(name, "sqrt" | "rsqrt" | "lg2");
    let sign = 1u64 << (format.exponent_bits + format.fraction_bits);
    let in_domain = |t: &[u64]| !positive || t[0] & sign == 0;
    let mut all = tuples(&vec![domain; operands.len()], in_domain);
    let flush = form.has("ftz");
    if flush {
        // Subnormal operands and results are zeros.
        all.extend(tuples(&[Domain::Float(format, -format.bias(), -format.bias())], in_domain));
        let extreme = match name {
            "rcp" => Domain::Float(format, format.bias() - 1, format.bias()),
            "ex2" => Domain::Float(format, 6, 7),
            _ => domain,
        };
        all.extend(tuples(&[extreme], in_domain));
    }
    let relative = match (name, ty) {
        // Only the upper half of a double takes part.
        (_, "f64") => 2f64.powi(-19),
        ("tanh", _) => 2f64.powi(-11),
        ("sin" | "cos", _) => 0.0,
        ("rsqrt", _) => 2f64.powf(-22.9),
        ("rcp" | "sqrt", _) => 2f64.powi(-23),
        _ => 2f64.powi(-22),
    };
    let absolute = match name {
        "sin" | "cos" => 2f64.powf(-20.5),
        "lg2" => 2f64.powi(-22),
        _ => 0.0,
    };
    computation(&operands, &[ty], plain_body(form.text, &operands, ty), &all, move |t| {
        let number = |bits: u64| {
            if ty == "f64" { f64::from_bits(bits) } else { f64::from(f32::from_bits(bits as u32)) }
        };
        let zero = flush && format.is_subnormal(t[0]);
        let x = number(if flush { format.flush(t[0]) } else { t[0] });
        let value = match name {
            "div" => x / number(t[1]),
            "rcp" => 1.0 / x,
            "sqrt" => x.sqrt(),
            "rsqrt" => 1.0 / x.sqrt(),
            "ex2" => x.exp2(),
            "lg2" => x.log2(),
            "sin" => x.sin(),
            "cos" => x.cos(),
            _ => x.tanh(),
        };
        if zero && matches!(name, "sin" | "sqrt") {
            return vec![Slot::Bits(t[0] & sign)];
        }
        let least = if ty == "f64" { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) };
        let value = if flush && value.abs() < least { 0.0 } else { value };
        let value = if ty == "f32" && value.abs() > f64::from(f32::MAX) {
            f64::INFINITY.copysign(value)
        } else {
            value
        };
        vec![Slot::Near { ty, value, allowed: relative * value.abs() + absolute }]
    })
}
