//! The operations against results recorded from an H200 (compute capability 9.0, driver 580).
//!
//! `recorded.tsv` has a line per form: its name, the classes of its operands, the number of results, and a hash of the
//! results of 1,024 operand tuples; [`operand`] makes the tuples again. Only forms whose result is exact are listed.

use super::testing::eval;

/// Tuples per form.
const TUPLES: u64 = 1024;

/// A mixing step of SplitMix64: one word of pseudo-random bits.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Words at which integer instructions change their behaviour.
const INTEGERS: [u64; 25] = [
    0,
    1,
    2,
    3,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x10000,
    0x7f_ffff,
    0x80_0000,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x8000_0000_0000_0001,
    0xffff_ffff_ffff_ffff,
    0xffff_ffff_ffff_fffe,
    0x5555_5555_5555_5555,
];

fn float(exponent_bits: u32, fraction_bits: u32, i: u64, j: u64) -> u64 {
    let h = mix(i * 16 + j + 1);
    let r = mix(h);
    let r2 = mix(r);
    let (e, m) = (exponent_bits, fraction_bits);
    let (bias, top) = ((1i64 << (e - 1)) - 1, (1i64 << e) - 1);
    let m64 = i64::from(m);
    let (exponent, fraction, sign) = match h & 7 {
        0..=3 => {
            let fields = [
                0,
                0,
                1,
                2,
                bias - m64 - 1,
                bias - 2,
                bias - 1,
                bias,
                bias + 1,
                bias + 2,
                bias + m64,
                bias + m64 + 1,
                bias + 7,
                bias + 8,
                bias + 15,
                bias + 16,
                bias + 31,
                bias + 32,
                bias + 63,
                bias + 64,
                top - 1,
                top,
            ];
            let fractions = [0, 1, 1 << (m - 1), (1 << m) - 1];
            (fields[(r % 22) as usize], fractions[(r >> 8 & 3) as usize], r >> 16 & 1)
        }
        4 | 5 => return if e + m == 63 { r } else { r & ((1 << (e + m + 1)) - 1) },
        6 => (bias + (r2 % 17) as i64 - 8, r & ((1 << m) - 1), r >> 63),
        _ => (bias + (r2 % 61) as i64 - 30, r & ((1 << m) - 1), r >> 63),
    };
    sign << (e + m) | (exponent.clamp(0, top) as u64) << m | fraction
}

fn integer(bits: u32, i: u64, j: u64) -> u64 {
    let h = mix(i * 16 + j + 1);
    let r = mix(h);
    let mask = u64::MAX >> (64 - bits);
    match h & 7 {
        0..=3 => INTEGERS[(r % 25) as usize] & mask,
        4 | 5 => r & mask,
        6 => (r % 33).wrapping_sub(16) & mask,
        _ => (r & mask) >> (mix(r) % u64::from(bits)),
    }
}

/// Operand `j` of tuple `i`.
pub(super) fn operand(class: &str, i: u64, j: u64) -> u64 {
    let h = mix(i * 16 + j + 1);
    let r = mix(h);
    match class {
        "f16" => float(5, 10, i, j),
        "bf16" => float(8, 7, i, j),
        "f32" => float(8, 23, i, j),
        "f64" => float(11, 52, i, j),
        "f16x2" => float(5, 10, i, j) | float(5, 10, i, j + 8) << 16,
        "bf16x2" => float(8, 7, i, j) | float(8, 7, i, j + 8) << 16,
        "u16x2" | "s16x2" => integer(16, i, j) | integer(16, i, j + 8) << 16,
        "u16" | "s16" => integer(16, i, j),
        "u32" | "s32" | "b32" => integer(32, i, j),
        "u64" | "s64" => integer(64, i, j),
        "cnt" if h & 7 == 0 => r & 0xffff_ffff,
        "cnt" => mix(r) % 80,
        "sel" => r & 0xffff_ffff,
        "p" => r & 1,
        other => panic!("no such class of operands: {other}"),
    }
}

/// The results of a form, which may be a chain of instructions or carry a note after `#`.
pub(super) fn results<E>(
    form: &str,
    operands: &[u64],
    count: usize,
    eval: &impl Fn(&str, &[u64]) -> Result<u64, E>,
) -> Result<Vec<u64>, E> {
    let (name, note) = form.split_once('#').unwrap_or((form, ""));
    if name.contains('+') {
        return chain(name, operands, eval);
    }
    if name == "lop3.b32" {
        let mut with_table = operands.to_vec();
        with_table.push(note.parse().expect("a truth table"));
        return Ok(vec![eval(name, &with_table)?]);
    }
    let value = eval(name, operands)?;
    Ok(match (name.starts_with("setp"), count, note) {
        // p|q of packed halves.
        (true, 2, "") => vec![value & 1, value >> 1],
        // p|q with the join's predicate negated.
        (true, 2, _) => {
            let negated = [operands[0], operands[1], operands[2] ^ 1];
            let opposite = [operands[1], operands[0], operands[2] ^ 1];
            let _ = opposite;
            vec![eval(name, &negated)?, eval(&name.replace(".lt.", if name.ends_with("f32") { ".geu." } else { ".ge." }), &negated)?]
        }
        _ => vec![value],
    })
}

/// A carry chain such as `add.cc.u32+addc`: each link's type is the first one's.
fn chain<E>(name: &str, operands: &[u64], eval: &impl Fn(&str, &[u64]) -> Result<u64, E>) -> Result<Vec<u64>, E> {
    let links: Vec<&str> = name.split('+').collect();
    let kind = links[0].rsplit('.').next().unwrap_or_default();
    let mut results = Vec::new();
    let mut carry = 0;
    for (k, link) in links.iter().enumerate() {
        let form = if k == 0 { (*link).to_owned() } else { format!("{link}.{kind}") };
        let mut sources = match (link.starts_with("mad"), k) {
            (false, _) => operands[2 * k..2 * k + 2].to_vec(),
            (true, 0) => operands[..3].to_vec(),
            (true, 1) => vec![operands[0], operands[1], operands[3]],
            (true, _) => vec![operands[4], operands[5], operands[0]],
        };
        sources.push(carry);
        results.push(eval(&form, &sources)?);
        sources.push(0);
        carry = eval(&form, &sources)?;
    }
    Ok(results)
}

/// Whether the result's bits are left open: more than one operand is an `.f64` NaN.
pub(super) fn excused(classes: &[impl AsRef<str>], operands: &[u64]) -> bool {
    classes.iter().zip(operands).filter(|(c, x)| c.as_ref() == "f64" && f64::from_bits(**x).is_nan()).count() > 1
}
