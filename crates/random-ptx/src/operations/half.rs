//! f16, bf16 and their pairs: PTX ISA, "Half Precision Floating-Point Instructions".

use super::float::Extreme;
use crate::float::{BF16, F16, Format, Round, Subnormals};
use crate::operation::{Bare, Chooser, Class, Operation, Source};

/// One of the four half-precision types.
#[derive(Clone, Copy, Debug)]
struct Kind {
    format: Format,
    pair: bool,
}

impl Kind {
    fn any(chooser: &mut Chooser) -> Self {
        Self { format: chooser.pick(&[F16, BF16]), pair: chooser.chance(50) }
    }

    fn is_f16(self) -> bool {
        self.format == F16
    }

    fn name(self) -> &'static str {
        match (self.is_f16(), self.pair) {
            (true, true) => "f16x2",
            (true, false) => "f16",
            (false, true) => "bf16x2",
            (false, false) => "bf16",
        }
    }

    fn class(self) -> Class {
        if self.pair { Class::B32 } else { Class::B16 }
    }

    fn subnormals(self, chooser: &mut Chooser) -> Subnormals {
        if self.is_f16() && chooser.chance(30) { Subnormals::Flush } else { Subnormals::Keep }
    }

    /// The operation on each half.
    fn operation(
        self,
        name: String,
        sources: usize,
        f: impl Fn(&[u64]) -> u64 + 'static,
    ) -> Operation {
        let all = vec![Source::register(self.class()); sources];
        let lanes = if self.pair { 2 } else { 1 };
        Operation::new(format!("{name}.{}", self.name()), self.class(), &all, move |s| {
            (0..lanes)
                .map(|lane| {
                    let halves: Vec<u64> =
                        s.iter().map(|bits| bits >> (lane * 16) & 0xffff).collect();
                    f(&halves) << (lane * 16)
                })
                .sum()
        })
    }
}

fn ftz(subnormals: Subnormals) -> &'static str {
    if subnormals == Subnormals::Flush { ".ftz" } else { "" }
}

/// add, sub, mul, abs, neg
pub(super) fn arithmetic(chooser: &mut Chooser) -> Operation {
    let kind = Kind::any(chooser);
    let format = kind.format;
    let subnormals = kind.subnormals(chooser);
    let which = chooser.random.below(8);
    if which >= 6 {
        let flip = if which == 6 { format.sign_bit() } else { 0 };
        let word = if which == 6 { "neg" } else { "abs" };
        let operation = kind.operation(format!("{word}{}", ftz(subnormals)), 1, move |s| {
            let bits = format.flushed(s[0], subnormals);
            if flip != 0 { bits ^ flip } else { bits & !format.sign_bit() }
        });
        return without_nan_operands(operation, kind);
    }
    let saturate = kind.is_f16() && chooser.chance(25);
    let sat = if saturate { ".sat" } else { "" };
    let bare = if which < 2 { Bare::Multiply } else { Bare::Add };
    let rn = if chooser.bare == bare && chooser.chance(50) { "" } else { ".rn" };
    let words = format!("{rn}{}{sat}", ftz(subnormals));
    let finish = move |bits: u64| if saturate { format.saturated(bits) } else { bits };
    match which {
        0 | 1 => kind.operation(format!("mul{words}"), 2, move |s| {
            finish(format.multiply(s[0], s[1], Round::NearestEven, subnormals))
        }),
        2 | 3 => kind.operation(format!("add{words}"), 2, move |s| {
            finish(format.add(s[0], s[1], Round::NearestEven, subnormals))
        }),
        _ => kind.operation(format!("sub{words}"), 2, move |s| {
            let b = s[1] ^ format.sign_bit();
            finish(format.add(s[0], b, Round::NearestEven, subnormals))
        }),
    }
}

/// The ISA leaves the bits of a negated NaN open: the operand is made a number first.
fn without_nan_operands(mut operation: Operation, kind: Kind) -> Operation {
    // An exponent of all ones loses its lowest bit.
    let (mask, bits) = match (kind.is_f16(), kind.pair) {
        (true, true) => ("0xfbfffbff", "b32"),
        (true, false) => ("0xfbff", "b16"),
        (false, true) => ("0xff7fff7f", "b32"),
        (false, false) => ("0xff7f", "b16"),
    };
    let scratch = if kind.pair { "%x0" } else { "%z0" };
    operation.lines[0] = operation.lines[0].replace("{s0}", scratch);
    operation.lines.insert(0, format!("and.{bits} {scratch}, {{s0}}, {mask}"));
    let evaluate = std::rc::Rc::clone(&operation.evaluate);
    let lowest = 1 << kind.format.fraction_bits;
    let cleared = if kind.pair { lowest | lowest << 16 } else { lowest };
    operation.evaluate = std::rc::Rc::new(move |s| evaluate(&[s[0] & !cleared]));
    operation
}

/// fma
pub(super) fn fused(chooser: &mut Chooser) -> Operation {
    let kind = Kind::any(chooser);
    let format = kind.format;
    let subnormals = kind.subnormals(chooser);
    let end = match chooser.random.below(4) {
        0 if kind.is_f16() => ".sat",
        1 => ".relu",
        _ => "",
    };
    kind.operation(format!("fma.rn{}{end}", ftz(subnormals)), 3, move |s| {
        let bits = format.fused([s[0], s[1], s[2]], Round::NearestEven, subnormals);
        match end {
            ".sat" => format.saturated(bits),
            ".relu" => format.rectified(bits),
            _ => bits,
        }
    })
}

/// min, max
pub(super) fn extremes(chooser: &mut Chooser) -> Operation {
    let kind = Kind::any(chooser);
    let extreme = Extreme {
        larger: chooser.chance(50),
        strict: chooser.chance(40),
        xorsign: chooser.chance(25),
        subnormals: kind.subnormals(chooser),
    };
    let format = kind.format;
    kind.operation(extreme.words(), 2, move |s| extreme.of(format, s[0], s[1]))
}
