//! `cargo xtask ptx`: compiles the kernels that are checked in beside their source as PTX.
//!
//! The demo needs nothing but cargo, so the PTX of its kernels is in the repository. This makes it
//! anew, with the compiler that `cargo xtask toolchain` installs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command;
use crate::paths::Paths;
use crate::programs::files_in;
use crate::toolchain;

/// Where kernels lie, relative to the root.
const DIRECTORIES: &[&str] = &["programs/demo/kernels"];

/// Compiles every `.cu` of the directories into the `.ptx` beside it; returns how many.
///
/// # Errors
/// When the compiler is missing or refuses a kernel.
pub(crate) fn regenerate(paths: &Paths) -> Result<usize> {
    let compiled = compile(paths)?;
    for (ptx, text) in &compiled {
        fs::write(ptx, text).with_context(|| format!("cannot write {}", ptx.display()))?;
    }
    Ok(compiled.len())
}

/// Checks that every `.ptx` is what its source compiles to.
///
/// # Errors
/// When one is not; the message names it.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    for (ptx, text) in compile(paths)? {
        let present =
            fs::read_to_string(&ptx).with_context(|| format!("cannot read {}", ptx.display()))?;
        ensure!(present == text, "{} is out of date: run `cargo xtask ptx`", ptx.display());
    }
    Ok(())
}

/// Each `.ptx` and the text that belongs there.
fn compile(paths: &Paths) -> Result<Vec<(PathBuf, String)>> {
    let toolchain = toolchain::ensure(paths)?;
    let scratch = tempfile::tempdir()?;
    let mut compiled = Vec::new();
    for directory in DIRECTORIES {
        for source in files_in(&paths.root.join(directory), "cu")? {
            let fresh = scratch.path().join("fresh.ptx");
            command::run_quietly(
                Command::new(toolchain.nvcc())
                    .args(["-std=c++17", "-O2", "-arch=compute_75", "-ptx"])
                    .arg(&source)
                    .arg("-o")
                    .arg(&fresh),
            )?;
            let text = fs::read_to_string(&fresh)
                .with_context(|| format!("cannot read {}", fresh.display()))?;
            compiled.push((source.with_extension("ptx"), without_comments(&text)));
        }
    }
    Ok(compiled)
}

/// The compiler's banner and its notes change with every build of it; the code does not.
fn without_comments(ptx: &str) -> String {
    let code = ptx.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text: Vec<&str> = code.collect();
    format!("{}\n", text.join("\n").trim())
}
