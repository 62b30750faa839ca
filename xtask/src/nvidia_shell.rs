//! `cargo xtask fuzz shell`: NVIDIA's control shell and ours are given the same random scripts, by
//! `tests/control/fuzz.py`.
//!
//! NVIDIA's is in Debian's package `nvidia-cuda-mps`, which is unpacked under `target/debian` and
//! not installed. It starts without a GPU.

use std::process::Command;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use crate::command;
use crate::debian::{self, Unpacked};
use crate::paths::Paths;

/// Of NVIDIA's drivers one that Debian has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Release {
    /// In bookworm
    #[value(name = "535")]
    R535,
    /// In trixie
    #[value(name = "550")]
    R550,
    /// In experimental
    #[value(name = "555")]
    R555,
}

impl Release {
    /// The number, and Debian's release.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Release::R535 => ("535", "bookworm"),
            Release::R550 => ("550", "trixie"),
            Release::R555 => ("555", "experimental"),
        }
    }
}

/// Compares the two for some seconds; `ours` is the product that was built last. Where NVIDIA's
/// cannot be had, it says so.
///
/// # Errors
/// A difference that is not among those that are known, or no product.
pub(crate) fn fuzz(paths: &Paths, release: Release, seconds: u64, seed: Option<u64>) -> Result<()> {
    let (number, debian) = release.names();
    let folder = paths.target.join("debian").join(format!("nvidia-cuda-mps-{number}"));
    let unpacked = debian::ensure_of_release(&folder, debian, "non-free", "nvidia-cuda-mps");
    let root = match unpacked {
        Ok(Unpacked::At(root)) => root,
        Ok(Unpacked::Skipped(why)) => {
            println!("not compared with NVIDIA's shell of driver {number}: {why}");
            return Ok(());
        }
        Err(error) => {
            println!("not compared with NVIDIA's shell of driver {number}: {error:#}");
            return Ok(());
        }
    };
    let ours = paths.target.join("dist/bin/nvidia-cuda-mps-control");
    ensure!(ours.exists(), "there is no {}: run `cargo xtask build` first", ours.display());
    let mut python = Command::new("python3");
    python.arg(paths.root.join("tests/control/fuzz.py")).arg("--ours").arg(ours);
    python.arg("--original").arg(root.join("usr/bin/nvidia-cuda-mps-control"));
    python.args(["--release", number, "--seconds", &seconds.to_string()]);
    if let Some(seed) = seed {
        python.args(["--seed", &seed.to_string()]);
    }
    command::run(&mut python)
}
