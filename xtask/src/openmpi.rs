//! Open MPI for the tests: Debian's packages, fetched by apt and unpacked into `target/openmpi`,
//! without root and without installing anything.
//!
//! `target/openmpi/mpirun` starts it from there: Open MPI is told where it lies by variables
//! (`OPAL_PREFIX` and its kin). Where there is no apt, there is none, and the program that needs it
//! is not built.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::debian::{self, Packages, Unpacked};
use crate::paths::Paths;

/// Open MPI, its headers, and what its libraries need beyond the C library. Without Fortran, Java
/// and what speaks to other nodes.
const PACKAGES: [&str; 17] = [
    "openmpi-bin",
    "openmpi-common",
    "libopenmpi3",
    "libopenmpi-dev",
    "libhwloc15",
    "libevent-core-2.1-7",
    "libevent-pthreads-2.1-7",
    "libpmix2",
    "libfabric1",
    "libucx0",
    "libibverbs1",
    "librdmacm1",
    "libnl-3-200",
    "libnl-route-3-200",
    "libmunge2",
    "libltdl7",
    "libnuma1",
];

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Sets Open MPI's directories and starts it. Ranks share the processors there are, and speak
/// through shared memory.
const MPIRUN: &str = r#"#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
root=$here/root
libraries=$root/usr/lib/x86_64-linux-gnu
export OPAL_PREFIX=$root/usr OPAL_BINDIR=$root/usr/bin OPAL_LIBDIR=$libraries OPAL_SYSCONFDIR=$root/etc
export OPAL_DATADIR=$root/usr/share/openmpi OPAL_PKGDATADIR=$root/usr/share/openmpi OPAL_PKGLIBDIR=$libraries/openmpi
export OMPI_MCA_mca_base_component_path=$libraries/openmpi/lib/openmpi3 OMPI_MCA_mca_base_component_show_load_errors=0
export OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1 OMPI_MCA_plm=isolated OMPI_MCA_hwloc_base_binding_policy=none
export PMIX_MCA_pcompress_base_silence_warning=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries:$root/lib/x86_64-linux-gnu
exec "$root/usr/bin/orterun" --oversubscribe "$@"
"#;

/// An unpacked Open MPI.
pub(crate) struct OpenMpi {
    root: PathBuf,
}

impl OpenMpi {
    /// Directory of `mpi.h`.
    pub(crate) fn include(&self) -> PathBuf {
        self.root.join(LIBRARIES).join("openmpi/include")
    }

    /// `libmpi`, to link with.
    pub(crate) fn library(&self) -> PathBuf {
        self.root.join(LIBRARIES).join("libmpi.so.40")
    }

    /// Directories of what that needs.
    pub(crate) fn library_directories(&self) -> [PathBuf; 2] {
        [self.root.join(LIBRARIES), self.root.join("lib/x86_64-linux-gnu")]
    }
}

/// Fetches and unpacks what is missing; quick when nothing is. `None` where there is no apt.
///
/// # Errors
/// When the packages cannot be fetched or unpacked.
pub(crate) fn ensure(paths: &Paths) -> Result<Option<OpenMpi>> {
    let folder = paths.target.join("openmpi");
    let root = match debian::ensure_in(&folder, Packages::Only(&PACKAGES))? {
        Unpacked::At(root) => root,
        Unpacked::Skipped(why) => {
            println!("no Open MPI: {why}");
            return Ok(None);
        }
    };
    write_script(&folder.join("mpirun"))?;
    Ok(Some(OpenMpi { root }))
}

fn write_script(path: &Path) -> Result<()> {
    fs::write(path, MPIRUN).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
