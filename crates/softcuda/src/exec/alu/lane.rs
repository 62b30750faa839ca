//! Values as instruction types see them, and how they lie in registers.
//!
//! Registers are 32-bit words for types of up to 32 bits and 64-bit words for 64-bit types. A
//! narrower value occupies the low bits; what lies above them is ignored on reading and, on
//! writing, extends the value by its signedness, which is what `cvt` asks for when its destination
//! register is wider than its type.

/// A register word: `u32` or `u64`.
pub trait Register: Copy + Default + PartialEq + core::fmt::Debug + Send + Sync + 'static {
    /// Width of the register in bits.
    const BITS: u32;
}

impl Register for u32 {
    const BITS: u32 = 32;
}

impl Register for u64 {
    const BITS: u32 = 64;
}

/// A value of a PTX type.
pub trait Lane: Copy + 'static {
    /// The register that holds it.
    type Reg: Register;
    /// Reads the value from the low bits of a register.
    fn from_reg(reg: Self::Reg) -> Self;
    /// The register that holds the value, extended by its signedness.
    fn into_reg(self) -> Self::Reg;
}

macro_rules! int_lane {
    ($($t:ty, $widened:ty, $reg:ty;)*) => {$(
        impl Lane for $t {
            type Reg = $reg;
            #[inline(always)]
            fn from_reg(reg: $reg) -> Self {
                reg as $t
            }
            #[inline(always)]
            fn into_reg(self) -> $reg {
                self as $widened as $reg
            }
        }
    )*};
}

int_lane! {
    u8, u32, u32;
    i8, i32, u32;
    u16, u32, u32;
    i16, i32, u32;
    u32, u32, u32;
    i32, i32, u32;
    u64, u64, u64;
    i64, i64, u64;
}

impl Lane for f32 {
    type Reg = u32;
    #[inline(always)]
    fn from_reg(reg: u32) -> Self {
        f32::from_bits(reg)
    }
    #[inline(always)]
    fn into_reg(self) -> u32 {
        self.to_bits()
    }
}

impl Lane for f64 {
    type Reg = u64;
    #[inline(always)]
    fn from_reg(reg: u64) -> Self {
        f64::from_bits(reg)
    }
    #[inline(always)]
    fn into_reg(self) -> u64 {
        self.to_bits()
    }
}

macro_rules! bits_lane {
    ($($(#[$m:meta])* $name:ident($bits:ty) in $reg:ty;)*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name(pub $bits);

        impl Lane for $name {
            type Reg = $reg;
            #[inline(always)]
            fn from_reg(reg: $reg) -> Self {
                $name(reg as $bits)
            }
            #[inline(always)]
            fn into_reg(self) -> $reg {
                <$reg>::from(self.0)
            }
        }
    )*};
}

bits_lane! {
    /// `.f16`: IEEE binary16, by its bits.
    F16(u16) in u32;
    /// `.bf16`: the upper half of a binary32, by its bits.
    Bf16(u16) in u32;
    /// `.f16x2`: two `.f16`, the first in the low half.
    F16x2(u32) in u32;
    /// `.bf16x2`: two `.bf16`, the first in the low half.
    Bf16x2(u32) in u32;
    /// `.u16x2`: two `.u16`, the first in the low half.
    U16x2(u32) in u32;
    /// `.s16x2`: two `.s16`, the first in the low half.
    S16x2(u32) in u32;
    /// `.f32x2`: two `.f32`, the first in the low half.
    F32x2(u64) in u64;
    /// `.tf32`: a binary32 of which 10 fraction bits count, in a 32-bit register.
    Tf32(u32) in u32;
}
