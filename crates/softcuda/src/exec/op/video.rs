//! Video instructions: arithmetic on bytes and halves picked out of words, saturated, merged or
//! combined with a third operand.
//!
//! One handler executes all of them; [`VideoForm`] says what. Semantics: PTX ISA, scalar and SIMD
//! video instructions, and compared with an H200 (driver 580), form by form. Forms in which these
//! two differ are refused by lowering.

use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;

/// The first operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::exec) enum VideoOp {
    Add,
    Subtract,
    AbsoluteDifference,
    Min,
    Max,
    ShiftLeft,
    ShiftRight,
    Multiply,
    Compare,
    Average,
}

const OPS: [VideoOp; 10] = [
    VideoOp::Add,
    VideoOp::Subtract,
    VideoOp::AbsoluteDifference,
    VideoOp::Min,
    VideoOp::Max,
    VideoOp::ShiftLeft,
    VideoOp::ShiftRight,
    VideoOp::Multiply,
    VideoOp::Compare,
    VideoOp::Average,
];

/// What is done with the result and the third operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::exec) enum Second {
    None,
    Add,
    Min,
    Max,
}

/// A part of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) struct Part {
    pub(in crate::exec) shift: u8,
    /// 8, 16 or 32.
    pub(in crate::exec) bits: u8,
}

impl Part {
    pub(in crate::exec) const WORD: Self = Part { shift: 0, bits: 32 };

    /// The part of a selector: `b0` to `b3`, `h0`, `h1`.
    pub(in crate::exec) fn from_selector(selector: &str) -> Option<Self> {
        Some(match selector {
            "b0" => Part { shift: 0, bits: 8 },
            "b1" => Part { shift: 8, bits: 8 },
            "b2" => Part { shift: 16, bits: 8 },
            "b3" => Part { shift: 24, bits: 8 },
            "h0" => Part { shift: 0, bits: 16 },
            "h1" => Part { shift: 16, bits: 16 },
            _ => return None,
        })
    }

    fn pack(self) -> u64 {
        u64::from(self.shift / 8) | u64::from(self.bits / 16) << 2
    }

    fn unpack(bits: u64) -> Self {
        Part { shift: (bits & 3) as u8 * 8, bits: ((bits >> 2 & 3) as u8 * 16).max(8) }
    }
}

/// Everything that an instruction's text says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) struct VideoForm {
    pub(in crate::exec) op: VideoOp,
    pub(in crate::exec) second: Second,
    /// Whether d, a and b are signed.
    pub(in crate::exec) signed: [bool; 3],
    pub(in crate::exec) saturates: bool,
    /// Parts of d, a and b of a scalar instruction; a part of d that is no word is merged into the
    /// third operand.
    pub(in crate::exec) parts: [Part; 3],
    /// Comparison (eq, ne, lt, le, gt, ge), bits that a product is shifted down, or 1 for shifts
    /// that wrap around.
    pub(in crate::exec) detail: u8,
    /// `.po`: plus one.
    pub(in crate::exec) plus_one: bool,
    /// Parts of a SIMD instruction: 2 or 4; 0: scalar.
    pub(in crate::exec) lanes: u8,
    /// Of SIMD: parts of d that are written, or added up.
    pub(in crate::exec) mask: u8,
    /// Of SIMD: which of the parts of b:a each part of a and of b is, three bits each.
    pub(in crate::exec) selectors: [u16; 2],
}

impl VideoForm {
    /// As the immediate of an instruction.
    pub(in crate::exec) fn pack(self) -> i64 {
        let flags = [self.signed[0], self.signed[1], self.signed[2], self.saturates, self.plus_one];
        let flags = flags.iter().rev().fold(0, |bits, &flag| bits << 1 | u64::from(flag));
        let parts = self.parts.iter().rev().fold(0, |bits, part| bits << 4 | part.pack());
        let bits = self.op as u64
            | (self.second as u64) << 4
            | flags << 6
            | parts << 11
            | u64::from(self.detail) << 23
            | u64::from(self.lanes) << 27
            | u64::from(self.mask) << 30
            | u64::from(self.selectors[0]) << 34
            | u64::from(self.selectors[1]) << 46;
        bits as i64
    }

    fn unpack(bits: i64) -> Self {
        let bits = bits as u64;
        let flag = |at: u32| bits >> (6 + at) & 1 != 0;
        VideoForm {
            op: OPS[(bits & 15) as usize % OPS.len()],
            second: match bits >> 4 & 3 {
                0 => Second::None,
                1 => Second::Add,
                2 => Second::Min,
                _ => Second::Max,
            },
            signed: [flag(0), flag(1), flag(2)],
            saturates: flag(3),
            plus_one: flag(4),
            parts: std::array::from_fn(|at| Part::unpack(bits >> (11 + 4 * at) & 15)),
            detail: (bits >> 23 & 15) as u8,
            lanes: (bits >> 27 & 7) as u8,
            mask: (bits >> 30 & 15) as u8,
            selectors: [(bits >> 34 & 0xfff) as u16, (bits >> 46 & 0xfff) as u16],
        }
    }

