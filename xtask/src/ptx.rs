//! `cargo xtask ptx`: compiles the kernels that are checked in beside their source as PTX.
//!
//! The demo needs nothing but cargo, so the PTX of its kernels is in the repository. This makes it
//! anew, with the compiler that `cargo xtask toolchain` installs.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

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
    let toolchain = toolchain::ensure(paths)?;
    let mut compiled = 0;
    for directory in DIRECTORIES {
        for source in files_in(&paths.root.join(directory), "cu")? {
            let ptx = source.with_extension("ptx");
            command::run_quietly(
                Command::new(toolchain.nvcc())
                    .args(["-std=c++17", "-O2", "-arch=compute_75", "-ptx"])
                    .arg(&source)
                    .arg("-o")
                    .arg(&ptx),
            )?;
            let text = fs::read_to_string(&ptx)
                .with_context(|| format!("cannot read {}", ptx.display()))?;
            fs::write(&ptx, without_comments(&text))
                .with_context(|| format!("cannot write {}", ptx.display()))?;
            compiled += 1;
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
