//! Every instruction form that compilers were seen to write can be prepared: one kernel a form, named in the line above it.

use softcuda::exec::{LoadEnv, Program};

const PTX: &str = include_str!("kernels/forms.ptx");

#[test]
fn every_listed_form_is_executable() {
    let program = Program::load(PTX, &LoadEnv::default()).unwrap();
    let refused: Vec<String> = program
        .kernel_names()
        .iter()
        .filter_map(|name| program.kernel(name).err())
        .map(|error| error.to_string())
        .collect();
    assert!(refused.is_empty(), "{} forms refused:\n{}", refused.len(), refused.join("\n"));
}
