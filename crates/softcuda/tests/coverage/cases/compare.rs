//! `setp` and `set`.

use crate::case::{Case, RESULT, Slot, computation};
use crate::exact::Format;
use crate::form::{Form, bits_of, is_float, is_signed, register};
use crate::operands::{Domain, Nans, tuples};

/// Comparisons of numbers; those with `u` also hold for unordered operands.
pub(crate) const COMPARISONS: [&str; 14] =
    ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    if !matches!(form.name, "setp" | "set") {
        return None;
    }
    let from = form.ty().to_owned();
    let op = form.one_of(&COMPARISONS)?;
    let flush = form.has("ftz");
    let domain = if is_float(&from) {
        Domain::Any(Format::of(&from), Nans::With)
    } else {
        Domain::Int(bits_of(&from))
    };
    let tuples = tuples(&[domain, domain], |_| true);
    let (a, b) = (register(&from, 1), register(&from, 2));
    let types = [from.as_str(), from.as_str()];
    let from = from.clone();
    let holds = move |t: &[u64]| holds(op, order(t[0], t[1], &from, flush));
    if form.name == "set" {
        let to = form.types()[0];
        let body = format!("{} {}, {a}, {b};", form.text, register(to, RESULT));
        let one = match to {
            "f16" => 0x3c00,
            "bf16" => 0x3f80,
            "f32" => 0x3f80_0000,
            _ => 0xffff_ffff,
        };
        return Some(computation(&types, &[to], body, &tuples, move |t| {
            vec![Slot::Bits(if holds(t) { one } else { 0 })]
        }));
    }
    let (p, q) = (register("pred", RESULT), register("pred", RESULT + 1));
    // The second predicate is the first one's opposite.
    let body = format!("{0} {p}|{q}, {a}, {b};\n{0} {p}, {a}, {b};", form.text);
    Some(computation(&types, &["pred", "pred"], body, &tuples, move |t| {
        let holds = holds(t);
        vec![Slot::Bits(u64::from(holds)), Slot::Bits(u64::from(!holds))]
    }))
}

/// How two values compare; `None` if one is a NaN.
fn order(a: u64, b: u64, ty: &str, flush: bool) -> Option<std::cmp::Ordering> {
    if is_float(ty) {
        let format = Format::of(ty);
        let number = |x: u64| {
            let x = if flush { format.flush(x) } else { x };
            match ty {
                "f64" => f64::from_bits(x),
                "f32" => f64::from(f32::from_bits(x as u32)),
                "bf16" => f64::from(f32::from_bits((x as u32) << 16)),
                _ => half(x),
            }
        };
        return number(a).partial_cmp(&number(b));
    }
    let shift = 64 - bits_of(ty);
    Some(if is_signed(ty) {
        (((a << shift) as i64) >> shift).cmp(&(((b << shift) as i64) >> shift))
    } else {
        a.cmp(&b)
    })
}

/// An `f16`'s value.
fn half(x: u64) -> f64 {
    let fraction = (x & 0x3ff) as f64 / 1024.0;
    let magnitude = match x >> 10 & 31 {
        0 => fraction * 2f64.powi(-14),
        31 if x & 0x3ff != 0 => f64::NAN,
        31 => f64::INFINITY,
        e => (1.0 + fraction) * 2f64.powi(e as i32 - 15),
    };
    if x >> 15 & 1 == 1 { -magnitude } else { magnitude }
}

fn holds(op: &str, order: Option<std::cmp::Ordering>) -> bool {
    let Some(order) = order else {
        return op == "nan" || op.ends_with('u');
    };
    match op.trim_end_matches('u') {
        "eq" => order.is_eq(),
        "ne" => order.is_ne(),
        "lt" => order.is_lt(),
        "le" => order.is_le(),
        "gt" => order.is_gt(),
        "ge" => order.is_ge(),
        "num" => true,
        _ => false,
    }
}