    /// The result for one thread.
    fn evaluate(self, a: u32, b: u32, c: u32) -> u32 {
        match (self.lanes, self.op) {
            (0, VideoOp::Multiply) => self.product(a, b, c),
            (0, _) => self.scalar(a, b, c),
            _ => self.simd(a, b, c),
        }
    }

    fn first(self, a: i128, b: i128) -> i128 {
        match self.op {
            VideoOp::Add => a + b,
            VideoOp::Subtract => a - b,
            VideoOp::AbsoluteDifference => (a - b).abs(),
            VideoOp::Min => a.min(b),
            VideoOp::Max => a.max(b),
            VideoOp::ShiftLeft | VideoOp::ShiftRight => {
                let count = if self.detail == 1 { b & 31 } else { b.clamp(0, 32) };
                if self.op == VideoOp::ShiftLeft { a << count } else { a >> count }
            }
            VideoOp::Multiply => a * b,
            VideoOp::Compare => i128::from(match self.detail {
                0 => a == b,
                1 => a != b,
                2 => a < b,
                3 => a <= b,
                4 => a > b,
                _ => a >= b,
            }),
            VideoOp::Average => (a + b + i128::from(a + b >= 0)) >> 1,
        }
    }

    fn scalar(self, a: u32, b: u32, c: u32) -> u32 {
        let [part, from_a, from_b] = self.parts;
        let first = self.first(
            extend(a >> from_a.shift, from_a.bits, self.signed[1]),
            extend(b >> from_b.shift, from_b.bits, self.signed[2]),
        );
        let first = self.saturate(first, part.bits) as u32;
        if part != Part::WORD {
            let mask = ((1u32 << part.bits) - 1) << part.shift;
            return first << part.shift & mask | c & !mask;
        }
        let value = |word: u32| extend(word, 32, self.signed[0]);
        match self.second {
            Second::None => first,
            Second::Add => first.wrapping_add(c),
            Second::Min => value(first).min(value(c)) as u32,
            Second::Max => value(first).max(value(c)) as u32,
        }
    }

    fn product(self, a: u32, b: u32, c: u32) -> u32 {
        let [_, from_a, from_b] = self.parts;
        let signed = self.signed[1] || self.signed[2];
        let product = extend(a >> from_a.shift, from_a.bits, self.signed[1])
            * extend(b >> from_b.shift, from_b.bits, self.signed[2]);
        let sum = product + extend(c, 32, signed) + i128::from(self.plus_one);
        let sum = sum >> self.detail;
        if self.saturates { clamp(sum, 32, signed) as u32 } else { sum as u32 }
    }

    fn simd(self, a: u32, b: u32, c: u32) -> u32 {
        let bits = 32 / u32::from(self.lanes.max(1));
        let pair = u64::from(b) << 32 | u64::from(a);
        let pick = |which: usize, lane: u32| {
            let selector = u32::from(self.selectors[which] >> (3 * lane) & 7);
            extend((pair >> (selector * bits)) as u32, bits as u8, self.signed[1 + which])
        };
        let mut result = c;
        for lane in (0..u32::from(self.lanes)).filter(|lane| self.mask >> lane & 1 != 0) {
            let value = self.saturate(self.first(pick(0, lane), pick(1, lane)), bits as u8);
            if self.second == Second::Add {
                // Of all bits: nothing is cut off before it is added, as an H200 has it.
                result = result.wrapping_add(value as u32);
            } else {
                let mask = (((1u64 << bits) - 1) as u32) << (bits * lane);
                result = result & !mask | (value as u32) << (bits * lane) & mask;
            }
        }
        result
    }

    fn saturate(self, value: i128, bits: u8) -> i128 {
        if self.saturates { clamp(value, bits, self.signed[0]) } else { value }
    }
}

/// The low bits of a word as a number.
fn extend(word: u32, bits: u8, signed: bool) -> i128 {
    let shift = 32 - u32::from(bits);
    let top = word << shift;
    if signed { i128::from(top as i32 >> shift) } else { i128::from(top >> shift) }
}

fn clamp(value: i128, bits: u8, signed: bool) -> i128 {
    match signed {
        true => value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        false => value.clamp(0, (1 << bits) - 1),
    }
}

/// `v..  d, a, b, c`, all of them words.
pub(in crate::exec) struct Video;

impl Body for Video {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = VideoForm::unpack(ins.imm);
        for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
            // SAFETY: operands by the emitter.
            unsafe {
                let word = |offset: u32| *frame.at::<u32>(offset).add(lane);
                let result = form.evaluate(word(ins.a), word(ins.b), word(ins.c));
                *frame.at::<u32>(ins.d).add(lane) = result;
            }
        }
        Flow::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_survive_packing() {
        let part = |selector| Part::from_selector(selector).expect("a selector");
        let form = VideoForm {
            op: VideoOp::Average,
            second: Second::Max,
            signed: [true, false, true],
            saturates: true,
            parts: [part("b3"), part("h1"), Part::WORD],
            detail: 15,
            plus_one: true,
            lanes: 4,
            mask: 0b1010,
            selectors: [0o3210, 0o7654],
        };
        assert_eq!(VideoForm::unpack(form.pack()), form);
        let form = VideoForm { parts: [part("h0"), part("b0"), part("b2")], lanes: 2, ..form };
        assert_eq!(VideoForm::unpack(form.pack()), form);
    }
}
