//! Logic, shifts and bit fields: `and or xor not cnot shl shr popc clz bfind brev bfe bfi ...`.

use super::Int;
use crate::exec::alu::Lane;
use crate::exec::alu::op::op;
use core::ops::{BitAnd, BitOr, BitXor, Not};

/// An untyped word of an instruction: `.b16`, `.b32` or `.b64`.
pub trait Bits:
    Int + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> + Not<Output = Self>
{
}

impl Bits for u16 {}
impl Bits for u32 {}
impl Bits for u64 {}

op! {
    /// `and.bN`
    binary And<T: Bits>(a: T, b: T) -> T { a & b }
    /// `or.bN`
    binary Or<T: Bits>(a: T, b: T) -> T { a | b }
    /// `xor.bN`
    binary Xor<T: Bits>(a: T, b: T) -> T { a ^ b }
    /// `not.bN`
    unary Complement<T: Bits>(a: T) -> T { !a }
    /// `cnot.bN`: 1 if zero, else 0
    unary LogicalNot<T: Bits>(a: T) -> T { T::truncate(u64::from(a == T::truncate(0))) }
    /// `shl.bN`: counts from N on give zero
    binary Shl<T: Int>(a: T, count: u32) -> T { a.shl(count) }
    /// `shr.type`: counts from the width on leave only the filling
    binary Shr<T: Int>(a: T, count: u32) -> T { a.shr(count) }
    /// `mov.type`, and every change of type that keeps the bits
    unary Move<T: Lane>(a: T) -> T { a }
}
