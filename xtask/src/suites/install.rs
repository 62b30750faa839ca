//! The libraries with what they need, pinned by hash, in a virtual environment under
//! `target/suites`.
//!
//! CuPy's wheel has no tests: they are taken from its source distribution of the same version.
//! numba-cuda's wheel has them. The library that links device code on the host (`nvidia-nvjitlink`)
//! is left out on purpose: it would make machine code, where without it numba-cuda hands PTX to the
//! driver.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::lists::Tier;
use crate::command;
use crate::paths::Paths;
use crate::toolchain;

/// The pinned wheels; the copy in the stamp file says what is installed.
const WHEELS: &str = include_str!("../../../tests/suites/requirements.txt");
/// What the modules of `--full` need besides, which is too large for every test run.
const LARGE_WHEELS: &str = include_str!("../../../tests/suites/requirements-full.txt");
/// The source distribution that holds CuPy's tests.
const SOURCE: &str = include_str!("../../../tests/suites/cupy-source.txt");

/// Where the libraries and their tests lie.
pub(crate) struct Libraries {
    root: PathBuf,
}

impl Libraries {
    /// The Python that has both libraries.
    pub(super) fn python(&self) -> PathBuf {
        self.root.join("venv/bin/python3")
    }

    /// The directory from which CuPy's tests are run.
    pub(super) fn cupy_source(&self) -> PathBuf {
        self.root.join("cupy")
    }

    /// Where CuPy keeps the PTX that it has compiled.
    pub(super) fn cupy_cache(&self) -> PathBuf {
        self.root.join("cupy-cache")
    }

    /// Where Triton keeps what it has compiled.
    pub(super) fn triton_cache(&self) -> PathBuf {
        self.root.join("triton-cache")
    }

    /// What the tests print, by mode.
    pub(super) fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }
}

/// Installs what is missing; quick when nothing is.
///
/// # Errors
/// When Python, pip or PyPI cannot be had.
pub(super) fn ensure(paths: &Paths, tier: Tier) -> Result<Libraries> {
    let root = paths.target.join("suites");
    fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let lock_path = root.join("lock");
    let lock = File::create(&lock_path)
        .with_context(|| format!("cannot create {}", lock_path.display()))?;
    lock.lock().with_context(|| format!("cannot lock {}", lock_path.display()))?;
    let stamp = root.join("installed.txt");
    let wanted = format!("{WHEELS}{SOURCE}");
    let large_stamp = root.join("installed-full.txt");
    let libraries = Libraries { root };
    let is = |stamp: &Path, wanted: &str| {
        fs::read_to_string(stamp).is_ok_and(|installed| installed == wanted)
    };
    let done = |stamp: &Path, wanted: &str| {
        fs::write(stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
    };
    if !is(&stamp, &wanted) {
        done(&large_stamp, "")?;
        install(&libraries).context("CuPy and numba-cuda could not be installed from PyPI")?;
        done(&stamp, &wanted)?;
    }
    if tier == Tier::Full && !is(&large_stamp, LARGE_WHEELS) {
        println!("installing Triton (about 290 MB) beside them");
        install_wheels(&libraries, LARGE_WHEELS).context("Triton could not be installed")?;
        done(&large_stamp, LARGE_WHEELS)?;
    }
    Ok(libraries)
}

fn install(libraries: &Libraries) -> Result<()> {
    let root = &libraries.root;
    println!("installing CuPy and numba-cuda (about 300 MB of wheels) into {}", root.display());
    for old in ["venv", "cupy", "download"] {
        remove(&root.join(old))?;
    }
    let python = toolchain::ensure_pip(root)?;
    install_wheels(libraries, WHEELS)?;
    let source = root.join("cupy-source.txt");
    fs::write(&source, SOURCE)?;
    let download = root.join("download");
    command::run_quietly(
        Command::new(&python)
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--no-binary=cupy", "--require-hashes", "--dest"])
            .arg(&download)
            .arg("--requirement")
            .arg(&source)
            // pip asks the package for its name and version, which must not look for a CUDA
            // installation.
            .env("CUPY_INSTALL_USE_STUB", "1"),
    )?;
    unpack_tests(&download, &libraries.cupy_source())
}

fn install_wheels(libraries: &Libraries, wheels: &str) -> Result<()> {
    let requirements = libraries.root.join("requirements.txt");
    fs::write(&requirements, wheels)?;
    command::run_quietly(
        Command::new(libraries.python())
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--only-binary=:all:", "--require-hashes", "--requirement"])
            .arg(&requirements),
    )?;
    Ok(())
}

/// Unpacks the tests and the file that declares their markers; the library itself comes from the
/// wheel.
fn unpack_tests(download: &Path, to: &Path) -> Result<()> {
    let archive = fs::read_dir(download)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().ends_with(".tar.gz"))
        .with_context(|| format!("no source distribution in {}", download.display()))?;
    fs::create_dir_all(to)?;
    command::run_quietly(
        Command::new("tar")
            .args(["--extract", "--gzip", "--strip-components=1", "--wildcards", "--directory"])
            .arg(to)
            .arg("--file")
            .arg(&archive)
            .args(["*/tests", "*/pyproject.toml"]),
    )?;
    remove(download)
}

fn remove(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))
}
