//! Forms of logic, shifts, fields and byte operations.

use super::Visitor;
use super::pick::{Form, with_bits, with_excess, with_type};
use crate::exec::alu::int::{self, Clamp, Wrap};

/// `.u32` to `.s64`.
macro_rules! with_wide {
    ($name:expr, $T:ident, $body:expr) => {
        with_type!($name, $T in ["u32" => u32, "s32" => i32, "u64" => u64, "s64" => i64], $body)
    };
}

pub(super) fn visit<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    let t = *form.types.last()?;
    match form.opcode {
        "bfind" => {
            form.only(&["shiftamt"])?;
            if form.has("shiftamt") {
                with_wide!(t, T, Some(v.unary::<int::Find<T, int::ShiftAmount>>()))
            } else {
                with_wide!(t, T, Some(v.unary::<int::Find<T, int::Position>>()))
            }
        }
        "szext" => {
            form.only(&["clamp", "wrap"])?;
            with_excess!(
                form,
                M,
                with_type!(t, T in ["u32" => u32, "s32" => i32], Some(v.binary::<int::ExtendFrom<T, M>>()))
            )
        }
        "bmsk" => {
            form.only(&["clamp", "wrap"])?;
            with_excess!(form, M, Some(v.binary::<int::Mask<M>>()))
        }
        "shf" => {
            form.only(&["l", "r", "clamp", "wrap"])?;
            match form.one_of(&["l", "r"])? {
                "l" => with_excess!(form, M, Some(v.ternary::<int::FunnelLeft<M>>())),
                _ => with_excess!(form, M, Some(v.ternary::<int::FunnelRight<M>>())),
            }
        }
        "prmt" => match form.one_of(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"]) {
            None => {
                form.only(&[])?;
                Some(v.ternary::<int::Permute>())
            }
            Some("f4e") => Some(v.ternary::<int::PermuteMode<int::Forward4>>()),
            Some("b4e") => Some(v.ternary::<int::PermuteMode<int::Backward4>>()),
            Some("rc8") => Some(v.ternary::<int::PermuteMode<int::Replicate8>>()),
            Some("ecl") => Some(v.ternary::<int::PermuteMode<int::EdgeClampLeft>>()),
            Some("ecr") => Some(v.ternary::<int::PermuteMode<int::EdgeClampRight>>()),
            Some(_) => Some(v.ternary::<int::PermuteMode<int::Replicate16>>()),
        },
        "dp4a" | "dp2a" => dot(form, v),
        "vabsdiff4" | "vabsdiff2" => differences(form, v),
        _ => {
            form.only(&[])?;
            plain(form, t, v)
        }
    }
}

fn plain<V: Visitor>(form: &Form<'_>, t: &str, v: V) -> Option<V::Output> {
    match form.opcode {
        "and" => with_bits!(t, T, Some(v.binary::<int::And<T>>())),
        "or" => with_bits!(t, T, Some(v.binary::<int::Or<T>>())),
        "xor" => with_bits!(t, T, Some(v.binary::<int::Xor<T>>())),
        "not" => with_bits!(t, T, Some(v.unary::<int::Complement<T>>())),
        "cnot" => with_bits!(t, T, Some(v.unary::<int::LogicalNot<T>>())),
        "shl" => with_bits!(t, T, Some(v.binary::<int::Shl<T>>())),
        "shr" => with_type!(
            t,
            T in ["b16" | "u16" => u16, "s16" => i16, "b32" | "u32" => u32, "s32" => i32, "b64" | "u64" => u64, "s64" => i64],
            Some(v.binary::<int::Shr<T>>())
        ),
        "popc" => {
            with_type!(t, T in ["b32" => u32, "b64" => u64], Some(v.unary::<int::PopCount<T>>()))
        }
        "clz" => {
            with_type!(t, T in ["b32" => u32, "b64" => u64], Some(v.unary::<int::LeadingZeros<T>>()))
        }
        "brev" => {
            with_type!(t, T in ["b32" => u32, "b64" => u64], Some(v.unary::<int::Reverse<T>>()))
        }
        "bfe" => with_wide!(t, T, Some(v.ternary::<int::Extract<T>>())),
        "bfi" => with_type!(t, T in ["b32" => u32, "b64" => u64], v.quaternary::<int::Insert<T>>()),
        "fns" => Some(v.ternary::<int::FindNth>()),
        "lop3" => v.quaternary::<int::Lop3>(),
        _ => None,
    }
}

fn differences<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    let &[_, a, b] = form.types.as_slice() else { return None };
    form.only(&["add"])?;
    macro_rules! parts {
        ($op:ident) => {
            with_type!(a, A in ["u32" => u32, "s32" => i32], with_type!(b, B in ["u32" => u32, "s32" => i32], Some(v.ternary::<int::$op<A, B>>())))
        };
    }
    match (form.opcode, form.has("add")) {
        ("vabsdiff4", true) => parts!(SumOfDifferences4),
        ("vabsdiff4", false) => parts!(AbsoluteDifference4),
        (_, true) => parts!(SumOfDifferences2),
        (_, false) => parts!(AbsoluteDifference2),
    }
}

fn dot<V: Visitor>(form: &Form<'_>, v: V) -> Option<V::Output> {
    let &[a, b] = form.types.as_slice() else { return None };
    form.only(&["lo", "hi"])?;
    macro_rules! parts {
        ($op:ident) => {
            with_type!(a, A in ["u32" => u32, "s32" => i32], with_type!(b, B in ["u32" => u32, "s32" => i32], Some(v.ternary::<int::$op<A, B>>())))
        };
    }
    match (form.opcode, form.one_of(&["lo", "hi"])) {
        ("dp4a", None) => parts!(Dot4),
        ("dp2a", Some("lo")) => parts!(Dot2Low),
        ("dp2a", Some("hi")) => parts!(Dot2High),
        _ => None,
    }
}
