//! Choosing type parameters by modifier.

/// An opcode with its modifiers split into types (last) and the rest.
pub(super) struct Form<'a> {
    /// The opcode.
    pub(super) opcode: &'a str,
    /// Type modifiers, in order: destination first.
    pub(super) types: Vec<&'a str>,
    /// Everything else, in order.
    flags: Vec<&'a str>,
}

const TYPES: &[&str] = &[
    "u2", "s2", "u4", "s4", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "b8", "b16",
    "b32", "b64", "f16", "bf16", "f16x2", "bf16x2", "tf32", "ue8m0x2", "e2m1x2", "e2m3x2",
    "e3m2x2", "f32", "f64", "f32x2", "u16x2", "s16x2", "pred", "e4m3x2", "e5m2x2", "e4m3", "e5m2",
];

impl<'a> Form<'a> {
    pub(super) fn new(opcode: &'a str, modifiers: &[&'a str]) -> Self {
        let (types, flags) = modifiers.iter().partition(|m| TYPES.contains(m));
        Form { opcode, types, flags }
    }

    /// Whether a modifier is there.
    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// The first modifier that is one of `of`.
    pub(super) fn one_of<'b>(&self, of: &[&'b str]) -> Option<&'b str> {
        of.iter().copied().find(|f| self.has(f))
    }

    /// Nothing if there is a modifier besides `known`.
    pub(super) fn only(&self, known: &[&str]) -> Option<()> {
        self.flags.iter().all(|f| known.contains(f)).then_some(())
    }
}

/// Binds `$T` to the type that `$name` spells, among those listed, and evaluates `$body`; `None`
/// for others.
macro_rules! with_type {
    ($name:expr, $T:ident in [$($spelling:pat => $t:ty),* $(,)?], $body:expr) => {
        match $name {
            $($spelling => { type $T = $t; $body })*
            _ => None,
        }
    };
}

/// `.u16` to `.s64`.
macro_rules! with_int {
    ($name:expr, $T:ident, $body:expr) => {
        with_type!($name, $T in ["u16" => u16, "s16" => i16, "u32" => u32, "s32" => i32, "u64" => u64, "s64" => i64], $body)
    };
}

/// `.u8` to `.s64`.
macro_rules! with_any_int {
    ($name:expr, $T:ident, $body:expr) => {
        with_type!($name, $T in ["u8" => u8, "s8" => i8, "u16" => u16, "s16" => i16, "u32" => u32, "s32" => i32, "u64" => u64, "s64" => i64], $body)
    };
}

/// `.b16` to `.b64`.
macro_rules! with_bits {
    ($name:expr, $T:ident, $body:expr) => {
        with_type!($name, $T in ["b16" => u16, "b32" => u32, "b64" => u64], $body)
    };
}

/// The arithmetic rounding modes; none means to nearest.
macro_rules! with_rounding {
    ($form:expr, $R:ident, $body:expr) => {
        match $form.one_of(&["rn", "rz", "rm", "rp"]) {
            None | Some("rn") => {
                type $R = Rn;
                $body
            }
            Some("rz") => {
                type $R = Rz;
                $body
            }
            Some("rm") => {
                type $R = Rm;
                $body
            }
            Some("rp") => {
                type $R = Rp;
                $body
            }
            _ => None,
        }
    };
}

/// The integral rounding modes, one of which must be there.
macro_rules! with_integral_rounding {
    ($form:expr, $R:ident, $body:expr) => {
        match $form.one_of(&["rni", "rzi", "rmi", "rpi"]) {
            Some("rni") => {
                type $R = Rn;
                $body
            }
            Some("rzi") => {
                type $R = Rz;
                $body
            }
            Some("rmi") => {
                type $R = Rm;
                $body
            }
            Some("rpi") => {
                type $R = Rp;
                $body
            }
            _ => None,
        }
    };
}

/// `.ftz` or not.
macro_rules! with_subnormals {
    ($form:expr, $Z:ident, $body:expr) => {
        if $form.has("ftz") {
            type $Z = Ftz;
            $body
        } else {
            type $Z = Keep;
            $body
        }
    };
}

/// `.sat` or not.
macro_rules! with_range {
    ($form:expr, $S:ident, $body:expr) => {
        if $form.has("sat") {
            type $S = Sat;
            $body
        } else {
            type $S = Full;
            $body
        }
    };
}

/// `.clamp` or `.wrap`, one of which must be there.
macro_rules! with_excess {
    ($form:expr, $M:ident, $body:expr) => {
        match $form.one_of(&["clamp", "wrap"]) {
            Some("clamp") => {
                type $M = Clamp;
                $body
            }
            Some(_) => {
                type $M = Wrap;
                $body
            }
            None => None,
        }
    };
}

/// The NaN and sign rules of `min` and `max`.
macro_rules! with_extremum {
    ($form:expr, $N:ident, $X:ident, $body:expr) => {
        match ($form.has("NaN"), $form.has("xorsign") || $form.has("abs")) {
            (false, false) => {
                type $N = NanLoses;
                type $X = OwnSign;
                $body
            }
            (false, true) => {
                type $N = NanLoses;
                type $X = XorSign;
                $body
            }
            (true, false) => {
                type $N = NanWins;
                type $X = OwnSign;
                $body
            }
            (true, true) => {
                type $N = NanWins;
                type $X = XorSign;
                $body
            }
        }
    };
}

pub(super) use {
    with_any_int, with_bits, with_excess, with_extremum, with_int, with_integral_rounding,
    with_range, with_rounding, with_subnormals, with_type,
};
