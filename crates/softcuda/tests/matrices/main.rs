//! Tensor instructions: against results recorded on an H200, and whole products against the host.

#[path = "../machine/mod.rs"]
mod machine;
mod product;

use machine::{Params, TestMachine, launch, levels};
use product::number;
use softcuda::exec::SimdLevel;

const FUEL: u64 = 1 << 20;
/// Operands and results lie in columns of 64-bit words.
const COLUMN_LIMIT: usize = 32;

/// A mixing step of SplitMix64: one word of pseudo-random bits.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// A small integer as a floating-point number of any format.
fn encode(exponent_bits: u32, fraction_bits: u32, value: i64) -> u64 {
    if value == 0 {
        return 0;
    }
    let magnitude = value.unsigned_abs();
    let top = magnitude.ilog2();
    let bias = (1u64 << (exponent_bits - 1)) - 1;
    let fraction = (magnitude << fraction_bits >> top) - (1 << fraction_bits);
    let sign = u64::from(value < 0) << (exponent_bits + fraction_bits);
    sign | (bias + u64::from(top)) << fraction_bits | fraction
}

fn small(i: u64, j: u64, limit: u64) -> i64 {
    (mix(mix(i * 16 + j + 1)) % (2 * limit + 1)) as i64 - limit as i64
}

/// A number with an exponent near one's.
fn moderate(exponent_bits: u32, fraction_bits: u32, i: u64, j: u64) -> u64 {
    let r = mix(mix(i * 16 + j + 1));
    let bias = (1u64 << (exponent_bits - 1)) - 1;
    let exponent = bias + mix(r) % 17 - 8;
    (r >> 63) << (exponent_bits + fraction_bits)
        | exponent << fraction_bits
        | r & ((1 << fraction_bits) - 1)
}

/// Words at which integer instructions change their behaviour.
const INTEGERS: [u64; 25] = [
    0,
    1,
    2,
    3,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x10000,
    0x7f_ffff,
    0x80_0000,
    0x7fff_ffff,
    0x8000_0000,
    0x8000_0001,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0x8000_0000_0000_0001,
    u64::MAX,
    u64::MAX - 1,
    0x5555_5555_5555_5555,
];

fn word(i: u64, j: u64) -> u64 {
    let h = mix(i * 16 + j + 1);
    let r = mix(h);
    let mask = 0xffff_ffff;
    match h & 7 {
        0..=3 => INTEGERS[(r % 25) as usize] & mask,
        4 | 5 => r & mask,
        6 => (r % 33).wrapping_sub(16) & mask,
        _ => (r & mask) >> (mix(r) % 32),
    }
}

/// Operand `j` of thread `i`.
fn operand(class: &str, i: u64, j: u64) -> u64 {
    let four = |e, m, limit| {
        [(i, j), (i, j + 8), (i + 5000, j), (i + 5000, j + 8)]
            .iter()
            .rev()
            .fold(0, |bits, &(i, j)| bits << 8 | encode(e, m, small(i, j, limit)))
    };
    match class {
        "u32" | "s32" => word(i, j),
        "lane" => (i % 32 * 5 + i / 32) % 128,
        "hs2" => encode(5, 10, small(i, j, 8)) | encode(5, 10, small(i, j + 8, 8)) << 16,
        "bs2" => encode(8, 7, small(i, j, 8)) | encode(8, 7, small(i, j + 8, 8)) << 16,
        "tfs" => encode(8, 23, small(i, j, 8)),
        "fs32" => encode(8, 23, small(i, j, 64)),
        "ds64" => encode(11, 52, small(i, j, 64)),
        "e4s" => four(4, 3, 8),
        "e5s" => four(5, 2, 7),
        "f16r" => moderate(5, 10, i, j) | moderate(5, 10, i, j + 8) << 16,
        "bf16r" => moderate(8, 7, i, j) | moderate(8, 7, i, j + 8) << 16,
        "f32r" | "tfr" => moderate(8, 23, i, j),
        "f64r" => moderate(11, 52, i, j),
        other => panic!("unknown class {other}"),
    }
}

