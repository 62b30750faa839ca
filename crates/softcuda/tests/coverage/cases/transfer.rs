//! Asynchronous copies, `mbarrier` objects, matrices from shared memory.

use crate::case::{Case, Slot, exactly};
use crate::form::Form;
use crate::operands::bytes;

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    match form.name {
        "cp" if form.has("bulk") => Some(bulk(form)),
        "cp" if form.has("shared") && form.has("global") => Some(copy(form)),
        "mbarrier" if form.has("expect_tx") => Some(bulk(form)),
        "mbarrier" if form.has("parity") => Some(parity(form)),
        "mbarrier" if !form.has("inval") => Some(phases(form)),
        "ldmatrix" => Some(matrix(form)),
        _ => None,
    }
}

/// Bytes of a thread in the copies: four copies of 16 bytes.
const CHUNK: usize = 64;

/// Copies of all sizes, one of them shorter than its destination, which is filled up with zeros.
fn copy(form: &Form<'_>) -> Case {
    let threads = 64;
    let data = bytes(threads * CHUNK, 11);
    // `.cg` has 16 bytes only.
    let sizes: [usize; 3] = if form.has("cg") { [16, 16, 16] } else { [16, 8, 4] };
    let mut body = String::new();
    for (n, size) in sizes.iter().enumerate() {
        body += &format!("{} [%q0+{1}], [%in+{1}], {size};\n", form.text, n * 16);
    }
    body += &format!("{} [%q0+48], [%in+48], 16, %q1;\n", form.text);
    let mut case = Case::bare(threads as u32, body);
    case.declarations = format!(".shared .align 16 .b8 sm[{}];", threads * CHUNK);
    case.setup = format!(
        "mad.wide.u32 %in, %t, {CHUNK}, %in;\nmad.wide.u32 %out, %t, {CHUNK}, %out;\n\
         mov.b32 %q0, sm;\nmad.lo.u32 %q0, %t, {CHUNK}, %q0;\nmov.b32 %q1, 6;\n"
    );
    for n in 0..CHUNK / 8 {
        case.setup += &format!("st.shared.b64 [%q0+{}], -1;\n", n * 8);
    }
    case.finish = "cp.async.commit_group;\ncp.async.wait_group 0;\n".to_owned();
    for n in 0..CHUNK / 8 {
        case.finish +=
            &format!("ld.shared.b64 %d1, [%q0+{0}];\nst.global.b64 [%out+{0}], %d1;\n", n * 8);
    }
    let mut expected = vec![0xff; data.len()];
    for thread in 0..threads {
        for (n, size) in sizes.iter().chain([&6]).enumerate() {
            let at = thread * CHUNK + n * 16;
            expected[at..at + size].copy_from_slice(&data[at..at + size]);
        }
        expected[thread * CHUNK + 54..(thread + 1) * CHUNK].fill(0);
    }
    case.output = vec![0; data.len()];
    case.input = data;
    case.expected = Ok(exactly(&expected));
    case
}

/// Stores predicate `%p<n>` as word `n` of the output, for those up to `count`.
fn answers(count: usize) -> String {
    (0..count)
        .map(|n| format!("selp.u64 %d30, 1, 0, %p{n};\nst.global.u64 [%out+{}], %d30;\n", 8 * n))
        .collect()
}

/// Sets the predicates to the opposite of what must come.
fn opposites(expected: &[u64]) -> String {
    let opposite = |(n, bit): (usize, &u64)| format!("setp.ne.u32 %p{n}, {bit}, 1;\n");
    expected.iter().enumerate().map(opposite).collect()
}

/// Two phases of an object that waits for three arrivals: before, between and behind them it is
/// asked whether a phase is over.
fn phases(form: &Form<'_>) -> Case {
    // Each operation in the form's spelling where the form is of that operation.
    let spelling = |operation: &str, otherwise: &str| {
        if form.has(operation) { form.text.to_owned() } else { otherwise.to_owned() }
    };
    let init = spelling("init", "mbarrier.init.shared.b64");
    let arrive = spelling("arrive", "mbarrier.arrive.shared.b64");
    let wait = if form.has("try_wait") {
        form.text.to_owned()
    } else {
        spelling("test_wait", "mbarrier.test_wait.shared.b64")
    };
    let count = if form.has("noComplete") { ", 1" } else { "" };
    // An arrival that must not complete the phase leaves that to another.
    let last = if form.has("noComplete") { "mbarrier.arrive.shared.b64" } else { arrive.as_str() };
    let mut body = format!("{init} [%q0], 3;\n");
    for phase in 0..2 {
        let first = 4 * phase;
        body += &format!(
            "{arrive} %d1, [%q0]{count};\n{wait} %p{0}, [%q0], %d1;\n{arrive} %d2, [%q0]{count};\n\
             {wait} %p{1}, [%q0], %d1;\n{last} %d3, [%q0];\n{wait} %p{2}, [%q0], %d1;\n\
             {wait} %p{3}, [%q0], %d3;\n",
            first,
            first + 1,
            first + 2,
            first + 3
        );
    }
    let expected = [0, 0, 1, 1, 0, 0, 1, 1];
    let mut case = Case::bare(1, body);
    case.declarations = ".shared .align 8 .b64 sm[4];".to_owned();
    // The object's memory holds something else before.
    case.setup = format!(
        "mov.b32 %q0, sm;\nadd.u32 %q0, %q0, 8;\nst.shared.b64 [%q0], 0x1234567;\n\
         mov.b64 %d1, 0;\nmov.b64 %d2, 0;\nmov.b64 %d3, 0;\n{}",
        opposites(&expected)
    );
    case.finish = answers(expected.len());
    case.expected = Ok(expected.map(Slot::Bits).to_vec());
    case
}

