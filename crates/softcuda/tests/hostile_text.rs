//! PTX texts that fuzzing found something with.

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
