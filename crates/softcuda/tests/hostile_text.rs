//! PTX texts that fuzzing, or somebody with bad intent, found something with.

use softcuda::exec::{LoadEnv, Program};

#[test]
fn a_version_beyond_all_numbers_overflows_nothing() {
    for version in ["4294967295.9", "429496729.6", "18446744073709551615.0", "0.0"] {
        let text = format!(
            ".version {version}\n.target sm_90\n.address_size 64\n.visible .entry k() {{ ret; }}"
        );
        // Whether it loads is not the point.
        if let Ok(program) = Program::load(&text, &LoadEnv::default()) {
            assert!(program.kernel("k").is_ok());
        }
    }
}

#[test]
fn empty_braces_are_refused() {
    for line in
        ["mov.b64 %d1, {};", "mov.b64 {}, %d1;", "mov.b128 %q, {};", "ld.global.v2.b32 {}, [%d1];"]
    {
        let text = format!(
            ".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry k() {{
            .reg .b64 %d<2>; .reg .b128 %q; {line} ret; }}"
        );
        let program = Program::load(&text, &LoadEnv::default());
        assert!(
            program.is_err() || program.is_ok_and(|program| program.kernel("k").is_err()),
            "{line}"
        );
    }
}

/// The reason for which a kernel named `k` is refused.
fn refusal(text: &str) -> String {
    let program = Program::load(text, &LoadEnv::default()).expect("the text loads");
    program.kernel("k").expect_err("the kernel is refused").to_string()
}

/// Lists of operands have 16-bit lengths. One that was cut off let a call read registers that it
/// does not have.
#[test]
fn calls_with_more_words_than_a_list_holds_are_refused() {
    for (results, arguments) in [(4, 0), (0, 5), (5, 5)] {
        let declare = |prefix: &str, count: usize| -> String {
            (0..count).map(|i| format!(".param .b8 {prefix}{i}[65536];")).collect()
        };
        let list = |prefix: &str, count: usize| -> String {
            (0..count).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>().join(", ")
        };
        let returns = match results {
            0 => String::new(),
            count => format!("({}), ", list("r", count)),
        };
        let text = format!(
            ".version 8.3\n.target sm_90\n.address_size 64\n.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
            .visible .entry k() {{ {} {} call {returns}vprintf, ({}); ret; }}",
            declare("r", results),
            declare("a", arguments),
            list("a", arguments),
        );
        assert!(refusal(&text).contains("operands"), "{}", refusal(&text));
    }
}

#[test]
fn vectors_of_different_widths_are_not_moved_into_each_other() {
    for (to, from) in [("b64", "b32"), ("b32", "b64"), ("b64", "pred")] {
        let text = format!(
            ".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry k() {{
            .reg .v2 .{to} %to; .reg .v2 .{from} %from; mov.v2.b64 %to, %from; ret; }}"
        );
        assert!(refusal(&text).contains("widths"), "{}", refusal(&text));
    }
}

#[test]
fn the_local_memory_of_a_chain_of_calls_is_bounded() {
    let functions: String = (0..64)
        .map(|i| {
            let next = if i == 0 { String::new() } else { format!("call f{};", i - 1) };
            format!(
                ".func f{i}() {{ .local .b8 space[400000]; .reg .b64 %d;
                mov.u64 %d, space; st.local.u64 [%d], %d; {next} ret; }}\n"
            )
        })
        .collect();
    let text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n{functions}
        .visible .entry k() {{ call f63; ret; }}"
    );
    assert!(refusal(&text).contains("local memory"), "{}", refusal(&text));
}
