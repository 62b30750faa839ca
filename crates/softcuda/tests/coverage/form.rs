//! Names of instruction forms taken apart: `ld.global.v4.u32` is `ld` with modifiers `global`,
//! `v4`, `u32`.

/// The element types that modifiers name.
const TYPES: [&str; 24] = [
    "pred", "b8", "u8", "s8", "b16", "u16", "s16", "f16", "bf16", "b32", "u32", "s32", "f32",
    "f16x2", "bf16x2", "tf32", "b64", "u64", "s64", "f64", "b128", "e4m3", "e5m2", "u16x2",
];

/// A form of an instruction.
#[derive(Clone)]
pub(crate) struct Form<'a> {
    pub(crate) text: &'a str,
    pub(crate) name: &'a str,
    pub(crate) modifiers: Vec<&'a str>,
}

impl<'a> Form<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let mut parts = text.split('.');
        Self { text, name: parts.next().unwrap_or_default(), modifiers: parts.collect() }
    }

    pub(crate) fn has(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// The types among the modifiers, in order.
    pub(crate) fn types(&self) -> Vec<&'a str> {
        self.modifiers.iter().copied().filter(|m| TYPES.contains(m)).collect()
    }

    /// The last type.
    pub(crate) fn ty(&self) -> &'a str {
        self.types().last().copied().unwrap_or("b32")
    }

    /// The first of `list` that is a modifier.
    pub(crate) fn one_of<'b>(&self, list: &[&'b str]) -> Option<&'b str> {
        list.iter().copied().find(|m| self.has(m))
    }

    /// Elements of a vector access.
    pub(crate) fn vector(&self) -> usize {
        match self.one_of(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }
}

/// Bits of a value of type `ty`.
pub(crate) fn bits_of(ty: &str) -> u32 {
    match ty {
        "pred" => 1,
        "b8" | "u8" | "s8" => 8,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 16,
        "b64" | "u64" | "s64" | "f64" => 64,
        _ => 32,
    }
}

pub(crate) fn is_signed(ty: &str) -> bool {
    ty.starts_with('s')
}

pub(crate) fn is_float(ty: &str) -> bool {
    ty.starts_with('f') || ty.starts_with("bf") || ty == "tf32"
}

/// All ones in the low `bits`.
pub(crate) fn mask_of(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// Register number `n` of the class that holds values of type `ty`.
pub(crate) fn register(ty: &str, n: usize) -> String {
    let class = match (ty, bits_of(ty)) {
        ("pred", _) => 'p',
        ("f32", _) => 'f',
        ("f64", _) => 'e',
        (_, 64) => 'd',
        (_, 8 | 16) => 'h',
        _ => 'r',
    };
    format!("%{class}{n}")
}
