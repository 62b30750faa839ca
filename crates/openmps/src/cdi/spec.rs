//! A container device specification as data: what it says is decided here, without I/O.
//!
//! The format is that of the Container Device Interface (CDI), SPEC.md, version 0.3.0: the first
//! that was released, so that every engine that reads such files reads this one. Nothing that later
//! versions added is needed: no device nodes at all, no types of mounts, no annotations.

use std::path::Path;

use link::wire::shares::PROFILE_OF_ALL;
use serde::Serialize;

/// See the module's documentation.
const VERSION: &str = "0.3.0";
/// Vendor and class: devices are `openmps.dev/share=NAME`.
pub(super) const KIND: &str = "openmps.dev/share";
/// Where the socket's directory is in a container.
pub(crate) const PIPE_DIRECTORY_INSIDE: &str = "/run/openmps";
/// Where the library is in a container whose loader is told by `LD_LIBRARY_PATH`.
const LIBRARY_DIRECTORY_INSIDE: &str = "/usr/lib/openmps";
/// Where loaders look without being told: Debian's and its kin's, and that of the others. An image
/// has one of them; the other is an empty directory with one file more.
const DEFAULT_LIBRARY_DIRECTORIES: [&str; 2] = [
    if cfg!(target_arch = "aarch64") {
        "/usr/lib/aarch64-linux-gnu"
    } else {
        "/usr/lib/x86_64-linux-gnu"
    },
    "/usr/lib64",
];
const LIBRARY: &str = "libcuda.so.1";

/// How a container's programs find the client library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LibrarySearch {
    /// It is mounted where loaders look by themselves: no variable of the image is replaced, and
    /// programs find it that clear their environment.
    Default,
    /// It is mounted apart, and `LD_LIBRARY_PATH` names its directory: for images with another
    /// libcuda.so.1.
    Variable,
}

/// The file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Specification {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
    container_edits: Edits,
}

/// A share of the GPUs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

/// What is done to a container.
#[derive(Debug, Serialize)]
struct Edits {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    mounts: Vec<Mount>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: String,
    container_path: String,
    options: Vec<&'static str>,
}

/// The devices are the daemon's own socket and one for each profile.
///
/// # Errors
/// A path that JSON cannot hold.
pub(super) fn specification(
    pipe_directory: &Path,
    profiles: &[(String, std::path::PathBuf)],
    libraries: &Path,
    search: LibrarySearch,
) -> anyhow::Result<Specification> {
    let mut devices = vec![device(PROFILE_OF_ALL, pipe_directory)?];
    for (name, directory) in profiles {
        devices.push(device(name, directory)?);
    }
    let mut env = vec![format!("CUDA_MPS_PIPE_DIRECTORY={PIPE_DIRECTORY_INSIDE}")];
    let mounts = match search {
        LibrarySearch::Default => {
            let library = libraries.join(LIBRARY);
            let inside = DEFAULT_LIBRARY_DIRECTORIES.map(|at| format!("{at}/{LIBRARY}"));
            inside.into_iter().map(|at| mount(&library, &at, &[])).collect::<Result<_, _>>()?
        }
        LibrarySearch::Variable => {
            env.push(format!("LD_LIBRARY_PATH={LIBRARY_DIRECTORY_INSIDE}"));
            let inside = format!("{LIBRARY_DIRECTORY_INSIDE}/{LIBRARY}");
            vec![mount(&libraries.join(LIBRARY), &inside, &[])?]
        }
    };
    let container_edits = Edits { env, mounts };
    Ok(Specification { cdi_version: VERSION, kind: KIND, devices, container_edits })
}

fn device(name: &str, directory: &Path) -> anyhow::Result<Device> {
    // A socket on a read-only mount takes connections; nobody in the container can put another in
    // its place.
    let mounts = vec![mount(directory, PIPE_DIRECTORY_INSIDE, &["noexec"])?];
    Ok(Device { name: name.to_owned(), container_edits: Edits { env: Vec::new(), mounts } })
}

fn mount(from: &Path, to: &str, more: &[&'static str]) -> anyhow::Result<Mount> {
    let host_path = from.to_str().ok_or_else(|| {
        anyhow::anyhow!("{} is not UTF-8, which JSON needs: use another directory", from.display())
    })?;
    let options = ["ro", "nosuid", "nodev", "bind"].into_iter().chain(more.iter().copied());
    Ok(Mount {
        host_path: host_path.to_owned(),
        container_path: to.to_owned(),
        options: options.collect(),
    })
}
