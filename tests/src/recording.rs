//! What programs call with success, for the table of proofs (`cuda_abi::proofs`): kept only if the
//! program was right.
//!
//! Only where the test's own environment names a directory (`OPENMPS_RECORD_CALLS`), as
//! `cargo xtask test` does; it reads the files `NAME/LIBRARY.VARIANT` there.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use cuda_abi::record::VARIABLE;
use tempfile::TempDir;

/// The calls of a program that runs.
#[derive(Debug)]
pub struct Recording {
    directory: TempDir,
    keep_in: Option<PathBuf>,
    variant: String,
}

impl Recording {
    /// Makes ready for a program, `cuda/scan`, in one of its variants: ways to be linked, say.
    ///
    /// # Errors
    /// When there is no place for temporary files.
    pub fn start(program: String, variant: &str) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("openmps-test-calls-").tempdir()?;
        let keep_in = kept_in().map(|kept_in| kept_in.join(program));
        Ok(Self { directory, keep_in, variant: variant.to_owned() })
    }

    /// What the program needs in its environment.
    pub fn variable(&self) -> (&'static str, PathBuf) {
        (VARIABLE, self.directory.path().to_owned())
    }

    /// The program was right.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn keep(self) -> Result<()> {
        let Some(keep_in) = self.keep_in else { return Ok(()) };
        fs::create_dir_all(&keep_in)
            .with_context(|| format!("cannot create {}", keep_in.display()))?;
        for entry in self.directory.path().read_dir()? {
            let file = entry?;
            // LIBRARY.PROGRAM: a program may start others.
            let name = file.file_name().to_string_lossy().into_owned();
            let to = keep_in.join(format!("{name}.{}", self.variant));
            fs::copy(file.path(), &to).with_context(|| format!("cannot write {}", to.display()))?;
        }
        Ok(())
    }
}

/// What a daemon needs in its environment, so that its executors record what they ask of the native
/// driver.
///
/// # Errors
/// When the directory cannot be made.
pub fn executor() -> Result<Option<(&'static str, String)>> {
    let Some(kept_in) = kept_in() else { return Ok(None) };
    let directory = kept_in.join("executor");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(Some((VARIABLE, directory.to_string_lossy().into_owned())))
}

fn kept_in() -> Option<PathBuf> {
    env::var_os(VARIABLE).map(PathBuf::from)
}
