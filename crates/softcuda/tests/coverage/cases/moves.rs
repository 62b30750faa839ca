//! `mov`, `cvta`, `isspacep`, special registers.

use crate::case::{Case, RESULT, Slot, WORKSPACE, computation, words};
use crate::form::{Form, bits_of, register};
use crate::operands::{Domain, tuples};

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    match form.name {
        "mov" => Some(match form.text {
            "mov.u32" => special_registers(),
            "mov.u64" => clocks_and_addresses(),
            "mov.b32" => halves_of_a_word(),
            "mov.b64" => words_of_a_pair(),
            _ => copy(form),
        }),
        "cvta" => Some(convert_address(form)),
        "isspacep" => Some(spaces(form)),
        _ => None,
    }
}

/// A register to a register, and a constant to another.
fn copy(form: &Form<'_>) -> Case {
    let ty = form.ty();
    let (constant, bits) = match ty {
        "pred" => ("1", 1),
        "f32" => ("0fC0490FDB", 0xc049_0fdb),
        "f64" => ("0dC00921FB54442D18", 0xc009_21fb_5444_2d18),
        "s32" => ("-7", 0xffff_fff9),
        _ => ("0x8123", 0x8123),
    };
    let domain = if ty == "pred" { Domain::Bool } else { Domain::Int(bits_of(ty)) };
    let tuples = tuples(&[domain], |_| true);
    let body = format!(
        "{0} {1}, {2};\n{0} {3}, {constant};",
        form.text,
        register(ty, RESULT),
        register(ty, 1),
        register(ty, RESULT + 1)
    );
    computation(&[ty], &[ty, ty], body, &tuples, move |t| vec![Slot::Bits(t[0]), Slot::Bits(bits)])
}

/// Packs and unpacks two halves.
fn halves_of_a_word() -> Case {
    let tuples = tuples(&[Domain::Int(16), Domain::Int(16), Domain::Int(32)], |_| true);
    let body = "mov.b32 %r20, {%h1, %h2};\nmov.b32 {%h21, %h22}, %r3;\nmov.b32 %r23, %r3;";
    computation(
        &["b16", "b16", "b32"],
        &["b32", "b16", "b16", "b32"],
        body.to_owned(),
        &tuples,
        |t| {
            let values = [t[0] | t[1] << 16, t[2] & 0xffff, t[2] >> 16, t[2]];
            values.map(Slot::Bits).to_vec()
        },
    )
}

/// Packs and unpacks two words, and four halves; moves a double's bits.
fn words_of_a_pair() -> Case {
    let types = ["b32", "b32", "b64", "b16", "f64"];
    let domains = types.map(|ty| Domain::Int(bits_of(ty)));
    let body = "mov.b64 %d20, {%r1, %r2};\nmov.b64 {%r21, %r22}, %d3;\n\
                mov.b64 %d23, {%h4, %h4, %h4, %h4};\nmov.b64 %d24, %e5;";
    computation(
        &types,
        &["b64", "b32", "b32", "b64", "b64"],
        body.to_owned(),
        &tuples(&domains, |_| true),
        |t| {
            let four = t[3] * 0x1_0001_0001_0001;
            let values = [t[0] | t[1] << 32, t[2] & 0xffff_ffff, t[2] >> 32, four, t[4]];
            values.map(Slot::Bits).to_vec()
        },
    )
}

/// What a thread reads in the registers that compilers use, over a grid of two by three blocks of
/// eight by four by two.
fn special_registers() -> Case {
    let names = [
        "%tid.x",
        "%tid.y",
        "%tid.z",
        "%ntid.x",
        "%ntid.y",
        "%ntid.z",
        "%ctaid.x",
        "%ctaid.y",
        "%ctaid.z",
        "%nctaid.x",
        "%nctaid.y",
        "%nctaid.z",
        "%laneid",
        "%warpid",
        "%nwarpid",
        "%lanemask_eq",
        "%lanemask_le",
        "%lanemask_lt",
        "%lanemask_ge",
        "%lanemask_gt",
        "%smid",
        "%nsmid",
        "%dynamic_smem_size",
        "%envreg1",
        "%envreg2",
        "%cluster_ctarank",
    ];
    let count = names.len();
    let mut setup = String::new();
    // The thread's number in the grid, from registers read outside the body.
    for (n, name) in ["%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%ctaid.y"].iter().enumerate() {
        setup += &format!("mov.u32 %q{n}, {name};\n");
    }
    setup += &format!(
        "mad.lo.u32 %q5, %q2, 4, %q1;\nmad.lo.u32 %q5, %q5, 8, %q0;\n\
         mad.lo.u32 %q6, %q4, 2, %q3;\nmad.lo.u32 %q5, %q6, 64, %q5;\n\
         mad.wide.u32 %out, %q5, {}, %out;\n",
        count * 8
    );
    let (mut body, mut finish) = (String::new(), String::new());
    for (n, name) in names.iter().enumerate() {
        setup += &format!("mov.b32 %r{n}, 0x5A5A5A5B;\n");
        body += &format!("mov.u32 %r{n}, {name};\n");
        finish += &format!("st.global.u32 [%out+{}], %r{n};\n", n * 8);
    }
    let mut expected = Vec::new();
    for block in 0..6u64 {
        for thread in 0..64u64 {
            let lane = thread % 32;
            let below = (1u64 << lane) - 1;
            let all = 0xffff_ffff;
            let (tx, ty, tz) = (thread % 8, thread / 8 % 4, thread / 32);
            let (bx, by) = (block % 2, block / 2);
            expected.extend([tx, ty, tz, 8, 4, 2, bx, by, 0, 2, 3, 1, lane, thread / 32, 2]);
            expected.extend([below + 1, 2 * below + 1, below, all & !below]);
            expected.extend([all & !(2 * below + 1), 0, 1, 0]);
            expected.extend([WORKSPACE >> 32, WORKSPACE & all, 0]);
        }
    }
    Case {
        setup,
        finish,
        grid: [2, 3, 1],
        block: [8, 4, 2],
        output: vec![0; expected.len() * 8],
        expected: Ok(expected.into_iter().map(Slot::Bits).collect()),
        ..Case::bare(0, body)
    }
}

