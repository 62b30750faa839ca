//! `cargo xtask deb`: the Debian package.
//!
//! ```text
//! /usr/bin/openmps
//! /usr/lib/openmps/libcuda.so.1, libcuda.so, libsoftcuda.so      off the default library path
//! /usr/lib/openmps/bin/nvidia-cuda-mps-control -> openmps         off the default path: NVIDIA's
//!                                                                 own may be installed
//! /usr/lib/openmps/slurm/{prolog,epilog,task_prolog}, spank_openmps.so
//! /usr/lib/openmps/pbs/{prologue,epilogue}
//! /usr/lib/systemd/system/openmps.service, /usr/lib/tmpfiles.d/openmps.conf
//! /usr/share/{doc,man,bash-completion,zsh,fish}
//! ```

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::command::{run_quietly, succeeds};
use crate::dist::{self, Dist};
use crate::fresh::{self, Fresh};
use crate::paths::Paths;
use crate::{deb_chroot, deb_systemd};

const NAME: &str = "openmps";

/// What batch systems call on a node.
const HOOKS: &[&str] =
    &["slurm/prolog", "slurm/epilog", "slurm/task_prolog", "pbs/prologue", "pbs/epilogue"];

/// What is done with the package.
#[derive(Debug, Args)]
pub(crate) struct Deb {
    /// Also install it into an empty root and, as root, into a fresh Debian; run it there and
    /// remove it again
    #[arg(long)]
    check: bool,
    /// Use what is already built
    #[arg(long)]
    built: bool,
}

/// Builds the package; returns where it is.
///
/// # Errors
/// When something cannot be built, or the package does not install, run or go away as it should.
pub(crate) fn run(paths: &Paths, options: &Deb) -> Result<PathBuf> {
    let dist = if options.built { Dist::at(paths) } else { dist::build(paths)? };
    let package = build(paths, &dist)?;
    if options.check {
        check(paths, &package)?;
        check_in_fresh_systems(paths, &package)?;
    }
    Ok(package)
}

/// The package in a fresh Debian: entered, and booted. Says what could not be tried.
///
/// # Errors
/// What did not work there.
pub(crate) fn check_in_fresh_systems(paths: &Paths, package: &Path) -> Result<()> {
    const ENTERED: &str = "in a fresh Debian";
    const BOOTED: &str = "under a fresh Debian's systemd";
    if let Some(why) = fresh::obstacle(paths) {
        Fresh::not_permitted(why)?.print(ENTERED);
        return Ok(());
    }
    let archive = match fresh::archive(paths) {
        Ok(archive) => archive,
        Err(error) => {
            Fresh::Skipped(format!("{error:#}")).print(ENTERED);
            return Ok(());
        }
    };
    deb_chroot::check(paths, &archive, package)?.print(ENTERED);
    deb_systemd::check(paths, &archive, package)?.print(BOOTED);
    Ok(())
}

/// Whether this system can build packages.
pub(crate) fn is_possible() -> bool {
    succeeds(Command::new("dpkg-deb").arg("--version"))
}

