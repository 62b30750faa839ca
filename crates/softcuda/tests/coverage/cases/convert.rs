//! `cvt` between all types, through exact values.

use crate::case::{Case, Slot, computation, plain_body};
use crate::exact::{F16, Format, Rounding, TF32, Value};
use crate::form::{Form, bits_of, is_float, is_signed, mask_of};
use crate::operands::{Domain, Nans, tuples};

const ROUNDINGS: [&str; 9] = ["rn", "rna", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"];

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    if form.name != "cvt" {
        return None;
    }
    let [to, from] = form.types()[..] else { return None };
    if to == "f16x2" {
        return Some(pack(form));
    }
    let mut all = Vec::new();
    if is_float(from) {
        let format = Format::of(from);
        // To an integer, NaN has no number.
        let nans = if is_float(to) { Nans::With } else { Nans::Without };
        all.extend(tuples(&[Domain::Any(format, nans)], |_| true));
        all.extend(tuples(&[Domain::Float(format, -3, 12)], |_| true));
        if to == "f16" {
            // Around its subnormals and its largest number.
            all.extend(tuples(&[Domain::Float(format, -27, -12)], |_| true));
        }
        if form.has("ftz") && from == "f64" {
            all.extend(tuples(&[Domain::Float(format, -140, -124)], |_| true));
        }
    } else {
        all.extend(tuples(&[Domain::Int(bits_of(from))], |_| true));
    }
    let rounding = form.one_of(&ROUNDINGS);
    let (to, from) = (to.to_owned(), from.to_owned());
    let convert = Convert {
        mode: Rounding::of(rounding.unwrap_or("rn")),
        integral: rounding.is_some_and(|r| r.ends_with('i')),
        flush: form.has("ftz"),
        saturate: form.has("sat"),
        to: to.clone(),
        from: from.clone(),
    };
    let operand = if from == "tf32" { "b32" } else { from.as_str() };
    let result = if to == "tf32" { "b32" } else { to.as_str() };
    let body = plain_body(form.text, &[operand], result);
    Some(computation(&[operand], &[result], body, &all, move |t| vec![convert.apply(t[0])]))
}

struct Convert {
    mode: Rounding,
    /// Rounds to an integer.
    integral: bool,
    flush: bool,
    saturate: bool,
    to: String,
    from: String,
}

impl Convert {
    fn apply(&self, bits: u64) -> Slot {
        let (to, from) = (self.to.as_str(), self.from.as_str());
        let value = if is_float(from) {
            let format = Format::of(from);
            let flush = self.flush && from == "f32";
            Value::decode(if flush { format.flush(bits) } else { bits }, format)
        } else {
            let (width, top) = (bits_of(from), bits >> (bits_of(from) - 1) & 1);
            let below = if is_signed(from) && top == 1 { 1i128 << width } else { 0 };
            Value::integer(i128::from(bits) - below)
        };
        if is_float(to) {
            let value = if self.integral { value.to_integral(self.mode) } else { value };
            return self.to_float(value);
        }
        // Integers without a rounding keep their low bits; floats are clamped.
        let value = value.to_integral(self.mode);
        let width = bits_of(to);
        let (least, most) = if is_signed(to) {
            (-(1i128 << (width - 1)), (1i128 << (width - 1)) - 1)
        } else {
            (0, (1i128 << width) - 1)
        };
        let number = match value {
            Value::Nan => unreachable!("no NaN goes to an integer"),
            Value::Infinity { negative } => {
                if negative {
                    least
                } else {
                    most
                }
            }
            Value::Number { negative, magnitude, exponent } => {
                // Beyond 2^70 every type is at its limit.
                let magnitude = if exponent > 70 && magnitude != 0 {
                    1i128 << 100
                } else {
                    (magnitude << exponent.min(70)) as i128
                };
                let number = if negative { -magnitude } else { magnitude };
                if is_float(from) { number.clamp(least, most) } else { number }
            }
        };
        Slot::Bits(number as u64 & mask_of(width))
    }

    fn to_float(&self, value: Value) -> Slot {
        let format = Format::of(&self.to);
        let name = ["f16", "bf16", "f32", "f64"].into_iter().find(|n| *n == self.to);
        let Some(bits) = value.encode(format, self.mode) else {
            // `.sat` makes NaN +0.
            return if self.saturate { Slot::Bits(0) } else { Slot::Nan(name.unwrap_or("f32")) };
        };
        if self.saturate {
            let x = f32::from_bits(bits as u32);
            return Slot::Bits(u64::from(if x > 0.0 { x.min(1.0) } else { 0.0 }.to_bits()));
        }
        let bits = if self.flush && self.to == "f32" { format.flush(bits) } else { bits };
        Slot::Bits(if format == TF32 { bits << 13 } else { bits })
    }
}

/// `cvt.rn.f16x2.f32 d, a, b`: `a` goes to the upper half.
fn pack(form: &Form<'_>) -> Case {
    let domain = Domain::Float(Format::of("f32"), -18, 17);
    let tuples = tuples(&[domain, domain], |_| true);
    let mode = Rounding::of(form.one_of(&ROUNDINGS).unwrap_or("rn"));
    let body = plain_body(form.text, &["f32", "f32"], "b32");
    computation(&["f32", "f32"], &["b32"], body, &tuples, move |t| {
        let half =
            |x: u64| Value::decode(x, Format::of("f32")).encode(F16, mode).expect("a number");
        vec![Slot::Bits(half(t[1]) | half(t[0]) << 16)]
    })
}
