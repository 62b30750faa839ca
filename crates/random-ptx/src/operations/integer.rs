//! Integer arithmetic: PTX ISA, "Integer Arithmetic Instructions" and "Extended-Precision Integer
//! Arithmetic Instructions".

use super::{Int, S32, U32};
use crate::operation::{Chooser, Class, Operation, Source};

fn binary(
    name: impl std::fmt::Display,
    t: Int,
    f: impl Fn(i128, i128) -> u64 + 'static,
) -> Operation {
    Operation::new(name, t.class(), &[t.source(), t.source()], move |s| {
        f(t.value(s[0]), t.value(s[1]))
    })
}

fn unary(name: impl std::fmt::Display, t: Int, f: impl Fn(i128) -> u64 + 'static) -> Operation {
    // One constant operand is folded away by every assembler; registers only.
    Operation::new(name, t.class(), &[Source::register(t.class())], move |s| f(t.value(s[0])))
}

/// add, sub, min, max, sad, abs, neg and their saturating forms
pub(super) fn arithmetic(chooser: &mut Chooser) -> Operation {
    let t = Int::any(chooser);
    let name = t.name();
    match chooser.random.below(11) {
        0 | 1 => binary(format!("add.{name}"), t, |a, b| (a + b) as u64),
        2 => binary(format!("sub.{name}"), t, |a, b| (a - b) as u64),
        3 => binary(format!("min.{name}"), t, |a, b| a.min(b) as u64),
        4 => binary(format!("max.{name}"), t, |a, b| a.max(b) as u64),
        5 => binary("add.sat.s32", S32, |a, b| S32.clamped(a + b)),
        6 => binary("sub.sat.s32", S32, |a, b| S32.clamped(a - b)),
        7 => {
            let smaller = chooser.chance(50);
            let name = if smaller { "min.relu.s32" } else { "max.relu.s32" };
            binary(
                name,
                S32,
                move |a, b| if smaller { a.min(b).max(0) } else { a.max(b).max(0) } as u64,
            )
        }
        8 => {
            let sources = [t.source(), t.source(), t.source()];
            Operation::new(format!("sad.{name}"), t.class(), &sources, move |s| {
                let (a, b, c) = (t.value(s[0]), t.value(s[1]), t.value(s[2]));
                (c + (a - b).abs()) as u64
            })
        }
        9 => {
            let t = Int::new(t.bits, true);
            unary(format!("abs.{}", t.name()), t, |a| a.unsigned_abs() as u64)
        }
        _ => {
            let t = Int::new(t.bits, true);
            unary(format!("neg.{}", t.name()), t, |a| (-a) as u64)
        }
    }
}

/// mul, mad, mul24, mad24, dp4a, dp2a
pub(super) fn products(chooser: &mut Chooser) -> Operation {
    let t = Int::any(chooser);
    let (name, bits) = (t.name(), t.bits);
    let three = [t.source(), t.source(), t.source()];
    let part = move |a: u64, b: u64, high: bool| {
        let product = t.value(a).wrapping_mul(t.value(b)) as u128;
        (if high { product >> bits } else { product }) as u64
    };
    let high = chooser.chance(40);
    let half = if high { "hi" } else { "lo" };
    match chooser.random.below(12) {
        0 | 1 => Operation::new(
            format!("mul.{half}.{name}"),
            t.class(),
            &[t.source(), t.source()],
            move |s| part(s[0], s[1], high),
        ),
        2 | 3 => Operation::new(format!("mad.{half}.{name}"), t.class(), &three, move |s| {
            part(s[0], s[1], high).wrapping_add(s[2])
        }),
        4 | 5 => {
            let t = Int::new(chooser.pick(&[16, 32]), t.signed);
            let wide = Class::of_bits(t.bits * 2);
            let add = chooser.chance(50);
            let product = move |s: &[u64]| (t.value(s[0]) * t.value(s[1])) as u64;
            if add {
                let sources = [t.source(), t.source(), Source::integer(wide)];
                Operation::new(format!("mad.wide.{}", t.name()), wide, &sources, move |s| {
                    product(s).wrapping_add(s[2])
                })
            } else {
                let sources = [t.source(), t.source()];
                Operation::new(format!("mul.wide.{}", t.name()), wide, &sources, product)
            }
        }
        6 => Operation::new("mad.hi.sat.s32", Class::B32, &[S32.source(); 3], |s| {
            let product = S32.value(s[0]) * S32.value(s[1]);
            S32.clamped((product >> 32) + S32.value(s[2]))
        }),
        7 => {
            let t = Int::new(32, t.signed);
            Operation::new(
                format!("mul24.{half}.{}", t.name()),
                Class::B32,
                &[t.source(); 2],
                move |s| product24(t, s, high),
            )
        }
        8 => {
            let t = Int::new(32, t.signed);
            Operation::new(
                format!("mad24.{half}.{}", t.name()),
                Class::B32,
                &[t.source(); 3],
                move |s| product24(t, s, high).wrapping_add(s[2]),
            )
        }
        9 => Operation::new("mad24.hi.sat.s32", Class::B32, &[S32.source(); 3], |s| {
            S32.clamped(S32.value(product24(S32, s, true)) + S32.value(s[2]))
        }),
        10 => dot_product(chooser, 4),
        _ => dot_product(chooser, 2),
    }
}

/// Part of the product of the low 24 bits.
fn product24(t: Int, s: &[u64], high: bool) -> u64 {
    let t = Int::new(24, t.signed);
    let product = t.value(s[0]) * t.value(s[1]);
    (if high { product >> 16 } else { product }) as u64
}

