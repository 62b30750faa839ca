//! f32 and f64 arithmetic: PTX ISA, "Floating Point Instructions". Approximate instructions are
//! left out.

use std::cmp::Ordering;

use crate::float::{F32, F64, Format, Round, Subnormals};
use crate::operation::{Bare, Chooser, Class, Immediate, Operation, Source};

/// f32 or f64 as an instruction names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) format: Format,
    pub(super) name: &'static str,
    pub(super) class: Class,
    immediate: Immediate,
}

pub(super) const SINGLE: Kind =
    Kind { format: F32, name: "f32", class: Class::B32, immediate: Immediate::F32 };
pub(super) const DOUBLE: Kind =
    Kind { format: F64, name: "f64", class: Class::B64, immediate: Immediate::F64 };

impl Kind {
    pub(super) fn any(chooser: &mut Chooser) -> Self {
        chooser.pick(&[SINGLE, SINGLE, DOUBLE])
    }

    pub(super) fn source(self) -> Source {
        Source { class: self.class, immediate: self.immediate }
    }
}

/// The NaN of a double result is whatever the hardware makes; programs go on with one of their own.
pub(super) fn canonical(operation: Operation, kind: Kind) -> Operation {
    if kind.class != Class::B64 {
        return operation;
    }
    operation
        .then(&["testp.notanumber.f64 %q0, {d0}", "selp.f64 {d0}, 0d7FF8000000000000, {d0}, %q0"])
}

/// Modifiers after the operation's name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Modifiers {
    pub(super) round: Round,
    pub(super) subnormals: Subnormals,
    pub(super) saturate: bool,
}

impl Modifiers {
    /// Their text and meaning. `bare`: the rounding mode may be left out.
    fn any(chooser: &mut Chooser, kind: Kind, bare: bool) -> (String, Self) {
        let (word, round) =
            if bare && chooser.chance(50) { ("", Round::NearestEven) } else { rounding(chooser) };
        let single = kind.class == Class::B32;
        let subnormals =
            if single && chooser.chance(40) { Subnormals::Flush } else { Subnormals::Keep };
        let saturate = single && chooser.chance(20);
        let ftz = if subnormals == Subnormals::Flush { ".ftz" } else { "" };
        let sat = if saturate { ".sat" } else { "" };
        (format!("{word}{ftz}{sat}"), Self { round, subnormals, saturate })
    }

    pub(super) fn finish(self, format: Format, bits: u64) -> u64 {
        if self.saturate { format.saturated(bits) } else { bits }
    }
}

pub(super) fn rounding(chooser: &mut Chooser) -> (&'static str, Round) {
    chooser.pick(&[
        (".rn", Round::NearestEven),
        (".rn", Round::NearestEven),
        (".rz", Round::Zero),
        (".rm", Round::Down),
        (".rp", Round::Up),
    ])
}

/// add, sub, mul
pub(super) fn arithmetic(chooser: &mut Chooser) -> Operation {
    let kind = Kind::any(chooser);
    let (format, name) = (kind.format, kind.name);
    let sources = [kind.source(), kind.source()];
    let multiply = chooser.chance(40);
    let wanted = if multiply { Bare::Multiply } else { Bare::Add };
    let bare = chooser.bare == wanted;
    let (words, m) = Modifiers::any(chooser, kind, bare);
    let operation = if multiply {
        Operation::new(format!("mul{words}.{name}"), kind.class, &sources, move |s| {
            m.finish(format, format.multiply(s[0], s[1], m.round, m.subnormals))
        })
    } else {
        let subtract = chooser.chance(50);
        let word = if subtract { "sub" } else { "add" };
        let flip = if subtract { format.sign_bit() } else { 0 };
        Operation::new(format!("{word}{words}.{name}"), kind.class, &sources, move |s| {
            m.finish(format, format.add(s[0], s[1] ^ flip, m.round, m.subnormals))
        })
    };
    canonical(operation, kind)
}

/// fma, and mad, which is the same on every GPU that is left
pub(super) fn fused(chooser: &mut Chooser) -> Operation {
    let kind = Kind::any(chooser);
    let word = chooser.pick(&["fma", "fma", "mad"]);
    let (words, m) = Modifiers::any(chooser, kind, false);
    let format = kind.format;
    let sources = [kind.source(), kind.source(), kind.source()];
    let operation =
        Operation::new(format!("{word}{words}.{}", kind.name), kind.class, &sources, move |s| {
            m.finish(format, format.fused([s[0], s[1], s[2]], m.round, m.subnormals))
        });
    canonical(operation, kind)
}

