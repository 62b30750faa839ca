//! Video instructions, against results recorded on an H200 (driver 580).

mod machine;

use machine::{Params, TestMachine, launch};
use softcuda::exec::{LoadEnv, Program, SimdLevel};

fn text(line: &str) -> String {
    format!(
        ".version 8.0 .target sm_90 .address_size 64
        .visible .entry k(.param .u64 p) {{ .reg .b64 %p; .reg .b32 %a, %b, %c, %d; ld.param.u64 %p, [p];
        ld.global.u32 %a, [%p]; ld.global.u32 %b, [%p+4]; ld.global.u32 %c, [%p+8];
        {line}
        st.global.u32 [%p+12], %d; ret; }}"
    )
}

#[test]
fn results_are_those_of_hardware() {
    let machine = TestMachine::new();
    for (line, operands, expected) in RECORDED {
        let program = machine.load(&text(line), SimdLevel::detect());
        let kernel = program.kernel("k").expect(line);
        let memory = machine.alloc(16);
        machine.write(memory, operands);
        let run = launch(&kernel, [1, 1, 1], [1, 1, 1], Params::new().push(memory));
        machine.run(run, 1000).expect("the kernel ends");
        let found = machine.read::<u32>(memory + 12, 1)[0];
        assert_eq!(found, *expected, "{line} of {operands:x?}: {found:x}");
    }
}

/// There the PTX ISA says one thing and hardware does another.
#[test]
fn disputed_forms_are_refused() {
    for line in [
        "vadd.u32.u32.u32.sat %d, %a, %b;",
        "vadd.s32.s32.s32.sat %d.h1, %a, %b, %c;",
        "vsub.u32.u32.u32.min %d, %a, %b, %c;",
        "vshl.u32.u32.u32.clamp %d.h1, %a, %b, %c;",
        "vset.u32.u32.eq %d.h1, %a, %b, %c;",
        "vmad.u32.u32.u32.sat %d, %a, %b, %c;",
    ] {
        let program = Program::load(&text(line), &LoadEnv::default()).expect("the text loads");
        assert!(program.kernel("k").is_err(), "{line}");
    }
}

