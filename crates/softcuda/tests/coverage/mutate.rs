//! Breaking a form: what an executor would do that left the form out, or took it for another one.
//!
//! An executor that gets a form wrong in this way does to the program what a change of the
//! program's text does to a correct one, so the text is what is changed: every instruction of the
//! form, in the part of the kernel that is under test.

use crate::exact::Format;
use crate::form::{Form, bits_of, is_float};

/// A way to break a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// The instruction does nothing.
    LeftOut,
    /// The instruction does what this form does.
    TakenFor(String),
}

impl Mutation {
    /// `text` with every instruction of the form broken.
    pub(crate) fn apply(&self, form: &str, text: &str) -> String {
        let mut changed = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            match (opcode(line) == form, self) {
                (false, _) => changed += line,
                (true, Self::LeftOut) => changed.push('\n'),
                (true, Self::TakenFor(other)) => changed += &line.replacen(form, other, 1),
            }
        }
        changed
    }
}

/// Whether an instruction of the form is in `text`.
pub(crate) fn occurs(form: &str, text: &str) -> bool {
    text.lines().any(|line| opcode(line) == form)
}

/// The opcode of a line that holds one instruction.
fn opcode(line: &str) -> &str {
    let line = line.trim_start();
    let line = match line.strip_prefix('@') {
        Some(guarded) => guarded.split_once(' ').map_or("", |(_, rest)| rest),
        None => line,
    };
    line.split([' ', ';', '\n']).next().unwrap_or_default()
}

/// Modifiers of which one is easily taken for another.
const GROUPS: [&[&str]; 9] = [
    &["rn", "rz", "rm", "rp"],
    &["rni", "rzi", "rmi", "rpi"],
    &["up", "down", "bfly", "idx"],
    &["all", "any"],
    &["global", "shared", "local", "const", "param"],
    &["lo", "hi"],
    &["l", "r"],
    &["trap", "clamp", "zero"],
    &["3d", "a2d"],
];

const INTEGER_COMPARISONS: &[&str] = &["eq", "ne", "lt", "le", "gt", "ge"];
const ATOMIC_OPERATIONS: &[&str] = &["add", "min", "max", "and", "or", "xor", "exch", "inc", "dec"];

/// Names of which one is easily taken for another; the operands are alike.
const NAMES: [(&str, &[&str]); 27] = [
    ("add", &["sub", "mul"]),
    ("sub", &["add"]),
    ("mul", &["add"]),
    ("min", &["max"]),
    ("max", &["min"]),
    ("and", &["or", "xor"]),
    ("or", &["and", "xor"]),
    ("xor", &["or", "and"]),
    ("div", &["rem", "mul"]),
    ("rem", &["div"]),
    ("abs", &["neg"]),
    ("neg", &["abs"]),
    ("not", &["neg", "popc"]),
    ("shl", &["shr"]),
    ("shr", &["shl"]),
    ("popc", &["clz", "brev"]),
    ("clz", &["popc", "bfind"]),
    ("brev", &["popc", "not"]),
    ("sin", &["cos"]),
    ("cos", &["sin"]),
    ("ex2", &["lg2"]),
    ("lg2", &["ex2"]),
    ("rcp", &["rsqrt", "sqrt"]),
    ("rsqrt", &["rcp", "sqrt"]),
    ("sqrt", &["rcp"]),
    ("ret", &["exit"]),
    ("exit", &["ret"]),
];

/// The ways to break `form`. Some name a form that does not exist; the executor refuses those, and
/// they are not counted.
pub(crate) fn mutations(form: &Form<'_>) -> Vec<Mutation> {
    let mut forms: Vec<String> = Vec::new();
    let mut replaced = |at: usize, other: &str| {
        let mut parts: Vec<&str> = form.text.split('.').collect();
        parts[at] = other;
        forms.push(parts.join("."));
    };
    if let Some((_, others)) = NAMES.iter().find(|(name, _)| *name == form.name) {
        for other in *others {
            replaced(0, other);
        }
    }
    for (index, modifier) in form.modifiers.iter().enumerate() {
        for other in confusions(form, index, modifier) {
            replaced(index + 1, other);
        }
    }
    for optional in ["ftz", "sat", "to", "trans", "shiftamt"] {
        // Addresses of device memory are their own generic addresses; the cosine of a subnormal is
        // one.
        let same =
            optional == "to" && form.has("global") || optional == "ftz" && form.name == "cos";
        if form.has(optional) && !same {
            forms.push(form.text.replacen(&format!(".{optional}"), "", 1));
        }
    }
    if form.name == "ldmatrix" && !form.has("trans") {
        forms.push(form.text.replacen(".x4", ".x4.trans", 1));
    }
    if form.name == "cvta" && !form.has("to") && form.one_of(&["shared", "local"]).is_some() {
        forms.push(form.text.replacen("cvta", "cvta.to", 1));
    }
    if form.name == "mma" {
        forms.push(form.text.replace(".f16.f16.", ".bf16.bf16."));
        forms.retain(|other| other != form.text);
    }
    let mut mutations = vec![Mutation::LeftOut];
    mutations.extend(forms.into_iter().map(Mutation::TakenFor));
    mutations
}

