//! `cargo xtask aarch64`: the product for aarch64, made on x86-64, and what can be tried of it
//! there, by QEMU: that the code compiles, links and runs. The order of memory accesses is not
//! tried so, since QEMU keeps that of x86-64.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::{run_quietly, succeeds};
use crate::debian::{self, Packages, Unpacked};
use crate::fresh::Fresh;
use crate::paths::Paths;
use crate::portable::{self, Profile};
use crate::tree::{self, Tree};
use crate::{toolchain, wheel};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Starts itself again, which needs a kernel that knows QEMU.
const STARTS_ITSELF: &str = "what_nobody_watches_ends_the_process";
/// What a program for aarch64 needs to start.
const LIBRARIES: [&str; 2] = ["libc6", "libgcc-s1"];
/// What is tried of the wheel.
pub(crate) const TRIED: &str = "the wheel for aarch64, by QEMU";
/// Processes of the program that work; see `programs/process/fork.c`.
const PROCESSES: usize = 4;

/// Builds and tries it; manual pages and the like are those of a tree.
///
/// # Errors
/// What does not compile, link or run.
pub(crate) fn check(paths: &Paths, tree: &Tree) -> Result<()> {
    let wheel = match wheel(paths, tree)? {
        Ok(wheel) => try_wheel(paths, &wheel)?,
        Err(why) => Fresh::Skipped(why),
    };
    wheel.print(TRIED);
    if let Ok(qemu) = Qemu::ensure(paths)? {
        unit_tests(paths, &qemu)?;
        println!("unit tests of `link` ran for aarch64, by QEMU");
    }
    Ok(())
}

/// Makes the wheel; or says why it cannot be made here.
///
/// # Errors
/// What does not compile or link, or needs too much.
pub(crate) fn wheel(paths: &Paths, tree: &Tree) -> Result<Result<PathBuf, String>> {
    if let Err(why) = ensure_standard_library() {
        return Ok(Err(why));
    }
    let built = portable::build_for(paths, TARGET, Profile::StrippedRelease)?;
    let files = ["openmps", "libcuda.so", "libsoftcuda.so", "libspank_openmps.so"];
    portable::check(&files.map(|file| built.join(file)))?;
    wheel::build_for_aarch64(paths, tree, &built).map(Ok)
}

/// Runs what is in the wheel, and has pip take it for such a machine, and for no other.
///
/// # Errors
/// What does not work.
pub(crate) fn try_wheel(paths: &Paths, wheel: &Path) -> Result<Fresh> {
    let qemu = match Qemu::ensure(paths)? {
        Ok(qemu) => qemu,
        Err(why) => return Ok(Fresh::Skipped(why)),
    };
    let folder = paths.target.join("wheel/aarch64/tried");
    tree::fresh_directory(&folder)?;
    let python = toolchain::ensure_pip(&folder)?;
    let pip = |words: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip"]).args(words).args(["--no-deps", "--no-index"]).arg(wheel);
        command
    };
    let taken = folder.join("taken");
    let mut takes = pip(&["download", "--quiet", "--only-binary=:all:", "--python-version=3.9"]);
    run_quietly(takes.args(["--platform=manylinux2014_aarch64", "--dest"]).arg(&taken))?;
    ensure!(!succeeds(&mut pip(&["install"])), "pip takes it on x86-64, too");
    run_quietly(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder))?;
    let data = folder.join(format!("openmps-{}.data", tree::VERSION));
    let openmps = data.join("scripts/openmps");
    // As pip does: the module that unpacks leaves it as a plain file.
    fs::set_permissions(&openmps, fs::Permissions::from_mode(0o755))?;
    let version = run_quietly(qemu.command(&openmps).arg("--version"))?.stdout;
    on_the_software_gpu(paths, &qemu, &data.join("data/lib/openmps"))?;
    Ok(Fresh::Checked(format!(
        "  {}a program on the software GPU ran\n",
        String::from_utf8_lossy(&version)
    )))
}

/// Rust's own library for the target, from where the toolchain comes from.
fn ensure_standard_library() -> Result<(), String> {
    let sysroot = run_quietly(Command::new("rustc").args(["--print", "sysroot"]));
    let sysroot = sysroot.map_err(|error| format!("{error:#}"))?.stdout;
    let sysroot = String::from_utf8_lossy(&sysroot).trim().to_owned();
    if Path::new(&sysroot).join("lib/rustlib").join(TARGET).exists() {
        return Ok(());
    }
    match succeeds(Command::new("rustup").args(["target", "add", TARGET])) {
        true => Ok(()),
        false => Err(format!("the toolchain has no {TARGET}: rustup target add {TARGET}")),
    }
}

struct Qemu {
    program: PathBuf,
    /// Libraries of aarch64, as under `/`.
    system: PathBuf,
}

impl Qemu {
    fn ensure(paths: &Paths) -> Result<Result<Self, String>> {
        let folder = paths.target.join("debian/qemu");
        let tools = match debian::ensure_in(&folder, Packages::Only(&["qemu-user-static"]))? {
            Unpacked::At(tools) => tools,
            Unpacked::Skipped(why) => return Ok(Err(why)),
        };
        let folder = paths.target.join("debian/aarch64");
        let system = debian::ensure_of_architecture(&folder, "arm64", &LIBRARIES)?;
        Ok(Ok(Self { program: tools.join("usr/bin/qemu-aarch64-static"), system }))
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "300"]).arg(&self.program).arg("-L").arg(&self.system);
        command.arg(program);
        command
    }
}

/// Those of the ring, the calls, the completions and the sockets.
fn unit_tests(paths: &Paths, qemu: &Qemu) -> Result<()> {
    let runner = format!("{} -L {}", qemu.program.display(), qemu.system.display());
    let mut test = portable::cargo(paths, "test", TARGET)?;
    test.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    test.args(["--quiet", "--package=link", "--", "--skip", STARTS_ITSELF]);
    run_quietly(&mut test).map(drop)
}

/// A program for aarch64 with the software GPU for aarch64 as its driver.
fn on_the_software_gpu(paths: &Paths, qemu: &Qemu, libraries: &Path) -> Result<()> {
    let folder = paths.target.join("aarch64-program");
    tree::fresh_directory(&folder)?;
    fs::copy(libraries.join("libsoftcuda.so"), folder.join("libcuda.so.1"))?;
    let program = folder.join("program");
    let (major, minor) = portable::GLIBC;
    let mut zig = portable::tools(paths)?.command("python3");
    zig.args(["-m", "ziglang", "cc", "-target", &format!("aarch64-linux-gnu.{major}.{minor}")]);
    zig.arg("-I").arg(toolchain::ensure(paths)?.include());
    zig.arg(paths.root.join("programs/process/fork.c")).arg("-o").arg(&program);
    run_quietly(zig.args(["-ldl", "-lpthread"]))?;
    let mut run = qemu.command(&program);
    run.arg("before").env("LD_LIBRARY_PATH", &folder);
    let said = String::from_utf8(run_quietly(&mut run)?.stdout)?;
    ensure!(said.matches("ran ").count() == PROCESSES, "on the software GPU: {said}");
    fs::remove_dir_all(&folder).context("cannot remove the program")
}
