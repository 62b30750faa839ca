//! `cargo xtask systems`: the portable build in older and newer Debians, whose C libraries are
//! others. In each a program that is linked for the oldest C library runs by itself on the software
//! GPU, and under a daemon outside. `libgcc_s` is taken away first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::run_quietly;
use crate::deb_chroot;
use crate::dist::Dist;
use crate::fresh::{self, Fresh, Root};
use crate::paths::Paths;
use crate::portable;
use crate::toolchain;
use crate::tree::{self, fresh_directory};

/// With glibc 2.31 and 2.41, and with whatever comes next.
const RELEASES: [&str; 3] = ["bullseye", "trixie", "testing"];
const INSIDE: &str = include_str!("systems.sh");
/// Enters a root (the second argument) with a daemon's directory (the first) at `/pipe`.
const WITH_DAEMON: &str = "mount --bind \"$1\" \"$2/pipe\" && exec chroot \"$2\" env -i \
    PATH=/usr/bin:/bin CUDA_MPS_PIPE_DIRECTORY=/pipe LD_LIBRARY_PATH=/opt/openmps/lib/openmps \
    /package/program before";
/// Processes of the program that work; see `programs/process/fork.c`.
const PROCESSES: usize = 4;

/// Tries what is built in each of them.
///
/// # Errors
/// What did not work there.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let obstacle = fresh::obstacle(paths);
    for release in RELEASES {
        match &obstacle {
            Some(why) => Fresh::not_permitted(why.as_str())?,
            None => in_release(paths, release)?,
        }
        .print(&format!("in a fresh Debian {release}"));
    }
    Ok(())
}

fn in_release(paths: &Paths, release: &str) -> Result<Fresh> {
    let archive = match fresh::archive_of(paths, release, None) {
        Ok(archive) => archive,
        Err(error) => return Ok(Fresh::Skipped(format!("{error:#}"))),
    };
    let tree = tree::build(paths, &Dist::at(paths))?;
    let root = Root::unpack(paths, &archive, &format!("system-{release}"), &program(paths)?)?;
    let inside = root.path.join("package");
    fs::rename(inside.join("openmps.deb"), inside.join("program"))?;
    tree::copy(&tree.root, &root.path.join("opt/openmps"))?;
    fs::create_dir(root.path.join("pipe"))?;
    under_a_daemon_outside(paths, &root.path)?;
    deb_chroot::run_inside(root, INSIDE)
}

/// A program that needs nothing newer than the portable build does.
fn program(paths: &Paths) -> Result<PathBuf> {
    let at = paths.target.join("packages/oldest-program");
    let (major, minor) = portable::GLIBC;
    let mut zig = portable::tools(paths)?.command("python3");
    zig.args(["-m", "ziglang", "cc", "-target"]);
    zig.arg(format!("x86_64-linux-gnu.{major}.{minor}"));
    zig.arg("-I").arg(toolchain::ensure(paths)?.include());
    run_quietly(
        zig.arg(paths.root.join("programs/process/fork.c"))
            .arg("-o")
            .arg(&at)
            .args(["-ldl", "-lpthread"]),
    )?;
    Ok(at)
}

fn under_a_daemon_outside(paths: &Paths, root: &Path) -> Result<()> {
    let dist = Dist::at(paths);
    let folder = paths.target.join("packages/daemon");
    fresh_directory(&folder)?;
    let openmps = |words: &[&str]| {
        let mut command = Command::new(dist.root.join("bin/openmps"));
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &folder)
            .env("CUDA_MPS_LOG_DIRECTORY", &folder)
            .env("OPENMPS_NATIVE_DRIVER", dist.client_directory().join("libsoftcuda.so"));
        run_quietly(command.args(words))
    };
    openmps(&["control", "-d"])?;
    let mut enter = Command::new("timeout");
    enter.args(["--kill-after=5", "120", "unshare", "--mount", "sh", "-c", WITH_DAEMON, "sh"]);
    let ran = run_quietly(enter.arg(&folder).arg(root));
    let status = openmps(&["status", "--json"]);
    openmps(&["control", "quit"])?;
    let said = String::from_utf8(ran?.stdout)?;
    ensure!(said.matches("ran ").count() == PROCESSES, "under a daemon outside: {said}");
    let status: serde_json::Value = serde_json::from_slice(&status?.stdout)?;
    let departed = status["servers"][0]["snapshot"]["departed"].as_array();
    let departed = departed.context("no server had clients")?;
    let worked = departed.iter().filter(|client| client["kernels"].as_u64() > Some(0)).count();
    ensure!(worked == PROCESSES, "the daemon outside counted kernels of {worked} processes");
    Ok(())
}
