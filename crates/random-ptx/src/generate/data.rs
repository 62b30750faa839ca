//! Constants, first values of registers, and the counters' operations.

use crate::float::{F32, F64};
use crate::operation::{Chooser, Class, Immediate};
use crate::operations::Int;
use crate::program::{Atomic, COMMON_BYTES, INITIAL_BYTES, Operand};

const WORDS: [u64; 20] = [
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x8000_0001,
    0xaaaa_5555,
];

/// Zeros, subnormals, the edges of normal numbers, infinities and NaN of both signs.
const SINGLES: [u64; 14] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x8080_0000,
    0x7f7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffff_ffff,
    0x3f80_0000,
    0x4b80_0001,
];

const HALVES: [u64; 16] = [
    0, 0x8000, 1, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x3c00, 0xbc00,
    0x7f80, 0x3f80, 0x0080,
];

/// One of so many halves from the first, of either sign.
fn signed(chooser: &mut Chooser, first: u64, count: usize) -> u64 {
    let sign = u64::from(chooser.chance(50)) << 15;
    (first + chooser.random.below(count) as u64) | sign
}

fn half(chooser: &mut Chooser) -> u64 {
    match chooser.random.below(10) {
        0..4 => chooser.pick(&HALVES),
        // Numbers near 1, of either half-precision format.
        4..6 => signed(chooser, 0x3800, 0x1000),
        6 => signed(chooser, 0x3e80, 0x200),
        _ => chooser.random.bits() & 0xffff,
    }
}

fn single(chooser: &mut Chooser) -> u64 {
    let sign = u64::from(chooser.chance(50)) << 31;
    match chooser.random.below(10) {
        0..2 => chooser.pick(&SINGLES),
        // Around 1, so that sums and products stay in range.
        2..8 => {
            let exponent = 127 - 12 + chooser.random.below(24) as u64;
            exponent << 23 | chooser.random.bits() & 0x7f_ffff | sign
        }
        // Small integers.
        8 => u64::from((chooser.random.below(200) as f32 - 100.0).to_bits()),
        _ => chooser.random.bits() & 0xffff_ffff,
    }
}

fn double(chooser: &mut Chooser) -> u64 {
    let sign = u64::from(chooser.chance(50)) << 63;
    match chooser.random.below(10) {
        0..2 => F64.convert(chooser.pick(&SINGLES), F32, crate::float::Round::Zero),
        2 => chooser.pick(&[1, 1 << 63, (1 << 52) - 1, 1 << 52, (0x7ff << 52) - 1]),
        3..9 => {
            let exponent = 1023 - 30 + chooser.random.below(60) as u64;
            exponent << 52 | chooser.random.bits() >> 12 | sign
        }
        _ => chooser.random.bits(),
    }
}

fn word(chooser: &mut Chooser) -> u64 {
    match chooser.random.below(10) {
        0..3 => chooser.pick(&WORDS),
        3..7 => single(chooser),
        7..9 => half(chooser) | half(chooser) << 16,
        _ => chooser.random.bits() & 0xffff_ffff,
    }
}

fn long(chooser: &mut Chooser) -> u64 {
    match chooser.random.below(10) {
        0..2 => Int::new(32, true).value(chooser.pick(&WORDS)) as u64,
        2..4 => word(chooser) << 32 | word(chooser),
        4 => 1 << chooser.random.below(64),
        _ => double(chooser),
    }
}

/// A constant operand.
pub(super) fn constant(chooser: &mut Chooser, class: Class, style: Immediate) -> Operand {
    let bits = match (style, class) {
        (Immediate::F32, _) => single(chooser),
        (Immediate::F64, _) => double(chooser),
        (Immediate::Byte, _) => chooser.pick(&[0, 1, 7, 8, 16, 31, 32, 33, 63, 64, 255]),
        (_, Class::B64) => long(chooser),
        (_, Class::B16) => chooser.pick(&WORDS) & 0xffff,
        _ => word(chooser),
    };
    Operand::Constant(bits, style)
}