/// Builds the package of what is in `dist`.
///
/// # Errors
/// When a file is missing or `dpkg-deb` fails.
pub(crate) fn build(paths: &Paths, dist: &Dist) -> Result<PathBuf> {
    let root = paths.target.join("deb/root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let executable = dist.root.join("bin/openmps");
    install(&executable, &root.join("usr/bin/openmps"), 0o755)?;
    let libraries = root.join("usr/lib/openmps");
    for library in ["libcuda.so.1", "libsoftcuda.so", "spank_openmps.so"] {
        install(&dist.client_directory().join(library), &libraries.join(library), 0o644)?;
    }
    for binary in [
        "usr/bin/openmps",
        "usr/lib/openmps/libcuda.so.1",
        "usr/lib/openmps/libsoftcuda.so",
        "usr/lib/openmps/spank_openmps.so",
    ] {
        run_quietly(Command::new("strip").arg("--strip-debug").arg(root.join(binary)))?;
    }
    symlink("libcuda.so.1", libraries.join("libcuda.so"))?;
    fs::create_dir_all(libraries.join("bin"))?;
    symlink("../../../bin/openmps", libraries.join("bin/nvidia-cuda-mps-control"))?;
    let packaging = paths.root.join("packaging");
    for hook in HOOKS {
        install(&packaging.join(hook), &libraries.join(hook), 0o755)?;
    }
    install(
        &packaging.join("systemd/openmps.service"),
        &root.join("usr/lib/systemd/system/openmps.service"),
        0o644,
    )?;
    install(
        &packaging.join("systemd/tmpfiles.conf"),
        &root.join("usr/lib/tmpfiles.d/openmps.conf"),
        0o644,
    )?;
    install(&packaging.join("config.toml"), &root.join("etc/openmps/config.toml"), 0o644)?;
    documents(paths, &executable, &root)?;
    control_files(paths, &root)?;
    let package = paths.target.join(format!("deb/{NAME}_{}_amd64.deb", env!("CARGO_PKG_VERSION")));
    run_quietly(
        Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).arg(&root).arg(&package),
    )?;
    Ok(package)
}

fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let directory = to.parent().context("a file lies in a directory")?;
    fs::create_dir_all(directory)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Installs the files of a directory and of those below it, for all to read.
fn install_tree(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            install_tree(&source, &target)?;
        } else {
            install(&source, &target, 0o644)?;
        }
    }
    Ok(())
}

fn write(path: &Path, contents: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("a file lies in a directory")?)?;
    fs::write(path, contents).with_context(|| format!("cannot write {}", path.display()))
}

/// Manual pages and completions come from the executable, so they agree with its help.
fn documents(paths: &Paths, executable: &Path, root: &Path) -> Result<()> {
    let manual = root.join("usr/share/man/man1");
    run_quietly(Command::new(executable).args(["man", "--directory"]).arg(&manual))?;
    for entry in fs::read_dir(&manual)? {
        run_quietly(Command::new("gzip").args(["-9", "-n"]).arg(entry?.path()))?;
    }
    for (shell, place) in [
        ("bash", "bash-completion/completions/openmps"),
        ("zsh", "zsh/vendor-completions/_openmps"),
        ("fish", "fish/vendor_completions.d/openmps.fish"),
        // These two look for a file of the command's name.
        ("bash", "bash-completion/completions/nvidia-cuda-mps-control"),
        ("fish", "fish/vendor_completions.d/nvidia-cuda-mps-control.fish"),
    ] {
        let script = run_quietly(Command::new(executable).args(["completions", shell]))?.stdout;
        write(&root.join("usr/share").join(place), &script)?;
    }
    let doc = root.join("usr/share/doc/openmps");
    // With the pages that the first one leads to.
    let pages =
        ["README.md", "ARCHITECTURE.md", "COMPATIBILITY.md", "COVERAGE-PTX.md", "SECURITY.md"];
    for file in pages {
        install(&paths.root.join(file), &doc.join(file), 0o644)?;
    }
    install_tree(&paths.root.join("docs"), &doc.join("docs"))?;
    let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|file| fs::read(paths.root.join(file)));
    let mut copyright = Vec::new();
    for licence in licences {
        copyright.extend(licence?);
        copyright.push(b'\n');
    }
    write(&doc.join("copyright"), &copyright)
}