/// A line of the recording.
struct Recorded<'a> {
    name: &'a str,
    classes: Vec<&'a str>,
    result_bits: u32,
    results: usize,
    threads: u64,
    hash: u64,
}

fn recorded(line: &str) -> Recorded<'_> {
    let fields: Vec<&str> = line.split('\t').collect();
    let &[name, classes, results, threads, hash] = fields.as_slice() else {
        panic!("not five fields: {line}")
    };
    let part = |text: &str| -> usize { text.split_once('*').expect("a count").1.parse().unwrap() };
    let mut list = Vec::new();
    for class in classes.split(',') {
        let name = class.split_once('*').expect("a count").0;
        list.extend(std::iter::repeat_n(name, part(class)));
    }
    Recorded {
        name,
        classes: list,
        result_bits: results.split_once('*').expect("a count").0.parse().unwrap(),
        results: part(results),
        threads: threads.parse().unwrap(),
        hash: u64::from_str_radix(hash, 16).unwrap(),
    }
}

fn list(prefix: char, range: std::ops::Range<usize>) -> String {
    let names: Vec<String> = range.map(|index| format!("{prefix}{index}")).collect();
    format!("{{{}}}", names.join(","))
}

/// The instruction over registers `d0..` and `a0..`, for the forms of the recording.
fn instruction(form: &Recorded<'_>) -> String {
    let name = form.name.split('#').next().unwrap_or("");
    let d = list('d', 0..form.results);
    if name.starts_with("mma") {
        let total = form.classes.len();
        let shape = name.split('.').find(|part| part.starts_with("m16") || part.starts_with("m8"));
        let modifiers: Vec<&str> = name.split('.').collect();
        let quads = shape == Some("m8n8k4") && modifiers.contains(&"f16");
        let c = form.results;
        let rest = total - c;
        // m8 forms have as many registers of B as of A, m16 forms half as many.
        let a = if quads || shape.is_some_and(|s| s.starts_with("m8")) {
            rest / 2
        } else {
            rest * 2 / 3
        };
        let (a, b, c) = (list('a', 0..a), list('a', a..rest), list('a', rest..total));
        return format!("{name} {d}, {a}, {b}, {c};");
    }
    if name.starts_with("movmatrix") {
        return format!("{name} d0, a0;");
    }
    // Shared memory holds its own 16-bit indices.
    let fill = "mov.u32 t0, %tid.x; mov.u32 t1, t0; mov.u32 t3, sm;
        L: shl.b32 t2, t1, 2; add.u32 t2, t2, t3; shl.b32 t4, t1, 1; add.u32 t5, t4, 1; shl.b32 t5, t5, 16;
        or.b32 t4, t4, t5; st.shared.b32 [t2], t4; add.u32 t1, t1, 32; setp.lt.u32 p, t1, 4096; @p bra L;
        bar.warp.sync 0xffffffff;";
    if name.starts_with("ldmatrix") {
        let address = "and.b32 t6, a0, 127; shl.b32 t6, t6, 4; add.u32 t6, t6, t3;";
        return format!("{fill} {address} {name} {d}, [t6];");
    }
    let stride = match name.rsplit('.').next() {
        Some("b1") => 128,
        Some("tf32" | "f64") => 16,
        _ => 32,
    };
    format!("{fill} {name} {d}, [t3], {stride};")
}

