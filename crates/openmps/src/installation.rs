//! Where the libraries of OpenMPS are, and which driver does the work.
//!
//! The library directory is `OPENMPS_LIB_DIR`; else `../lib/openmps` beside the executable's
//! directory; else the executable's own directory if it has `libcuda.so.1` in it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// By this name the executable is the original's control utility; so are daemons shown.
pub(crate) const ORIGINAL_NAME: &str = "nvidia-cuda-mps-control";
/// Our client library, under the name by which programs look for the driver.
const CLIENT_LIBRARY: &str = "libcuda.so.1";
/// The software GPU.
const SOFTWARE_GPU: &str = "libsoftcuda.so";
/// Names the driver that does the work.
pub(crate) const NATIVE_DRIVER_VARIABLE: &str = settings::NATIVE_DRIVER.variable;

/// Where distributions, containers and WSL put NVIDIA's driver library.
const SYSTEM_LIBRARY_DIRECTORIES: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib64/nvidia",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

/// The library directory.
///
/// # Errors
/// Where it was looked for, when it is nowhere.
pub(crate) fn library_directory() -> anyhow::Result<PathBuf> {
    if let Some(directory) = std::env::var_os("OPENMPS_LIB_DIR").filter(|value| !value.is_empty()) {
        let directory = std::path::absolute(directory)?;
        if !directory.join(CLIENT_LIBRARY).exists() {
            bail!("OPENMPS_LIB_DIR={} has no {CLIENT_LIBRARY} in it", directory.display());
        }
        return Ok(directory);
    }
    let executable = std::env::current_exe().context("cannot find this executable")?;
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let installed = beside.parent().unwrap_or(Path::new("/")).join("lib/openmps");
    for directory in [installed.as_path(), beside] {
        if directory.join(CLIENT_LIBRARY).exists() {
            return Ok(directory.to_owned());
        }
    }
    bail!(
        "the libraries of OpenMPS are neither in {} nor in {}: set OPENMPS_LIB_DIR to the directory that has {CLIENT_LIBRARY}",
        installed.display(),
        beside.display()
    )
}

/// Which driver does the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NativeDriver {
    /// Named by `OPENMPS_NATIVE_DRIVER` or an option.
    Named(PathBuf),
    /// NVIDIA's, found in the system.
    System(PathBuf),
    /// The software GPU, since there is no NVIDIA driver at all.
    SoftwareForWant(PathBuf),
}

impl NativeDriver {
    pub(crate) fn path(&self) -> &Path {
        match self {
            NativeDriver::Named(path)
            | NativeDriver::System(path)
            | NativeDriver::SoftwareForWant(path) => path,
        }
    }
}

/// What was asked for on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DriverWish {
    /// Nothing: the environment or the system decides.
    None,
    /// The software GPU.
    Software,
    /// This library.
    Path(PathBuf),
}

/// Finds the driver that does the work.
///
/// # Errors
/// A named library that is not there; a system whose NVIDIA driver has devices but no library.
pub(crate) fn native_driver(wish: DriverWish, libraries: &Path) -> anyhow::Result<NativeDriver> {
    let software = libraries.join(SOFTWARE_GPU);
    let named = match wish {
        DriverWish::Software => Some(software.clone()),
        DriverWish::Path(path) => Some(path),
        DriverWish::None => std::env::var_os(NATIVE_DRIVER_VARIABLE)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from),
    };
    if let Some(path) = named {
        let path = std::path::absolute(path)?;
        if !path.exists() {
            bail!("there is no driver library {}", path.display());
        }
        return Ok(NativeDriver::Named(path));
    }
    if let Some(path) = system_driver(Some(libraries)) {
        return Ok(NativeDriver::System(path));
    }
    if Path::new("/dev/nvidiactl").exists() {
        bail!(
            "NVIDIA's kernel driver is loaded, but its {CLIENT_LIBRARY} is in none of the usual places: set {NATIVE_DRIVER_VARIABLE} to it"
        );
    }
    if !software.exists() {
        bail!(
            "this system has no NVIDIA driver, and {} has no {SOFTWARE_GPU}",
            libraries.display()
        );
    }
    Ok(NativeDriver::SoftwareForWant(software))
}

/// The driver of a daemon that was started by hand: the named one, or NVIDIA's. The software GPU is
/// never a guess there.
///
/// # Errors
/// Which library is missing.
pub(crate) fn daemon_driver() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os(NATIVE_DRIVER_VARIABLE).filter(|value| !value.is_empty());
    match named {
        Some(path) => {
            let path = std::path::absolute(path)?;
            if !path.exists() {
                bail!("{NATIVE_DRIVER_VARIABLE}={}: there is no such library", path.display());
            }
            Ok(path)
        }
        None => {
            let libraries = library_directory().ok();
            let software = libraries.clone().unwrap_or_default().join(SOFTWARE_GPU);
            system_driver(libraries.as_deref()).with_context(|| {
                format!(
                    "NVIDIA's {CLIENT_LIBRARY} is in none of the usual places: set {NATIVE_DRIVER_VARIABLE} to it, or to {} for the software GPU",
                    software.display()
                )
            })
        }
    }
}

/// NVIDIA's driver library, never our own.
fn system_driver(libraries: Option<&Path>) -> Option<PathBuf> {
    let ours =
        libraries.and_then(|libraries| fs::canonicalize(libraries.join(CLIENT_LIBRARY)).ok());
    let search_path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named: Vec<PathBuf> =
        std::env::split_paths(&search_path).filter(|directory| directory.is_absolute()).collect();
    let usual = SYSTEM_LIBRARY_DIRECTORIES.iter().map(PathBuf::from);
    usual
        .chain(named)
        .map(|directory| directory.join(CLIENT_LIBRARY))
        .filter(|candidate| candidate.exists())
        // Another installation of OpenMPS has the software GPU beside its client library.
        .filter(|candidate| !candidate.with_file_name(SOFTWARE_GPU).exists())
        .find(|candidate| {
            let file = fs::canonicalize(candidate).ok();
            // Under the driver's name for programs that run on it alone: chosen only by its own
            // name.
            let is_software =
                file.as_deref().and_then(Path::file_name) == Some(OsStr::new(SOFTWARE_GPU));
            file.is_some() && file != ours && !is_software
        })
}

/// `LD_LIBRARY_PATH` with the library directory first, and once.
pub(crate) fn library_path(libraries: &Path) -> anyhow::Result<OsString> {
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let rest = std::env::split_paths(&before)
        .filter(|entry| entry != libraries && entry != OsStr::new(""));
    std::env::join_paths(std::iter::once(libraries.to_owned()).chain(rest))
        .with_context(|| format!("{} cannot be in LD_LIBRARY_PATH", libraries.display()))
}
