//! Conversion: PTX ISA, "cvt" and "cvt.pack".

use super::float::rounding;
use super::{Int, S32};
use crate::float::{BF16, Exact, F16, F32, F64, Format, Number, Round, Subnormals, TF32};
use crate::operation::{Chooser, Class, Operation, Source, one};
use crate::wide::Wide;

/// A floating-point type of `cvt`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Float {
    format: Format,
    name: &'static str,
    class: Class,
}

const HALF: Float = Float { format: F16, name: "f16", class: Class::B16 };
const BRAIN: Float = Float { format: BF16, name: "bf16", class: Class::B16 };
const SINGLE: Float = Float { format: F32, name: "f32", class: Class::B32 };
const DOUBLE: Float = Float { format: F64, name: "f64", class: Class::B64 };

fn any_float(chooser: &mut Chooser) -> Float {
    chooser.pick(&[HALF, SINGLE, SINGLE, DOUBLE])
}

fn any_int(chooser: &mut Chooser) -> Int {
    Int::new(chooser.pick(&[8, 16, 32, 32, 64]), chooser.chance(50))
}

/// Rounding to an integer.
fn integral_rounding(chooser: &mut Chooser) -> (&'static str, Round) {
    chooser.pick(&[
        (".rni", Round::NearestEven),
        (".rzi", Round::Zero),
        (".rzi", Round::Zero),
        (".rmi", Round::Down),
        (".rpi", Round::Up),
    ])
}

/// A NaN result gets known bits where the hardware's are its own affair.
fn canonical(operation: Operation, to: Float, from: Float) -> Operation {
    if to == DOUBLE {
        return super::float::canonical(operation, super::float::DOUBLE);
    }
    match to {
        HALF if from == DOUBLE => {
            operation.then(&["setp.num.f16 %q0, {d0}, {d0}", "selp.b16 {d0}, {d0}, 0x7fff, %q0"])
        }
        SINGLE if from == BRAIN || from == DOUBLE => operation
            .then(&["testp.notanumber.f32 %q0, {d0}", "selp.b32 {d0}, 0x7fffffff, {d0}, %q0"]),
        _ => operation,
    }
}

/// cvt of one number
pub(super) fn scalar(chooser: &mut Chooser) -> Operation {
    match chooser.random.below(10) {
        0..3 => integer_to_integer(chooser),
        3..5 => integer_to_float(chooser),
        5..7 => float_to_integer(chooser),
        7 => to_integral(chooser),
        _ => float_to_float(chooser),
    }
}

fn integer_to_integer(chooser: &mut Chooser) -> Operation {
    let (to, from) = (any_int(chooser), any_int(chooser));
    // Where every value fits, `.sat` is not allowed.
    let fits = from.least() >= to.least() && from.greatest() <= to.greatest();
    let saturate = !fits && chooser.chance(40);
    let sat = if saturate { ".sat" } else { "" };
    let name = format!("cvt{sat}.{}.{}", to.name(), from.name());
    // A result narrower than its register fills it with its sign or zeros.
    Operation::new(name, to.class(), &[Source::register(from.class())], move |s| {
        let value = from.value(s[0]);
        if saturate { to.clamped(value) } else { to.value(value as u64) as u64 }
    })
}

fn integer_to_float(chooser: &mut Chooser) -> Operation {
    let (from, to) = (any_int(chooser), any_float(chooser));
    let (word, round) = rounding(chooser);
    let saturate = chooser.chance(20);
    let sat = if saturate { ".sat" } else { "" };
    let name = format!("cvt{word}{sat}.{}.{}", to.name, from.name());
    Operation::new(name, to.class, &[Source::register(from.class())], move |s| {
        let value = from.value(s[0]);
        let mantissa = Wide::new(value.unsigned_abs());
        let bits = to.format.round(Exact { negative: value < 0, mantissa, exponent: 0 }, round);
        if saturate { to.format.saturated(bits) } else { bits }
    })
}