/// A kernel that reads each operand from its column, executes the instruction and writes the
/// results to theirs.
fn kernel(form: &Recorded<'_>) -> String {
    let mut text = String::from(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 pout, .param .u64 pin, .param .u32 pn) {
        .reg .pred p; .reg .b32 t<8>; .reg .b64 out, in, off, x, stride; .reg .b32 n, tid, c0; .shared .align 128 .b8 sm[16384];\n",
    );
    for index in 0..form.results {
        text += &format!(".reg .b{} d{index};\n", form.result_bits);
    }
    let width = |class: &str| if matches!(class, "ds64" | "f64r") { 64 } else { 32 };
    for (index, class) in form.classes.iter().enumerate() {
        text += &format!(".reg .b{} a{index};\n", width(class));
    }
    text += "ld.param.u64 out,[pout]; ld.param.u64 in,[pin]; ld.param.u32 n,[pn]; mov.u32 tid,%tid.x; mov.u32 c0,%ctaid.x;
        mad.lo.u32 tid,c0,32,tid; mul.wide.u32 off,tid,8; add.u64 in,in,off; add.u64 out,out,off; mul.wide.u32 stride,n,8;\n";
    for (index, class) in form.classes.iter().enumerate() {
        text += &format!("ld.global.b{} a{index},[in]; add.u64 in,in,stride;\n", width(class));
    }
    text += &instruction(form);
    for index in 0..form.results {
        let widen = if form.result_bits == 64 { "mov.b64" } else { "cvt.u64.u32" };
        text += &format!("{widen} x,d{index}; st.global.b64 [out],x; add.u64 out,out,stride;\n");
    }
    text + "ret;\n}\n"
}

fn hash_of(form: &Recorded<'_>, machine: &TestMachine, level: SimdLevel) -> u64 {
    let threads = form.threads as usize;
    assert!(form.classes.len() <= COLUMN_LIMIT);
    let program = machine.load(&kernel(form), level);
    let kernel = program.kernel("k").unwrap_or_else(|error| panic!("{}: {error}", form.name));
    let mut operands = Vec::with_capacity(form.classes.len() * threads);
    for (j, class) in form.classes.iter().enumerate() {
        operands.extend((0..form.threads).map(|i| operand(class, i, j as u64)));
    }
    let (input, output) = (machine.upload(&operands), machine.alloc(form.results * threads * 8));
    let params = Params::new().push(output).push(input).push(form.threads as u32);
    machine
        .run(launch(&kernel, [form.threads as u32 / 32, 1, 1], [32, 1, 1], params), FUEL)
        .unwrap_or_else(|stop| panic!("{}: {stop:?}", form.name));
    let results = machine.read::<u64>(output, form.results * threads);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for thread in 0..threads {
        for result in 0..form.results {
            hash = (hash ^ results[result * threads + thread]).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}

#[test]
fn matrix_instructions_give_the_recorded_results() {
    for level in levels() {
        let machine = TestMachine::new();
        let forms: Vec<Recorded<'_>> =
            include_str!("../recorded/matrices.tsv").lines().map(recorded).collect();
        assert!(forms.len() > 140, "the recording has only {} forms", forms.len());
        let wrong: Vec<&str> = forms
            .iter()
            .filter(|form| hash_of(form, &machine, level) != form.hash)
            .map(|form| form.name)
            .collect();
        assert!(wrong.is_empty(), "{level:?}: {} forms differ: {wrong:#?}", wrong.len());
    }
}

/// Eight-bit floats with accumulators of halves: ones and small integers, so that every order of
/// summation is exact.
#[test]
fn eight_bit_floats_are_accumulated_in_halves_too() {
    let (one_e4m3, two_e5m2) = (0x3838_3838u32, 0x4040_4040u32);
    let text = ".version 8.7\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p, .param .u32 x, .param .u32 y) {
        .reg .b64 out, off; .reg .b32 t, a, b, c, d<2>, e<4>; .reg .f32 f;
        ld.param.u64 out,[p]; ld.param.u32 a,[x]; ld.param.u32 b,[y]; mov.u32 t, %tid.x; mul.wide.u32 off, t, 8;
        add.u64 out, out, off; mov.b32 c, 0x40003c00; mov.f32 f, 0f40400000;
        mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16 {d0,d1}, {a,a,a,a}, {b,b}, {c,c};
        st.global.b32 [out], d1;
        mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e5m2.f32 {e0,e1,e2,e3}, {a,a}, {b}, {f,f,f,f};
        st.global.b32 [out+4], e2; ret; }";
    for level in levels() {
        let machine = TestMachine::new();
        let program = machine.load(text, level);
        let kernel = program.kernel("k").unwrap();
        let out = machine.alloc(256);
        let params = Params::new().push(out).push(one_e4m3).push(two_e5m2);
        machine.run(launch(&kernel, [1, 1, 1], [32, 1, 1], params), FUEL).unwrap();
        // 32 times 1 * 2, plus 1 and 2; 16 times 1 * 2, plus 3.
        let halves = (number("f16", 66) << 16 | number("f16", 65)) as u32;
        let want = [halves, 35f32.to_bits()];
        assert_eq!(machine.read::<[u32; 2]>(out, 32), vec![want; 32]);
    }
}

/// Products that do not fit are refused when the kernel is looked up, with the instruction and a
/// reason.
#[test]
fn impossible_matrix_forms_are_refused_with_a_reason() {
    let machine = TestMachine::new();
    for (text, reason) in [
        (
            "mma.sync.aligned.m16n8k4.row.col.f32.f16.f16.f32 {d0,d1,d2,d3},{d0,d1},{d0},{d0,d1,d2,d3};",
            "no product",
        ),
        (
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {d0,d1,d2,d3},{d0},{d0},{d0,d1,d2,d3};",
            "1 registers of a where 2",
        ),
        ("wmma.load.a.sync.aligned.col.m8n8k32.u4 {d0}, [p], 32;", "no such matrix"),
        ("wgmma.fence.sync.aligned;", "sm_90a"),
        ("wgmma.commit_group.sync.aligned;", "sm_90a"),
        ("wgmma.wait_group.sync.aligned 0;", "sm_90a"),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {d0,d1,d2,d3}, p, p, 1, 1, 1, 0, 0;",
            "sm_90a",
        ),
    ] {
        let text = format!(
            ".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry k() {{ .reg .b32 d<8>; .reg .b64 p;\n{text}\nret; }}"
        );
        let program = machine.load(&text, SimdLevel::Baseline);
        let error = program.kernel("k").expect_err("refused").to_string();
        assert!(error.contains(reason) && error.contains("line 5"), "{error}");
    }
}

