//! `cargo xtask rpm`: the package for RHEL and its kin, of the files in [`system_tree`].
//!
//! It is made and tried with Debian's rpm and dnf, which are unpacked under `target/debian/dnf` and
//! not installed. Scripts are in rpm's own Lua, so that the package needs no shell.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::command::run_quietly;
use crate::debian::{self, Unpacked};
use crate::dist::{self, Build, Dist};
use crate::fresh::Fresh;
use crate::paths::Paths;
use crate::portable;
use crate::system_tree::{self, DESCRIPTION, NAME, SETTINGS, SUMMARY};
use crate::tree::{self, EPOCH_SECONDS, Tree, VERSION, fresh_directory};

/// Directories that are the package's own, with all in them.
const DIRECTORIES: [&str; 3] = ["usr/lib/openmps", "usr/share/doc/openmps", "etc/openmps"];
pub(crate) const TRIED: &str = "the rpm in an empty root, by dnf";
/// For which Debian's dnf is.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// What is done with the package.
#[derive(Debug, Args)]
pub(crate) struct Rpm {
    /// Also install it into an empty root, verify it, run it and erase it again; needs root
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
pub(crate) fn run(paths: &Paths, options: &Rpm) -> Result<PathBuf> {
    let dist = if options.built { Dist::at(paths) } else { dist::build(paths, Build::Portable)? };
    let tools = Tools::find(paths)?.map_err(anyhow::Error::msg)?;
    let package = tools.build(paths, &tree::build(paths, &dist)?)?;
    if options.check {
        tools.check(paths, &package)?.print(TRIED);
    }
    Ok(package)
}

/// Builds and tries the package of a tree, as a step of the tests.
///
/// # Errors
/// What did not work.
pub(crate) fn test(paths: &Paths, tree: &Tree) -> Result<()> {
    match Tools::find(paths)? {
        Ok(tools) => {
            let first = tools.build(paths, tree)?;
            let bytes = fs::read(&first)?;
            let again = tools.build(paths, tree)?;
            ensure!(bytes == fs::read(again)?, "made twice, the rpm is not the same");
            tools.check(paths, &first)?.print(TRIED);
        }
        Err(why) => println!("no rpm: {why}"),
    }
    Ok(())
}

/// rpm, rpmbuild and dnf.
pub(crate) struct Tools {
    root: PathBuf,
    folder: PathBuf,
}

impl Tools {
    /// Unpacks them unless they are there; or says why this system cannot.
    ///
    /// # Errors
    /// When apt cannot fetch them.
    pub(crate) fn find(paths: &Paths) -> Result<Result<Self, String>> {
        Ok(match debian::ensure(paths, "dnf", &["dnf", "rpm"])? {
            Unpacked::At(root) => Ok(Self { root, folder: paths.target.join("rpm") }),
            Unpacked::Skipped(why) => Err(why),
        })
    }

    /// A program of theirs, or of the system where the name is a path.
    fn command(&self, program: &str) -> Command {
        let bin = self.root.join("usr/bin");
        let mut command = Command::new(bin.join(program));
        let home = self.folder.join("home");
        command
            .env("LD_LIBRARY_PATH", self.root.join("usr/lib/x86_64-linux-gnu"))
            .env("RPM_CONFIGDIR", self.root.join("usr/lib/rpm"))
            .env("HOME", home)
            .env("SOURCE_DATE_EPOCH", EPOCH_SECONDS.to_string());
        if let Some(path) = std::env::var_os("PATH") {
            let all = [bin].into_iter().chain(std::env::split_paths(&path));
            command.env("PATH", std::env::join_paths(all).unwrap_or(path));
        }
        command
    }

