//! A fresh Debian of this system's release: as small as it can be and still have apt, and systemd.
//!
//! It is made by debootstrap and kept as an archive in the target directory, so that only the first
//! run needs the network and its minute. Root is needed to enter it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{run_quietly, succeeds};
use crate::paths::Paths;

/// A program that needs no library but the C library and the driver.
const PROGRAM: &str = "programs/cudart-13.0-static/vector_add";
/// For commands inside.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What came of a check inside.
pub(crate) enum Fresh {
    /// All of it went well; what was said inside.
    Checked(String),
    /// It could not be tried, and why.
    Skipped(String),
}

impl Fresh {
    /// Says so.
    pub(crate) fn print(&self, what: &str) {
        match self {
            Self::Checked(said) => print!("{what}:\n{said}"),
            Self::Skipped(why) => println!("not tried {what}: {why}"),
        }
    }

    /// What this system may not do, and why. Continuous integration is given a system that may:
    /// there it is a failure.
    ///
    /// # Errors
    /// With `CI=true`.
    pub(crate) fn not_permitted(why: impl Into<String>) -> Result<Self> {
        let why = why.into();
        if std::env::var_os("CI").is_some_and(|value| value == "true") {
            bail!("continuous integration must be able to: {why}");
        }
        Ok(Self::Skipped(why))
    }
}

/// A root file system, removed again by [`Root::remove`]; one whose check failed stays to be looked
/// at.
pub(crate) struct Root {
    /// Its `/`.
    pub(crate) path: PathBuf,
}

impl Root {
    /// Unpacks one under the name, with the package and a CUDA program in `/package`.
    pub(crate) fn unpack(
        paths: &Paths,
        archive: &Path,
        name: &str,
        package: &Path,
    ) -> Result<Self> {
        let path = folder(paths).join(name);
        remove(&path)?;
        let inside = path.join("package");
        fs::create_dir_all(&inside)?;
        run_quietly(Command::new("tar").arg("-C").arg(&path).arg("-xf").arg(archive))?;
        fs::copy(package, inside.join("openmps.deb"))?;
        fs::copy(paths.target.join(PROGRAM), inside.join("program"))?;
        Ok(Root { path })
    }

    /// Removes it.
    pub(crate) fn remove(self) -> Result<()> {
        remove(&self.path)
    }
}

/// Gives a command the environment of a fresh system.
pub(crate) fn with_its_environment(command: &mut Command) -> &mut Command {
    command.env_clear().env("PATH", SEARCH_PATH).env("HOME", "/root")
}

/// Why this system cannot try.
pub(crate) fn obstacle(paths: &Paths) -> Option<String> {
    let user = run_quietly(Command::new("id").arg("-u")).map(|output| output.stdout);
    if !user.is_ok_and(|user| user.trim_ascii() == b"0") {
        return Some("only root can enter it".to_owned());
    }
    let mut enter = Command::new("unshare");
    enter.args(["--mount", "--pid", "--fork", "--mount-proc", "true"]);
    if !succeeds(&mut enter) {
        return Some("this process may not make name spaces (unshare)".to_owned());
    }
    if !paths.target.join(PROGRAM).exists() {
        return Some(format!("there is no target/{PROGRAM}: cargo xtask programs builds it"));
    }
    None
}

/// The archive of this system's release with systemd, made if it is not there yet.
pub(crate) fn archive(paths: &Paths) -> Result<PathBuf> {
    let release = release().context("this is no Debian, whose release would be known")?;
    archive_of(paths, &release, Some("systemd"))
}

/// The archive of a release, with a package more or without; made if it is not there yet.
pub(crate) fn archive_of(paths: &Paths, release: &str, package: Option<&str>) -> Result<PathBuf> {
    let folder = folder(paths);
    let archive = folder.join(match package {
        Some(package) => format!("{release}-{package}.tar"),
        None => format!("{release}.tar"),
    });
    if archive.exists() {
        return Ok(archive);
    }
    fs::create_dir_all(&folder)?;
    let tool = debootstrap(&folder).context("there is no debootstrap")?;
    println!("making a Debian of release {release}");
    let root = folder.join("base");
    remove(&root)?;
    fs::create_dir_all(&root)?;
    let mut make = Command::new(&tool.program);
    if let Some(data) = &tool.data {
        make.env("DEBOOTSTRAP_DIR", data);
    }
    make.arg("--variant=minbase");
    make.args(package.map(|package| format!("--include={package}")));
    make.arg(release).arg(&root).args(mirror(release));
    run_quietly(&mut make).context("debootstrap failed, which needs the network")?;
    // Under another name first: an interrupted run leaves no half of an archive.
    let fresh = archive.with_extension("new");
    run_quietly(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&fresh).arg("."))?;
    fs::rename(&fresh, &archive)?;
    remove(&root)?;
    Ok(archive)
}

fn folder(paths: &Paths) -> PathBuf {
    paths.target.join("deb")
}

/// debootstrap, installed or unpacked.
struct Debootstrap {
    program: PathBuf,
    /// Where its scripts are, if not where the package puts them.
    data: Option<PathBuf>,
}

fn debootstrap(folder: &Path) -> Result<Debootstrap> {
    if succeeds(Command::new("debootstrap").arg("--version")) {
        return Ok(Debootstrap { program: "debootstrap".into(), data: None });
    }
    let tools = folder.join("tools");
    let unpacked = Debootstrap {
        program: tools.join("usr/sbin/debootstrap"),
        data: Some(tools.join("usr/share/debootstrap")),
    };
    if !unpacked.program.exists() {
        // A script of a few kilobytes: not worth installing it on somebody's system.
        let downloads = folder.join("downloads");
        remove(&downloads)?;
        fs::create_dir_all(&downloads)?;
        let mut download = Command::new("apt-get");
        run_quietly(download.args(["download", "debootstrap"]).current_dir(&downloads))?;
        let package =
            fs::read_dir(&downloads)?.next().context("apt-get downloaded nothing")??.path();
        run_quietly(Command::new("dpkg-deb").arg("-x").arg(package).arg(&tools))?;
    }
    Ok(unpacked)
}

/// The release's name: binaries that are built here want this C library or a later one.
fn release() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim_matches('"'))
    };
    if field("ID=") == Some("debian") {
        field("VERSION_CODENAME=").map(str::to_owned)
    } else {
        None
    }
}

/// Where this system gets its packages from, if apt says so; debootstrap knows the usual place.
fn mirror(release: &str) -> Option<String> {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(CODENAME) $(REPO_URI)"]);
    let lines = run_quietly(&mut targets).map(|output| output.stdout).unwrap_or_default();
    let lines = String::from_utf8_lossy(&lines).into_owned();
    let here = lines.lines().find_map(|line| line.strip_prefix(&format!("{release} ")));
    // Releases that this system does not name are at the same place.
    let any = || lines.lines().find_map(|line| Some(line.split_once(' ')?.1));
    here.or_else(any).map(str::to_owned)
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