/// An instruction, `%a`, `%b` and `%c`, and `%d`.
type Recorded = (&'static str, [u32; 3], u32);

const RECORDED: &[Recorded] = &[
    (
        "vadd4.u32.u32.s32.add %d.b20, %a.b0537, %b.b2216, %c;",
        [0x7fffffff, 0x8, 0xffffffff],
        0xfffffffe,
    ),
    ("vadd4.u32.u32.s32.add %d.b20, %a.b0537, %b.b2216, %c;", [0x80, 0x9059129e, 0xff], 0x1fa),
    ("vadd4.u32.u32.s32.add %d.b20, %a.b0537, %b.b2216, %c;", [0x3, 0x80, 0x7fffffff], 0x7fffffff),
    ("vmin2.s32.s32.u32.add %d, %a, %b, %c;", [0x7fffffff, 0x8, 0xffffffff], 0xfffffffe),
    ("vmin2.s32.s32.u32.add %d, %a, %b, %c;", [0x80, 0x9059129e, 0xff], 0x17f),
    ("vmin2.s32.s32.u32.add %d, %a, %b, %c;", [0x3, 0x80, 0x7fffffff], 0x80000002),
    ("vavrg4.s32.s32.s32 %d, %a, %b, %c;", [0x7fffffff, 0x8, 0xffffffff], 0x40ffff04),
    ("vavrg4.s32.s32.s32 %d, %a, %b, %c;", [0x80, 0x9059129e, 0xff], 0xc82d098f),
    ("vavrg4.s32.s32.s32 %d, %a, %b, %c;", [0x3, 0x80, 0x7fffffff], 0xc1),
    ("vsub2.s32.s32.u32.sat %d.h0, %a.h03, %b.h21, %c;", [0x7fffffff, 0x8, 0xffffffff], 0xffff8001),
    ("vsub2.s32.s32.u32.sat %d.h0, %a.h03, %b.h21, %c;", [0x80, 0x9059129e, 0xff], 0x9059),
    ("vsub2.s32.s32.u32.sat %d.h0, %a.h03, %b.h21, %c;", [0x3, 0x80, 0x7fffffff], 0x7fff0000),
    ("vabsdiff4.u32.u32.s32.sat %d, %a, %b, %c;", [0x7fffffff, 0x8, 0xffffffff], 0x7ffffff7),
    ("vabsdiff4.u32.u32.s32.sat %d, %a, %b, %c;", [0x80, 0x9059129e, 0xff], 0x705912e2),
    ("vabsdiff4.u32.u32.s32.sat %d, %a, %b, %c;", [0x3, 0x80, 0x7fffffff], 0x83),
    ("vset4.s32.u32.lt %d, %a, %b, %c;", [0x7fffffff, 0x8, 0xffffffff], 0x10101),
    ("vset4.s32.u32.lt %d, %a, %b, %c;", [0x80, 0x9059129e, 0xff], 0x1010101),
    ("vset4.s32.u32.lt %d, %a, %b, %c;", [0x3, 0x80, 0x7fffffff], 0x1),
    ("vadd.s32.s32.s32.sat %d, %a, %b;", [0x7fffffff, 0x8, 0xffffffff], 0x7fffffff),
    ("vadd.s32.s32.s32.sat %d, %a, %b;", [0x80, 0x9059129e, 0xff], 0x9059131e),
    ("vadd.s32.s32.s32.sat %d, %a, %b;", [0x3, 0x80, 0x7fffffff], 0x83),
    ("vsub.s32.u32.s32.max %d, %a, %b.b0, %c;", [0x7fffffff, 0x8, 0xffffffff], 0x7ffffff7),
    ("vsub.s32.u32.s32.max %d, %a, %b.b0, %c;", [0x80, 0x9059129e, 0xff], 0xff),
    ("vsub.s32.u32.s32.max %d, %a, %b.b0, %c;", [0x3, 0x80, 0x7fffffff], 0x7fffffff),
    ("vadd.u32.u32.s32 %d.b1, %a, %b.b0, %c;", [0x7fffffff, 0x8, 0xffffffff], 0xffff07ff),
    ("vadd.u32.u32.s32 %d.b1, %a, %b.b0, %c;", [0x80, 0x9059129e, 0xff], 0x1eff),
    ("vadd.u32.u32.s32 %d.b1, %a, %b.b0, %c;", [0x3, 0x80, 0x7fffffff], 0x7fff83ff),
    ("vshr.u32.s32.u32.wrap %d, %a, %b;", [0x7fffffff, 0x8, 0xffffffff], 0x7fffff),
    ("vshr.u32.s32.u32.wrap %d, %a, %b;", [0x80, 0x9059129e, 0xff], 0x0),
    ("vshr.u32.s32.u32.wrap %d, %a, %b;", [0x3, 0x80, 0x7fffffff], 0x3),
    ("vmad.s32.s32.s32.po.sat.shr7 %d, %a.h1, %b, %c;", [0x7fffffff, 0x8, 0xffffffff], 0x7ff),
    ("vmad.s32.s32.s32.po.sat.shr7 %d, %a.h1, %b, %c;", [0x80, 0x9059129e, 0xff], 0x2),
    ("vmad.s32.s32.s32.po.sat.shr7 %d, %a.h1, %b, %c;", [0x3, 0x80, 0x7fffffff], 0x1000000),
    ("vset.s32.u32.ge %d, %a.b0, %b.b1;", [0x7fffffff, 0x8, 0xffffffff], 0x0),
    ("vset.s32.u32.ge %d, %a.b0, %b.b1;", [0x80, 0x9059129e, 0xff], 0x0),
    ("vset.s32.u32.ge %d, %a.b0, %b.b1;", [0x3, 0x80, 0x7fffffff], 0x1),
];