/// The input buffer.
pub(super) fn input(chooser: &mut Chooser, threads: u32) -> Vec<u8> {
    let mut input = Vec::new();
    while input.len() < COMMON_BYTES as usize {
        input.extend(long(chooser).to_le_bytes());
    }
    for _ in 0..threads {
        let start = input.len();
        for _ in 0..6 {
            input.extend(long(chooser).to_le_bytes());
        }
        for _ in 0..10 {
            input.extend((word(chooser) as u32).to_le_bytes());
        }
        for _ in 0..6 {
            input.extend((half(chooser) as u16).to_le_bytes());
        }
        input.extend((chooser.random.bits() as u32).to_le_bytes());
        input.resize(start + INITIAL_BYTES as usize, 0);
    }
    input
}

fn low(bits: u64) -> u32 {
    bits as u32
}

/// Operations whose results do not depend on their order.
const COMMUTING: [Atomic; 13] = [
    Atomic { name: "add.u32", class: Class::B32, sources: 1, update: |a, b, _| a.wrapping_add(b) },
    Atomic { name: "add.s32", class: Class::B32, sources: 1, update: |a, b, _| a.wrapping_add(b) },
    Atomic { name: "add.u64", class: Class::B64, sources: 1, update: |a, b, _| a.wrapping_add(b) },
    Atomic { name: "min.u32", class: Class::B32, sources: 1, update: |a, b, _| a.min(b) },
    Atomic { name: "max.u32", class: Class::B32, sources: 1, update: |a, b, _| a.max(b) },
    Atomic {
        name: "min.s32",
        class: Class::B32,
        sources: 1,
        update: |a, b, _| (low(a) as i32).min(low(b) as i32) as u64,
    },
    Atomic {
        name: "max.s32",
        class: Class::B32,
        sources: 1,
        update: |a, b, _| (low(a) as i32).max(low(b) as i32) as u64,
    },
    Atomic { name: "max.u64", class: Class::B64, sources: 1, update: |a, b, _| a.max(b) },
    Atomic {
        name: "min.s64",
        class: Class::B64,
        sources: 1,
        update: |a, b, _| (a as i64).min(b as i64) as u64,
    },
    Atomic { name: "or.b32", class: Class::B32, sources: 1, update: |a, b, _| a | b },
    Atomic { name: "xor.b32", class: Class::B32, sources: 1, update: |a, b, _| a ^ b },
    Atomic { name: "xor.b64", class: Class::B64, sources: 1, update: |a, b, _| a ^ b },
    Atomic { name: "and.b64", class: Class::B64, sources: 1, update: |a, b, _| a & b },
];

/// Further ones, for memory of one thread.
const ORDERED: [Atomic; 7] = [
    Atomic { name: "exch.b32", class: Class::B32, sources: 1, update: |_, b, _| b },
    Atomic { name: "exch.b64", class: Class::B64, sources: 1, update: |_, b, _| b },
    Atomic {
        name: "cas.b32",
        class: Class::B32,
        sources: 2,
        update: |a, b, c| if low(a) == low(b) { c } else { a },
    },
    Atomic {
        name: "cas.b64",
        class: Class::B64,
        sources: 2,
        update: |a, b, c| if a == b { c } else { a },
    },
    Atomic {
        name: "cas.b16",
        class: Class::B16,
        sources: 2,
        update: |a, b, c| if a as u16 == b as u16 { c } else { a },
    },
    Atomic {
        name: "inc.u32",
        class: Class::B32,
        sources: 1,
        update: |a, b, _| if low(a) >= low(b) { 0 } else { a + 1 },
    },
    Atomic {
        name: "dec.u32",
        class: Class::B32,
        sources: 1,
        update: |a, b, _| if low(a) == 0 || low(a) > low(b) { b } else { a - 1 },
    },
];

/// The operation of each counter.
pub(super) fn counters(chooser: &mut Chooser) -> Vec<Atomic> {
    (0..8).map(|_| chooser.pick(&COMMUTING)).collect()
}

/// Any atomic operation.
pub(super) fn atomic(chooser: &mut Chooser) -> Atomic {
    if chooser.chance(60) { chooser.pick(&COMMUTING) } else { chooser.pick(&ORDERED) }
}
