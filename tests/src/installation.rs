//! What is tested: the product as `cargo xtask build` lays it out, and the programs that
//! `cargo xtask programs` compiles.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The directories of the product and of the programs.
#[derive(Clone, Debug)]
pub struct Installation {
    dist: PathBuf,
    programs: PathBuf,
    debian: PathBuf,
    sources: PathBuf,
    /// Where the programs of the tests' own package are, if not beside the test.
    own_programs: Option<PathBuf>,
}

impl Installation {
    /// Finds them in cargo's target directory.
    ///
    /// # Errors
    /// When the product is not built.
    pub fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(directory) => root.join(directory),
            None => root.join("target"),
        };
        let found = Self {
            dist: target.join("dist"),
            programs: target.join("programs"),
            debian: target.join("debian"),
            sources: root.join("programs"),
            own_programs: None,
        };
        if !found.openmps().exists() || !found.programs.exists() {
            bail!("{} is missing: run `cargo xtask programs` first", found.openmps().display());
        }
        Ok(found)
    }

    /// The executable.
    pub fn openmps(&self) -> PathBuf {
        self.dist.join("bin/openmps")
    }

    /// The directory of the client library.
    pub fn client_directory(&self) -> PathBuf {
        self.dist.join("lib/openmps")
    }

    /// The software GPU's driver.
    pub fn softcuda(&self) -> PathBuf {
        self.dist.join("lib/openmps/libsoftcuda.so")
    }

    /// A directory in which the software GPU's driver has the name that programs open.
    pub fn softcuda_directory(&self) -> PathBuf {
        self.dist.join("lib/softcuda")
    }

    /// A compiled program, by the directory of its kind and its name.
    pub fn program(&self, kind: &str, name: &str) -> PathBuf {
        self.programs.join(kind).join(name)
    }

    /// The program behind [`crate::Puppet`].
    ///
    /// # Errors
    /// When it is not there.
    pub fn puppet(&self) -> Result<PathBuf> {
        self.own_program("puppet")
    }

    /// A program of the tests' own package, which cargo puts beside the tests' executables.
    ///
    /// # Errors
    /// When it is not there.
    pub fn own_program(&self, name: &str) -> Result<PathBuf> {
        let test = env::current_exe().context("this test has no path")?;
        let beside = test.parent().and_then(Path::parent).context("this test has no directory")?;
        let program = self.own_programs.as_deref().unwrap_or(beside).join(name);
        if !program.exists() {
            bail!("{} is missing: run `cargo test -p openmps-tests`", program.display());
        }
        Ok(program)
    }

    /// The same product, puppet and stranger in `directory`, where other users reach them: a
    /// checkout may lie in a directory of one user alone.
    ///
    /// # Errors
    /// When a file is missing or cannot be copied.
    pub fn published(&self, directory: &Path) -> Result<Self> {
        let dist = directory.join("dist");
        let own_programs = directory.join("programs");
        for inside in ["dist/bin", "dist/lib/openmps", "dist/lib/softcuda", "programs"] {
            fs::create_dir_all(directory.join(inside))?;
        }
        let libraries = ["libcuda.so.1", "libsoftcuda.so", "spank_openmps.so"];
        let libraries = libraries.map(|name| format!("lib/openmps/{name}"));
        for file in libraries.iter().map(String::as_str).chain(["bin/openmps"]) {
            publish(&self.dist.join(file), &dist.join(file))?;
        }
        symlink("openmps", dist.join("bin/nvidia-cuda-mps-control"))?;
        symlink("libcuda.so.1", dist.join("lib/openmps/libcuda.so"))?;
        symlink("../openmps/libsoftcuda.so", dist.join("lib/softcuda/libcuda.so.1"))?;
        for program in ["attacker", "puppet", "reaper", "stranger", "wire"] {
            publish(&self.own_program(program)?, &own_programs.join(program))?;
        }
        Ok(Self { dist, own_programs: Some(own_programs), ..self.clone() })
    }

    /// Debian's packages of this name, unpacked as under `/`; they may be missing.
    pub fn debian(&self, name: &str) -> PathBuf {
        self.debian.join(name).join("root")
    }

    /// The directory of the programs' sources.
    pub fn sources(&self) -> &Path {
        &self.sources
    }
}

/// The same file under another name; a copy where file systems differ.
///
/// # Errors
/// When it cannot be copied.
pub fn publish(from: &Path, to: &Path) -> Result<()> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
