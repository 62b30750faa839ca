//! Parameters of kernels and functions.

use crate::case::{Case, Slot, words};
use crate::form::{Form, bits_of, is_signed, mask_of, register};
use crate::operands::bytes;

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    match form.name {
        "ld" if form.has("param") => Some(load(form)),
        "st" if form.has("param") => Some(store(form)),
        _ => None,
    }
}

fn holder(ty: &str) -> &str {
    if bits_of(ty) < 32 { if is_signed(ty) { "s32" } else { "u32" } } else { ty }
}

fn list(ty: &str, first: usize, count: usize) -> String {
    let registers: Vec<String> = (first..first + count).map(|n| register(holder(ty), n)).collect();
    if count == 1 { registers[0].clone() } else { format!("{{{}}}", registers.join(", ")) }
}

/// The element at byte `at`, extended to 32 bits at least.
fn element(data: &[u8], at: usize, ty: &str) -> u64 {
    let size = bits_of(ty) as usize / 8;
    let mut word = [0u8; 8];
    word[..size].copy_from_slice(&data[at..at + size]);
    let shift = 64 - bits_of(ty);
    match u64::from_le_bytes(word) {
        bits if is_signed(ty) && size < 4 => u64::from(((bits << shift) as i64 >> shift) as u32),
        bits => bits,
    }
}

/// Offsets in the kernel's parameter that are read.
const OFFSETS: [usize; 3] = [0, 48, 176];

/// From a kernel's parameter at several offsets, then from the value that a function returns.
fn load(form: &Form<'_>) -> Case {
    let (ty, count) = (form.ty(), form.vector());
    let blob = bytes(256, 7);
    let (mut body, mut setup, mut finish) = (String::new(), String::new(), String::new());
    let mut expected = Vec::new();
    for (k, offset) in OFFSETS.iter().enumerate() {
        let first = 1 + k * count;
        body += &format!("{} {}, [blob+{offset}];\n", form.text, list(ty, first, count));
        for n in 0..count {
            setup += &crate::case::poison(holder(ty), first + n);
            finish += &crate::case::store(holder(ty), first + n, "%out", (k * count + n) * 8);
            let at = offset + n * bits_of(ty) as usize / 8;
            expected.push(Slot::Bits(element(&blob, at, ty)));
        }
    }
    let first = 1 + OFFSETS.len() * count;
    // The function returns the sixteen bytes 1, 2, .., 16.
    body += &format!(
        "{{\n.param .align 16 .b8 back[16];\ncall.uni (back), give, ();\n{} {}, [back];\n}}\n",
        form.text,
        list(ty, first, count)
    );
    let given: Vec<u8> = (1..=16).collect();
    for n in 0..count {
        setup += &crate::case::poison(holder(ty), first + n);
        finish += &crate::case::store(holder(ty), first + n, "%out", expected.len() * 8);
        expected.push(Slot::Bits(element(&given, n * bits_of(ty) as usize / 8, ty)));
    }
    let give: String = (0..4)
        .map(|k| {
            format!("st.param.b32 [back+{}], 0x{:08X};\n", 4 * k, 0x0403_0201 + 0x0404_0404 * k)
        })
        .collect();
    Case {
        declarations: format!(".func (.param .align 16 .b8 back[16]) give() {{\n{give}ret;\n}}"),
        setup,
        finish,
        blob,
        output: vec![0; expected.len() * 8],
        expected: Ok(expected),
        ..Case::bare(1, body)
    }
}

/// To a function's parameter, which the function hands back word by word.
fn store(form: &Form<'_>) -> Case {
    let (ty, count) = (form.ty(), form.vector());
    let size = bits_of(ty) as usize / 8;
    let input = bytes(64, 9);
    let mut case = Case::bare(1, String::new());
    // A narrow store changes its part of a word and nothing else; the halves of words go to the
    // upper end.
    let narrow = size < 4;
    let at = if size == 2 { 2 } else { 0 };
    let bytes = (count * size).max(4);
    let declared = |name: &str| match count {
        1 if !narrow => format!(".param .b{} {name}", bits_of(ty)),
        _ => format!(".param .align 16 .b8 {name}[{bytes}]"),
    };
    let moved: String = match size {
        8 => "ld.param.b64 %d1, [got];\nst.param.b64 [back], %d1;\n".to_owned(),
        _ => (0..bytes / 4)
            .map(|k| {
                format!("ld.param.b32 %r1, [got+{0}];\nst.param.b32 [back+{0}], %r1;\n", 4 * k)
            })
            .collect(),
    };
    case.declarations = format!(
        ".func ({}) echo({}) {{\n.reg .b16 %h<4>; .reg .b32 %r<4>; .reg .b64 %d<4>;\n{moved}ret;\n}}",
        declared("back"),
        declared("got")
    );
    let mut expected = Vec::new();
    for n in 0..count {
        case.setup += &crate::case::load(holder(ty), n + 1, "%in", n * 8);
        let value = element(&input, n * 8, ty);
        let around = 0x5a5a_5a5a & !(mask_of(bits_of(ty)) << (8 * at));
        expected.push(if narrow { around | value << (8 * at) } else { value });
    }
    let before = if narrow { "st.param.b32 [got], 0x5A5A5A5A;\n" } else { "" };
    let back = if size == 8 { ("b64", 8) } else { ("b32", 4) };
    let loads: String = (0..count)
        .map(|n| {
            format!("ld.param.{} {}, [back+{}];\n", back.0, register(back.0, n + 10), n * back.1)
        })
        .collect();
    case.body = format!(
        "{{\n{};\n{};\n{before}{} [got+{at}], {};\ncall.uni (back), echo, (got);\n{loads}}}\n",
        declared("got"),
        declared("back"),
        form.text,
        list(ty, 1, count)
    );
    for n in 0..count {
        case.finish += &crate::case::store(back.0, n + 10, "%out", n * 8);
    }
    case.input = input;
    case.output = words(&vec![0; expected.len()]);
    case.expected = Ok(expected.into_iter().map(Slot::Bits).collect());
    case
}