/// The phase that is waited for named by its parity.
fn parity(form: &Form<'_>) -> Case {
    let mut body = String::new();
    for n in 0..3 {
        body += &format!(
            "{0} %p{1}, [%q0], 0;\n{0} %p{2}, [%q0], 1;\nmbarrier.arrive.shared.b64 %d1, [%q0];\n",
            form.text,
            2 * n,
            2 * n + 1
        );
    }
    // At first the phase before is over, which counts as odd.
    let expected = [0, 1, 1, 0, 0, 1];
    let mut case = Case::bare(1, body);
    case.declarations = ".shared .align 8 .b64 sm[1];".to_owned();
    case.setup =
        format!("mov.b32 %q0, sm;\nmbarrier.init.shared.b64 [%q0], 1;\n{}", opposites(&expected));
    case.finish = answers(expected.len());
    case.expected = Ok(expected.map(Slot::Bits).to_vec());
    case
}

/// A bulk copy whose bytes an object waits for, announced ahead of the only arrival.
fn bulk(form: &Form<'_>) -> Case {
    let data = bytes(256, 12);
    let spelling = |part: &str, otherwise: &'static str| {
        if form.has(part) { form.text.to_owned() } else { otherwise.to_owned() }
    };
    let expect = spelling("expect_tx", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64");
    let copy = spelling("bulk", "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes");
    // Asked again until it is over, as the copy may take its time; not for ever.
    let body = format!(
        "{expect} [%q0], 192;\nmbarrier.arrive.shared.b64 %d1, [%q0];\n\
         mbarrier.test_wait.shared.b64 %p0, [%q0], %d1;\n{copy} [%q1], [%in+32], 192, [%q0];\n\
         mov.u32 %q2, 1000;\nWAIT:\nmbarrier.try_wait.shared::cta.b64 %p1, [%q0], %d1;\n\
         sub.u32 %q2, %q2, 1;\nsetp.ne.u32 %p9, %q2, 0;\nnot.pred %p8, %p1;\n\
         and.pred %p9, %p9, %p8;\n@%p9 bra WAIT;"
    );
    let mut case = Case::bare(1, body);
    case.declarations =
        ".shared .align 16 .b8 to[256];\n.shared .align 8 .b64 object[1];".to_owned();
    case.setup = format!(
        "mov.b32 %q0, object;\nmov.b32 %q1, to;\nmbarrier.init.shared.b64 [%q0], 1;\n{}",
        opposites(&[0, 1])
    );
    case.finish = answers(2);
    for n in 0..24 {
        case.finish += &format!(
            "ld.shared.b64 %d2, [%q1+{}];\nst.global.b64 [%out+{}], %d2;\n",
            8 * n,
            16 + 8 * n
        );
    }
    let mut expected = vec![Slot::Bits(0), Slot::Bits(1)];
    expected.extend(exactly(&data[32..224]));
    case.output = vec![0; expected.len() * 8];
    case.input = data;
    case.expected = Ok(expected);
    case
}

/// Four matrices of eight rows of eight 16-bit elements; each lane names a row.
fn matrix(form: &Form<'_>) -> Case {
    let data = bytes(512, 13);
    let body = format!("{} {{%r1, %r2, %r3, %r4}}, [%q0];", form.text);
    let mut case = Case::bare(32, body);
    case.declarations = ".shared .align 16 .b8 sm[512];".to_owned();
    case.setup = "mad.wide.u32 %in, %t, 16, %in;\nmad.wide.u32 %out, %t, 32, %out;\n\
                  mov.b32 %q1, sm;\nmad.lo.u32 %q1, %t, 16, %q1;\nld.global.b64 %d1, [%in];\n\
                  ld.global.b64 %d2, [%in+8];\nst.shared.b64 [%q1], %d1;\nst.shared.b64 [%q1+8], %d2;\n\
                  bar.warp.sync -1;\nxor.b32 %q2, %t, 5;\nmov.b32 %q0, sm;\n\
                  mad.lo.u32 %q0, %q2, 16, %q0;\n"
        .to_owned();
    case.setup += &(1..5).map(|n| format!("mov.b32 %r{n}, -1;\n")).collect::<String>();
    case.finish = (1..5).map(|n| format!("st.global.b32 [%out+{}], %r{n};\n", 8 * n - 8)).collect();
    // Rows are named in another order than they lie.
    let element = |matrix: usize, row: usize, column: usize| {
        let at = ((matrix * 8 + row) ^ 5) * 16 + column * 2;
        u64::from(data[at]) | u64::from(data[at + 1]) << 8
    };
    let mut expected = Vec::new();
    for lane in 0..32 {
        for matrix in 0..4 {
            let (row, column) = (lane / 4, lane % 4 * 2);
            let pair = if form.has("trans") {
                (element(matrix, column, row), element(matrix, column + 1, row))
            } else {
                (element(matrix, row, column), element(matrix, row, column + 1))
            };
            expected.push(Slot::Bits(pair.0 | pair.1 << 16));
        }
    }
    case.output = vec![0; expected.len() * 8];
    case.input = data;
    case.expected = Ok(expected);
    case
}
