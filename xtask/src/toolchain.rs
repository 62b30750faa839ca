//! `cargo xtask toolchain`: a CUDA compiler, three generations of the CUDA runtime library and two
//! of the run-time compiler, without root and without NVIDIA's installer: pinned wheels from PyPI
//! (`cuda-requirements.txt` and its neighbours).
//!
//! They are tools of the tests only; nothing of them is linked into the product. A checkout can
//! share the tool chain of another one by `OPENMPS_CUDA_TOOLCHAIN=DIR`, the directory that this
//! module made there.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::paths::Paths;

/// Wheels in a directory of their own, as those of several generations have files of the same
/// names.
struct Wheels {
    directory: &'static str,
    /// The file that says what is installed: a copy of the requirements.
    stamp: &'static str,
    requirements: &'static str,
    /// For people.
    what: &'static str,
}

const WHEELS: [Wheels; 4] = [
    Wheels {
        directory: "packages",
        stamp: "installed.txt",
        requirements: include_str!("../cuda-requirements.txt"),
        what: "the CUDA compiler (about 200 MB of wheels)",
    },
    Wheels {
        directory: "cuda-11",
        stamp: "installed-cuda-11.txt",
        requirements: include_str!("../cuda-11-requirements.txt"),
        what: "the CUDA runtime library 11.8 (1 MB)",
    },
    Wheels {
        directory: "nvrtc-12",
        stamp: "installed-nvrtc-12.txt",
        requirements: include_str!("../nvrtc-12-requirements.txt"),
        what: "the run-time compiler 12.9 (90 MB)",
    },
    Wheels {
        directory: "nvtx",
        stamp: "installed-nvtx.txt",
        requirements: include_str!("../nvtx-requirements.txt"),
        what: "the headers of NVTX (100 KB)",
    },
];

/// Where the compiler and the libraries lie.
pub(crate) struct Toolchain {
    root: PathBuf,
}

/// A CUDA runtime library that programs are linked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cudart {
    /// CUDA 11.8.
    V11_8,
    /// CUDA 12.9.
    V12_9,
    /// CUDA 13.0.
    V13_0,
}

/// A library that compiles CUDA C++ at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nvrtc {
    /// CUDA 12.9.
    V12_9,
    /// CUDA 13.0.
    V13_0,
}

impl Nvrtc {
    /// Its file's name.
    pub(crate) fn library(self) -> &'static str {
        match self {
            Self::V12_9 => "libnvrtc.so.12",
            Self::V13_0 => "libnvrtc.so.13",
        }
    }
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

    /// Directory of `nvtx3/nvToolsExt.h`.
    pub(crate) fn nvtx_include(&self) -> PathBuf {
        self.root.join("nvtx/nvidia/cu13/include")
    }

    /// Directory of [`Nvrtc::library`].
    pub(crate) fn nvrtc_directory(&self, version: Nvrtc) -> PathBuf {
        match version {
            Nvrtc::V12_9 => self.root.join("nvrtc-12/nvidia/cuda_nvrtc/lib"),
            Nvrtc::V13_0 => self.cuda13().join("lib"),
        }
    }

    /// Directory of `libcudart_static.a` (from 12.9 on) and of the shared library.
    pub(crate) fn cudart_directory(&self, version: Cudart) -> PathBuf {
        match version {
            Cudart::V11_8 => self.root.join("cuda-11/nvidia/cuda_runtime/lib"),
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

    for wheels in &WHEELS {
        let stamp = root.join(wheels.stamp);
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wheels.requirements) {
            continue;
        }
        install(&root, wheels)?;
        fs::write(&stamp, wheels.requirements)
            .with_context(|| format!("cannot write {}", stamp.display()))?;
    }
    Ok(Toolchain { root })
}

fn install(root: &Path, wheels: &Wheels) -> Result<()> {
    println!("installing {} into {}", wheels.what, root.display());
    let packages = root.join(wheels.directory);
    if packages.exists() {
        fs::remove_dir_all(&packages)
            .with_context(|| format!("cannot remove {}", packages.display()))?;
    }
    let requirements = root.join("requirements.txt");
    fs::write(&requirements, wheels.requirements)
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

/// A Python that has pip: a virtual environment in `root/venv`, for which Debian has a package of
/// its own.
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
