//! Comparisons of `setp` and `set`, and `slct`.

use super::Lane;
use super::float::{Float, Subnormals};
use super::int::Int;
use super::op::op;

op! {
    /// `setp.eq`, ordered
    compare Eq<T: Int>(a: T, b) { a == b }
    /// `setp.ne`
    compare Ne<T: Int>(a: T, b) { a != b }
    /// `setp.lt`, `setp.lo`
    compare Lt<T: Int>(a: T, b) { a < b }
    /// `setp.le`, `setp.ls`
    compare Le<T: Int>(a: T, b) { a <= b }
    /// `setp.gt`, `setp.hi`
    compare Gt<T: Int>(a: T, b) { a > b }
    /// `setp.ge`, `setp.hs`
    compare Ge<T: Int>(a: T, b) { a >= b }

    /// `setp.eq.f*`: false if either is NaN
    compare FEq<T: Float, Z: Subnormals>(a: T, b) { Z::apply(a) == Z::apply(b) }
    /// `setp.ne.f*`: false if either is NaN
    compare FNe<T: Float, Z: Subnormals>(a: T, b) { let (a, b) = (Z::apply(a), Z::apply(b)); a != b }
    /// `setp.lt.f*`: false if either is NaN
    compare FLt<T: Float, Z: Subnormals>(a: T, b) { Z::apply(a) < Z::apply(b) }
    /// `setp.le.f*`: false if either is NaN
    compare FLe<T: Float, Z: Subnormals>(a: T, b) { Z::apply(a) <= Z::apply(b) }
    /// `setp.gt.f*`: false if either is NaN
    compare FGt<T: Float, Z: Subnormals>(a: T, b) { Z::apply(a) > Z::apply(b) }
    /// `setp.ge.f*`: false if either is NaN
    compare FGe<T: Float, Z: Subnormals>(a: T, b) { Z::apply(a) >= Z::apply(b) }
    /// `setp.num`: neither is NaN
    compare FNum<T: Float, Z: Subnormals>(a: T, b) { !a.is_nan() && !b.is_nan() }
}

macro_rules! unordered {
    ($($(#[$m:meta])* $name:ident not $opposite:ident;)*) => {
        op! {$(
            $(#[$m])*
            compare $name<T: Float, Z: Subnormals>(a: T, b) { !<$opposite<T, Z> as super::Compare>::lane(a, b) }
        )*}
    };
}

unordered! {
    /// `setp.equ`: true if either is NaN
    FEqu not FNe;
    /// `setp.neu`: true if either is NaN
    FNeu not FEq;
    /// `setp.ltu`: true if either is NaN
    FLtu not FGe;
    /// `setp.leu`: true if either is NaN
    FLeu not FGt;
    /// `setp.gtu`: true if either is NaN
    FGtu not FLe;
    /// `setp.geu`: true if either is NaN
    FGeu not FLt;
    /// `setp.nan`: either is NaN
    FNan not FNum;
}

op! {
    /// `slct.type.s32`: `a` if `c >= 0`, else `b`
    ternary SelectInt<T: Lane>(a: T, b: T, c: i32) -> T { if c >= 0 { a } else { b } }
}

/// A destination type of `set`.
pub trait Truth: Lane {
    /// What it holds where the comparison is true; zero elsewhere.
    const TRUE: Self::Reg;
}

impl Truth for u32 {
    const TRUE: u32 = !0;
}

impl Truth for f32 {
    const TRUE: u32 = 1.0f32.to_bits();
}
