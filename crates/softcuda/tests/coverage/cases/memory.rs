//! Loads and stores of every space, vector length, element type and cache modifier.
//!
//! Each thread has its own 64 bytes of the space, and accesses byte 16 and on of them. Accesses
//! without a space use global addresses in even lanes and shared ones in odd lanes.

use crate::case::{Case, Slot, exactly};
use crate::form::{Form, bits_of, is_signed, register};
use crate::operands::bytes;

const THREADS: usize = 64;
/// Bytes of a thread.
const STRIDE: usize = 64;
/// Where in them the access is.
const AT: usize = 16;

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    match form.name {
        "ld" if !form.has("param") => Some(load(form)),
        "st" if !form.has("param") => Some(store(form)),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Global,
    Const,
    Shared,
    Local,
    Generic,
}

impl Space {
    fn of(form: &Form<'_>) -> Self {
        match form.one_of(&["global", "const", "shared", "shared::cta", "local"]) {
            Some("global") => Self::Global,
            Some("const") => Self::Const,
            Some("local") => Self::Local,
            Some(_) => Self::Shared,
            None => Self::Generic,
        }
    }
}

/// The class of registers that holds an element: 32-bit ones for narrower types, so that their
/// extension shows.
fn holder(ty: &str) -> &str {
    if bits_of(ty) < 32 { if is_signed(ty) { "s32" } else { "u32" } } else { ty }
}

/// `%r1` or `{%r1, %r2, ..}`
fn list(ty: &str, first: usize, count: usize) -> String {
    let registers: Vec<String> = (first..first + count).map(|n| register(holder(ty), n)).collect();
    if count == 1 { registers[0].clone() } else { format!("{{{}}}", registers.join(", ")) }
}

/// Sets `%a0` to the thread's bytes in the space, `%a1` to those at `%in`, `%a2` to those at
/// `%out`.
fn addresses(space: Space) -> String {
    let mut text = format!(
        "mul.wide.u32 %a0, %t, {STRIDE};\nadd.s64 %a1, %in, %a0;\nadd.s64 %a2, %out, %a0;\n"
    );
    text += match space {
        Space::Global => "mov.b64 %a0, %a1;\n",
        Space::Const => "mov.b64 %a3, cm;\nadd.s64 %a0, %a3, %a0;\n",
        Space::Shared => "mov.b64 %a3, sm;\nadd.s64 %a0, %a3, %a0;\ncvt.u32.u64 %q0, %a0;\n",
        Space::Local => "mov.b64 %a0, lm;\n",
        Space::Generic => {
            "mov.b64 %a3, sm;\nadd.s64 %a3, %a3, %a0;\ncvt.u32.u64 %q0, %a3;\n\
             cvta.shared.u64 %a3, %a3;\nand.b32 %q1, %t, 1;\nsetp.eq.u32 %p30, %q1, 1;\n\
             selp.b64 %a0, %a3, %a1, %p30;\n"
        }
    };
    text
}

/// Copies the thread's bytes from the address `from` to `to`, both with their spaces.
fn copy(to: (&str, &str), from: (&str, &str)) -> String {
    (0..STRIDE / 8)
        .map(|n| {
            format!(
                "ld.{}.b64 %d39, [{}+{}];\nst.{}.b64 [{}+{}], %d39;\n",
                from.0,
                from.1,
                n * 8,
                to.0,
                to.1,
                n * 8
            )
        })
        .collect()
}

fn declarations(space: Space, data: &[u8]) -> String {
    match space {
        Space::Shared | Space::Generic => {
            format!(".shared .align 16 .b8 sm[{}];", THREADS * STRIDE)
        }
        Space::Const => {
            let list: Vec<String> = data.iter().map(u8::to_string).collect();
            format!(".const .align 16 .b8 cm[{}] = {{{}}};", data.len(), list.join(", "))
        }
        _ => String::new(),
    }
}

