//! The operations against results recorded from an H200 (compute capability 9.0, driver 580).
//!
//! `recorded.tsv` has a line per form: its name, the classes of its operands, the number of
//! results, and a hash of the results of 1,024 operand tuples; [`operand`] makes the tuples again.
//! Only forms whose result is exact are listed.

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
fn operand(class: &str, i: u64, j: u64) -> u64 {
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
fn results(form: &str, operands: &[u64], count: usize) -> Vec<u64> {
    let (name, note) = form.split_once('#').unwrap_or((form, ""));
    if name.contains('+') {
        return chain(name, operands);
    }
    if name == "lop3.b32" {
        let mut with_table = operands.to_vec();
        with_table.push(note.parse().expect("a truth table"));
        return vec![eval(name, &with_table)];
    }
    match (name.starts_with("setp"), count, note) {
        // p|q of packed halves.
        (true, 2, "") => {
            let both = eval(name, operands);
            vec![both & 1, both >> 1]
        }
        // p|q with the join's predicate negated; q is the opposite comparison.
        (true, 2, _) => {
            let negated = [operands[0], operands[1], operands[2] ^ 1];
            let opposite = if name.ends_with("f32") { ".geu." } else { ".ge." };
            vec![eval(name, &negated), eval(&name.replace(".lt.", opposite), &negated)]
        }
        _ => vec![eval(name, operands)],
    }
}

/// A carry chain such as `add.cc.u32+addc`: each link's type is the first one's.
fn chain(name: &str, operands: &[u64]) -> Vec<u64> {
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
        results.push(eval(&form, &sources));
        // One word more asks for the carry.
        sources.push(0);
        carry = eval(&form, &sources);
    }
    results
}

/// Whether the result's bits are left open: more than one operand is an `.f64` NaN.
fn excused(classes: &[&str], operands: &[u64]) -> bool {
    classes
        .iter()
        .zip(operands)
        .filter(|(c, x)| **c == "f64" && f64::from_bits(**x).is_nan())
        .count()
        > 1
}

/// FNV-1a over the results' words.
fn hash(form: &str, classes: &[&str], widths: &[u32]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for i in 0..TUPLES {
        let operands: Vec<u64> =
            classes.iter().enumerate().map(|(j, c)| operand(c, i, j as u64)).collect();
        if excused(classes, &operands) {
            continue;
        }
        for (result, &width) in results(form, &operands, widths.len()).into_iter().zip(widths) {
            // A 16-bit destination keeps the low half only.
            let word = if width == 16 { result & 0xffff } else { result };
            hash = (hash ^ word).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}

#[test]
fn exact_forms_give_the_recorded_results() {
    let mut wrong = Vec::new();
    let mut forms = 0;
    for line in include_str!("recorded.tsv").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[form, classes, widths, expected] = fields.as_slice() else {
            panic!("not four fields: {line}")
        };
        let classes: Vec<&str> = classes.split(',').collect();
        let widths: Vec<u32> = widths.split(',').map(|w| w.parse().expect("a width")).collect();
        forms += 1;
        if format!("{:016x}", hash(form, &classes, &widths)) != expected {
            wrong.push(form);
        }
    }
    assert!(forms > 1000, "the recording has only {forms} forms");
    assert!(
        wrong.is_empty(),
        "{} of {forms} forms differ from the recording: {wrong:?}",
        wrong.len()
    );
}

/// Approximations against the host's double precision: the largest error must stay within the ISA's
/// bound.
mod approximate {
    use super::{TUPLES, eval, operand};

    /// `relative` is the bound relative to the exact value, `absolute` is allowed besides.
    fn check(
        form: &str,
        exact: impl Fn(f64) -> f64,
        domain: impl Fn(f32) -> bool,
        relative: f64,
        absolute: f64,
    ) {
        let mut tried = 0;
        // The recording's operands, and a sweep that is dense around one.
        let sweep = (0..4096u32).map(|i| f32::from_bits(0x3a00_0000 + i * 0x9_1237));
        let tuples = (0..TUPLES).map(|i| f32::from_bits(operand("f32", i, 0) as u32));
        for x in sweep.flat_map(|x| [x, -x]).chain(tuples).filter(|x| domain(*x)) {
            let want = exact(f64::from(x));
            let got = f64::from(f32::from_bits(eval(form, &[u64::from(x.to_bits())]) as u32));
            // Half a unit of the subnormals besides.
            let allowed = relative * want.abs() + absolute + 1e-45;
            let overflow = want.abs() > f64::from(f32::MAX) && got == f64::from(want as f32);
            assert!(
                overflow || (got - want).abs() <= allowed,
                "{form}({x:e}) = {got:e}, exactly {want:e}"
            );
            tried += 1;
        }
        assert!(tried > 500, "{form}: only {tried} operands in its domain");
    }

    #[test]
    fn errors_are_within_the_bounds() {
        let unit = 2f64.powi(-23);
        let all = |x: f32| x.is_finite();
        let positive = |x: f32| x.is_finite() && x > 0.0;
        let turn = |x: f32| x.abs() <= std::f32::consts::TAU;
        check("rcp.approx.f32", |x| 1.0 / x, |x| all(x) && x != 0.0, unit, 0.0);
        check("sqrt.approx.f32", f64::sqrt, positive, unit, 0.0);
        check("rsqrt.approx.f32", |x| 1.0 / x.sqrt(), positive, 2f64.powf(-22.9), 0.0);
        check("ex2.approx.f32", f64::exp2, all, 2.0 * unit, 0.0);
        check("lg2.approx.f32", f64::log2, positive, 2f64.powi(-22), 2f64.powi(-22));
        check("sin.approx.f32", f64::sin, turn, 0.0, 2f64.powf(-20.5));
        check("cos.approx.f32", f64::cos, turn, 0.0, 2f64.powf(-20.5));
        check("tanh.approx.f32", f64::tanh, all, 2f64.powi(-11), 0.0);
    }

    #[test]
    fn special_operands() {
        let f = |x: f32| u64::from(x.to_bits());
        for (form, x, want) in [
            ("ex2.approx.f32", f32::NEG_INFINITY, 0.0),
            ("ex2.approx.f32", f32::INFINITY, f32::INFINITY),
            ("ex2.approx.f32", 10.0, 1024.0),
            ("lg2.approx.f32", 0.0, f32::NEG_INFINITY),
            ("lg2.approx.f32", f32::INFINITY, f32::INFINITY),
            ("lg2.approx.f32", 1.0, 0.0),
            ("lg2.approx.f32", 0.125, -3.0),
            ("rcp.approx.f32", f32::NEG_INFINITY, -0.0),
            ("rsqrt.approx.f32", -0.0, f32::NEG_INFINITY),
            ("tanh.approx.f32", f32::NEG_INFINITY, -1.0),
            ("sin.approx.f32", -0.0, -0.0),
            ("cos.approx.f32", 0.0, 1.0),
        ] {
            assert_eq!(eval(form, &[f(x)]), f(want), "{form}({x})");
        }
        for form in ["lg2.approx.f32", "sqrt.approx.f32", "rsqrt.approx.f32"] {
            assert_eq!(eval(form, &[f(-1.0)]), 0x7fff_ffff, "{form}");
        }
        for form in ["sin.approx.f32", "cos.approx.f32"] {
            assert_eq!(eval(form, &[f(f32::INFINITY)]), 0x7fff_ffff, "{form}");
        }
    }
}
