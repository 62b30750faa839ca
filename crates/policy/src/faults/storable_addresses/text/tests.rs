use super::*;

const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

fn stored(text: &str) -> StorableAddresses {
    StorableAddresses::of(format!("{HEAD}{text}").as_bytes())
}

fn of(names: &[&str]) -> StorableAddresses {
    StorableAddresses::Of(names.iter().map(|name| name.to_string()).collect())
}

/// What a kernel with this body could store.
fn kernel(body: &str) -> StorableAddresses {
    stored(&format!(
        ".global .align 4 .u32 counter;\n.const .align 4 .f32 table[4] = {{0f00000000, 0f3F800000, 0f00000000, 0f00000000}};\n\
         .global .align 1 .b8 $str[3] = {{104, 105, 0}};\n.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b)\n;\n\
         .func (.param .b32 r) f(.param .b32 x) {{ ret; }}\n\
         .visible .entry k(.param .u64 p)\n.maxntid 128\n{{\n .reg .b64 %rd<9>;\n{body}\n ret;\n}}\n"
    ))
}

#[test]
fn reading_and_writing_variables_stores_no_address() {
    for body in [
        "",
        "ld.global.u32 %r1, [counter];\n add.s32 %r2, %r1, 1;\n st.global.u32 [counter], %r2;",
        "atom.global.add.u32 %r1, [counter+0], 1;\n st.global.u32 [%rd1], %r1;",
        "mov.u64 %rd2, table;\n mul.wide.s32 %rd3, %r1, 4;\n add.s64 %rd4, %rd2, %rd3;\n\
         ld.const.f32 %f1, [%rd4+8];\n st.global.f32 [%rd1], %f1;\n st.global.u32 [%rd1], %r1;",
        "mov.u64 %rd2, counter;\n cvta.global.u64 %rd3, %rd2;\n st.u32 [%rd3], %r1;",
        "setp.eq.s64 %p1, %rd2, %rd1;\n@%p1 bra $L1;\nmov.u64 %rd2, counter;\n$L1:\n ld.global.u32 %r1, [%rd2];",
        "{\n call.uni (retval0), f, (param0);\n}",
        ".loc 1 5 3\n // st.global.u64 [%rd1], counter;\n /* mov.u64 %rd2, counter; */",
    ] {
        assert_eq!(kernel(body), StorableAddresses::Nothing, "{body}");
    }
}

#[test]
fn an_address_that_goes_anywhere_else_is_stored() {
    for (body, names) in [
        ("mov.u64 %rd2, counter;\n st.global.u64 [%rd1], %rd2;", ["counter"]),
        (
            "mov.u64 %rd2, table;\n cvta.const.u64 %rd3, %rd2;\n add.s64 %rd4, %rd3, 4;\n st.global.u64 [%rd1], %rd4;",
            ["table"],
        ),
        // Whatever the order.
        (
            "$L1: st.global.u64 [%rd1], %rd3;\n mov.u64 %rd3, %rd2;\n mov.u64 %rd2, counter;\n bra $L1;",
            ["counter"],
        ),
        (
            "mov.b64 %rd2, counter;\n mov.b64 {%r1, %r2}, %rd2;\n st.global.u32 [%rd1], %r2;",
            ["counter"],
        ),
        ("mov.u64 %rd2, counter;\n st.global.v2.u64 [%rd1], {%rd5, %rd2};", ["counter"]),
        ("mov.u64 %rd2, counter;\n atom.global.exch.b64 %rd3, [%rd1], %rd2;", ["counter"]),
        ("mov.u64 %rd2, counter;\n st.local.u64 [%rd1], %rd2;", ["counter"]),
        ("mov.u64 %rd2, counter;\n shfl.sync.idx.b32 %r1, %rd2, 0, 31, -1;", ["counter"]),
        (
            "mov.u64 %rd2, counter;\n st.param.b64 [param0], %rd2;\n call.uni (retval0), f, (param0);",
            ["counter"],
        ),
        ("call.uni (retval0), f, (counter);", ["counter"]),
        ("mov.u64 %rd2, f;\n st.global.u64 [%rd1], %rd2;", ["f"]),
        ("mov.u64 %rd2, $str;\n st.global.u64 [%rd1], %rd2;", ["$str"]),
    ] {
        assert_eq!(kernel(body), of(&names), "{body}");
    }
}

#[test]
fn a_text_may_be_printed() {
    let printed = |function: &str| {
        kernel(&format!(
            "mov.u64 %rd2, $str;\n cvta.global.u64 %rd3, %rd2;\n {{\n .param .b64 param0;\n st.param.b64 [param0+0], %rd3;\n\
             call.uni (retval0), {function}, (param0, param1);\n }}"
        ))
    };
    assert_eq!(printed("vprintf"), StorableAddresses::Nothing);
    assert_eq!(printed("f"), of(&["$str"]));
}

#[test]
fn addresses_in_initial_values_are_stored() {
    let variables = ".global .u32 x;\n.global .u64 p = x;";
    assert_eq!(stored(variables), of(&["x"]));
    let functions = ".func f() { ret; }\n.global .u64 t[2] = {f, generic(x)};\n.global .u32 x;";
    assert_eq!(stored(functions), of(&["f", "x"]));
    let inside = ".entry k() {\n .global .u32 x;\n .global .u64 p = x;\n ret;\n}";
    assert_eq!(stored(inside), of(&["x"]));
    let managed = ".global .attribute(.managed) .u32 m;";
    assert!(matches!(stored(managed), StorableAddresses::Unknown(_)));
    assert!(matches!(stored(".global .texref t;"), StorableAddresses::Unknown(_)));
}

#[test]
fn sections_for_debuggers_are_no_code() {
    let text = ".global .u32 x;\n.entry k() {\n.loc 1 2 3, function_name x, inlined_at 1 2 3\n ret;\n}\n\
                .section .debug_info\n{\n.b64 x\n.b8 0\n}\n.entry l() { st.global.u64 [%rd1], x; ret; }\n";
    assert_eq!(stored(text), of(&["x"]));
    assert_eq!(stored(&text.replace("], x;", "], %rd2;")), StorableAddresses::Nothing);
}