/// Lanes that took different ways come together for a matrix instruction.
#[test]
fn diverged_lanes_meet_at_a_matrix_instruction() {
    let text = ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) {
        .reg .pred q; .reg .b64 out, off; .reg .b32 t, v, i;
        ld.param.u64 out,[p]; mov.u32 t, %tid.x; mul.wide.u32 off, t, 4; add.u64 out, out, off;
        and.b32 i, t, 7; setp.lt.u32 q, t, 16; @q bra A;
        B: add.u32 i, i, 1; setp.lt.u32 q, i, 40; @q bra B;
        mul.lo.u32 v, t, 65537; bra.uni C;
        A: shl.b32 v, t, 16; or.b32 v, v, t;
        C: movmatrix.sync.aligned.m8n8.trans.b16 v, v;
        st.global.b32 [out], v; ret; }";
    for level in levels() {
        let machine = TestMachine::new();
        let program = machine.load(text, level);
        let kernel = program.kernel("k").unwrap();
        let out = machine.alloc(128);
        let params = Params::new().push(out);
        machine.run(launch(&kernel, [1, 1, 1], [32, 1, 1], params), FUEL).unwrap();
        // Element (r, c) was held by lane 4r + c/2; now lane 4r + c/2 holds (2(l%4), l/4) and the
        // next row's.
        let want: Vec<u32> = (0..32u32)
            .map(|lane| {
                let (row, pair) = (lane / 4, lane % 4 * 2);
                let at = |r: u32| 4 * r + row / 2;
                at(pair) | at(pair + 1) << 16
            })
            .collect();
        assert_eq!(machine.read::<u32>(out, 32), want);
    }
}