/// What modifier number `index` may be taken for so that the result differs.
fn confusions<'a>(form: &Form<'_>, index: usize, modifier: &'a str) -> Vec<&'a str> {
    let others = |list: &'static [&'static str]| -> Vec<&'static str> {
        list.iter().copied().filter(|other| *other != modifier).collect()
    };
    let last = index + 1 == form.modifiers.len();
    if matches!(form.name, "setp" | "set") && index == 0 {
        return others(if is_float(form.ty()) {
            &crate::cases::compare::COMPARISONS
        } else {
            INTEGER_COMPARISONS
        });
    }
    if matches!(form.name, "atom" | "red") && ATOMIC_OPERATIONS.contains(&modifier) {
        return others(ATOMIC_OPERATIONS);
    }
    if form.name == "redux" && index == 1 {
        return others(&["add", "min", "max", "and", "or", "xor"]);
    }
    if form.name == "bar" && matches!(modifier, "and" | "or") {
        return others(&["and", "or"]);
    }
    if form.name == "mbarrier" && modifier == "arrive" {
        return vec!["arrive_drop"];
    }
    if form.name == "wmma" && matches!(modifier, "row" | "col") && !form.has("mma") {
        return others(&["row", "col"]);
    }
    if matches!(form.name, "bmsk" | "shf") && matches!(modifier, "clamp" | "wrap") {
        return others(&["clamp", "wrap"]);
    }
    if let Some(group) = GROUPS.iter().find(|group| group.contains(&modifier)) {
        let space = group.contains(&"global");
        // Spaces matter to `isspacep` alone.
        if space && form.name != "isspacep" || form.name == "cvt" && is_exact(form) {
            return Vec::new();
        }
        let mut others = others(group);
        if form.name == "cvt" && form.types()[0].starts_with('u') {
            // What is below zero becomes zero: towards zero and down are the same.
            let same = match modifier {
                "rzi" => "rmi",
                "rmi" => "rzi",
                _ => "",
            };
            others.retain(|other| *other != same);
        }
        return others;
    }
    if form.name == "tex" && last {
        return if modifier == "f32" { vec!["s32"] } else { vec!["f32"] };
    }
    let barrier = matches!(form.name, "bar" | "barrier") && !form.has("warp");
    if barrier && modifier == "sync" {
        return vec!["arrive"];
    }
    if matches!(form.name, "ld" | "st") && last {
        return widths(form, modifier);
    }
    let sign = match modifier {
        "s8" => "u8",
        "u8" => "s8",
        "s16" => "u16",
        "u16" => "s16",
        "s32" => "u32",
        "u32" => "s32",
        "s64" => "u64",
        "u64" => "s64",
        _ => return Vec::new(),
    };
    let matters = match form.name {
        "mul" | "mad" => form.has("hi") || form.has("wide"),
        "div" | "rem" | "min" | "max" | "bfe" | "shr" | "dp4a" | "sad" => true,
        "setp" => form.one_of(&["eq", "ne"]).is_none(),
        "atom" | "redux" => form.has("min") || form.has("max"),
        "cvt" => cvt_sign_matters(form, index, last),
        "wmma" | "mma" => form.modifiers.contains(&"mma") && matches!(modifier, "u8" | "s8"),
        _ => false,
    };
    if matters { vec![sign] } else { Vec::new() }
}

/// For the type of an access: half or twice its width, and for narrow loads the other extension.
fn widths<'a>(form: &Form<'_>, ty: &str) -> Vec<&'a str> {
    let mut others = match ty {
        "b8" | "u8" | "s8" => vec!["b16"],
        "b16" | "u16" | "s16" => vec!["b8"],
        "b32" | "u32" | "s32" => vec!["b16"],
        "b64" | "u64" | "s64" => vec!["b32"],
        _ => Vec::new(),
    };
    others.extend(match (form.name, ty) {
        ("ld", "b8" | "u8") => Some("s8"),
        ("ld", "s8") => Some("u8"),
        ("ld", "b16" | "u16") => Some("s16"),
        ("ld", "s16") => Some("u16"),
        _ => None,
    });
    others
}

/// Whether a conversion has nothing to round.
fn is_exact(form: &Form<'_>) -> bool {
    let types = form.types();
    let [to, from] = types[..] else { return false };
    is_float(to) && !is_float(from) && bits_of(from) <= Format::of(to).fraction_bits + 1
}

/// A destination's sign matters to floats, which are clamped; a source's to everything wider.
fn cvt_sign_matters(form: &Form<'_>, index: usize, last: bool) -> bool {
    let types = form.types();
    let [to, from] = types[..] else { return false };
    let is_source = last && index + 1 == form.modifiers.len();
    if is_source {
        !is_float(from) && (is_float(to) || bits_of(to) > bits_of(from))
    } else {
        is_float(from)
    }
}
