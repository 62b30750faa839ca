//! `cargo xtask quick`: what can be known of a change in under two minutes, on a tree that was
//! built before.
//!
//! Format, documents, and of the packages that the change touches lints and unit tests. What only
//! real processes show, `cargo xtask test` finds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Deserialize;

use crate::command;
use crate::paths::Paths;
use crate::prose;
use crate::rooms;

/// What is looked at.
#[derive(Debug, Args)]
pub(crate) struct Quick {
    /// Where the change began: a commit or branch
    #[arg(long, default_value = "HEAD")]
    since: String,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
}

impl Package {
    fn directory(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(Path::new("/"))
    }
}

/// Runs the checks.
///
/// # Errors
/// The first that fails.
pub(crate) fn run(paths: &Paths, options: &Quick) -> Result<()> {
    let cargo = || {
        let mut cargo = command::cargo();
        cargo.current_dir(&paths.root);
        cargo
    };
    command::run(cargo().args(["fmt", "--all", "--", "--check"]))?;
    prose::check(paths)?;
    rooms::check(paths)?;
    let packages = packages(paths)?;
    let touched = touched_packages(&packages, &changed_files(paths, &options.since)?);
    if touched.is_empty() {
        println!("no package has changed since {}", options.since);
        return Ok(());
    }
    let names: Vec<&str> = touched.iter().flat_map(|name| ["--package", *name]).collect();
    println!("changed since {}: {}", options.since, Vec::from_iter(touched).join(", "));
    let lints = ["--all-targets", "--", "--deny=warnings"];
    command::run(cargo().args(["clippy", "--quiet"]).args(&names).args(lints))?;
    command::run(cargo().args(["test", "--quiet", "--lib", "--bins"]).args(&names))
}

fn packages(paths: &Paths) -> Result<Vec<Package>> {
    let metadata: Metadata = command::metadata(paths, &["--no-deps"])?;
    Ok(metadata.packages)
}

/// Changed since a commit, or new and not ignored.
fn changed_files(paths: &Paths, since: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for arguments in
        [&["diff", "--name-only", since, "--"][..], &["ls-files", "--others", "--exclude-standard"]]
    {
        let mut git = std::process::Command::new("git");
        let output = command::run_quietly(git.current_dir(&paths.root).args(arguments))?;
        let text = String::from_utf8_lossy(&output.stdout);
        files.extend(text.lines().map(|line| paths.root.join(line)));
    }
    Ok(files)
}

/// The packages in whose directories files lie: of several, the innermost.
fn touched_packages<'a>(packages: &'a [Package], files: &[PathBuf]) -> BTreeSet<&'a str> {
    let of_file = |file: &PathBuf| {
        let around = packages.iter().filter(|package| file.starts_with(package.directory()));
        around.max_by_key(|package| package.directory().components().count())
    };
    files.iter().filter_map(of_file).map(|package| package.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_touches_the_innermost_package() {
        let package = |name: &str, directory: &str| Package {
            name: name.to_owned(),
            manifest_path: Path::new(directory).join("Cargo.toml"),
        };
        let packages = [package("outer", "/r/outer"), package("inner", "/r/outer/inner")];
        let files =
            ["/r/outer/inner/src/a.rs", "/r/README.md", "/r/outerX/b.rs"].map(PathBuf::from);
        assert_eq!(touched_packages(&packages, &files), BTreeSet::from(["inner"]));
    }
}
