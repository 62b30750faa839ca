//! `add sub mul fma` with every rounding mode, `.ftz` and `.sat`.

use super::{Float, Full, Range, Rounding, Subnormals};
use crate::exec::alu::lane::F32x2;
use crate::exec::alu::op::op;
use crate::exec::alu::{Binary, Ternary};

/// The modifiers of a result: canonical NaN, `.ftz`, `.sat`.
#[inline(always)]
pub(super) fn finish<T: Float, Z: Subnormals, S: Range>(x: T) -> T {
    // Last, so that no operation on floats follows the choice of NaN.
    S::apply(Z::apply(x)).canonical()
}

op! {
    /// `add{.rnd}{.ftz}{.sat}.type`
    binary Add<T: Float, R: Rounding, Z: Subnormals, S: Range>(a: T, b: T) -> T {
        finish::<T, Z, S>(Z::apply(a).add::<R>(Z::apply(b)))
    }
    /// `sub{.rnd}{.ftz}{.sat}.type`
    binary Sub<T: Float, R: Rounding, Z: Subnormals, S: Range>(a: T, b: T) -> T {
        finish::<T, Z, S>(Z::apply(a).sub::<R>(Z::apply(b)))
    }
    /// `mul{.rnd}{.ftz}{.sat}.type`
    binary Mul<T: Float, R: Rounding, Z: Subnormals, S: Range>(a: T, b: T) -> T {
        finish::<T, Z, S>(Z::apply(a).mul::<R>(Z::apply(b)))
    }
    /// `fma{.rnd}{.ftz}{.sat}.type`, and `mad` of the same types
    ternary Fma<T: Float, R: Rounding, Z: Subnormals, S: Range>(a: T, b: T, c: T) -> T {
        finish::<T, Z, S>(Z::apply(a).fma::<R>(Z::apply(b), Z::apply(c)))
    }
}

op! {
    /// `add{.rnd}{.ftz}.f32x2`
    binary AddPair<R: Rounding, Z: Subnormals>(a: F32x2, b: F32x2) -> F32x2 { a.map3(b, b, |a, b, _| lane2::<Add<f32, R, Z, Full>>(a, b)) }
    /// `sub{.rnd}{.ftz}.f32x2`
    binary SubPair<R: Rounding, Z: Subnormals>(a: F32x2, b: F32x2) -> F32x2 { a.map3(b, b, |a, b, _| lane2::<Sub<f32, R, Z, Full>>(a, b)) }
    /// `mul{.rnd}{.ftz}.f32x2`
    binary MulPair<R: Rounding, Z: Subnormals>(a: F32x2, b: F32x2) -> F32x2 { a.map3(b, b, |a, b, _| lane2::<Mul<f32, R, Z, Full>>(a, b)) }
    /// `fma.rnd{.ftz}.f32x2`
    ternary FmaPair<R: Rounding, Z: Subnormals>(a: F32x2, b: F32x2, c: F32x2) -> F32x2 {
        a.map3(b, c, <Fma<f32, R, Z, Full> as Ternary>::lane)
    }
}

#[inline(always)]
fn lane2<O: Binary<A = f32, B = f32, D = f32>>(a: f32, b: f32) -> f32 {
    O::lane(a, b)
}

impl F32x2 {
    /// Applies `f` to the values at the same place.
    #[inline(always)]
    fn map3(self, b: F32x2, c: F32x2, f: impl Fn(f32, f32, f32) -> f32) -> F32x2 {
        let part = |x: u64| f32::from_bits(x as u32);
        let low = f(part(self.0), part(b.0), part(c.0));
        let high = f(part(self.0 >> 32), part(b.0 >> 32), part(c.0 >> 32));
        F32x2(u64::from(high.to_bits()) << 32 | u64::from(low.to_bits()))
    }
}
