//! Operands in positions that compilers rarely use: what random programs found.

mod machine;

use machine::{Params, TestMachine, launch, levels};

/// Runs `body`, which leaves a result in `%r1` or `%d1`, in one thread; returns both.
fn result(functions: &str, body: &str) -> (u32, u64) {
    let text = format!(
        ".version 8.0 .target sm_90 .address_size 64 {functions}
        .visible .entry kernel(.param .u64 output) {{
        .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .b64 %output;
        ld.param.u64 %output, [output];
        mov.b16 %h2, 0xfffd; mov.b32 %r2, 0x89abcdef; mov.b64 %d2, 0x123456789abcdef0;
        mov.b32 %r1, 0; mov.b64 %d1, 0;
        {body}
        st.global.b32 [%output], %r1; st.global.b64 [%output+8], %d1; ret; }}"
    );
    let mut results = Vec::new();
    for level in levels() {
        let machine = TestMachine::new();
        let program = machine.load(&text, level);
        let output = machine.alloc(16);
        let kernel = program.kernel("kernel").unwrap();
        machine
            .run(launch(&kernel, [1, 1, 1], [1, 1, 1], Params::new().push(output)), 1000)
            .unwrap();
        results.push((machine.read::<u32>(output, 1)[0], machine.read::<u64>(output + 8, 1)[0]));
    }
    assert!(results.iter().all(|other| *other == results[0]), "{results:x?}");
    results[0]
}

#[test]
fn the_constant_addend_of_a_wide_product_is_as_wide_as_the_product() {
    assert_eq!(result("", "mad.wide.s16 %r1, %h2, 2, 0x3f800000;").0, 0x3f80_0000 - 6);
    assert_eq!(result("", "mad.wide.u16 %r1, %h2, 1, 0x10000;").0, 0x1_fffd);
    assert_eq!(result("", "mad.wide.s32 %d1, %r2, 0, 0x123456789;").1, 0x1_2345_6789);
}

#[test]
fn functions_return_registers_of_every_width() {
    let functions = "
        .func (.reg .b64 %result) wide(.reg .b64 %a) { add.u64 %result, %a, 1; ret; }
        .func (.reg .b16 %result) narrow(.reg .b16 %a) { add.u16 %result, %a, 1; ret; }
        .func (.reg .pred %result) test(.reg .b32 %a) { setp.ne.u32 %result, %a, 0; ret; }";
    assert_eq!(result(functions, "call (%d1), wide, (%d2);").1, 0x1234_5678_9abc_def1);
    assert_eq!(result(functions, "call (%h1), narrow, (%h2); cvt.u32.u16 %r1, %h1;").0, 0xfffe);
    assert_eq!(result(functions, "call (%p1), test, (%r2); selp.u32 %r1, 7, 8, %p1;").0, 7);
}

#[test]
fn arguments_are_as_wide_as_register_parameters() {
    let functions = "
        .func (.reg .b64 %result) wide(.reg .b64 %a, .reg .b32 %b) {
        .reg .b64 %c; cvt.u64.u32 %c, %b; shl.b64 %result, %a, 8; add.u64 %result, %result, %c; ret; }
        .func (.reg .b32 %result) mixed(.reg .b16 %a, .reg .pred %b, .reg .f64 %c) {
        .reg .b32 %d; cvt.u32.u16 %d, %a; selp.b32 %d, %d, 0, %b; cvt.rn.f32.f64 %result, %c; add.u32 %result, %result, %d; ret; }";
    let wide = |arguments: &str| result(functions, &format!("call (%d1), wide, ({arguments});")).1;
    assert_eq!(wide("5, 7"), 0x507);
    assert_eq!(wide("0x123456789abcde, 7"), 0x1234_5678_9abc_de07);
    assert_eq!(wide("-1, 9"), 0xffff_ffff_ffff_ff09);
    assert_eq!(wide("%r2, 0x11"), 0x0089_abcd_ef11, "a narrower register");
    let mixed =
        |arguments: &str| result(functions, &format!("call (%r1), mixed, ({arguments});")).0;
    assert_eq!(mixed("3, 1, 1.5"), 0x3fc0_0003);
    assert_eq!(mixed("%h2, 0, %d2"), (f64::from_bits(0x1234_5678_9abc_def0) as f32).to_bits());
    let through_pointer = "mov.u64 %d1, wide;
        proto: .callprototype (.reg .b64 _) _ (.reg .b64 _, .reg .b32 _);
        call (%d1), %d1, (0x123456789abcde, 0x22), proto;";
    assert_eq!(result(functions, through_pointer).1, 0x1234_5678_9abc_de22);
}