/// dp4a: four bytes by four bytes; dp2a: two halves by two of four bytes.
fn dot_product(chooser: &mut Chooser, terms: u32) -> Operation {
    let (a, b) = (chooser.chance(50), chooser.chance(50));
    let kind = |signed| if signed { "s32" } else { "u32" };
    let first = if terms == 4 { Int::new(8, a) } else { Int::new(16, a) };
    let second = Int::new(8, b);
    let upper = terms == 2 && chooser.chance(50);
    let name = match (terms, upper) {
        (4, _) => "dp4a",
        (_, true) => "dp2a.hi",
        _ => "dp2a.lo",
    };
    let c = if a || b { S32 } else { U32 };
    let sources = [U32.source(), U32.source(), c.source()];
    Operation::new(format!("{name}.{}.{}", kind(a), kind(b)), Class::B32, &sources, move |s| {
        let sum: i128 = (0..terms)
            .map(|i| {
                let at = if upper { i + 2 } else { i };
                first.value(s[0] >> (i * first.bits)) * second.value(s[1] >> (at * 8))
            })
            .sum();
        (sum + c.value(s[2])) as u64
    })
}

/// div and rem; by a positive number, since the ISA leaves the rest open.
pub(super) fn division(chooser: &mut Chooser) -> Operation {
    let t = Int::any(chooser);
    let remainder = chooser.chance(50);
    let name = if remainder { "rem" } else { "div" };
    let (scratch, bits) = match t.class() {
        Class::B64 => ("%y0", "b64"),
        Class::B32 => ("%x0", "b32"),
        _ => ("%z0", "b16"),
    };
    let mask = t.greatest() as u64;
    let lines = vec![
        format!("or.{bits} {scratch}, {{s1}}, 1"),
        format!("and.{bits} {scratch}, {scratch}, 0x{mask:x}"),
        format!("{name}.{} {{d0}}, {{s0}}, {scratch}", t.name()),
    ];
    let sources = [t.source(), Source::register(t.class())];
    Operation::from_lines(lines, &[t.class()], &sources, move |s| {
        let (a, b) = (t.value(s[0]), t.value((s[1] | 1) & mask));
        [(if remainder { a % b } else { a / b }) as u64, 0, 0, 0]
    })
}

/// Two 16-bit operations in one register.
pub(super) fn packed(chooser: &mut Chooser) -> Operation {
    let t = Int::new(16, chooser.chance(50));
    let name = format!("{}x2", t.name());
    let source = Source::register(Class::B32);
    let relu = t.signed && chooser.chance(30);
    let (word, f): (&str, fn(i128, i128) -> i128) = match chooser.random.below(3) {
        0 => ("add", |a, b| a + b),
        1 => ("min", |a, b| a.min(b)),
        _ => ("max", |a, b| a.max(b)),
    };
    let relu = relu && word != "add";
    let suffix = if relu { ".relu" } else { "" };
    Operation::new(format!("{word}{suffix}.{name}"), Class::B32, &[source; 2], move |s| {
        let lane = |shift: u32| {
            let value = f(t.value(s[0] >> shift), t.value(s[1] >> shift));
            let value = if relu { value.max(0) } else { value };
            (value as u64 & 0xffff) << shift
        };
        lane(0) | lane(16)
    })
}

/// Chains of one to three additions, subtractions or products that are linked by the carry flag.
pub(super) fn carry_chain(chooser: &mut Chooser) -> Operation {
    let t = Int::new(chooser.pick(&[32, 64]), chooser.chance(50));
    let kind = chooser.pick(&[Chain::Add, Chain::Add, Chain::Subtract, Chain::Multiply]);
    let length = 1 + chooser.random.below(3);
    let per_line = if kind == Chain::Multiply { 3 } else { 2 };
    let mut lines = Vec::new();
    for step in 0..length {
        let cc = if step + 1 < length || length == 1 { ".cc" } else { "" };
        let word = match (kind, step) {
            (Chain::Add, 0) => "add",
            (Chain::Add, _) => "addc",
            (Chain::Subtract, 0) => "sub",
            (Chain::Subtract, _) => "subc",
            (Chain::Multiply, 0) => "mad.lo",
            (Chain::Multiply, 1) => "madc.hi",
            (Chain::Multiply, _) => "madc.lo",
        };
        let operands: Vec<String> =
            (0..per_line).map(|i| format!("{{s{}}}", step * per_line + i)).collect();
        lines.push(format!("{word}{cc}.{} {{d{step}}}, {}", t.name(), operands.join(", ")));
    }
    let sources = vec![t.source(); length * per_line];
    Operation::from_lines(lines, &vec![t.class(); length], &sources, move |s| {
        let mut results = [0; 4];
        // Of a subtraction, a clear flag is a borrow.
        let mut flag = u128::from(kind == Chain::Subtract);
        for (step, operands) in s.chunks(per_line).enumerate() {
            let (a, b) = if kind == Chain::Multiply {
                let product = t.value(operands[0]).wrapping_mul(t.value(operands[1])) as u128;
                let part = if step == 1 { product >> t.bits } else { product };
                (t.class().truncated(part as u64), operands[2])
            } else {
                (operands[0], operands[1])
            };
            let (a, b) = (u128::from(a), u128::from(b));
            let sum = if kind == Chain::Subtract {
                (a | 1 << t.bits) - b - (1 - flag)
            } else {
                a + b + flag
            };
            results[step] = sum as u64;
            flag = sum >> t.bits & 1;
        }
        results
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chain {
    Add,
    Subtract,
    Multiply,
}
