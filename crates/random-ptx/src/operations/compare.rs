//! Comparison and selection: PTX ISA, "Comparison and Selection Instructions", for whole and half
//! precision.

use std::cmp::Ordering;

use super::Int;
use super::float::Kind;
use crate::float::{BF16, F16, F32, Subnormals};
use crate::operation::{Chooser, Class, Operation, Source, one};

/// A comparison of two operands' bits.
struct Comparison {
    /// `lt.ftz.f32` without the parts that stand between the operator and the type.
    operator: &'static str,
    ftz: &'static str,
    type_name: String,
    source: Source,
    holds: Box<dyn Fn(u64, u64) -> bool>,
}

/// Whether the operator holds for an order; `None` is unordered.
fn holds(operator: &str, order: Option<Ordering>) -> bool {
    let Some(order) = order else {
        return matches!(operator, "equ" | "neu" | "ltu" | "leu" | "gtu" | "geu" | "nan");
    };
    match operator {
        "eq" | "equ" => order.is_eq(),
        "ne" | "neu" => order.is_ne(),
        "lt" | "ltu" | "lo" => order.is_lt(),
        "le" | "leu" | "ls" => order.is_le(),
        "gt" | "gtu" | "hi" => order.is_gt(),
        "ge" | "geu" | "hs" => order.is_ge(),
        "num" => true,
        _ => false,
    }
}