    /// dnf for another root. It knows no repositories: what is installed is a file.
    fn dnf(&self, root: &Path) -> Result<Command> {
        let home = self.folder.join("home");
        let settings = home.join("dnf.conf");
        tree::write(&settings, b"[main]\ngpgcheck=0\n")?;
        // rpm's library reads it, and Debian's would keep its records elsewhere.
        tree::write(&home.join(".rpmmacros"), b"%_dbpath /var/lib/rpm\n")?;
        let mut dnf = self.command(SYSTEM_PYTHON);
        dnf.arg("-B").arg(self.root.join("usr/bin/dnf")).arg("--config").arg(&settings);
        dnf.arg("--installroot").arg(root).args(["--releasever=9", "--assumeyes"]);
        for (name, place) in [
            ("reposdir", "none"),
            ("pluginpath", "none"),
            ("cachedir", "cache"),
            ("persistdir", "state"),
        ] {
            dnf.arg(format!("--setopt={name}={}", self.folder.join("dnf").join(place).display()));
        }
        dnf.env("PYTHONPATH", self.root.join("usr/lib/python3/dist-packages"));
        Ok(dnf)
    }

    /// Builds the package of a tree.
    ///
    /// # Errors
    /// When a file is missing or rpmbuild fails.
    pub(crate) fn build(&self, paths: &Paths, tree: &Tree) -> Result<PathBuf> {
        let root = self.folder.join("root");
        system_tree::build(paths, tree, &root)?;
        let functions = root.join("usr/share/zsh");
        fs::rename(functions.join("vendor-completions"), functions.join("site-functions"))?;
        let script = |name: &str| {
            let file = paths.root.join("packaging/rpm").join(name);
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
        };
        let (major, minor) = portable::GLIBC;
        let specification = format!(
            "Name: {NAME}\nVersion: {VERSION}\nRelease: 1\nSummary: {SUMMARY}\n\
             License: MIT OR Apache-2.0\nRequires: libc.so.6(GLIBC_{major}.{minor})(64bit)\n\
             AutoReqProv: no\n%description\n{}\n%install\ncp -a %{{tree}}/. %{{buildroot}}\n\
             %preun -p <lua>\n{}%postun -p <lua>\n{}%files\n{}",
            DESCRIPTION.join("\n"),
            script("preun.lua")?,
            script("postun.lua")?,
            files(&root)?,
        );
        self.rpmbuild(NAME, &specification, &root)
    }

    fn rpmbuild(&self, name: &str, specification: &str, root: &Path) -> Result<PathBuf> {
        let file = self.folder.join(format!("{name}.spec"));
        tree::write(&file, specification.as_bytes())?;
        let out = self.folder.join("out").join(name);
        fresh_directory(&out)?;
        let work = self.folder.join("work");
        let mut rpmbuild = self.command("rpmbuild");
        for definition in [
            format!("tree {}", root.display()),
            format!("_topdir {}", work.display()),
            format!("_rpmdir {}", out.display()),
            "_build_id_links none".to_owned(),
            "_buildhost openmps".to_owned(),
            // Every rpm from RHEL 7's on reads it.
            "_binary_payload w9.gzdio".to_owned(),
            "__os_install_post %{nil}".to_owned(),
            "debug_package %{nil}".to_owned(),
            "use_source_date_epoch_as_buildtime 1".to_owned(),
            "clamp_mtime_to_source_date_epoch 1".to_owned(),
        ] {
            rpmbuild.args(["--define", &definition]);
        }
        run_quietly(rpmbuild.args(["--quiet", "--target", "x86_64-linux", "-bb"]).arg(&file))?;
        Ok(fs::read_dir(out.join("x86_64"))?.next().context("rpmbuild wrote nothing")??.path())
    }

