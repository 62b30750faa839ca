//! Operations on the bytes, halves and bit patterns of words:
//! `lop3 prmt dp4a dp2a vabsdiff2 vabsdiff4` and packed 16-bit arithmetic.

use super::Int;
use crate::exec::alu::Lane;
use crate::exec::alu::lane::{S16x2, U16x2};
use crate::exec::alu::op::op;

op! {
    /// `lop3.b32 d, a, b, c, lut`: bit `a << 2 | b << 1 | c` of the table, for every bit position
    quaternary Lop3<>(a: u32, b: u32, c: u32, lut: u32) -> u32 {
        let mut d = 0;
        for index in 0..8u32 {
            let pick = |x: u32, bit: u32| if index & bit != 0 { x } else { !x };
            let entry = (lut >> index & 1).wrapping_neg();
            d |= pick(a, 4) & pick(b, 2) & pick(c, 1) & entry;
        }
        d
    }
    /// `prmt.b32 d, a, b, selectors`: four bytes of `b:a`, each by its number or as its sign
    ternary Permute<>(a: u32, b: u32, selectors: u32) -> u32 {
        let bytes = u64::from(b) << 32 | u64::from(a);
        let mut d = 0;
        for i in 0..4 {
            let selector = selectors >> (4 * i);
            let byte = (bytes >> (8 * (selector & 7))) as u8;
            let value = if selector & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte };
            d |= u32::from(value) << (8 * i);
        }
        d
    }
    /// `prmt.b32.f4e` and the other modes: the selectors follow from the two low bits of `c`
    ternary PermuteMode<M: PermuteSelectors>(a: u32, b: u32, c: u32) -> u32 {
        <Permute as crate::exec::alu::Ternary>::lane(a, b, u32::from(M::SELECTORS[(c & 3) as usize]))
    }
    /// `dp4a.atype.btype`: `c` plus the dot product of four bytes each
    ternary Dot4<A: Part, B: Part>(a: u32, b: u32, c: u32) -> u32 {
        let mut sum = c;
        for i in 0..4 {
            sum = sum.wrapping_add((A::byte(a, i) * B::byte(b, i)) as u32);
        }
        sum
    }
    /// `dp2a.lo.atype.btype`: `c` plus the dot product of the halves of `a` with the low bytes of
    /// `b`
    ternary Dot2Low<A: Part, B: Part>(a: u32, b: u32, c: u32) -> u32 { dot2::<A, B>(a, b, c, 0) }
    /// `dp2a.hi.atype.btype`: `c` plus the dot product of the halves of `a` with the high bytes of
    /// `b`
    ternary Dot2High<A: Part, B: Part>(a: u32, b: u32, c: u32) -> u32 { dot2::<A, B>(a, b, c, 2) }
    /// `vabsdiff4.dtype.atype.btype`: how far the bytes of `a` and `b` are apart, each in its place
    ternary AbsoluteDifference4<A: Part, B: Part>(a: u32, b: u32, _c: u32) -> u32 {
        let mut d = 0;
        for i in 0..4 {
            d |= (A::byte(a, i).abs_diff(B::byte(b, i)) & 0xff) << (8 * i);
        }
        d
    }
    /// `vabsdiff4.dtype.atype.btype.add`: `c` plus the sum of what the bytes of `a` and `b` are
    /// apart
    ternary SumOfDifferences4<A: Part, B: Part>(a: u32, b: u32, c: u32) -> u32 {
        let mut sum = c;
        for i in 0..4 {
            sum = sum.wrapping_add(A::byte(a, i).abs_diff(B::byte(b, i)));
        }
        sum
    }
    /// `vabsdiff2.dtype.atype.btype`: how far the halves of `a` and `b` are apart, each in its
    /// place
    ternary AbsoluteDifference2<A: Part, B: Part>(a: u32, b: u32, _c: u32) -> u32 {
        let apart = |i| A::half(a, i).abs_diff(B::half(b, i));
        apart(0) & 0xffff | apart(1) << 16
    }
    /// `vabsdiff2.dtype.atype.btype.add`: `c` plus the sum of what the halves of `a` and `b` are
    /// apart
    ternary SumOfDifferences2<A: Part, B: Part>(a: u32, b: u32, c: u32) -> u32 {
        let apart = |i| A::half(a, i).abs_diff(B::half(b, i));
        c.wrapping_add(apart(0)).wrapping_add(apart(1))
    }
    /// `add.u16x2`, `add.s16x2`
    binary Add16x2<T: Halves>(a: T, b: T) -> T { T::map(a, b, |x, y| x.add(y)) }
    /// `min.type16x2`
    binary Min16x2<T: Halves>(a: T, b: T) -> T { T::map(a, b, |x, y| x.min(y)) }
    /// `max.type16x2`
    binary Max16x2<T: Halves>(a: T, b: T) -> T { T::map(a, b, |x, y| x.max(y)) }
    /// `min.relu.s16x2`
    binary MinRelu16x2<T: Halves>(a: T, b: T) -> T { T::map(a, b, |x, y| x.min(y).max(T::Half::truncate(0))) }
    /// `max.relu.s16x2`
    binary MaxRelu16x2<T: Halves>(a: T, b: T) -> T { T::map(a, b, |x, y| x.max(y).max(T::Half::truncate(0))) }
}

