//! Branches, calls, returns, exits, traps.

use softcuda::exec::FaultKind;

use crate::case::{Case, Slot};
use crate::form::Form;

const THREADS: u64 = 64;

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    Some(match form.name {
        "bra" => branch(form),
        "call" => call(form),
        "ret" | "exit" => leave(form),
        "trap" => trap(),
        _ => return None,
    })
}

/// Each thread stores `%r1`; `%p1` holds in every third thread, `%p2` in the second warp.
fn threads(body: String, expected: impl Fn(u64) -> u64) -> Case {
    let mut case = Case::bare(THREADS as u32, body);
    case.setup = "mad.wide.u32 %out, %t, 8, %out;\nrem.u32 %q0, %t, 3;\nsetp.eq.u32 %p1, %q0, 0;\n\
                  setp.ge.u32 %p2, %t, 32;\nmov.b32 %r1, 1;\n"
        .to_owned();
    case.finish = "st.global.b32 [%out], %r1;\n".to_owned();
    case.output = vec![0; THREADS as usize * 8];
    case.expected = Ok((0..THREADS).map(|t| Slot::Bits(expected(t))).collect());
    case
}

/// Forwards over an instruction, and backwards in a loop of as many turns as the thread has.
fn branch(form: &Form<'_>) -> Case {
    let uniform = form.has("uni");
    let guard = if uniform { "%p2" } else { "%p1" };
    let turns =
        if uniform { "mov.u32 %q1, 7;" } else { "and.b32 %q1, %t, 15;\nadd.u32 %q1, %q1, 1;" };
    let body = format!(
        "@{guard} {0} OVER;\nadd.u32 %r1, %r1, 100;\nOVER:\n{turns}\nROUND:\nadd.u32 %r1, %r1, 1000;\n\
         sub.u32 %q1, %q1, 1;\nsetp.ne.u32 %p3, %q1, 0;\n@%p3 {0} ROUND;\n{0} LAST;\nmov.b32 %r1, 0;\n\
         LAST:",
        form.text
    );
    threads(body, |t| {
        let over = if uniform { t >= 32 } else { t % 3 == 0 };
        let turns = if uniform { 7 } else { t % 16 + 1 };
        1 + if over { 0 } else { 100 } + 1000 * turns
    })
}

/// Functions by name, with and without values, by pointer, and one that calls itself.
fn call(form: &Form<'_>) -> Case {
    let body = format!(
        "{{\n.param .b32 give;\n.param .b32 back;\nst.param.b32 [give], %t;\n\
         {0} (back), factorial_sum, (give);\nld.param.b32 %r1, [back];\n}}\n\
         {{\n.param .b64 give;\nst.param.b64 [give], %out;\n{0} mark, (give);\n}}\n\
         mov.u64 %d1, triple;\n@%p1 mov.u64 %d1, square;\n\
         {{\n.param .b32 give;\n.param .b32 back;\nst.param.b32 [give], %t;\n\
         prototype: .callprototype (.param .b32 _) _ (.param .b32 _);\n\
         {0} (back), %d1, (give), prototype;\nld.param.b32 %r2, [back];\n}}\nadd.u32 %r1, %r1, %r2;",
        form.text
    );
    let mut case = threads(body, |_| 0);
    case.declarations = "
.func (.param .b32 back) factorial_sum(.param .b32 n) {
.reg .pred %p<2>; .reg .b32 %r<4>;
ld.param.b32 %r1, [n];
mov.b32 %r2, 0;
setp.eq.u32 %p1, %r1, 0;
@%p1 bra ZERO;
{
.param .b32 give;
.param .b32 got;
sub.u32 %r2, %r1, 1;
st.param.b32 [give], %r2;
call (got), factorial_sum, (give);
ld.param.b32 %r2, [got];
}
ZERO:
add.u32 %r2, %r2, %r1;
st.param.b32 [back], %r2;
ret;
}
.func mark(.param .b64 where) {
.reg .b64 %d<2>;
ld.param.b64 %d1, [where];
st.global.b32 [%d1+4], 5;
ret;
}
.func (.param .b32 back) triple(.param .b32 n) {
.reg .b32 %r<2>;
ld.param.b32 %r1, [n];
mul.lo.u32 %r1, %r1, 3;
st.param.b32 [back], %r1;
ret;
}
.func (.param .b32 back) square(.param .b32 n) {
.reg .b32 %r<2>;
ld.param.b32 %r1, [n];
mul.lo.u32 %r1, %r1, %r1;
st.param.b32 [back], %r1;
ret;
}"
    .to_owned();
    let value = |t: u64| t * (t + 1) / 2 + if t.is_multiple_of(3) { t * t } else { 3 * t };
    case.expected = Ok((0..THREADS).map(|t| Slot::Bits(value(t) | 5 << 32)).collect());
    case
}

/// Out of the kernel, and out of a function: `ret` goes back to the caller, `exit` ends the thread
/// there.
fn leave(form: &Form<'_>) -> Case {
    let exit = form.name == "exit";
    let body = format!(
        "{{\n.param .b32 give;\n.param .b32 back;\nst.param.b32 [give], %t;\n\
         call (back), early, (give);\nld.param.b32 %r1, [back];\n}}\n@%p2 {};",
        form.text
    );
    let mut case = threads(body, |t| {
        let odd = t % 2 == 1;
        match (exit, t >= 32, odd) {
            // The second warp leaves ahead of its store, and so do odd threads that ended in the
            // function.
            (_, true, _) | (true, _, true) => 0,
            (false, _, true) => 10,
            _ => 20,
        }
    });
    // The function is part of what is broken: its own early way out is the form, too.
    case.declarations = format!(
        ".func (.param .b32 back) early(.param .b32 n) {{\n.reg .pred %p<2>; .reg .b32 %r<3>;\n\
         ld.param.b32 %r1, [n];\nand.b32 %r1, %r1, 1;\nsetp.eq.u32 %p1, %r1, 1;\n\
         st.param.b32 [back], 10;\n@%p1 {};\nst.param.b32 [back], 20;\nret;\n}}",
        form.text
    );
    case
}

/// One thread of many traps: the kernel ends with a fault.
fn trap() -> Case {
    let mut case = threads("setp.eq.u32 %p3, %t, 37;\n@%p3 trap;".to_owned(), |_| 0);
    case.expected = Err(FaultKind::Trap);
    case
}
