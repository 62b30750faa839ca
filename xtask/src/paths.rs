//! Where things lie in the checkout.

use std::env;
use std::path::{Path, PathBuf};

/// The checkout and its build directory.
pub(crate) struct Paths {
    /// The repository's root.
    pub(crate) root: PathBuf,
    /// Cargo's target directory, which holds everything that is built.
    pub(crate) target: PathBuf,
}

impl Paths {
    /// Finds the checkout that this executable was compiled in; on another machine, to which the
    /// build was copied, the current directory takes its place.
    pub(crate) fn find() -> Self {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let compiled_in = manifest.parent().unwrap_or(manifest).to_path_buf();
        let root = if compiled_in.exists() { compiled_in } else { PathBuf::from(".") };
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(directory) => root.join(directory),
            None => root.join("target"),
        };
        Self { root, target }
    }
}
