//! What the integer operations need of their types.

use crate::exec::alu::Lane;

/// An integer type of an instruction.
pub trait Int: Lane + Ord {
    /// Width in bits.
    const BITS: u32;
    /// Whether the type is signed.
    const SIGNED: bool;
    /// `self + b` modulo 2^BITS.
    fn add(self, b: Self) -> Self;
    /// `self - b` modulo 2^BITS.
    fn sub(self, b: Self) -> Self;
    /// Low half of the product.
    fn mul_lo(self, b: Self) -> Self;
    /// High half of the product.
    fn mul_hi(self, b: Self) -> Self;
    /// Quotient; division by zero gives all ones, the overflowing one the dividend.
    fn div(self, b: Self) -> Self;
    /// Remainder; by zero all ones, that of the overflowing division zero.
    fn rem(self, b: Self) -> Self;
    /// `|self - b|` modulo 2^BITS.
    fn abs_diff(self, b: Self) -> Self;
    /// Left shift, zero from BITS on.
    fn shl(self, count: u32) -> Self;
    /// Right shift, filled with the sign (or zero if unsigned); counts from BITS on leave only the
    /// filling.
    fn shr(self, count: u32) -> Self;
    /// The value zero- or sign-extended to 64 bits.
    fn extend(self) -> u64;
    /// The low bits of a 64-bit word.
    fn truncate(word: u64) -> Self;
    /// `add.sat`: the sum clamped to the type.
    fn add_sat(self, b: Self) -> Self;
    /// `sub.sat`: the difference clamped to the type.
    fn sub_sat(self, b: Self) -> Self;
}

macro_rules! int {
    ($($t:ty, $unsigned:ty, $wide:ty, $signed:expr;)*) => {$(
        impl Int for $t {
            const BITS: u32 = <$t>::BITS;
            const SIGNED: bool = $signed;
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul_lo(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn mul_hi(self, b: Self) -> Self {
                ((<$wide>::from(self) * <$wide>::from(b)) >> <$t>::BITS) as $t
            }
            #[inline(always)]
            fn div(self, b: Self) -> Self {
                if b == 0 { !0 } else { self.wrapping_div(b) }
            }
            #[inline(always)]
            fn rem(self, b: Self) -> Self {
                if b == 0 { !0 } else { self.wrapping_rem(b) }
            }
            #[inline(always)]
            fn abs_diff(self, b: Self) -> Self {
                self.abs_diff(b) as $t
            }
            #[inline(always)]
            fn shl(self, count: u32) -> Self {
                if count < <$t>::BITS { self << count } else { 0 }
            }
            #[inline(always)]
            fn shr(self, count: u32) -> Self {
                if <Self as Int>::SIGNED || count < <$t>::BITS { self >> count.min(<$t>::BITS - 1) } else { 0 }
            }
            #[inline(always)]
            fn extend(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn truncate(word: u64) -> Self {
                word as $t
            }
            #[inline(always)]
            fn add_sat(self, b: Self) -> Self {
                self.saturating_add(b)
            }
            #[inline(always)]
            fn sub_sat(self, b: Self) -> Self {
                self.saturating_sub(b)
            }
        }
    )*};
}

int! {
    u8, u8, u16, false;
    i8, u8, i16, true;
    u16, u16, u32, false;
    i16, u16, i32, true;
    u32, u32, u64, false;
    i32, u32, i64, true;
    u64, u64, u128, false;
    i64, u64, i128, true;
}

/// A type whose product with itself fits the next larger type.
pub trait Widening: Int {
    /// The type of twice the width.
    type Wide: Int;
    /// The same value in the wide type.
    fn widen(self) -> Self::Wide;
}

macro_rules! widening {
    ($($t:ty => $wide:ty;)*) => {$(
        impl Widening for $t {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                <$wide>::from(self)
            }
        }
    )*};
}

widening! {
    u16 => u32;
    i16 => i32;
    u32 => u64;
    i32 => i64;
}
