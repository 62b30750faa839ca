//! Programs of HeCBench (github.com/zjin-lcf/HeCBench, BSD-3) on the software GPU: natively, then
//! under OpenMPS. A step of `cargo xtask test --full`, with the product that was built last.
//!
//! Their sources are not ours: whoever has a clone names it by `OPENMPS_HECBENCH=DIR`. What is
//! built and with which sizes it runs is in `tests/gpu/suites/hecbench-softcuda.tsv`;
//! `tests/gpu/suites.py` does the work, as it does on a real GPU. What was built stays in
//! `target/hecbench`.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command;
use crate::dist::Dist;
use crate::paths::Paths;
use crate::toolchain::{self, Cudart};

const SOURCES: &str = "OPENMPS_HECBENCH";
/// The driver compiles what is in the program for its device.
const ARCHITECTURE: &str = "compute_80";
/// Two busy cores need half of it the first time, most of that for the compiler.
const LIMIT_S: u32 = 3600;
/// Of one program.
const PROGRAM_LIMIT_S: u32 = 60;
/// The software GPU uses all cores by itself.
const AT_ONCE: u32 = 2;

/// Builds and runs the list, if the sources are there.
///
/// # Errors
/// When a program of the list is not built, or not right in one of the two ways.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let Some(clone) = env::var_os(SOURCES).map(PathBuf::from) else {
        println!("not run: {SOURCES} names no clone of github.com/zjin-lcf/HeCBench");
        return Ok(());
    };
    let sources = clone.join("src");
    ensure!(sources.is_dir(), "{SOURCES}: {} is not a directory", sources.display());
    let openmps = Dist::at(paths).root.join("bin/openmps");
    ensure!(openmps.exists(), "there is no {}: run `cargo xtask build` first", openmps.display());
    let toolchain = toolchain::ensure(paths)?;
    let libraries = format!("-L{}", toolchain.cudart_directory(Cudart::V13_0).display());
    command::run(
        Command::new("python3")
            .arg(paths.root.join("tests/gpu/suites.py"))
            .args(["programs", "--softcuda", "--all-right"])
            .arg(format!("--arch={ARCHITECTURE}"))
            .arg(format!("--seconds={LIMIT_S}"))
            .arg(format!("--limit-s={PROGRAM_LIMIT_S}"))
            .arg(format!("--at-once={AT_ONCE}"))
            .args(pair("--sources", &sources))
            .args(pair("--list", &paths.root.join("tests/gpu/suites/hecbench-softcuda.tsv")))
            .args(pair("--target", &paths.target))
            .args(pair("--built", &paths.target.join("hecbench")))
            .args(pair("--nvcc", &toolchain.nvcc()))
            .env("NVCC_APPEND_FLAGS", libraries),
    )
    .context("not all programs of HeCBench were right")
}

fn pair<'a>(option: &'a str, value: &'a Path) -> [&'a OsStr; 2] {
    [option.as_ref(), value.as_os_str()]
}
