//! The portable build: the product for every Linux whose C library is of 2012 or later.
//!
//! A container's program decides which C library its process has, and `libcuda.so.1` is loaded into
//! that process. So the files that ship need nothing newer than glibc 2.17 and no `libgcc_s`, which
//! small images lack. cargo-zigbuild and zig do the linking, from pinned wheels: zig has the
//! symbols of every version of glibc, so that what is too new does not even link, and an unwinder
//! to link in. Only Rust's part is compiled as ever.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::command;
use crate::elf::{self, Needs};
use crate::paths::Paths;
use crate::python_tools::{Environment, Fresh};

const TOOLS: Environment<'_> = Environment {
    name: "zig",
    requirements: include_str!("../zig-requirements.txt"),
    what: "zig, which links for older systems (100 MB of wheels)",
};

/// Of zig and cargo-zigbuild. What it holds depends on [`WITHOUT_DEBUG_INFORMATION`], which zig
/// does not know: whoever changes that gives this another name.
const CACHE: &str = "cache-without-debug-information";
/// For clang, of which zig is made. zig compiles an unwinder to link in, and would describe it to
/// debuggers by the paths of this machine.
const WITHOUT_DEBUG_INFORMATION: &str = "# +-g0";
/// The C library that is linked against: that of manylinux2014, RHEL 7 and all later ones.
pub(crate) const GLIBC: (u32, u32) = (2, 17);
/// The parts of that C library, and nothing else.
const LIBRARIES: [&str; 7] = [
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
];
/// What is built: the packages of the product.
pub(crate) const PACKAGES: [&str; 4] = ["openmps", "client", "softcuda", "spank-openmps"];

/// How cargo compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// What ships, with debug information that is taken apart later.
    Release,
    /// The same without: the tools that take it apart know this machine's processor alone.
    StrippedRelease,
}

/// Builds the product; returns the directory with what cargo made.
///
/// # Errors
/// When the tools cannot be had, something does not compile, or a file needs too much.
pub(crate) fn build(paths: &Paths) -> Result<PathBuf> {
    build_for(paths, &format!("{ARCH}-unknown-linux-gnu"), Profile::Release)
}

/// The same for another processor.
///
/// # Errors
/// As there.
pub(crate) fn build_for(paths: &Paths, target: &str, profile: Profile) -> Result<PathBuf> {
    let mut cargo = cargo(paths, "zigbuild", target)?;
    cargo.arg("--release").args(PACKAGES.map(|package| format!("--package={package}")));
    if profile == Profile::StrippedRelease {
        // Cargo's own setting does not reach packages that have settings of their own.
        cargo.env("RUSTFLAGS", without_paths(paths)? + " -Cstrip=symbols");
    }
    command::run(&mut cargo)?;
    Ok(paths.target.join(target).join("release"))
}

/// A command of cargo's that links for the C library of [`GLIBC`].
///
/// # Errors
/// When the tools cannot be had.
pub(crate) fn cargo(
    paths: &Paths,
    subcommand: &str,
    target: &str,
) -> Result<std::process::Command> {
    let tools = tools(paths)?;
    let (major, minor) = GLIBC;
    let mut cargo = tools.command("cargo-zigbuild");
    cargo.current_dir(&paths.root).args([subcommand, "--target"]);
    cargo.arg(format!("{target}.{major}.{minor}"));
    cargo.env("RUSTFLAGS", without_paths(paths)?).env("CARGO_TARGET_DIR", &paths.target);
    Ok(cargo)
}

/// Options that keep the paths of this machine out of the files, so that they are the same
/// everywhere.
fn without_paths(paths: &Paths) -> Result<String> {
    let both = [(paths.root.canonicalize()?, "/openmps"), (cargo_home()?, "/cargo")];
    let options = both.map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()));
    for option in &options {
        ensure!(!option.contains(' '), "cargo takes no path with a space here: {option}");
    }
    Ok(options.join(" "))
}

/// Where cargo has the sources of other packages.
///
/// # Errors
/// When the environment does not say.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    home.context("there is neither CARGO_HOME nor HOME")
}

/// Where the tools are, or will be.
pub(crate) fn folder(paths: &Paths) -> PathBuf {
    paths.target.join(TOOLS.name)
}

