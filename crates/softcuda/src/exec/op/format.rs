//! `printf` formatting as the device does it: C conversions over an argument block in memory, where
//! every argument is aligned to its size (4 or 8 bytes; floating-point ones are doubles).

use super::runtime::{read_bytes, read_string};
use crate::exec::code::Ins;
use crate::exec::context::Context;

/// One conversion specification.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    wide: bool,
    half: u8,
}

/// Widest field or precision honoured.
const FIELD_LIMIT: usize = 4096;

/// Longest message of one call, bytes; what goes beyond is cut off.
const MESSAGE_LIMIT: usize = 1 << 18;

/// Formats one call's message; the count of arguments comes with it. `None`: a fault was recorded.
pub(super) fn format_message(
    cx: &mut Context<'_>,
    ins: &Ins,
    format: &[u8],
    args: u64,
    lane: usize,
) -> Option<(Vec<u8>, u32)> {
    let mut out = Vec::with_capacity(format.len() + 16);
    let mut reader = Reader { at: args, count: 0 };
    let mut rest = format;
    while let Some((&byte, tail)) = rest.split_first()
        && out.len() < MESSAGE_LIMIT
    {
        rest = tail;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (spec, conversion, tail) = parse(cx, ins, lane, tail, &mut reader)?;
        rest = tail;
        match conversion {
            b'%' => out.push(b'%'),
            b'd' | b'i' => {
                let value = match (spec.wide, spec.half) {
                    (true, _) => reader.take(cx, ins, lane, 8)? as i64,
                    (_, 1) => i64::from(reader.take(cx, ins, lane, 4)? as i16),
                    (_, 2) => i64::from(reader.take(cx, ins, lane, 4)? as i8),
                    _ => i64::from(reader.take(cx, ins, lane, 4)? as i32),
                };
                let sign = sign_of(&spec, value < 0);
                pad_number(&mut out, &spec, sign, "", value.unsigned_abs().to_string());
            }
            b'u' | b'x' | b'X' | b'o' => {
                let value = match (spec.wide, spec.half) {
                    (true, _) => reader.take(cx, ins, lane, 8)?,
                    (_, 1) => reader.take(cx, ins, lane, 4)? & 0xffff,
                    (_, 2) => reader.take(cx, ins, lane, 4)? & 0xff,
                    _ => reader.take(cx, ins, lane, 4)?,
                };
                let (prefix, digits) = match conversion {
                    b'x' => ("0x", format!("{value:x}")),
                    b'X' => ("0X", format!("{value:X}")),
                    b'o' => ("0", format!("{value:o}")),
                    _ => ("", value.to_string()),
                };
                let prefix = if spec.alternate && value != 0 { prefix } else { "" };
                pad_number(&mut out, &spec, "", prefix, digits);
            }
            b'c' => {
                let value = reader.take(cx, ins, lane, 4)? as u8;
                pad_text(&mut out, &spec, &[value]);
            }
            b's' => {
                let addr = reader.take(cx, ins, lane, 8)?;
                let mut text =
                    if addr == 0 { b"(null)".to_vec() } else { read_string(cx, ins, addr, lane)? };
                if let Some(precision) = spec.precision {
                    text.truncate(precision);
                }
                pad_text(&mut out, &spec, &text);
            }
            b'p' => {
                let value = reader.take(cx, ins, lane, 8)?;
                let text = if value == 0 { "(nil)".to_owned() } else { format!("{value:#x}") };
                pad_text(&mut out, &spec, text.as_bytes());
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(reader.take(cx, ins, lane, 8)?);
                float(&mut out, &spec, conversion, value);
            }
            other => out.extend([b'%', other]),
        }
    }
    Some((out, reader.count))
}

struct Reader {
    at: u64,
    count: u32,
}

impl Reader {
    fn take(&mut self, cx: &mut Context<'_>, ins: &Ins, lane: usize, size: usize) -> Option<u64> {
        self.at = self.at.checked_next_multiple_of(size as u64).unwrap_or(0);
        let bytes = read_bytes(cx, ins, self.at, lane, size)?;
        self.at = self.at.wrapping_add(size as u64);
        self.count += 1;
        let mut word = [0u8; 8];
        word[..size].copy_from_slice(&bytes);
        Some(u64::from_le_bytes(word))
    }
}

type Parsed<'f> = (Spec, u8, &'f [u8]);