/// div, rcp, sqrt with a rounding mode
pub(super) fn division(chooser: &mut Chooser) -> Operation {
    let kind = Kind::any(chooser);
    let format = kind.format;
    let (word, round) = rounding(chooser);
    let flush = kind.class == Class::B32 && chooser.chance(40);
    let subnormals = if flush { Subnormals::Flush } else { Subnormals::Keep };
    let suffix = format!("{word}{}.{}", if flush { ".ftz" } else { "" }, kind.name);
    let one = [Source::register(kind.class)];
    let operation = match chooser.random.below(3) {
        0 => {
            let two = [kind.source(), kind.source()];
            Operation::new(format!("div{suffix}"), kind.class, &two, move |s| {
                format.divide(s[0], s[1], round, subnormals)
            })
        }
        1 => Operation::new(format!("rcp{suffix}"), kind.class, &one, move |s| {
            format.divide(format.one(), s[0], round, subnormals)
        }),
        _ => Operation::new(format!("sqrt{suffix}"), kind.class, &one, move |s| {
            format.square_root(s[0], round, subnormals)
        }),
    };
    canonical(operation, kind)
}

/// Which of two numbers `min` and `max` return.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extreme {
    pub(super) larger: bool,
    /// `.NaN`: a NaN operand makes a NaN result.
    pub(super) strict: bool,
    /// `.xorsign.abs`
    pub(super) xorsign: bool,
    pub(super) subnormals: Subnormals,
}

impl Extreme {
    pub(super) fn of(self, format: Format, a: u64, b: u64) -> u64 {
        let (mut a, mut b) =
            (format.flushed(a, self.subnormals), format.flushed(b, self.subnormals));
        let sign = (a ^ b) & format.sign_bit();
        if self.xorsign {
            (a, b) = (a & !format.sign_bit(), b & !format.sign_bit());
        }
        let chosen = match (format.is_nan(a), format.is_nan(b)) {
            (true, true) => return format.nan,
            (true, false) | (false, true) if self.strict => return format.nan,
            (true, false) => b,
            (false, true) => a,
            (false, false) => {
                let negative = |bits: u64| bits & format.sign_bit() != 0;
                // -0 counts as less than +0.
                let order = format
                    .compare(a, b, Subnormals::Keep)
                    .unwrap_or(Ordering::Equal)
                    .then(negative(b).cmp(&negative(a)));
                if (order == Ordering::Greater) == self.larger { a } else { b }
            }
        };
        if self.xorsign { chosen & !format.sign_bit() | sign } else { chosen }
    }

    pub(super) fn words(self) -> String {
        let word = |present: bool, word: &'static str| if present { word } else { "" };
        format!(
            "{}{}{}{}",
            if self.larger { "max" } else { "min" },
            word(self.subnormals == Subnormals::Flush, ".ftz"),
            word(self.strict, ".NaN"),
            word(self.xorsign, ".xorsign.abs"),
        )
    }
}

/// min, max
pub(super) fn extremes(chooser: &mut Chooser) -> Operation {
    let kind = Kind::any(chooser);
    let single = kind.class == Class::B32;
    let extreme = Extreme {
        larger: chooser.chance(50),
        strict: single && chooser.chance(40),
        xorsign: single && chooser.chance(25),
        subnormals: if single && chooser.chance(40) { Subnormals::Flush } else { Subnormals::Keep },
    };
    let (format, name) = (kind.format, kind.name);
    let sources = [Source::register(kind.class), kind.source()];
    let operation =
        Operation::new(format!("{}.{name}", extreme.words()), kind.class, &sources, move |s| {
            extreme.of(format, s[0], s[1])
        });
    canonical(operation, kind)
}

/// abs, neg, copysign
pub(super) fn signs(chooser: &mut Chooser) -> Operation {
    let kind = Kind::any(chooser);
    let (format, name) = (kind.format, kind.name);
    let flush = kind.class == Class::B32 && chooser.chance(40);
    let subnormals = if flush { Subnormals::Flush } else { Subnormals::Keep };
    let ftz = if flush { ".ftz" } else { "" };
    let one = [Source::register(kind.class)];
    let without_nan = move |bits: u64| if format.is_nan(bits) { format.nan } else { bits };
    let operation = match chooser.random.below(3) {
        0 => Operation::new(format!("abs{ftz}.{name}"), kind.class, &one, move |s| {
            without_nan(format.flushed(s[0], subnormals) & !format.sign_bit())
        }),
        1 => Operation::new(format!("neg{ftz}.{name}"), kind.class, &one, move |s| {
            without_nan(format.flushed(s[0], subnormals) ^ format.sign_bit())
        }),
        _ => {
            let two = [Source::register(kind.class), kind.source()];
            return Operation::new(format!("copysign.{name}"), kind.class, &two, move |s| {
                s[1] & !format.sign_bit() | s[0] & format.sign_bit()
            });
        }
    };
    // The ISA leaves a NaN's bits open here, also for f32.
    if kind.class == Class::B64 {
        canonical(operation, kind)
    } else {
        operation.then(&["testp.notanumber.f32 %q0, {d0}", "selp.b32 {d0}, 0x7fffffff, {d0}, %q0"])
    }
}