#[test]
fn constants_that_slct_chooses_between_are_of_the_first_type() {
    assert_eq!(result("", "slct.b32.f32 %r1, -5, %r2, 0f3F800000;").0, -5i32 as u32);
    assert_eq!(
        result("", "slct.u16.f32 %h1, %h2, 0x7f, 0fBF800000; cvt.u32.u16 %r1, %h1;").0,
        0x7f
    );
    assert_eq!(result("", "slct.f32.s32 %r1, %r2, 0f40000000, -1;").0, 0x4000_0000);
    assert_eq!(result("", "slct.s64.s32 %d1, -2, %d2, 1;").1, -2i64 as u64);
}

#[test]
fn integers_saturate_in_half_precision_too() {
    let half = |ptx: &str| result("", &format!("{ptx} cvt.u32.u16 %r1, %h1;")).0;
    assert_eq!(half("mov.b32 %r2, 5; cvt.rn.sat.f16.s32 %h1, %r2;"), 0x3c00);
    assert_eq!(half("mov.b32 %r2, -5; cvt.rz.sat.f16.s32 %h1, %r2;"), 0);
    assert_eq!(half("mov.b32 %r2, -5; cvt.rp.sat.f16.u32 %h1, %r2;"), 0x3c00);
    assert_eq!(half("mov.b64 %d2, 0; cvt.rn.sat.f16.u64 %h1, %d2;"), 0);
}

/// As an H200 does: `.ftz` does not reach the operands of conversions to half precision.
#[test]
fn subnormal_operands_round_away_from_zero_in_half_precision() {
    let half = |ptx: &str| result("", &format!("{ptx} cvt.u32.u16 %r1, %h1;")).0;
    assert_eq!(half("mov.b32 %r2, 0x00000123; cvt.rp.ftz.f16.f32 %h1, %r2;"), 1);
    assert_eq!(half("mov.b32 %r2, 0x80000123; cvt.rm.ftz.f16.f32 %h1, %r2;"), 0x8001);
    assert_eq!(half("mov.b32 %r2, 0x00000123; cvt.rn.ftz.f16.f32 %h1, %r2;"), 0);
}

#[test]
fn roots_that_are_no_numbers_are_the_one_nan() {
    for operand in ["0fBF800000", "0fFF800000", "0f7FC05A89", "0fFF812345"] {
        let root = format!("mov.b32 %r2, {operand}; sqrt.rn.f32 %r1, %r2;");
        assert_eq!(result("", &root).0, 0x7fff_ffff, "{operand}");
    }
    assert_eq!(result("", "mov.b32 %r2, 0x80000000; sqrt.rn.f32 %r1, %r2;").0, 0x8000_0000);
}

#[test]
fn minima_and_maxima_are_of_three_sources_too() {
    let of_three = |opcode: &str| {
        // 3, -5 and 0.5; then with a value that is no number.
        let body =
            format!("mov.b32 %r2, 0xc0a00000; {opcode}.f32 %r1, 0f40400000, %r2, 0f3f000000;");
        f32::from_bits(result("", &body).0)
    };
    assert_eq!(of_three("max"), 3.0);
    assert_eq!(of_three("min"), -5.0);
    let lost = "mov.b32 %r2, 0x7fc00000; max.f32 %r1, 0f40400000, %r2, 0f3f000000;";
    assert_eq!(f32::from_bits(result("", lost).0), 3.0);
    let kept = "mov.b32 %r2, 0x7fc00000; max.NaN.f32 %r1, 0f40400000, %r2, 0f3f000000;";
    assert!(f32::from_bits(result("", kept).0).is_nan());
}