    /// Installs the package into an empty root beside a stub for the C library, verifies and runs
    /// it, and erases it without a trace.
    ///
    /// # Errors
    /// What did not work.
    pub(crate) fn check(&self, paths: &Paths, package: &Path) -> Result<Fresh> {
        let user = run_quietly(Command::new("id").arg("-u"))?.stdout;
        if user.trim_ascii() != b"0" {
            return Fresh::not_permitted("only root can install a package into another root");
        }
        let root = self.folder.join("installed");
        fresh_directory(&root)?;
        let verify = || {
            let mut rpm = self.command("rpm");
            rpm.args(["--define", "_dbpath /var/lib/rpm", "--force-debian", "--root"]);
            run_quietly(rpm.arg(&root).args(["--verify", NAME])).map(drop)
        };
        let dnf = |arguments: &[&str]| run_quietly(self.dnf(&root)?.args(arguments)).map(drop);
        let file = package.to_str().context("the package's path is no text")?;
        let refused = dnf(&["install", file]).err().map(|error| error.to_string());
        ensure!(
            refused.as_ref().is_some_and(|why| why.contains("libc.so.6(GLIBC_")),
            "without a C library it is not refused: {refused:?}"
        );
        let (major, minor) = portable::GLIBC;
        let stub = format!(
            "Name: stub\nVersion: 1\nRelease: 1\nSummary: stub\nLicense: MIT\nAutoReqProv: no\n\
             Provides: libc.so.6(GLIBC_{major}.{minor})(64bit)\n%description\nstub\n%files\n"
        );
        let stub = self.rpmbuild("stub", &stub, &root)?;
        dnf(&["install", stub.to_str().context("a path that is no text")?])?;
        let before = left(&root)?;
        dnf(&["install", file])?;
        verify()?;
        let executable = root.join("usr/bin/openmps");
        let clean = |command: &mut Command| {
            let folder = self.folder.join("run");
            command
                .env_remove("OPENMPS_LIB_DIR")
                .env("OPENMPS_CONFIG", root.join(SETTINGS.trim_start_matches('/')))
                .env("CUDA_MPS_PIPE_DIRECTORY", &folder)
                .env("CUDA_MPS_LOG_DIRECTORY", &folder);
            run_quietly(command).map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let version = clean(Command::new(&executable).arg("--version"))?;
        ensure!(version.contains(VERSION), "the installed executable says {version}");
        let program = paths.target.join("programs/cudart-13.0-static/vector_add");
        let mut run = Command::new(&executable);
        let ran = clean(run.args(["run", "--softcuda", "--"]).arg(program));
        clean(Command::new(&executable).args(["control", "quit"]))?;
        let ran = ran?;
        ensure!(ran.contains("vector_add: ok"), "the program said {ran}");
        // A file that differs is noticed.
        let library = root.join("usr/lib/openmps/libcuda.so.1");
        let content = fs::read(&library)?;
        fs::write(&library, b"changed")?;
        ensure!(verify().is_err(), "a changed library was not noticed");
        fs::write(&library, content)?;
        dnf(&["remove", NAME])?;
        let after = left(&root)?;
        ensure!(before == after, "left behind: {after}, before: {before}");
        Ok(Fresh::Checked("  installed, verified, run and erased\n".to_owned()))
    }
}

/// What lies in a root, beside rpm's and dnf's own.
fn left(root: &Path) -> Result<String> {
    let mut find = Command::new("find");
    find.arg(root).args(["-path", "*/var/lib/rpm", "-prune", "-o", "-name", "dnf*.log", "-prune"]);
    find.args(["-o", "-type", "f", "-print"]);
    let files = run_quietly(&mut find)?.stdout;
    let mut directories = Command::new("find");
    directories.arg(root).args(["-name", "*openmps*"]);
    Ok(String::from_utf8_lossy(&[files, run_quietly(&mut directories)?.stdout].concat()).into())
}

/// The list of what is in the package.
fn files(root: &Path) -> Result<String> {
    let mut find = Command::new("find");
    find.arg(root).args(["-not", "-type", "d", "-printf", "/%P\\n"]);
    let found = run_quietly(&mut find)?.stdout;
    let mut lines: Vec<String> = String::from_utf8(found)?
        .lines()
        .map(|file| match file {
            SETTINGS => format!("%config(noreplace) {file}"),
            file => file.to_owned(),
        })
        .collect();
    for directory in DIRECTORIES {
        let mut inside = Command::new("find");
        inside.arg(root.join(directory)).args(["-type", "d", "-printf", "%p\n"]);
        let found = String::from_utf8(run_quietly(&mut inside)?.stdout)?;
        for directory in found.lines() {
            let place = Path::new(directory).strip_prefix(root)?;
            lines.push(format!("%dir /{}", place.display()));
        }
    }
    lines.sort();
    Ok(["%defattr(-,root,root)".to_owned()].into_iter().chain(lines).map(|l| l + "\n").collect())
}
