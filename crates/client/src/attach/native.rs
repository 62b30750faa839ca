//! The native driver: the library that a program would have had without us.
//!
//! `OPENMPS_NATIVE_DRIVER` names it (an absolute path; that is how the software GPU is chosen);
//! else it is NVIDIA's `libcuda.so.1` in one of the places where systems keep it. Only absolute
//! paths are opened: by its bare name the loader would find this very library again.

use crate::{info, warn};
use core::ffi::{CStr, c_void};
use cuda_abi::table::DriverTable;
use libloading::os::unix::Library;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names the native driver.
pub(crate) const PATH_VARIABLE: &str = "OPENMPS_NATIVE_DRIVER";

/// Where systems keep NVIDIA's driver library: multiarch, lib64, containers, WSL, NixOS.
const DIRECTORIES: [&str; 10] = [
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/nvidia/current",
    "/usr/lib64/nvidia/current",
];
const LIBRARY: &str = "libcuda.so.1";

/// Why there is no native driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NativeError {
    /// None was found.
    #[error(
        "no native driver: {LIBRARY} is in none of the usual places, and {PATH_VARIABLE} is not set"
    )]
    NotFound,
    /// The file is this library.
    #[error("{} is the OpenMPS client itself: set {PATH_VARIABLE} to a native driver", .0.display())]
    Ourselves(PathBuf),
    /// The file cannot be opened as a library.
    #[error("cannot open the native driver {}: {source}", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// The loader's reason.
        source: libloading::Error,
    },
    /// The file is no CUDA driver.
    #[error("{} is no CUDA driver: it has no cuInit", .0.display())]
    NoDriver(PathBuf),
}

/// Opens the native driver. It stays open for the life of the process.
pub(crate) fn load() -> Result<DriverTable, NativeError> {
    let ourselves = own_file();
    match std::env::var_os(PATH_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => open(Path::new(&path), ourselves),
        None => search(ourselves),
    }
}

fn search(ourselves: Option<FileId>) -> Result<DriverTable, NativeError> {
    let mut last = NativeError::NotFound;
    for directory in DIRECTORIES {
        let path = Path::new(directory).join(LIBRARY);
        if !path.exists() {
            continue;
        }
        match open(&path, ourselves) {
            Ok(table) => return Ok(table),
            Err(NativeError::Ourselves(_)) => {}
            Err(error) => {
                warn!("{error}");
                last = error;
            }
        }
    }
    Err(last)
}

fn open(path: &Path, ourselves: Option<FileId>) -> Result<DriverTable, NativeError> {
    if ourselves.is_some() && file_id(path) == ourselves {
        return Err(NativeError::Ourselves(path.to_owned()));
    }
    let file: OsString = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).into();
    // SAFETY: the user or the system vouches that this file is a driver library; its initialisers
    // are run as the program's own loader would.
    let library = unsafe { Library::open(Some(&file), libc::RTLD_NOW | libc::RTLD_LOCAL) }
        .map_err(|source| NativeError::Open { path: path.to_owned(), source })?;
    // SAFETY: symbols of a CUDA driver have the prototypes of the CUDA driver API, and the library
    // is never closed.
    let table = unsafe { DriverTable::load(|symbol| resolve(&library, symbol)) };
    core::mem::forget(library);
    if table.cuInit.is_none() {
        return Err(NativeError::NoDriver(path.to_owned()));
    }
    info!("native driver {} with {} functions", path.display(), table.present());
    Ok(table)
}

fn resolve(library: &Library, symbol: &CStr) -> *const c_void {
    // SAFETY: the symbol is only taken as an address here.
    unsafe { library.get::<*const c_void>(symbol.to_bytes_with_nul()) }
        .map_or(core::ptr::null(), |found| found.into_raw().cast_const())
}

/// Device and inode: what makes a file itself under any name.
type FileId = (u64, u64);

fn file_id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// The file from which this code was loaded.
fn own_file() -> Option<FileId> {
    let mut found = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let here: *const c_void = (own_file as fn() -> Option<FileId>) as *const c_void;
    // SAFETY: any address may be asked about; the result is written to `found`, which is valid when
    // zeroed.
    let info = unsafe {
        if libc::dladdr(here, found.as_mut_ptr()) == 0 {
            return None;
        }
        found.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own NUL-terminated name of a loaded object.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    file_id(Path::new(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_file_is_never_taken_for_the_native_driver() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(own_file(), file_id(&own));
        assert!(matches!(open(&own, own_file()), Err(NativeError::Ourselves(_))));
    }

    #[test]
    fn what_is_no_driver_is_refused_by_name() {
        let missing = open(Path::new("/nonexistent/libcuda.so.1"), None).err().unwrap();
        assert!(missing.to_string().contains("/nonexistent/libcuda.so.1"), "{missing}");
    }
}