const FLOAT_OPERATORS: &[&str] =
    &["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

fn float_comparison(chooser: &mut Chooser, kind: Kind) -> Comparison {
    let operator = chooser.pick(FLOAT_OPERATORS);
    let flush = kind.class == Class::B32 && chooser.chance(40);
    let subnormals = if flush { Subnormals::Flush } else { Subnormals::Keep };
    let format = kind.format;
    Comparison {
        operator,
        ftz: if flush { ".ftz" } else { "" },
        type_name: kind.name.to_owned(),
        source: kind.source(),
        holds: Box::new(move |a, b| holds(operator, format.compare(a, b, subnormals))),
    }
}

fn half_comparison(chooser: &mut Chooser) -> Comparison {
    let format = chooser.pick(&[F16, BF16]);
    let operator = chooser.pick(FLOAT_OPERATORS);
    let flush = format == F16 && chooser.chance(40);
    let subnormals = if flush { Subnormals::Flush } else { Subnormals::Keep };
    Comparison {
        operator,
        ftz: if flush { ".ftz" } else { "" },
        type_name: (if format == F16 { "f16" } else { "bf16" }).to_owned(),
        source: Source::register(Class::B16),
        holds: Box::new(move |a, b| holds(operator, format.compare(a, b, subnormals))),
    }
}

fn integer_comparison(chooser: &mut Chooser) -> Comparison {
    let t = Int::any(chooser);
    let untyped = chooser.chance(20);
    let operator = if untyped {
        chooser.pick(&["eq", "ne"])
    } else if t.signed {
        chooser.pick(&["eq", "ne", "lt", "le", "gt", "ge"])
    } else {
        chooser.pick(&["eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"])
    };
    Comparison {
        operator,
        ftz: "",
        type_name: if untyped { format!("b{}", t.bits) } else { t.name() },
        source: t.source(),
        holds: Box::new(move |a, b| holds(operator, Some(t.value(a).cmp(&t.value(b))))),
    }
}

fn comparison(chooser: &mut Chooser) -> Comparison {
    match chooser.random.below(10) {
        0..5 => integer_comparison(chooser),
        5..8 => {
            let kind = Kind::any(chooser);
            float_comparison(chooser, kind)
        }
        _ => half_comparison(chooser),
    }
}

/// How a predicate source joins the comparison's result.
fn join(word: &str, left: bool, right: bool) -> bool {
    match word {
        ".and" => left && right,
        ".or" => left || right,
        _ => left != right,
    }
}

/// setp
pub(super) fn set_predicate(chooser: &mut Chooser) -> Operation {
    if chooser.chance(10) {
        return set_pair(chooser);
    }
    let c = comparison(chooser);
    // Halves have no second result.
    let both = !c.type_name.ends_with("f16");
    let both = both && chooser.chance(30);
    let joined = chooser.chance(30);
    let negated = chooser.chance(50);
    let word = if joined { chooser.pick(&[".and", ".or", ".xor"]) } else { "" };
    let results = if both { "{d0}|{d1}" } else { "{d0}" };
    let mut line =
        format!("setp.{}{word}{}.{} {results}, {{s0}}, {{s1}}", c.operator, c.ftz, c.type_name);
    let mut sources = vec![c.source, c.source];
    if joined {
        line.push_str(if negated { ", !{s2}" } else { ", {s2}" });
        sources.push(Source::register(Class::Predicate));
    }
    let results = vec![Class::Predicate; if both { 2 } else { 1 }];
    Operation::from_lines(vec![line], &results, &sources, move |s| {
        let holds = (c.holds)(s[0], s[1]);
        if !joined {
            return [u64::from(holds), u64::from(!holds), 0, 0];
        }
        let other = (s[2] == 1) != negated;
        [u64::from(join(word, holds, other)), u64::from(join(word, !holds, other)), 0, 0]
    })
}

/// setp of pairs: a predicate for each half.
fn set_pair(chooser: &mut Chooser) -> Operation {
    let c = half_comparison(chooser);
    let line =
        format!("setp.{}{}.{}x2 {{d0}}|{{d1}}, {{s0}}, {{s1}}", c.operator, c.ftz, c.type_name);
    let sources = [Source::register(Class::B32); 2];
    Operation::from_lines(vec![line], &[Class::Predicate; 2], &sources, move |s| {
        let half =
            |shift: u32| u64::from((c.holds)(s[0] >> shift & 0xffff, s[1] >> shift & 0xffff));
        [half(0), half(16), 0, 0]
    })
}

/// set and testp
pub(super) fn set_value(chooser: &mut Chooser) -> Operation {
    if chooser.chance(30) {
        return test_property(chooser);
    }
    let c = match chooser.random.below(3) {
        0 => {
            let kind = Kind::any(chooser);
            float_comparison(chooser, kind)
        }
        _ => integer_comparison(chooser),
    };
    let (type_name, yes) =
        chooser.pick(&[("u32", 0xffff_ffff), ("s32", 0xffff_ffff), ("f32", F32.one())]);
    let joined = chooser.chance(30);
    let word = if joined { chooser.pick(&[".and", ".or", ".xor"]) } else { "" };
    let mut line = format!(
        "set.{}{word}{}.{type_name}.{} {{d0}}, {{s0}}, {{s1}}",
        c.operator, c.ftz, c.type_name
    );
    let mut sources = vec![c.source, c.source];
    if joined {
        line.push_str(", {s2}");
        sources.push(Source::register(Class::Predicate));
    }
    Operation::from_lines(vec![line], &[Class::B32], &sources, move |s| {
        let holds = (c.holds)(s[0], s[1]);
        let result = if joined { join(word, holds, s[2] == 1) } else { holds };
        one(if result { yes } else { 0 })
    })
}

fn test_property(chooser: &mut Chooser) -> Operation {
    let kind = Kind::any(chooser);
    let property =
        chooser.pick(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"]);
    let format = kind.format;
    let sources = [Source::register(kind.class)];
    Operation::new(
        format!("testp.{property}.{}", kind.name),
        Class::Predicate,
        &sources,
        move |s| {
            let magnitude = s[0] & (format.sign_bit() - 1);
            let infinity = format.infinity();
            let subnormal = format.is_subnormal(s[0]);
            u64::from(match property {
                "finite" => magnitude < infinity,
                "infinite" => magnitude == infinity,
                "number" => magnitude <= infinity,
                "notanumber" => magnitude > infinity,
                // Zeros count as normal.
                "normal" => magnitude < infinity && !subnormal,
                _ => subnormal,
            })
        },
    )
}

/// selp, slct
pub(super) fn select(chooser: &mut Chooser) -> Operation {
    let (name, source) = match chooser.random.below(4) {
        0 => {
            let kind = Kind::any(chooser);
            (kind.name.to_owned(), kind.source())
        }
        1 => {
            let bits = chooser.pick(&[16, 32, 64]);
            (format!("b{bits}"), Source::integer(Class::of_bits(bits)))
        }
        _ => {
            let t = Int::any(chooser);
            (t.name(), t.source())
        }
    };
    match chooser.random.below(5) {
        0..3 => {
            let sources = [source, source, Source::register(Class::Predicate)];
            Operation::new(format!("selp.{name}"), source.class, &sources, |s| {
                if s[2] == 1 { s[0] } else { s[1] }
            })
        }
        3 => {
            let sources = [source, source, Source::register(Class::B32)];
            Operation::new(format!("slct.{name}.s32"), source.class, &sources, |s| {
                if s[2] >> 31 == 0 { s[0] } else { s[1] }
            })
        }
        _ => {
            let flush = chooser.chance(40);
            let subnormals = if flush { Subnormals::Flush } else { Subnormals::Keep };
            let ftz = if flush { ".ftz" } else { "" };
            let sources = [source, source, Source::register(Class::B32)];
            Operation::new(format!("slct{ftz}.{name}.f32"), source.class, &sources, move |s| {
                let order = F32.compare(s[2], 0, subnormals);
                if order.is_some_and(Ordering::is_ge) { s[0] } else { s[1] }
            })
        }
    }
}

/// and, or, xor, not, mov of predicates
pub(super) fn predicates(chooser: &mut Chooser) -> Operation {
    let p = Class::Predicate;
    let source = Source::register(p);
    match chooser.random.below(5) {
        0 => Operation::new("and.pred", p, &[source; 2], |s| s[0] & s[1]),
        1 => Operation::new("or.pred", p, &[source; 2], |s| s[0] | s[1]),
        2 => Operation::new("xor.pred", p, &[source; 2], |s| s[0] ^ s[1]),
        3 => Operation::new("not.pred", p, &[source], |s| s[0] ^ 1),
        _ => Operation::new("mov.pred", p, &[source], |s| s[0]),
    }
}