fn parse<'f>(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: usize,
    mut rest: &'f [u8],
    reader: &mut Reader,
) -> Option<Parsed<'f>> {
    let mut spec = Spec::default();
    loop {
        match rest.first() {
            Some(b'-') => spec.left = true,
            Some(b'+') => spec.plus = true,
            Some(b' ') => spec.space = true,
            Some(b'#') => spec.alternate = true,
            Some(b'0') => spec.zero = true,
            _ => break,
        }
        rest = &rest[1..];
    }
    let mut number = |rest: &mut &'f [u8]| -> Option<i64> {
        if rest.first() == Some(&b'*') {
            *rest = &rest[1..];
            return Some(i64::from(reader.take(cx, ins, lane, 4)? as i32));
        }
        let mut value = 0i64;
        while let Some(&digit @ b'0'..=b'9') = rest.first() {
            value = (value * 10 + i64::from(digit - b'0')).min(FIELD_LIMIT as i64);
            *rest = &rest[1..];
        }
        Some(value)
    };
    let width = number(&mut rest)?;
    spec.left |= width < 0;
    spec.width = (width.unsigned_abs() as usize).min(FIELD_LIMIT);
    if rest.first() == Some(&b'.') {
        rest = &rest[1..];
        let precision = number(&mut rest)?;
        spec.precision = usize::try_from(precision).ok().map(|p| p.min(FIELD_LIMIT));
    }
    while let Some(&modifier @ (b'l' | b'h' | b'z' | b'j' | b't' | b'q' | b'L')) = rest.first() {
        spec.wide |= matches!(modifier, b'l' | b'z' | b'j' | b't' | b'q');
        spec.half += u8::from(modifier == b'h');
        rest = &rest[1..];
    }
    let (&conversion, rest) = rest.split_first().unwrap_or((&b'%', &[]));
    Some((spec, conversion, rest))
}

fn sign_of(spec: &Spec, negative: bool) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
}

fn pad_text(out: &mut Vec<u8>, spec: &Spec, text: &[u8]) {
    let pad = spec.width.saturating_sub(text.len());
    if !spec.left {
        out.resize(out.len() + pad, b' ');
    }
    out.extend_from_slice(text);
    if spec.left {
        out.resize(out.len() + pad, b' ');
    }
}

/// Integers: precision is the least number of digits and switches the zero flag off.
fn pad_number(out: &mut Vec<u8>, spec: &Spec, sign: &str, prefix: &str, digits: String) {
    let mut digits = digits;
    if let Some(precision) = spec.precision {
        if precision == 0 && digits == "0" {
            digits.clear();
        }
        digits.insert_str(0, &"0".repeat(precision.saturating_sub(digits.len())));
    } else if spec.zero && !spec.left {
        let used = sign.len() + prefix.len() + digits.len();
        digits.insert_str(0, &"0".repeat(spec.width.saturating_sub(used)));
    }
    pad_text(out, spec, format!("{sign}{prefix}{digits}").as_bytes());
}

fn float(out: &mut Vec<u8>, spec: &Spec, conversion: u8, value: f64) {
    let upper = conversion.is_ascii_uppercase();
    let sign = sign_of(spec, value.is_sign_negative() && !value.is_nan());
    let magnitude = value.abs();
    if !value.is_finite() {
        let text = if value.is_nan() { "nan" } else { "inf" };
        let text = if upper { text.to_uppercase() } else { text.to_owned() };
        return pad_text(out, spec, format!("{sign}{text}").as_bytes());
    }
    let precision = spec.precision.unwrap_or(6);
    let mut text = match conversion.to_ascii_lowercase() {
        b'f' => format!("{magnitude:.precision$}"),
        b'e' => exponential(magnitude, precision),
        b'a' => hexadecimal(magnitude, spec.precision),
        _ => general(magnitude, precision.max(1), spec.alternate),
    };
    if upper {
        text = text.to_uppercase();
    }
    if spec.zero && !spec.left {
        text.insert_str(0, &"0".repeat(spec.width.saturating_sub(sign.len() + text.len())));
    }
    pad_text(out, spec, format!("{sign}{text}").as_bytes());
}

fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn general(value: f64, precision: usize, alternate: bool) -> String {
    let scientific = exponential(value, precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |text: &str| {
        if alternate || !text.contains('.') {
            return text.to_owned();
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{exponent}", trim(mantissa));
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    trim(&format!("{value:.decimals$}"))
}

/// `%a`; a precision is not rounded to, digits are cut or filled.
fn hexadecimal(value: f64, precision: Option<usize>) -> String {
    let bits = value.to_bits();
    let (exponent, fraction) = (bits >> 52 & 0x7ff, bits & ((1 << 52) - 1));
    let (lead, power) = match (exponent, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, exponent as i32 - 1023),
    };
    let mut digits = format!("{fraction:013x}");
    match precision {
        Some(precision) => {
            digits.truncate(precision);
            digits.push_str(&"0".repeat(precision.saturating_sub(digits.len())));
        }
        None => digits = digits.trim_end_matches('0').to_owned(),
    }
    let point = if digits.is_empty() { "" } else { "." };
    format!("0x{lead}{point}{digits}p{power:+}")
}