fn load(form: &Form<'_>) -> Case {
    let (space, ty, count) = (Space::of(form), form.ty(), form.vector());
    let data = bytes(THREADS * STRIDE, 1);
    let mut setup = if space == Space::Local {
        format!(".local .align 16 .b8 lm[{STRIDE}];\n")
    } else {
        String::new()
    };
    setup += &addresses(space);
    match space {
        Space::Shared | Space::Generic => setup += &copy(("shared", "%q0"), ("global", "%a1")),
        Space::Local => setup += &copy(("local", "%a0"), ("global", "%a1")),
        Space::Global | Space::Const => {}
    }
    let mut finish = String::new();
    for n in 0..count {
        setup += &crate::case::poison(holder(ty), n + 1);
        finish += &crate::case::store(holder(ty), n + 1, "%a4", n * 8);
    }
    setup += &format!("mad.wide.u32 %a4, %t, {}, %out;\n", count * 8);
    let mut expected = Vec::new();
    let size = bits_of(ty) as usize / 8;
    for thread in 0..THREADS {
        for n in 0..count {
            let at = thread * STRIDE + AT + n * size;
            let mut word = [0u8; 8];
            word[..size].copy_from_slice(&data[at..at + size]);
            let bits = u64::from_le_bytes(word);
            let shift = 64 - bits_of(ty);
            let bits = if is_signed(ty) && size < 4 {
                u64::from(((bits << shift) as i64 >> shift) as u32)
            } else {
                bits
            };
            expected.push(Slot::Bits(bits));
        }
    }
    Case {
        declarations: declarations(space, &data),
        setup,
        finish,
        input: data,
        output: vec![0; expected.len() * 8],
        expected: Ok(expected),
        ..Case::bare(THREADS as u32, format!("{} {}, [%a0+{AT}];", form.text, list(ty, 1, count)))
    }
}

fn store(form: &Form<'_>) -> Case {
    let (space, ty, count) = (Space::of(form), form.ty(), form.vector());
    // What surrounds the stored bytes must stay.
    let (before, values) = (bytes(THREADS * STRIDE, 2), bytes(THREADS * STRIDE, 3));
    let mut setup = if space == Space::Local {
        format!(".local .align 16 .b8 lm[{STRIDE}];\n")
    } else {
        String::new()
    };
    // The accessed bytes are those at `%out` here.
    setup += &addresses(space).replace("%a0, %a1;", "%a0, %a2;").replace("%a3, %a1,", "%a3, %a2,");
    let mut finish = String::new();
    match space {
        Space::Shared => {
            setup += &copy(("shared", "%q0"), ("global", "%a2"));
            finish = copy(("global", "%a2"), ("shared", "%q0"));
        }
        Space::Generic => {
            setup += &copy(("shared", "%q0"), ("global", "%a2"));
            let back = copy(("global", "%a2"), ("shared", "%q0"));
            finish = format!("@!%p30 bra KEEP;\n{back}KEEP:\n");
        }
        Space::Local => {
            setup += &copy(("local", "%a0"), ("global", "%a2"));
            finish = copy(("global", "%a2"), ("local", "%a0"));
        }
        Space::Global | Space::Const => {}
    }
    let size = bits_of(ty) as usize / 8;
    for n in 0..count {
        // Wider registers hold more than what is stored.
        setup += &crate::case::load(holder(ty), n + 1, "%a1", n * size.max(4));
    }
    let mut after = before.clone();
    for thread in 0..THREADS {
        for n in 0..count {
            let (to, from) = (thread * STRIDE + AT + n * size, thread * STRIDE + n * size.max(4));
            after[to..to + size].copy_from_slice(&values[from..from + size]);
        }
    }
    Case {
        declarations: declarations(space, &[]),
        setup,
        finish,
        input: values,
        output: before,
        expected: Ok(exactly(&after)),
        ..Case::bare(THREADS as u32, format!("{} [%a0+{AT}], {};", form.text, list(ty, 1, count)))
    }
}
