//! Debian packages that tests need, fetched and unpacked into the build directory: nothing is
//! installed, and no root is needed.
//!
//! apt says which packages of the system's own release are missing for what is asked for, and
//! fetches them; their maintainers' scripts are not run, so whatever uses the files must be told
//! where they are. A system without apt is told so, and is no failure: see [`Unpacked`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{run_quietly, succeeds};
use crate::paths::Paths;

const ARCHIVE: &str = "http://deb.debian.org/debian";
/// Of Debian's package `debian-archive-keyring`.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where the packages are.
pub(crate) enum Unpacked {
    /// Unpacked under this directory as they would be under `/`.
    At(PathBuf),
    /// This system has no such packages, and why.
    Skipped(String),
}

/// What is fetched.
#[derive(Clone, Copy)]
pub(crate) enum Packages<'a> {
    /// These, and those that they depend on and that the system does not have.
    WithDependencies(&'a [&'a str]),
    /// These and no others: some depend on what nobody needs here.
    Only(&'a [&'a str]),
}

/// Unpacks packages with what they depend on under `target/debian/NAME`; quick when they are there.
///
/// # Errors
/// When apt cannot fetch them, which needs the network once.
pub(crate) fn ensure(paths: &Paths, name: &str, packages: &[&str]) -> Result<Unpacked> {
    let folder = paths.target.join("debian").join(name);
    ensure_in(&folder, Packages::WithDependencies(packages))
}

/// Unpacks packages in the directory `root` of a folder, which is theirs alone; quick when they are
/// there.
///
/// # Errors
/// When apt cannot fetch them, which needs the network once.
pub(crate) fn ensure_in(folder: &Path, packages: Packages<'_>) -> Result<Unpacked> {
    if let Some(why) = obstacle() {
        return Ok(Unpacked::Skipped(why.to_owned()));
    }
    let (Packages::WithDependencies(named) | Packages::Only(named)) = packages;
    let (root, stamp) = (folder.join("root"), folder.join("packages.txt"));
    let wanted = named.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(Unpacked::At(root));
    }
    println!("unpacking Debian packages into {}: {}", root.display(), named.join(" "));
    let downloads = folder.join("downloads");
    empty(folder, &[&root, &downloads])?;
    let apt = Apt::with_lists(folder)?;
    let fetched = match packages {
        Packages::WithDependencies(packages) => apt.missing(packages)?,
        Packages::Only(packages) => packages.iter().map(|&name| name.to_owned()).collect(),
    };
    run_quietly(apt.command().arg("download").args(&fetched).current_dir(&downloads))
        .context("apt could not fetch the packages, which needs the network")?;
    unpack(&downloads, &root)?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(Unpacked::At(root))
}

/// Unpacks a package of another release or component of Debian's archive in the directory `root` of
/// a folder, which is its alone; quick when it is there.
///
/// # Errors
/// When apt cannot fetch it, which needs the network once.
pub(crate) fn ensure_of_release(
    folder: &Path,
    release: &str,
    component: &str,
    package: &str,
) -> Result<Unpacked> {
    if let Some(why) = obstacle() {
        return Ok(Unpacked::Skipped(why.to_owned()));
    }
    if !Path::new(KEYS).exists() {
        return Ok(Unpacked::Skipped(format!("the archive's keys are not at {KEYS}")));
    }
    let (root, stamp) = (folder.join("root"), folder.join("packages.txt"));
    if fs::read_to_string(&stamp).is_ok_and(|there| there == package) {
        return Ok(Unpacked::At(root));
    }
    let downloads = folder.join("downloads");
    empty(folder, &[&root, &downloads, &folder.join("apt/lists/partial")])?;
    let sources = folder.join("apt/sources.list");
    fs::write(&sources, format!("deb [signed-by={KEYS}] {ARCHIVE} {release} {component}\n"))?;
    let apt = || {
        let mut apt = Apt { lists: Some(folder.join("apt")) }.command();
        apt.arg("-o").arg(format!("Dir::Etc::sourcelist={}", sources.display()));
        apt.args(["-o", "Dir::Etc::sourceparts=-"]);
        apt
    };
    run_quietly(apt().arg("update")).context("apt has no lists of packages")?;
    run_quietly(apt().arg("download").arg(package).current_dir(&downloads))
        .with_context(|| format!("apt could not fetch {package} of {release}"))?;
    unpack(&downloads, &root)?;
    fs::write(&stamp, package).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(Unpacked::At(root))
}

