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