/// The integer nearest to a number in the given direction; far outside every type for large ones.
fn integral(exact: Exact, round: Round) -> i128 {
    let top = exact.exponent + exact.mantissa.bits() as i32;
    let magnitude = if top > 80 {
        1i128 << 80
    } else if exact.exponent >= 0 {
        i128::from(exact.mantissa.low_after_shift(0)) << exact.exponent
    } else {
        let dropped = exact.exponent.unsigned_abs();
        let kept = i128::from(exact.mantissa.low_after_shift(dropped.min(383)));
        let half = exact.mantissa.bit(dropped - 1);
        let below = exact.mantissa.any_below(dropped - 1);
        let up = match round {
            Round::NearestEven => half && (below || kept & 1 == 1),
            Round::NearestAway => half,
            Round::Zero => false,
            Round::Down => exact.negative && (half || below),
            Round::Up => !exact.negative && (half || below),
        };
        kept + i128::from(up)
    };
    if exact.negative { -magnitude } else { magnitude }
}

fn float_to_integer(chooser: &mut Chooser) -> Operation {
    let (to, from) = (any_int(chooser), any_float(chooser));
    let (word, round) = integral_rounding(chooser);
    let flush = from == SINGLE && chooser.chance(30);
    let subnormals = if flush { Subnormals::Flush } else { Subnormals::Keep };
    // Out of range clamps with and without `.sat`.
    let sat = chooser.maybe(".sat");
    let ftz = if flush { ".ftz" } else { "" };
    let name = format!("cvt{word}{ftz}{sat}.{}.{}", to.name(), from.name);
    let operation = move |bits: u64| match from.format.decode(from.format.flushed(bits, subnormals))
    {
        Number::Nan => 0,
        Number::Infinite { negative } => to.clamped(if negative { i128::MIN } else { i128::MAX }),
        Number::Finite(exact) => to.clamped(integral(exact, round)),
    };
    // What NaN becomes depends on the types; it is made 0 first.
    let (class, scratch) = match from.class {
        Class::B64 => (Class::B64, "%y0"),
        Class::B32 => (Class::B32, "%x0"),
        _ => (Class::B16, "%z0"),
    };
    let bits = class.bits();
    let lines = vec![
        format!("setp.num.{} %q0, {{s0}}, {{s0}}", from.name),
        format!("selp.b{bits} {scratch}, {{s0}}, 0, %q0"),
        format!("{name} {{d0}}, {scratch}"),
    ];
    Operation::from_lines(lines, &[to.class()], &[Source::register(class)], move |s| {
        one(operation(s[0]))
    })
}

/// Rounding to an integral number of the same type.
fn to_integral(chooser: &mut Chooser) -> Operation {
    let float = chooser.pick(&[HALF, SINGLE, SINGLE, DOUBLE]);
    let format = float.format;
    let (word, round) = integral_rounding(chooser);
    let flush = float == SINGLE && chooser.chance(30);
    let subnormals = if flush { Subnormals::Flush } else { Subnormals::Keep };
    let ftz = if flush { ".ftz" } else { "" };
    let saturate = chooser.chance(20);
    let sat = if saturate { ".sat" } else { "" };
    let name = format!("cvt{word}{ftz}{sat}.{0}.{0}", float.name);
    let operation = Operation::new(name, float.class, &[Source::register(float.class)], move |s| {
        let bits = format.flushed(s[0], subnormals);
        let result = match format.decode(bits) {
            Number::Nan => format.nan,
            Number::Infinite { .. } => bits,
            Number::Finite(exact) if exact.exponent >= 0 => bits,
            Number::Finite(exact) => {
                let whole = integral(exact, round);
                let mantissa = Wide::new(whole.unsigned_abs());
                format.round(Exact { negative: exact.negative, mantissa, exponent: 0 }, round)
            }
        };
        if saturate { format.saturated(result) } else { result }
    });
    canonical(operation, float, float)
}

