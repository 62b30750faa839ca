//! The Debian package in a fresh Debian: installed by apt with what it depends on, used, removed and purged without a trace.
//!
//! The fresh system is made by debootstrap and kept as an archive in the target directory, so that only the first run needs the network
//! and its minute. Root is needed to enter it. What is missing is said, and is no failure: see [`Fresh`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::command::{run_quietly, succeeds};
use crate::paths::Paths;

/// What happens inside.
const SCRIPT: &str = include_str!("deb_chroot.sh");
/// A program that needs no library but the C library and the driver.
const PROGRAM: &str = "programs/cudart-13.0-static/vector_add";
/// Longest that everything inside may take.
const LIMIT: &str = "300";

/// What came of it.
pub(crate) enum Fresh {
    /// All of it went well; what was said inside.
    Checked(String),
    /// It could not be tried, and why.
    Skipped(String),
}

impl Fresh {
    /// Says so.
    pub(crate) fn print(&self) {
        match self {
            Self::Checked(said) => print!("in a fresh Debian:\n{said}"),
            Self::Skipped(why) => println!("not tried in a fresh Debian: {why}"),
        }
    }
}

/// Installs, uses and removes the package in a fresh Debian.
///
/// # Errors
/// What did not work inside.
pub(crate) fn check(paths: &Paths, package: &Path) -> Result<Fresh> {
    let folder = paths.target.join("deb");
    if let Some(why) = obstacle(paths) {
        return Ok(Fresh::Skipped(why));
    }
    let base = match base_archive(&folder) {
        Ok(base) => base,
        Err(error) => return Ok(Fresh::Skipped(format!("{error:#}"))),
    };
    let root = folder.join("fresh");
    remove(&root)?;
    fs::create_dir_all(&root)?;
    run_quietly(Command::new("tar").arg("-C").arg(&root).arg("-xf").arg(base))?;
    let inside = root.join("package");
    fs::create_dir_all(&inside)?;
    fs::copy(package, inside.join("openmps.deb"))?;
    fs::copy(paths.target.join(PROGRAM), inside.join("program"))?;
    fs::write(inside.join("script.sh"), SCRIPT)?;
    let output = Command::new("timeout")
        .args(["--kill-after=5", LIMIT])
        // Processes that are left inside end with their name space, and so does the mount.
        .args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(format!("--root={}", root.display()))
        .args(["sh", "/package/script.sh"])
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .stdin(Stdio::null())
        .output()
        .context("cannot start unshare")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "in a fresh Debian ({}):\n{said}{complaints}", root.display());
    remove(&root)?;
    Ok(Fresh::Checked(said))
}

/// Why this system cannot try.
fn obstacle(paths: &Paths) -> Option<String> {
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

/// A Debian of this system's release, as small as it can be and still have apt.
fn base_archive(folder: &Path) -> Result<PathBuf> {
    let release = release().context("this is no Debian, whose release would be known")?;
    let archive = folder.join(format!("{release}-base.tar"));
    if archive.exists() {
        return Ok(archive);
    }
    let tool = debootstrap(folder).context("there is no debootstrap")?;
    println!("making a Debian of release {release}");
    let root = folder.join("base");
    remove(&root)?;
    fs::create_dir_all(&root)?;
    let mut make = Command::new(&tool.program);
    if let Some(data) = &tool.data {
        make.env("DEBOOTSTRAP_DIR", data);
    }
    make.args(["--variant=minbase", &release]).arg(&root).args(mirror(&release));
    run_quietly(&mut make).context("debootstrap failed, which needs the network")?;
    // Under another name first: an interrupted run leaves no half of an archive.
    let fresh = archive.with_extension("new");
    run_quietly(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&fresh).arg("."))?;
    fs::rename(&fresh, &archive)?;
    remove(&root)?;
    Ok(archive)
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
    here.map(str::to_owned)
}

fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
