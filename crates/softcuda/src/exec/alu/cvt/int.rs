//! Integer to integer, with `.sat`.

use crate::exec::alu::int::Int;
use crate::exec::alu::op::op;

op! {
    /// `cvt.d.s` of integers: extended by the source's signedness, then truncated
    unary IntToInt<D: Int, S: Int>(a: S) -> D { D::truncate(a.extend()) }
    /// `cvt.sat.d.s` of integers: clamped to the destination's range
    unary(rare if S::BITS != 32 || D::BITS > 16) IntToIntSat<D: Int, S: Int>(a: S) -> D {
        let x = if S::SIGNED { i128::from(a.extend() as i64) } else { i128::from(a.extend()) };
        let (low, high) = if D::SIGNED { (-(1i128 << (D::BITS - 1)), (1i128 << (D::BITS - 1)) - 1) } else { (0, (1i128 << D::BITS) - 1) };
        D::truncate(x.clamp(low, high) as u64)
    }
}
