//! `cargo xtask toolchain`: a CUDA compiler and two generations of the CUDA runtime library, without root
//! and without NVIDIA's installer: pinned wheels from PyPI (`cuda-requirements.txt`).
//!
//! They are tools of the tests only; nothing of them is linked into the product. A checkout can share the
//! tool chain of another one by `OPENMPS_CUDA_TOOLCHAIN=DIR`, the directory that this module made there.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::paths::Paths;

/// The pinned wheels; the copy in the stamp file says what is installed.
const REQUIREMENTS: &str = include_str!("../cuda-requirements.txt");

/// Where the compiler and the libraries lie.
pub(crate) struct Toolchain {
    root: PathBuf,
}

/// A CUDA runtime library that programs are linked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cudart {
    /// CUDA 12.9.
    V12_9,
    /// CUDA 13.0.
    V13_0,
}

impl Toolchain {
    fn cuda13(&self) -> PathBuf {
        self.root.join("packages/nvidia/cu13")
    }

    /// The CUDA C++ compiler driver; it finds its own headers and tools.
    pub(crate) fn nvcc(&self) -> PathBuf {
        self.cuda13().join("bin/nvcc")
    }

    /// Directory of `cuda.h` and `nvrtc.h`.
    pub(crate) fn include(&self) -> PathBuf {
        self.cuda13().join("include")
    }

    /// Directory of `libnvrtc.so.13`.
    pub(crate) fn nvrtc_directory(&self) -> PathBuf {
        self.cuda13().join("lib")
    }

    /// Directory of `libcudart_static.a` and of the shared library.
    pub(crate) fn cudart_directory(&self, version: Cudart) -> PathBuf {
        match version {
            Cudart::V12_9 => self.root.join("packages/nvidia/cuda_runtime/lib"),
            Cudart::V13_0 => self.cuda13().join("lib"),
        }
    }
}

/// Installs what is missing and says where it is; quick when nothing is.
///
/// # Errors
/// When Python, pip, a C++ compiler or the network is missing; the message says which.
pub(crate) fn ensure(paths: &Paths) -> Result<Toolchain> {
    ensure_cxx()?;
    let root = match env::var_os("OPENMPS_CUDA_TOOLCHAIN") {
        Some(shared) => PathBuf::from(shared),
        None => paths.target.join("cuda-toolchain"),
    };
    fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let lock_path = root.join("lock");
    let lock = File::create(&lock_path)
        .with_context(|| format!("cannot create {}", lock_path.display()))?;
    lock.lock().with_context(|| format!("cannot lock {}", lock_path.display()))?;

    let stamp = root.join("installed.txt");
    let toolchain = Toolchain { root };
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == REQUIREMENTS) {
        return Ok(toolchain);
    }
    install(&toolchain.root)?;
    fs::write(&stamp, REQUIREMENTS).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(toolchain)
}

fn install(root: &Path) -> Result<()> {
    println!("installing the CUDA compiler (about 200 MB of wheels) into {}", root.display());
    let packages = root.join("packages");
    if packages.exists() {
        fs::remove_dir_all(&packages)
            .with_context(|| format!("cannot remove {}", packages.display()))?;
    }
    let requirements = root.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)
        .with_context(|| format!("cannot write {}", requirements.display()))?;
    let python = ensure_pip(root)?;
    command::run_quietly(
        Command::new(python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--only-binary=:all:", "--require-hashes", "--target"])
            .arg(&packages)
            .arg("--requirement")
            .arg(&requirements),
    )
    .context(
        "pip could not install the CUDA wheels: this step needs PyPI, or set \
         OPENMPS_CUDA_TOOLCHAIN to the target/cuda-toolchain of a checkout that has them",
    )?;
    Ok(())
}

/// A Python that has pip: a virtual environment in `root/venv`, for which Debian has a package of its own.
///
/// # Errors
/// When there is no Python and none can be installed.
pub(crate) fn ensure_pip(root: &Path) -> Result<PathBuf> {
    let environment = root.join("venv");
    let create =
        || command::run_quietly(Command::new("python3").args(["-m", "venv"]).arg(&environment));
    if let Err(error) = create() {
        apt_install(&["python3", "python3-venv"])
            .with_context(|| format!("python3 cannot make a virtual environment: {error:#}"))?;
        create()?;
    }
    Ok(environment.join("bin/python3"))
}

fn ensure_cxx() -> Result<()> {
    if Command::new("g++").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    apt_install(&["g++"]).context("the CUDA compiler needs g++, which is not installed")
}

fn apt_install(packages: &[&str]) -> Result<()> {
    let words = packages.join(" ");
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        bail!("install it first: apt-get install {words}");
    }
    println!("installing Debian packages: {words}");
    let apt = |arguments: &[&str]| {
        command::run_quietly(
            Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(arguments),
        )
    };
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], packages].concat())?;
    Ok(())
}