/// Why there are no packages here.
fn obstacle() -> Option<&'static str> {
    let is_there = |program, option| succeeds(Command::new(program).arg(option));
    let are_there = is_there("apt-get", "--version") && is_there("dpkg-deb", "--version");
    (!are_there).then_some("this is no system with apt")
}

/// Makes a folder with these directories and nothing else.
fn empty(folder: &Path, directories: &[&Path]) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    for directory in directories {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    Ok(())
}

/// Unpacks what was fetched, which is removed.
fn unpack(downloads: &Path, root: &Path) -> Result<()> {
    for package in fs::read_dir(downloads)? {
        run_quietly(Command::new("dpkg-deb").arg("-x").arg(package?.path()).arg(root))?;
    }
    fs::remove_dir_all(downloads)?;
    Ok(())
}

/// Unpacks packages of another architecture in the directory `root` of a folder, which is theirs
/// alone; quick when they are there.
///
/// # Errors
/// When apt cannot fetch them, which needs the network once.
pub(crate) fn ensure_of_architecture(
    folder: &Path,
    architecture: &str,
    packages: &[&str],
) -> Result<PathBuf> {
    let (root, stamp) = (folder.join("root"), folder.join("packages.txt"));
    let wanted = packages.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(root);
    }
    let downloads = folder.join("downloads");
    empty(folder, &[&root, &downloads, &folder.join("apt/lists/partial")])?;
    // The system's packages are of its own architecture: apt is to know nothing of them.
    let apt = || {
        let mut apt = Apt { lists: Some(folder.join("apt")) }.command();
        for name in ["APT::Architecture", "APT::Architectures"] {
            apt.arg("-o").arg(format!("{name}={architecture}"));
        }
        apt.args(["-o", "Dir::State::status=/dev/null"]);
        apt
    };
    run_quietly(apt().arg("update")).context("apt has no lists of packages")?;
    let named = packages.iter().map(|package| format!("{package}:{architecture}"));
    run_quietly(apt().arg("download").args(named).current_dir(&downloads))?;
    unpack(&downloads, &root)?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(root)
}

/// apt with lists of packages: the system's, or fresh ones of our own where an image comes without.
struct Apt {
    lists: Option<PathBuf>,
}

impl Apt {
    fn with_lists(folder: &Path) -> Result<Self> {
        let system = Apt { lists: None };
        if system.missing(&["debootstrap"]).is_ok() {
            return Ok(system);
        }
        let own = folder.join("apt");
        fs::create_dir_all(own.join("lists/partial"))?;
        let apt = Apt { lists: Some(own) };
        run_quietly(apt.command().arg("update")).context("apt has no lists of packages")?;
        Ok(apt)
    }

    fn command(&self) -> Command {
        let mut command = Command::new("apt-get");
        // Neither root nor the locks of the system's database are needed.
        command.args(["-qq", "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"]);
        if let Some(own) = &self.lists {
            command.arg("-o").arg(format!("Dir::State::Lists={}", own.join("lists").display()));
            command.arg("-o").arg(format!("Dir::Cache={}", own.display()));
        }
        command
    }

    /// Of these packages and their dependencies, those that are not installed.
    fn missing(&self, packages: &[&str]) -> Result<Vec<String>> {
        let mut command = self.command();
        command.args(["--print-uris", "--no-install-recommends", "--reinstall", "install"]);
        let said = run_quietly(command.args(packages))?;
        // 'http://host/path' name_version_architecture.deb size hash
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let files = said.lines().filter_map(|line| line.split_whitespace().nth(1));
        let names: Vec<String> =
            files.filter_map(|file| Some(file.split_once('_')?.0.to_owned())).collect();
        if names.is_empty() {
            bail!("apt says of {} that there is nothing to fetch: {said}", packages.join(" "));
        }
        Ok(names)
    }
}