fn float_to_float(chooser: &mut Chooser) -> Operation {
    let (to, from) = chooser.pick(&[
        (HALF, SINGLE),
        (HALF, DOUBLE),
        (SINGLE, DOUBLE),
        (BRAIN, SINGLE),
        (SINGLE, HALF),
        (DOUBLE, HALF),
        (DOUBLE, SINGLE),
        (SINGLE, BRAIN),
    ]);
    let narrower = to.class.bits() < from.class.bits();
    let (word, round) = match (narrower, to == BRAIN) {
        (false, _) => ("", Round::NearestEven),
        (true, true) => chooser.pick(&[(".rn", Round::NearestEven), (".rz", Round::Zero)]),
        (true, false) => rounding(chooser),
    };
    let brain = to == BRAIN || from == BRAIN;
    let single = !brain && (to == SINGLE || from == SINGLE);
    let flush = single && chooser.chance(30);
    let subnormals = if flush { Subnormals::Flush } else { Subnormals::Keep };
    let relu = to.class == Class::B16
        && from == SINGLE
        && !flush
        && matches!(word, ".rn" | ".rz")
        && chooser.chance(20);
    let saturate = !brain && !relu && chooser.chance(20);
    let end = match (relu, saturate) {
        (true, _) => ".relu",
        (_, true) => ".sat",
        _ => "",
    };
    let ftz = if flush { ".ftz" } else { "" };
    let name = format!("cvt{word}{ftz}{end}.{}.{}", to.name, from.name);
    let operation = Operation::new(name, to.class, &[Source::register(from.class)], move |s| {
        // Only the f32 side is flushed; on its way to a half not even that (seen on an H200).
        let bits = if from == SINGLE && to != HALF { F32.flushed(s[0], subnormals) } else { s[0] };
        let bits = to.format.convert(bits, from.format, round);
        let bits = if to == SINGLE { F32.flushed(bits, subnormals) } else { bits };
        match end {
            ".relu" => to.format.rectified(bits),
            ".sat" => to.format.saturated(bits),
            _ => bits,
        }
    });
    canonical(operation, to, from)
}

/// Two numbers into one register, and tf32
pub(super) fn packed(chooser: &mut Chooser) -> Operation {
    let two = [Source::register(Class::B32); 2];
    match chooser.random.below(4) {
        0 => {
            let to = Int::new(chooser.pick(&[8, 16]), chooser.chance(50));
            if to.bits == 16 {
                let name = format!("cvt.pack.sat.{}.s32", to.name());
                return Operation::new(name, Class::B32, &two, move |s| {
                    let half = |bits: u64| to.clamped(S32.value(bits)) & 0xffff;
                    half(s[0]) << 16 | half(s[1])
                });
            }
            let name = format!("cvt.pack.sat.{}.s32.b32", to.name());
            Operation::new(name, Class::B32, &[Source::register(Class::B32); 3], move |s| {
                let byte = |bits: u64| to.clamped(S32.value(bits)) & 0xff;
                s[2] << 16 | byte(s[0]) << 8 | byte(s[1])
            })
        }
        1 => {
            // The low 13 bits of a tf32 number are undefined, and so is a NaN.
            let lines = vec![
                "testp.notanumber.f32 %q0, {s0}".to_owned(),
                "cvt.rna.tf32.f32 {d0}, {s0}".to_owned(),
            ];
            let sources = [Source::register(Class::B32)];
            let operation = Operation::from_lines(lines, &[Class::B32], &sources, |s| {
                one(TF32.convert(s[0], F32, Round::NearestAway) << 13)
            });
            operation
                .then(&["and.b32 {d0}, {d0}, 0xffffe000", "selp.b32 {d0}, 0x7fffe000, {d0}, %q0"])
        }
        _ => {
            let to = chooser.pick(&[HALF, BRAIN]);
            let (word, round) = chooser.pick(&[(".rn", Round::NearestEven), (".rz", Round::Zero)]);
            let relu = chooser.chance(30);
            let end = if relu { ".relu" } else { "" };
            let name = format!("cvt{word}{end}.{}x2.f32", to.name);
            Operation::new(name, Class::B32, &two, move |s| {
                let half = |bits: u64| {
                    let bits = to.format.convert(bits, F32, round);
                    if relu { to.format.rectified(bits) } else { bits }
                };
                half(s[0]) << 16 | half(s[1])
            })
        }
    }
}
