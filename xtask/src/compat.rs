//! COMPATIBILITY.md, from the lists of functions of the two libraries and of their proofs.

use std::fs;

use anyhow::{Context, Result, bail};
use cuda_abi::classes::{Classes, Library};
use cuda_abi::compat;

use crate::paths::Paths;
use crate::proofs;

/// What to do with the text.
pub(crate) enum Mode {
    /// Write the file.
    Write,
    /// Fail if the file is not up to date.
    Check,
}

/// Writes or checks COMPATIBILITY.md.
pub(crate) fn run(paths: &Paths, mode: Mode) -> Result<()> {
    let classes = |library, name: &str| {
        Classes::read(library, &paths.root.join("crates").join(name).join("functions.tsv"))
    };
    let text = compat::markdown(
        &classes(Library::Client, "client")?,
        &classes(Library::Software, "softcuda")?,
        &proofs::read(paths)?,
    );
    let path = paths.root.join("COMPATIBILITY.md");
    match mode {
        Mode::Write => {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        Mode::Check if fs::read_to_string(&path).unwrap_or_default() == text => Ok(()),
        Mode::Check => bail!("COMPATIBILITY.md is out of date: run `cargo xtask compat`"),
    }
}
