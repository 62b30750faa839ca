//! Tools of the tests that are pinned wheels from PyPI: each in a Python environment of its own
//! under the build directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::run_quietly;
use crate::paths::Paths;
use crate::toolchain;

/// The published schemas of Kubernetes, against which a test holds our manifests.
const SCHEMAS: Environment<'_> = Environment {
    name: "kubernetes-schemas",
    requirements: include_str!("../kubernetes-schemas-requirements.txt"),
    what: "Kubernetes' schemas (22 MB of wheels)",
};

/// An environment in `target/NAME/venv`.
pub(crate) struct Environment<'a> {
    /// Of its directory.
    pub(crate) name: &'a str,
    /// What is in it, with hashes.
    pub(crate) requirements: &'a str,
    /// For people.
    pub(crate) what: &'a str,
}

impl Environment<'_> {
    /// Installs it unless it is there already; `more` is what else its directory's content depends
    /// on. `Some` if it is fresh: then [`Fresh::finish`] ends the work.
    ///
    /// # Errors
    /// When Python, pip or the network is missing.
    pub(crate) fn ensure(&self, paths: &Paths, more: &str) -> Result<Option<Fresh>> {
        let folder = paths.target.join(self.name);
        let fresh = Fresh {
            stamp: folder.join("installed.txt"),
            wanted: format!("{}\n{more}", self.requirements),
            folder,
        };
        if fs::read_to_string(&fresh.stamp).is_ok_and(|installed| installed == fresh.wanted) {
            return Ok(None);
        }
        println!("installing {} into {}", self.what, fresh.folder.display());
        if fresh.folder.exists() {
            fs::remove_dir_all(&fresh.folder)?;
        }
        fs::create_dir_all(&fresh.folder)?;
        let requirements = fresh.folder.join("requirements.txt");
        fs::write(&requirements, self.requirements)?;
        let python = toolchain::ensure_pip(&fresh.folder)?;
        run_quietly(
            Command::new(python)
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(["--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement"])
                .arg(&requirements),
        )
        .with_context(|| format!("pip could not install {}, which needs PyPI", self.what))?;
        Ok(Some(fresh))
    }
}

/// An environment that was made just now.
pub(crate) struct Fresh {
    folder: PathBuf,
    stamp: PathBuf,
    wanted: String,
}

impl Fresh {
    /// Its directory.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// All is there.
    ///
    /// # Errors
    /// When that cannot be noted.
    pub(crate) fn finish(self) -> Result<()> {
        fs::write(&self.stamp, &self.wanted)
            .with_context(|| format!("cannot write {}", self.stamp.display()))
    }
}

/// Installs the schemas unless they are there.
///
/// # Errors
/// When Python, pip or the network is missing.
pub(crate) fn ensure_schemas(paths: &Paths) -> Result<()> {
    SCHEMAS.ensure(paths, "")?.map_or(Ok(()), Fresh::finish)
}
