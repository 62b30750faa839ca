//! What is tested: the product as `cargo xtask build` lays it out, and the programs that `cargo xtask programs` compiles.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The directories of the product and of the programs.
#[derive(Clone, Debug)]
pub struct Installation {
    dist: PathBuf,
    programs: PathBuf,
    debian: PathBuf,
    sources: PathBuf,
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
        let directory =
            test.parent().and_then(Path::parent).context("this test has no directory")?;
        let program = directory.join(name);
        if !program.exists() {
            bail!("{} is missing: run `cargo test -p openmps-tests`", program.display());
        }
        Ok(program)
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