#[inline(always)]
fn dot2<A: Part, B: Part>(a: u32, b: u32, c: u32, first_byte: u32) -> u32 {
    let low = A::half(a, 0) * B::byte(b, first_byte);
    let high = A::half(a, 1) * B::byte(b, first_byte + 1);
    c.wrapping_add(low as u32).wrapping_add(high as u32)
}

/// How `dp4a` and `dp2a` read the parts of an operand: `u32` as unsigned, `i32` as signed.
pub trait Part: 'static {
    /// Byte `index` of the word.
    fn byte(word: u32, index: u32) -> i32;
    /// Half `index` of the word.
    fn half(word: u32, index: u32) -> i32;
}

impl Part for u32 {
    #[inline(always)]
    fn byte(word: u32, index: u32) -> i32 {
        i32::from((word >> (8 * index)) as u8)
    }
    #[inline(always)]
    fn half(word: u32, index: u32) -> i32 {
        i32::from((word >> (16 * index)) as u16)
    }
}

impl Part for i32 {
    #[inline(always)]
    fn byte(word: u32, index: u32) -> i32 {
        i32::from((word >> (8 * index)) as i8)
    }
    #[inline(always)]
    fn half(word: u32, index: u32) -> i32 {
        i32::from((word >> (16 * index)) as i16)
    }
}

/// A packed pair of 16-bit integers.
pub trait Halves: Lane {
    /// The type of each.
    type Half: Int;
    /// Applies `f` to the low and to the high halves.
    fn map(a: Self, b: Self, f: impl Fn(Self::Half, Self::Half) -> Self::Half) -> Self;
}

macro_rules! halves {
    ($($name:ident of $half:ty;)*) => {$(
        impl Halves for $name {
            type Half = $half;
            #[inline(always)]
            fn map(a: Self, b: Self, f: impl Fn($half, $half) -> $half) -> Self {
                let low = f(a.0 as $half, b.0 as $half) as u16;
                let high = f((a.0 >> 16) as $half, (b.0 >> 16) as $half) as u16;
                $name(u32::from(high) << 16 | u32::from(low))
            }
        }
    )*};
}

halves! {
    U16x2 of u16;
    S16x2 of i16;
}

/// The selectors of a `prmt` mode for each value of the two low bits of its third operand.
pub trait PermuteSelectors: 'static {
    /// Four selectors of four nibbles.
    const SELECTORS: [u16; 4];
}

macro_rules! permute_modes {
    ($($(#[$m:meta])* $name:ident = $selectors:expr;)*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;
        impl PermuteSelectors for $name {
            const SELECTORS: [u16; 4] = $selectors;
        }
    )*};
}

permute_modes! {
    /// `.f4e`: four bytes upwards from byte `c`
    Forward4 = [0x3210, 0x4321, 0x5432, 0x6543];
    /// `.b4e`: four bytes downwards from byte `c`, through the end of `b`
    Backward4 = [0x5670, 0x6701, 0x7012, 0x0123];
    /// `.rc8`: byte `c` everywhere
    Replicate8 = [0x0000, 0x1111, 0x2222, 0x3333];
    /// `.ecl`: bytes below `c` become byte `c`
    EdgeClampLeft = [0x3210, 0x3211, 0x3222, 0x3333];
    /// `.ecr`: bytes above `c` become byte `c`
    EdgeClampRight = [0x0000, 0x1110, 0x2210, 0x3210];
    /// `.rc16`: half `c & 1` twice
    Replicate16 = [0x1010, 0x3232, 0x1010, 0x3232];
}

#[cfg(test)]
mod tests {
    use crate::exec::alu::testing::eval;

    #[test]
    fn bytes_are_compared_one_by_one() {
        let operands = [0x01ff_1020, 0x0300_2010, 7];
        assert_eq!(eval("vabsdiff4.u32.u32.u32", &operands), 0x02ff_1010);
        assert_eq!(eval("vabsdiff4.s32.s32.s32", &operands), 0x0201_1010);
        assert_eq!(eval("vabsdiff4.u32.u32.u32.add", &operands), 7 + 2 + 255 + 16 + 16);
    }

    #[test]
    fn halves_are_compared_one_by_one() {
        let operands = [0xffff_0010, 0x0002_8000, 7];
        assert_eq!(eval("vabsdiff2.u32.u32.u32", &operands), 0xfffd_7ff0);
        assert_eq!(eval("vabsdiff2.s32.s32.s32", &operands), 0x0003_8010);
        assert_eq!(eval("vabsdiff2.u32.u32.u32.add", &operands), 7 + 0xfffd + 0x7ff0);
    }
}