fn control_files(paths: &Paths, root: &Path) -> Result<()> {
    let size = run_quietly(Command::new("du").args(["-sk"]).arg(root))?.stdout;
    let size = String::from_utf8_lossy(&size);
    let size_kib = size.split_whitespace().next().context("du says nothing")?;
    // Built against this system's C library, so at least that is needed.
    let libc = run_quietly(Command::new("getconf").arg("GNU_LIBC_VERSION"))?.stdout;
    let libc = String::from_utf8_lossy(&libc);
    let libc = libc.split_whitespace().nth(1).context("getconf says no version")?;
    let version = env!("CARGO_PKG_VERSION");
    let control = format!(
        "Package: {NAME}\nVersion: {version}\nArchitecture: amd64\nMaintainer: The OpenMPS developers <openmps@localhost>\n\
         Installed-Size: {size_kib}\nDepends: libc6 (>= {libc}), libgcc-s1\nSection: utils\nPriority: optional\n\
         Description: share a GPU between CUDA programs\n \
         An open implementation of NVIDIA's Multi-Process Service: a control daemon, a\n \
         server that owns the GPU's context, and a libcuda.so.1 for the programs, which\n \
         are not changed. Where there is no GPU, a software GPU does the work.\n"
    );
    let debian = root.join("DEBIAN");
    write(&debian.join("control"), control.as_bytes())?;
    write(&debian.join("conffiles"), b"/etc/openmps/config.toml\n")?;
    for script in ["postinst", "prerm", "postrm"] {
        install(&paths.root.join("packaging/debian").join(script), &debian.join(script), 0o755)?;
    }
    Ok(())
}

/// Installs the package into an empty root, runs what it installed, and removes it without a trace.
///
/// # Errors
/// What did not work.
pub(crate) fn check(paths: &Paths, package: &Path) -> Result<()> {
    let root = paths.target.join("deb/installed");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let database = root.join("var/lib/dpkg");
    fs::create_dir_all(database.join("info"))?;
    fs::create_dir_all(database.join("updates"))?;
    fs::write(database.join("status"), "")?;
    let dpkg = |arguments: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", root.display()))
            .args([
                "--force-not-root",
                "--force-script-chrootless",
                "--force-depends",
                "--log=/dev/null",
            ])
            .args(arguments);
        dpkg
    };
    let file = package.to_str().context("the package's path is no text")?;
    run_quietly(&mut dpkg(&["--install", file]))?;
    let executable = root.join("usr/bin/openmps");
    let clean = |command: &mut Command| {
        command
            .env_remove("OPENMPS_LIB_DIR")
            .env("OPENMPS_CONFIG", root.join("etc/openmps/config.toml"));
        run_quietly(command).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let version = clean(Command::new(&executable).arg("--version"))?;
    ensure!(version.contains(env!("CARGO_PKG_VERSION")), "the installed executable says {version}");
    let environment = clean(
        Command::new(&executable)
            .arg("env")
            .env("OPENMPS_NATIVE_DRIVER", root.join("usr/lib/openmps/libsoftcuda.so")),
    )?;
    let libraries = root.join("usr/lib/openmps");
    ensure!(
        environment.contains(&libraries.display().to_string()),
        "the installed executable does not find its libraries: {environment}"
    );
    clean(
        Command::new(&executable)
            .args(["config", "--check"])
            .arg(root.join("etc/openmps/config.toml")),
    )?;
    let alias = root.join("usr/lib/openmps/bin/nvidia-cuda-mps-control");
    ensure!(
        clean(Command::new(alias).arg("-v"))?.contains("13000"),
        "the alias is no control utility"
    );
    let unit = root.join("usr/lib/systemd/system/openmps.service");
    if succeeds(Command::new("systemd-analyze").arg("--version")) {
        verify_unit(&unit, &executable)?;
    }
    run_quietly(&mut dpkg(&["--purge", NAME]))?;
    let left = run_quietly(Command::new("find").arg(&root).args([
        "-name",
        "*openmps*",
        "-not",
        "-path",
        "*/dpkg/*",
    ]))?;
    ensure!(left.stdout.is_empty(), "left behind: {}", String::from_utf8_lossy(&left.stdout));
    Ok(())
}

/// `systemd-analyze verify`, with the executable where it was installed.
fn verify_unit(unit: &Path, executable: &Path) -> Result<()> {
    let copy = unit.with_file_name("openmps-check.service");
    let text = fs::read_to_string(unit)?;
    let text = text.replace("/usr/bin/openmps", &executable.display().to_string());
    fs::write(&copy, text.replace("man:openmps(1)", "https://example.org"))?;
    let verified =
        run_quietly(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy));
    fs::remove_file(&copy)?;
    verified.map(drop)
}