/// zig and what belongs to it.
pub(crate) struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// A program of theirs, that leaves nothing outside of the build directory.
    pub(crate) fn command(&self, program: &str) -> std::process::Command {
        let bin = self.folder.join("venv/bin");
        let mut command = std::process::Command::new(bin.join(program));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path)));
        command.env("PATH", path.unwrap_or_default());
        for variable in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR", "CARGO_ZIGBUILD_CACHE_DIR"]
        {
            command.env(variable, self.folder.join(CACHE));
        }
        command.env("CCC_OVERRIDE_OPTIONS", WITHOUT_DEBUG_INFORMATION);
        command
    }
}

/// Installs the tools unless they are there.
///
/// # Errors
/// When Python, pip or the network is missing, or zig has no such wheel.
pub(crate) fn tools(paths: &Paths) -> Result<Tools> {
    if ARCH != "x86_64" {
        bail!("the portable build is for x86-64 alone: cargo xtask build makes one for this system")
    }
    TOOLS.ensure(paths, "")?.map_or(Ok(()), Fresh::finish)?;
    Ok(Tools { folder: folder(paths) })
}

/// Whether files run on every system that is promised.
///
/// # Errors
/// What a file needs beyond that, by symbol.
pub(crate) fn check(files: &[PathBuf]) -> Result<()> {
    let mut wrong = Vec::new();
    for file in files {
        wrong.extend(too_new(file, &elf::needs(file)?));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn too_new(file: &Path, needs: &Needs) -> Vec<String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let foreign = needs.libraries.iter().filter(|library| !LIBRARIES.contains(&library.as_str()));
    let mut wrong: Vec<String> =
        foreign.map(|library| format!("{name} needs the library {library}")).collect();
    for version in needs.versions.iter().filter(|version| !is_old_enough(version)) {
        let of_version = |symbol: &&elf::Symbol| symbol.version.as_ref() == Some(version);
        let symbols: Vec<&str> =
            needs.symbols.iter().filter(of_version).map(|symbol| symbol.name.as_str()).collect();
        wrong.push(format!("{name} needs {version}: {}", symbols.join(", ")));
    }
    wrong
}

/// Whether the C library that is promised has a version of symbols.
fn is_old_enough(version: &str) -> bool {
    let Some(number) = version.strip_prefix("GLIBC_") else { return false };
    let mut parts = number.split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) <= GLIBC,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Symbol;

    #[test]
    fn what_is_too_new_is_named_by_its_symbol() {
        let symbol = |name: &str, version: &str| Symbol {
            name: name.to_owned(),
            version: Some(version.to_owned()),
        };
        let needs = Needs {
            libraries: ["libc.so.6", "libgcc_s.so.1"].map(str::to_owned).into(),
            symbols: vec![
                symbol("memfd_create", "GLIBC_2.27"),
                symbol("secure_getenv", "GLIBC_2.17"),
                symbol("memcpy", "GLIBC_2.14"),
            ],
            versions: ["GLIBC_2.27", "GLIBC_2.17", "GLIBC_2.14", "GLIBC_ABI_DT_RELR"]
                .map(str::to_owned)
                .into(),
        };
        assert_eq!(
            too_new(Path::new("/x/libcuda.so.1"), &needs),
            [
                "libcuda.so.1 needs the library libgcc_s.so.1",
                "libcuda.so.1 needs GLIBC_2.27: memfd_create",
                "libcuda.so.1 needs GLIBC_ABI_DT_RELR: ",
            ]
        );
    }

    /// This very program is linked as the system does it.
    #[test]
    fn needs_are_read_from_files() {
        let needs = elf::needs(&std::env::current_exe().unwrap()).unwrap();
        assert!(needs.libraries.contains(&"libc.so.6".to_owned()), "{needs:?}");
        let start = needs.symbols.iter().find(|symbol| symbol.name == "__libc_start_main");
        let version = start.and_then(|symbol| symbol.version.as_deref()).unwrap();
        assert!(version.starts_with("GLIBC_2."), "{version}");
        assert!(needs.versions.iter().any(|known| known == version), "{needs:?}");
        assert!(elf::needs(Path::new("/proc/self/maps")).is_err());
    }
}
