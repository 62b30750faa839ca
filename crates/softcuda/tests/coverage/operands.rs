//! Operands of the cases: the same ones in every run, with the values at which instructions change
//! their behaviour.

use crate::exact::Format;
use crate::form::mask_of;

/// Tuples per case: a block of this many threads runs them.
pub(crate) const TUPLES: usize = 256;

/// A mixing step of SplitMix64.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// `count` bytes that differ from each other and from zero often enough.
pub(crate) fn bytes(count: usize, seed: u64) -> Vec<u8> {
    (0..count as u64).map(|i| (mix(i ^ seed << 32) >> 17) as u8).collect()
}

/// What values an operand takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Domain {
    /// Integers of so many bits.
    Int(u32),
    /// 0 or 1.
    Bool,
    /// Below the number.
    Below(u64),
    /// Finite floats with exponents from one to the other (of the value, unbiased).
    Float(Format, i32, i32),
    /// Every kind of float, with infinities, zeros, subnormals; NaNs if said so.
    Any(Format, Nans),
    /// Two of another domain's 16-bit floats.
    Pair(Format, i32, i32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nans {
    With,
    Without,
}

/// Words at which integer instructions change their behaviour.
const INTEGERS: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

impl Domain {
    /// Value `i` of the domain's sequence number `j`.
    fn value(self, i: u64, j: u64) -> u64 {
        let choice = mix(i * 64 + j);
        let random = mix(choice);
        match self {
            Self::Int(bits) => {
                let value = match choice & 7 {
                    0..=2 => INTEGERS[(random % 16) as usize],
                    3 => (random % 33).wrapping_sub(16),
                    4 => (random & mask_of(bits)) >> (mix(random) % u64::from(bits)),
                    _ => random,
                };
                value & mask_of(bits)
            }
            Self::Bool => random & 1,
            Self::Below(limit) => random % limit,
            Self::Float(format, low, high) => float(format, low, high, choice),
            Self::Pair(format, low, high) => {
                float(format, low, high, choice) | float(format, low, high, random) << 16
            }
            Self::Any(format, nans) => {
                let sign = (random & 1) << (format.exponent_bits + format.fraction_bits);
                let infinity = mask_of(format.exponent_bits) << format.fraction_bits;
                let fraction = random >> 8 & mask_of(format.fraction_bits);
                match choice & 15 {
                    0 => sign,
                    1 => sign | infinity,
                    2 if nans == Nans::With => sign | infinity | 1 << (format.fraction_bits - 1),
                    2 | 3 => sign | fraction,
                    4 => sign | 1 << format.fraction_bits | fraction,
                    5 => sign | (infinity - (1 << format.fraction_bits)) | fraction,
                    6..=9 => float(format, -3, 3, random),
                    10 | 11 => float(format, -1, 70.min(format.bias()), random),
                    _ => float(format, 1 - format.bias(), format.bias(), random),
                }
            }
        }
    }
}

/// A finite float with an exponent in `low..=high`; sometimes a simple fraction.
fn float(format: Format, low: i32, high: i32, seed: u64) -> u64 {
    let r = mix(seed ^ 0x55);
    let span = (high - low + 1) as u64;
    let exponent = low + (mix(r) % span) as i32;
    let fraction = match r >> 60 {
        0..=2 => 0,
        3 | 4 => 1 << (format.fraction_bits - 1),
        5 => mask_of(format.fraction_bits),
        _ => r & mask_of(format.fraction_bits),
    };
    let sign = (r >> 50 & 1) << (format.exponent_bits + format.fraction_bits);
    sign | ((exponent + format.bias()) as u64) << format.fraction_bits | fraction
}

/// Tuples of one value a domain; every eighth tuple has equal operands where domains allow.
pub(crate) fn tuples(domains: &[Domain], keep: impl Fn(&[u64]) -> bool) -> Vec<Vec<u64>> {
    let mut tuples = Vec::with_capacity(TUPLES);
    for i in 0.. {
        let mut tuple: Vec<u64> =
            domains.iter().enumerate().map(|(j, domain)| domain.value(i, j as u64)).collect();
        if i % 8 == 5 && tuple.len() > 1 && domains[0] == domains[1] {
            tuple[1] = tuple[0];
        }
        if keep(&tuple) {
            tuples.push(tuple);
        }
        if tuples.len() == TUPLES {
            return tuples;
        }
        assert!(i < 100_000, "the domain is nearly empty");
    }
    tuples
}
