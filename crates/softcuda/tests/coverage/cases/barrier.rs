//! Barriers of blocks and warps. Threads that write late show whether the others waited.

use crate::case::{Case, Slot, words};
use crate::form::Form;
use crate::operands::{Domain, mix, tuples};

const THREADS: u64 = 128;

/// A loop that takes the longer, the higher the thread's number: `%t / 32 * 200` turns in all lanes
/// of a warp.
const DELAY: &str = "shr.u32 %q0, %t, 5;\nmul.lo.u32 %q0, %q0, 200;\nadd.u32 %q0, %q0, 1;\n\
                     LATE:\nsub.u32 %q0, %q0, 1;\nsetp.ne.u32 %p30, %q0, 0;\n@%p30 bra LATE;\n";

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    if !matches!(form.name, "bar" | "barrier") {
        return None;
    }
    Some(match (form.has("warp"), form.one_of(&["sync", "arrive", "red"])?) {
        (true, _) => warp(form),
        (_, "sync") => sync(form),
        (_, "arrive") => arrive(),
        _ => reduce(form),
    })
}

fn value(thread: u64) -> u64 {
    mix(thread) & 0xffff_ffff
}

/// What every thread stores: values of their own.
fn block(body: String) -> Case {
    let mut case = Case::bare(THREADS as u32, body);
    case.declarations = ".shared .align 8 .b32 sm[256];".to_owned();
    case.input = words(&(0..THREADS).map(value).collect::<Vec<u64>>());
    case.setup = "mad.wide.u32 %in, %t, 8, %in;\nmad.wide.u32 %out, %t, 16, %out;\n\
                  ld.global.b32 %r1, [%in];\nmov.b32 %r9, sm;\nmad.lo.u32 %r2, %t, 4, %r9;\n"
        .to_owned();
    case.finish = "st.global.b32 [%out], %r3;\nst.global.b32 [%out+8], %r4;\n".to_owned();
    case.output = vec![0; THREADS as usize * 16];
    case
}

/// Everyone reads what a thread of the next warp wrote: over the whole block, then over pairs of
/// warps by number and count.
fn sync(form: &Form<'_>) -> Case {
    let body = format!(
        "{DELAY}st.shared.b32 [%r2], %r1;\n{0} 0;\nadd.u32 %q1, %t, 32;\nand.b32 %q1, %q1, 127;\n\
         mad.lo.u32 %q1, %q1, 4, %r9;\nld.shared.b32 %r3, [%q1];\n\
         shr.u32 %q2, %t, 6;\nadd.u32 %q2, %q2, 1;\n{1}\
         st.shared.b32 [%r2+512], %r1;\n{0} %q2, 64;\nxor.b32 %q1, %t, 32;\n\
         mad.lo.u32 %q1, %q1, 4, %r9;\nld.shared.b32 %r4, [%q1+512];",
        form.text,
        DELAY.replace("LATE", "AGAIN")
    );
    let mut case = block(body);
    let expected = |t: u64| [value((t + 32) % THREADS), value(t ^ 32)];
    case.expected = Ok((0..THREADS).flat_map(expected).map(Slot::Bits).collect());
    case
}

/// The first warp waits for what the last one wrote; the last one only arrives.
fn arrive() -> Case {
    let body = "setp.lt.u32 %p1, %t, 32;\n@%p1 bra CONSUME;\nsetp.lt.u32 %p1, %t, 96;\n\
                @%p1 bra DONE;\nst.shared.b32 [%r2], %r1;\nbar.arrive 3, 64;\nbra DONE;\n\
                CONSUME:\nbar.sync 3, 64;\nld.shared.b32 %r3, [%r2+384];\nDONE:";
    let mut case = block(body.to_owned());
    case.setup += "mov.b32 %r3, 0;\nmov.b32 %r4, 0;\n";
    let expected = |t: u64| [if t < 32 { value(t + 96) } else { 0 }, 0];
    case.expected = Ok((0..THREADS).flat_map(expected).map(Slot::Bits).collect());
    case
}

/// Three predicates: mixed, true everywhere, false everywhere.
fn reduce(form: &Form<'_>) -> Case {
    let popc = form.has("popc");
    let mixed = tuples(&[Domain::Bool], |_| true);
    let count: u64 = mixed[..THREADS as usize].iter().map(|t| t[0]).sum();
    let (expected, class) = match (popc, form.has("and")) {
        (true, _) => ([count, THREADS, 0], 'r'),
        (_, true) => ([0, 1, 0], 'p'),
        _ => ([1, 1, 0], 'p'),
    };
    let body: String = (0..3).map(|n| format!("{} %{class}1{n}, 0, %p{n};\n", form.text)).collect();
    let mut case = Case::bare(THREADS as u32, body);
    case.setup = "mad.wide.u32 %in, %t, 8, %in;\nmad.wide.u32 %out, %t, 24, %out;\n\
                  ld.global.b32 %r1, [%in];\nsetp.ne.u32 %p0, %r1, 0;\nsetp.eq.u32 %p1, 0, 0;\n\
                  setp.ne.u32 %p2, 0, 0;\nmov.b32 %r10, 77;\n"
        .to_owned();
    for (n, bit) in expected.iter().enumerate() {
        if class == 'p' {
            // What a dropped instruction leaves behind is the opposite of what is right.
            case.setup += &format!("setp.ne.u32 %p1{n}, {}, 0;\n", 1 - bit);
            case.finish += &format!("selp.b32 %r1{n}, 1, 0, %p1{n};\n");
        }
        case.finish += &format!("st.global.b32 [%out+{}], %r1{n};\n", 8 * n);
    }
    case.input = words(&mixed[..THREADS as usize].concat());
    case.output = vec![0; THREADS as usize * 24];
    case.expected = Ok((0..THREADS).flat_map(|_| expected).map(Slot::Bits).collect());
    case
}

/// Two halves of a warp on different paths read what the other half wrote.
fn warp(form: &Form<'_>) -> Case {
    let body = format!(
        "and.b32 %q2, %t, 31;\nsetp.lt.u32 %p1, %q2, 16;\nxor.b32 %q1, %t, 16;\n\
         mad.lo.u32 %q1, %q1, 4, %r9;\n@%p1 bra LOW;\n\
         mov.u32 %q0, 300;\nLATE:\nsub.u32 %q0, %q0, 1;\nsetp.ne.u32 %p30, %q0, 0;\n\
         @%p30 bra LATE;\nst.shared.b32 [%r2], %r1;\n{0} -1;\nld.shared.b32 %r3, [%q1];\nbra DONE;\n\
         LOW:\nst.shared.b32 [%r2], %r1;\n{0} -1;\nld.shared.b32 %r3, [%q1];\nDONE:\nmov.b32 %r4, 1;",
        form.text
    );
    let mut case = block(body);
    let expected = |t: u64| [value(t ^ 16), 1];
    case.expected = Ok((0..THREADS).flat_map(expected).map(Slot::Bits).collect());
    case
}
