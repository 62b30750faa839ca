//! An instruction that computes results from sources alone: its text and its meaning, side by side.

use std::fmt;
use std::rc::Rc;

use crate::random::Random;

/// Register class by width. All registers are declared untyped (`.b16`, `.b32`, `.b64`), as
/// compilers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Predicate,
    B16,
    B32,
    B64,
}

impl Class {
    pub(crate) fn of_bits(bits: u32) -> Self {
        match bits {
            64 => Class::B64,
            32 => Class::B32,
            _ => Class::B16,
        }
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Class::Predicate => 1,
            Class::B16 => 16,
            Class::B32 => 32,
            Class::B64 => 64,
        }
    }

    pub(crate) fn truncated(self, bits: u64) -> u64 {
        bits & (u64::MAX >> (64 - self.bits()))
    }
}

/// How a source may be written when it is no register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Immediate {
    Never,
    Integer,
    /// 0 to 255
    Byte,
    F32,
    F64,
}

/// What a source operand may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) class: Class,
    pub(crate) immediate: Immediate,
}

impl Source {
    pub(crate) const fn register(class: Class) -> Self {
        Self { class, immediate: Immediate::Never }
    }

    pub(crate) const fn byte() -> Self {
        Self { class: Class::B32, immediate: Immediate::Byte }
    }

    pub(crate) const fn integer(class: Class) -> Self {
        Self { class, immediate: Immediate::Integer }
    }
}

/// Up to four results.
pub(crate) type Results = [u64; 4];

/// A single result.
pub(crate) fn one(value: u64) -> Results {
    [value, 0, 0, 0]
}

/// From the sources' bits (zero-extended) to the results' (cut to their classes afterwards).
type Evaluate = Rc<dyn Fn(&[u64]) -> Results>;

/// One instruction, or a few that belong together.
#[derive(Clone)]
pub(crate) struct Operation {
    /// Lines with `{d0}`.. for results and `{s0}`.. for sources, without guard and semicolon.
    pub(crate) lines: Vec<String>,
    pub(crate) results: Vec<Class>,
    pub(crate) sources: Vec<Source>,
    pub(crate) evaluate: Evaluate,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.lines)
    }
}

impl Operation {
    /// `name d0, s0, s1...`
    pub(crate) fn new(
        name: impl fmt::Display,
        result: Class,
        sources: &[Source],
        evaluate: impl Fn(&[u64]) -> u64 + 'static,
    ) -> Self {
        let operands: Vec<String> = (0..sources.len()).map(|i| format!("{{s{i}}}")).collect();
        let line = format!("{name} {{d0}}, {}", operands.join(", "));
        Self::from_lines(vec![line], &[result], sources, move |s| one(evaluate(s)))
    }

    /// With a text of its own.
    pub(crate) fn from_lines(
        lines: Vec<String>,
        results: &[Class],
        sources: &[Source],
        evaluate: impl Fn(&[u64]) -> Results + 'static,
    ) -> Self {
        Self {
            lines,
            results: results.to_vec(),
            sources: sources.to_vec(),
            evaluate: Rc::new(evaluate),
        }
    }

    /// Followed by more lines.
    pub(crate) fn then(mut self, lines: &[&str]) -> Self {
        self.lines.extend(lines.iter().map(|line| (*line).to_owned()));
        self
    }
}

/// Which of multiplication and addition is written without a rounding mode, which lets an
/// optimising assembler fuse two of them: never both in one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bare {
    Multiply,
    Add,
}

/// What chooses operations.
#[derive(Debug)]
pub(crate) struct Chooser {
    pub(crate) random: Random,
    pub(crate) bare: Bare,
}

impl Chooser {
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        self.random.pick(items)
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.random.chance(percent)
    }

    /// One of two words in half of the cases each.
    pub(crate) fn maybe(&mut self, word: &'static str) -> &'static str {
        if self.chance(50) { word } else { "" }
    }
}
