//! Writes the exported functions of the driver API from `functions.tsv`, and decides for which
//! instruction sets handlers are compiled: all in a release build or with
//! `OPENMPS_SOFT_LEVELS=all`, else the baseline alone.

use std::env;

fn main() {
    cuda_abi::build::emit(cuda_abi::classes::Library::Software);
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads outlive any dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-check-cfg=cfg(softcuda_all_levels)");
    println!("cargo::rerun-if-env-changed=OPENMPS_SOFT_LEVELS");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let asked_for = env::var("OPENMPS_SOFT_LEVELS").is_ok_and(|levels| levels == "all");
    if is_release || asked_for {
        println!("cargo::rustc-cfg=softcuda_all_levels");
    }
}
