//! `cargo xtask wheel`: the package for Python, with the executable, the libraries, the manual
//! pages and the completions. What is Python's lies in `packaging/python`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::command::run_quietly;
use crate::dist::{self, Build, Dist};
use crate::paths::Paths;
use crate::portable;
use crate::python_tools::{Environment, Fresh};
use crate::toolchain;
use crate::tree::{self, Tree, VERSION, install};

/// What is promised of sizes and of the way to the first program.
const MOST_WHEEL_BYTES: u64 = 12_000_000;
const MOST_CLIENT_BYTES: u64 = 4_500_000;
const FIRST_PROGRAM: Duration = Duration::from_secs(60);

const PACKER: Environment<'_> = Environment {
    name: "wheel-packer",
    requirements: include_str!("../wheel-requirements.txt"),
    what: "libdeflate, which packs the wheel (70 kB)",
};
const TESTS: Environment<'_> = Environment {
    name: "python-tests",
    requirements: include_str!("../python-tests-requirements.txt"),
    what: "pytest and IPython (6 MB of wheels)",
};

/// What is done with the wheel.
#[derive(Debug, Args)]
pub(crate) struct Wheel {
    /// Also install it into a virtual environment, and run its tests there
    #[arg(long)]
    check: bool,
    /// Use what is already built
    #[arg(long)]
    built: bool,
}

/// Builds the wheel; returns where it is.
///
/// # Errors
/// When something cannot be built, or the package does not do what it should.
pub(crate) fn run(paths: &Paths, options: &Wheel) -> Result<PathBuf> {
    let dist = if options.built { Dist::at(paths) } else { dist::build(paths, Build::Portable)? };
    let wheel = build(paths, &tree::build(paths, &dist)?)?;
    if options.check {
        check(paths, &wheel)?;
    }
    Ok(wheel)
}

/// Builds the wheel of a tree, for x86-64.
///
/// # Errors
/// When Python or zig fails, or the wheel is larger than promised.
pub(crate) fn build(paths: &Paths, tree: &Tree) -> Result<PathBuf> {
    pack(paths, tree, "x86_64", |_| Ok(()))
}

/// Builds the wheel for aarch64: a tree with what cargo made for that in place of its binaries.
///
/// # Errors
/// As there.
pub(crate) fn build_for_aarch64(paths: &Paths, tree: &Tree, built: &Path) -> Result<PathBuf> {
    pack(paths, tree, "aarch64", |root| {
        for (file, place) in [
            ("openmps", "bin/openmps"),
            ("libcuda.so", "lib/openmps/libcuda.so.1"),
            ("libsoftcuda.so", "lib/openmps/libsoftcuda.so"),
        ] {
            fs::copy(built.join(file), root.join(place)).with_context(|| format!("no {file}"))?;
        }
        Ok(())
    })
}

/// Packs a copy of a tree, once `change` has changed it.
fn pack(
    paths: &Paths,
    tree: &Tree,
    processor: &str,
    change: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let folder = paths.target.join("wheel").join(processor);
    let root = folder.join("tree");
    tree::fresh_directory(&root)?;
    tree::copy(&tree.root, &root)?;
    change(&root)?;
    let client = root.join("lib/openmps/libcuda.so.1");
    let bytes = fs::metadata(&client)?.len();
    ensure!(bytes <= MOST_CLIENT_BYTES, "{} has {bytes} bytes", client.display());
    // Of no use without an administrator.
    fs::remove_file(root.join("lib/openmps/spank_openmps.so"))?;
    for hooks in ["slurm", "pbs"] {
        fs::remove_dir_all(root.join("lib/openmps").join(hooks))?;
    }
    // Of the documents, the licences must go along.
    for document in fs::read_dir(root.join("share/doc/openmps"))? {
        let document = document?.path();
        if document.is_dir() {
            fs::remove_dir_all(document)?;
        } else if document.extension().is_some() {
            fs::remove_file(document)?;
        }
    }
    install(&second_name(paths, &root, processor)?, &root.join("lib/openmps/libcuda.so"), 0o644)?;
    let python = paths.root.join("packaging/python");
    let out = folder.join("out");
    tree::fresh_directory(&out)?;
    PACKER.ensure(paths, "")?.map_or(Ok(()), Fresh::finish)?;
    run_quietly(
        Command::new(paths.target.join(PACKER.name).join("venv/bin/python3"))
            .arg(python.join("wheel.py"))
            .arg("--tree")
            .arg(&root)
            .arg("--package")
            .arg(python.join("openmps"))
            .arg("--schema")
            .arg(paths.root.join("docs/schema.json"))
            .arg("--readme")
            .arg(paths.root.join("docs/python.md"))
            .args(["--version", VERSION, "--processor", processor, "--out"])
            .arg(&out),
    )?;
    let wheel = fs::read_dir(&out)?.next().context("no wheel was written")??.path();
    let bytes = fs::metadata(&wheel)?.len();
    ensure!(bytes <= MOST_WHEEL_BYTES, "{} has {bytes} bytes", wheel.display());
    println!("{}: {:.1} MB", wheel.display(), bytes as f64 / 1e6);
    Ok(wheel)
}