/// Clocks that advance, addresses of variables, constants of 64 bits.
fn clocks_and_addresses() -> Case {
    let body = "mov.u64 %d1, %clock64;\nmov.u64 %d2, %globaltimer;\nmov.u64 %d3, somewhere;\n\
                mov.u64 %d4, 0x8123456789ABCDEF;\nmov.u64 %d5, %d3;";
    let finish = "mov.b64 %d6, %clock64;\nsetp.ge.u64 %p1, %d6, %d1;\nselp.u64 %d1, 1, 0, %p1;\n\
                  mov.b64 %d6, %globaltimer;\nsetp.gt.u64 %p1, %d6, %d2;\nselp.u64 %d2, 1, 0, %p1;\n\
                  ld.global.u64 %d3, [%d3];\nld.global.u64 %d5, [%d5+8];\n\
                  st.global.u64 [%out], %d1;\nst.global.u64 [%out+8], %d2;\n\
                  st.global.u64 [%out+16], %d3;\nst.global.u64 [%out+24], %d4;\n\
                  st.global.u64 [%out+32], %d5;\n";
    let mut case = Case::bare(1, body);
    case.declarations = ".global .align 8 .u64 somewhere[2] = {1234567, 7654321};".to_owned();
    case.setup = (1..6).map(|n| format!("mov.b64 %d{n}, -1;\n")).collect();
    // An address that was not taken must not be followed.
    case.setup += "mov.b64 %d3, %in;\nmov.b64 %d5, %in;\n";
    case.finish = finish.to_owned();
    let values = [1, 1, 1_234_567, 0x8123_4567_89ab_cdef, 7_654_321];
    case.expected = Ok(values.map(Slot::Bits).to_vec());
    case
}

/// Declarations of a variable in each space.
const VARIABLES: &str = ".global .align 8 .u64 gv = 111;\n.const .align 8 .u64 cv = 222;\n\
                         .shared .align 8 .u64 sv[2];\n";

/// To a generic address and back: a value is found through the converted address.
fn convert_address(form: &Form<'_>) -> Case {
    let space = form.one_of(&["global", "shared", "local", "const"]).unwrap_or("global");
    let variable = match space {
        "global" => "gv",
        "shared" => "sv",
        "local" => "lv",
        _ => "cv",
    };
    let value = match space {
        "global" => 111,
        "shared" => 333,
        "local" => 444,
        _ => 222,
    };
    let back = form.has("to");
    let mut case = Case::bare(1, format!("{} %d2, %d1;", form.text));
    case.declarations = VARIABLES.to_owned();
    case.setup = format!(
        ".local .align 8 .u64 lv[2];\nst.shared.u64 [sv+8], 333;\nst.local.u64 [lv+8], 444;\n\
         mov.b64 %d1, {variable};\nmov.b64 %d2, 0;\n"
    );
    if matches!(space, "shared" | "local") {
        case.setup += "add.s64 %d1, %d1, 8;\n";
    }
    if back {
        // Something generic to convert back.
        case.setup += &format!("mov.b64 %d5, %d1;\ncvta.{space}.u64 %d1, %d1;\n");
    }
    let load = if back { format!("ld.{space}.u64") } else { "ld.u64".to_owned() };
    case.finish = format!("{load} %d3, [%d2];\nst.global.u64 [%out], %d3;\n");
    let mut expected = vec![value];
    if back {
        // It is the address that there was at first.
        case.finish += "sub.s64 %d4, %d2, %d5;\nst.global.u64 [%out+8], %d4;\n";
        expected.push(0);
    }
    case.expected = Ok(expected.into_iter().map(Slot::Bits).collect());
    case
}

/// Generic addresses of all spaces: each belongs to one.
fn spaces(form: &Form<'_>) -> Case {
    let spaces = ["global", "const", "shared", "local", "param"];
    let variables = ["gv", "cv", "sv", "lv", "blob"];
    let mut case = Case::bare(1, String::new());
    case.declarations = VARIABLES.to_owned();
    case.setup = ".local .align 8 .u64 lv[2];\n".to_owned();
    for (n, (space, variable)) in spaces.iter().zip(variables).enumerate() {
        case.setup += &format!(
            "mov.b64 %d{n}, {variable};\ncvta.{space}.u64 %d{n}, %d{n};\n\
             setp.ne.u32 %p{n}, 0, {};\n",
            // What a dropped instruction leaves behind is the opposite of what is right.
            u32::from(!form.has(space))
        );
        case.body += &format!("{} %p{n}, %d{n};\n", form.text);
        case.finish +=
            &format!("selp.u64 %d10, 1, 0, %p{n};\nst.global.u64 [%out+{}], %d10;\n", n * 8);
    }
    case.input = words(&[0]);
    case.expected = Ok(spaces.iter().map(|s| Slot::Bits(u64::from(form.has(s)))).collect());
    case
}
