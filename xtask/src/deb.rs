//! `cargo xtask deb`: the Debian package, of the files in [`system_tree`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::command::{run_quietly, succeeds};
use crate::dist::{self, Build, Dist};
use crate::fresh::{self, Fresh};
use crate::paths::Paths;
use crate::system_tree::{self, DESCRIPTION, NAME, SETTINGS, SUMMARY};
use crate::tree::{self, EPOCH_SECONDS, Tree, VERSION, install, write};
use crate::{deb_chroot, deb_systemd, deb_upgrade, portable};

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
    let dist = if options.built { Dist::at(paths) } else { dist::build(paths, Build::Portable)? };
    let package = build(paths, &tree::build(paths, &dist)?)?;
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
    let next = deb_upgrade::build(paths, package)?;
    deb_chroot::check(paths, &archive, package, &next)?.print(ENTERED);
    deb_systemd::check(paths, &archive, package)?.print(BOOTED);
    Ok(())
}

/// Whether this system can build packages.
pub(crate) fn is_possible() -> bool {
    succeeds(Command::new("dpkg-deb").arg("--version"))
}

/// Builds the package of a tree.
///
/// # Errors
/// When a file is missing or `dpkg-deb` fails.
pub(crate) fn build(paths: &Paths, tree: &Tree) -> Result<PathBuf> {
    let root = paths.target.join("deb/root");
    system_tree::build(paths, tree, &root)?;
    control_files(paths, &root)?;
    let package = paths.target.join(format!("deb/{NAME}_{VERSION}_amd64.deb"));
    run_quietly(
        Command::new("dpkg-deb")
            // The date of files that are newer: the same tree makes the same bytes.
            .env("SOURCE_DATE_EPOCH", EPOCH_SECONDS.to_string())
            .args(["--root-owner-group", "--build"])
            .arg(&root)
            .arg(&package),
    )?;
    Ok(package)
}

fn control_files(paths: &Paths, root: &Path) -> Result<()> {
    let size = run_quietly(Command::new("du").args(["-sk"]).arg(root))?.stdout;
    let size = String::from_utf8_lossy(&size);
    let size_kib = size.split_whitespace().next().context("du says nothing")?;
    let (major, minor) = portable::GLIBC;
    let description = DESCRIPTION.join("\n ");
    let control = format!(
        "Package: {NAME}\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: The OpenMPS developers <openmps@localhost>\n\
         Installed-Size: {size_kib}\nDepends: libc6 (>= {major}.{minor})\nSection: utils\nPriority: optional\n\
         Description: {SUMMARY}\n {description}\n"
    );
    let debian = root.join("DEBIAN");
    write(&debian.join("control"), control.as_bytes())?;
    write(&debian.join("conffiles"), format!("{SETTINGS}\n").as_bytes())?;
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
    ensure!(version.contains(VERSION), "the installed executable says {version}");
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