/// `libcuda.so`, by which some programs look for the driver: a wheel has no symbolic links, so it
/// is an empty library that needs `libcuda.so.1` beside it.
fn second_name(paths: &Paths, root: &Path, processor: &str) -> Result<PathBuf> {
    let at = paths.target.join("wheel/libcuda.so");
    // Without something to compile zig has the system's linker link, which knows one processor.
    let empty = paths.target.join("wheel/empty.c");
    fs::write(&empty, "\n")?;
    let mut zig = portable::tools(paths)?.command("python3");
    let target = format!("{processor}-linux-gnu");
    zig.args(["-m", "ziglang", "cc", "-target", &target, "-shared", "-nostdlib"]);
    zig.args(["-s", "-Wl,-soname,libcuda.so", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", "-o"]);
    run_quietly(zig.arg(&at).arg(&empty).arg(root.join("lib/openmps/libcuda.so.1")))?;
    Ok(at)
}

/// As a user gets it: a new virtual environment, the wheel, a program; then the package's tests.
///
/// # Errors
/// What does not work, or takes longer than promised.
pub(crate) fn check(paths: &Paths, wheel: &Path) -> Result<()> {
    let folder = paths.target.join("wheel/user");
    tree::fresh_directory(&folder)?;
    let start = Instant::now();
    let python = toolchain::ensure_pip(&folder)?;
    install_into(&python, wheel)?;
    let tests = paths.root.join("packaging/python/tests");
    let home = folder.join("home");
    fs::create_dir_all(&home)?;
    let clean = |command: &mut Command| {
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &home)
            // Its tests leave nothing in the sources.
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("mps"))
            .env("CUDA_MPS_LOG_DIRECTORY", folder.join("mps"));
        run_quietly(command.stdin(std::process::Stdio::null()))
    };
    let first = clean(
        Command::new(&python)
            .args(["-m", "openmps", "run", "--softcuda"])
            .arg(tests.join("work.py")),
    );
    let took = start.elapsed();
    clean(Command::new(folder.join("venv/bin/openmps")).args(["control", "quit"]))?;
    let said = String::from_utf8_lossy(&first?.stdout).into_owned();
    ensure!(said.contains("3 kernels on OpenMPS Software GPU"), "the first program said: {said}");
    ensure!(took <= FIRST_PROGRAM, "to the first program it took {} s", took.as_secs());
    println!("from nothing to the first program: {:.1} s", took.as_secs_f64());

    TESTS.ensure(paths, "")?.map_or(Ok(()), Fresh::finish)?;
    let python = paths.target.join(TESTS.name).join("venv/bin/python3");
    install_into(&python, wheel)?;
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]).arg(&tests);
    let said = clean(&mut pytest)?;
    print!("{}", String::from_utf8_lossy(&said.stdout));
    // An installation leaves as it came.
    let python = folder.join("venv/bin/python3");
    clean(Command::new(&python).args(["-m", "pip", "uninstall", "--quiet", "--yes", "openmps"]))?;
    let left = run_quietly(Command::new("find").arg(folder.join("venv")).args([
        "-not",
        "-path",
        "*/pip/*",
        "(",
        "-name",
        "*openmps*",
        "-o",
        "-name",
        "*cuda*",
        ")",
    ]))?;
    ensure!(left.stdout.is_empty(), "left behind: {}", String::from_utf8_lossy(&left.stdout));
    Ok(())
}

/// From the file alone.
fn install_into(python: &Path, wheel: &Path) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    run_quietly(pip.args(["--no-deps", "--force-reinstall"]).arg(wheel)).map(drop)
}
