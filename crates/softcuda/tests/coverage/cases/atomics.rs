//! `atom` and `red`: each thread on a cell of its own, then, where the order does not matter, all
//! threads on one cell.

use crate::case::{Case, Slot, load, poison, store, words};
use crate::exact::{Format, Rounding, Value};
use crate::form::{Form, bits_of, is_float, is_signed, mask_of, register};
use crate::operands::{Domain, tuples};

const OPERATIONS: [&str; 10] =
    ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
/// Threads, each with a cell of eight bytes; one more cell belongs to all.
const THREADS: usize = 64;

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    if !matches!(form.name, "atom" | "red") {
        return None;
    }
    let (ty, op) = (form.ty().to_owned(), form.one_of(&OPERATIONS)?);
    let (red, swap) = (form.name == "red", op == "cas");
    let domain = match ty.as_str() {
        "f16x2" | "bf16x2" => Domain::Pair(Format::of(&ty), -3, 4),
        float if is_float(float) => Domain::Float(Format::of(float), -6, 6),
        // Small numbers too, which wrap in `inc` and `dec`.
        _ => Domain::Int(bits_of(&ty)),
    };
    let mut cells = tuples(&[domain, domain, domain], |_| true);
    cells.truncate(THREADS);
    for (k, tuple) in cells.iter_mut().enumerate() {
        // The comparison of half of the threads holds.
        if swap && k % 2 == 0 {
            tuple[1] = tuple[0];
        }
    }
    let together = matches!(op, "add" | "min" | "max" | "and" | "or" | "xor") && !is_float(&ty);
    let common = THREADS * 8;
    let (result, other) = (register(&ty, 20), register(&ty, 21));
    let sources =
        if swap { format!("{}, {}", register(&ty, 1), register(&ty, 2)) } else { register(&ty, 1) };
    let destination = |d: &str| if red { String::new() } else { format!("{d}, ") };
    let mut body = format!("{} {}[%a0], {sources};\n", form.text, destination(&result));
    if together {
        body += &format!("{} {}[%a1], {sources};\n", form.text, destination(&other));
    }
    let mut case = Case::bare(THREADS as u32, body);
    let (setup, finish) = scaffold(form, common);
    case.declarations = format!(".shared .align 8 .b64 sm[{}];", THREADS + 1);
    case.setup = setup + "mad.wide.u32 %in, %t, 16, %in;\n";
    case.setup += &load(&ty, 1, "%in", 0);
    case.setup += &load(&ty, 2, "%in", 8);
    case.setup += &poison(&ty, 20);
    case.finish = finish;
    if !red {
        case.finish += "mad.wide.u32 %a9, %t, 8, %out;\n";
        case.finish += &store(&ty, 20, "%a9", common + 16);
    }

    let mut expected: Vec<Slot> = Vec::new();
    let mut shared_cells = [cells[0][0]; 2];
    for (k, tuple) in cells.iter().enumerate() {
        expected.push(Slot::Bits(apply(op, &ty, tuple[0], tuple[1], tuple[2])));
        let space = if generic(form) { k % 2 } else { 0 };
        let cell = &mut shared_cells[space];
        *cell = if together { apply(op, &ty, *cell, tuple[1], 0) } else { *cell };
    }
    expected.extend(shared_cells.map(Slot::Bits));
    if !red {
        expected.extend(cells.iter().map(|tuple| Slot::Bits(tuple[0])));
    }
    let operands: Vec<u64> = cells.iter().flat_map(|t| [t[1], t[2]]).collect();
    case.input = words(&operands);
    let mut output: Vec<u64> = cells.iter().map(|t| t[0]).collect();
    output.extend([cells[0][0]; 2]);
    output.resize(expected.len(), 0);
    case.output = words(&output);
    case.expected = Ok(expected);
    Some(case)
}

fn generic(form: &Form<'_>) -> bool {
    form.one_of(&["global", "shared", "shared::cta"]).is_none()
}

/// Sets `%a0` and `%a1` to the thread's and the common cell, and brings shared cells from and to
/// `%out`. Without a space, odd lanes use shared memory.
fn scaffold(form: &Form<'_>, common: usize) -> (String, String) {
    let global = format!("mad.wide.u32 %a0, %t, 8, %out;\nadd.s64 %a1, %out, {common};\n");
    if form.has("global") {
        return (global, String::new());
    }
    let mut setup = format!(
        "{global}mov.b64 %a2, sm;\nmad.wide.u32 %a3, %t, 8, %a2;\nadd.s64 %a4, %a2, {common};\n\
         ld.global.b64 %d30, [%a0];\nst.shared.b64 [%a3], %d30;\n\
         ld.global.b64 %d30, [%a1];\nst.shared.b64 [%a4], %d30;\n\
         mov.b64 %a5, %a0;\nmov.b64 %a6, %a1;\nbar.sync 0;\n"
    );
    // Shared cells go back; the shared common one to the word behind the global one for generic
    // forms.
    let back = "ld.shared.b64 %d30, [%a3];\nst.global.b64 [%a5], %d30;\n";
    if !generic(form) {
        setup += "mov.b64 %a0, %a3;\nmov.b64 %a1, %a4;\n";
        let finish =
            format!("bar.sync 0;\n{back}ld.shared.b64 %d30, [%a4];\nst.global.b64 [%a6], %d30;\n");
        return (setup, finish);
    }
    setup += "cvta.shared.u64 %a7, %a3;\ncvta.shared.u64 %a8, %a4;\nand.b32 %q0, %t, 1;\n\
              setp.eq.u32 %p30, %q0, 1;\nselp.b64 %a0, %a7, %a0, %p30;\n\
              selp.b64 %a1, %a8, %a1, %p30;\n";
    let finish = format!(
        "bar.sync 0;\n@!%p30 bra KEEP;\n{back}ld.shared.b64 %d30, [%a4];\n\
         st.global.b64 [%a6+8], %d30;\nKEEP:\n"
    );
    (setup, finish)
}

/// The cell's new value.
fn apply(op: &str, ty: &str, old: u64, b: u64, c: u64) -> u64 {
    let bits = bits_of(ty);
    let signed = |x: u64| ((x << (64 - bits)) as i64) >> (64 - bits);
    let value = match op {
        "add" if ty.ends_with("x2") => {
            let format = Format::of(ty);
            (0..2)
                .map(|k| sum(old >> (16 * k) & 0xffff, b >> (16 * k) & 0xffff, format) << (16 * k))
                .sum()
        }
        "add" if is_float(ty) => sum(old, b, Format::of(ty)),
        "add" => old.wrapping_add(b),
        "min" if is_signed(ty) => signed(old).min(signed(b)) as u64,
        "max" if is_signed(ty) => signed(old).max(signed(b)) as u64,
        "min" => old.min(b),
        "max" => old.max(b),
        "and" => old & b,
        "or" => old | b,
        "xor" => old ^ b,
        "exch" => b,
        "cas" => {
            if old == b {
                c
            } else {
                old
            }
        }
        "inc" => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        _ => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
    };
    value & mask_of(bits)
}

fn sum(a: u64, b: u64, format: Format) -> u64 {
    let mode = Rounding::NearestEven;
    let exact = Value::decode(a, format).add(Value::decode(b, format), mode);
    exact.encode(format, mode).expect("a number")
}
