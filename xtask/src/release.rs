//! `cargo xtask release`: every package of this version, with checksums, a bill of materials and
//! what has changed, in `target/release-files`; each is installed on a fresh root file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::command::run_quietly;
use crate::dist::{self, Build, Dist};
use crate::fresh::{self, Fresh, Root};
use crate::paths::Paths;
use crate::system_tree::NAME;
use crate::tree::{self, Tree, VERSION, fresh_directory};
use crate::{aarch64, deb, deb_chroot, images, images_check, rpm, sbom, tarball, wheel};

/// What a plain user does in a fresh Debian.
const SCRIPT: &str = include_str!("release_chroot.sh");
const TRIED: &str = "wheel and archive, as a plain user of a fresh Debian";

/// How the release is made.
#[derive(Debug, Args)]
pub(crate) struct Release {
    /// Use what is already built
    #[arg(long)]
    built: bool,
}

/// Makes and tries all of it; returns the directory.
///
/// # Errors
/// When something cannot be built, or does not work where it is installed.
pub(crate) fn run(paths: &Paths, options: &Release) -> Result<PathBuf> {
    let dist = if options.built { Dist::at(paths) } else { dist::build(paths, Build::Portable)? };
    let tree = tree::build(paths, &dist)?;
    let rpm = rpm::Tools::find(paths)?.map_err(anyhow::Error::msg)?;
    let wheel = wheel::build(paths, &tree)?;
    let archive = tarball::build(paths, &tree)?;
    let debian = deb::build(paths, &tree)?;
    let red_hat = rpm.build(paths, &tree)?;
    let images = images::build(paths, &tree)?.map_err(anyhow::Error::msg)?;
    let other = aarch64::wheel(paths, &tree)?.inspect_err(|why| println!("no aarch64: {why}"));
    let folder = paths.target.join("release-files");
    fresh_directory(&folder)?;
    let debug = debug_information(paths, &tree)?;
    for file in
        [&wheel, &archive, &debian, &red_hat, &debug].into_iter().chain(&images).chain(&other)
    {
        let name = file.file_name().context("a file has a name")?;
        fs::copy(file, folder.join(name)).with_context(|| format!("no {}", file.display()))?;
    }
    let bill = serde_json::to_string_pretty(&sbom::make(paths)?)? + "\n";
    fs::write(folder.join(format!("{NAME}-{VERSION}.cdx.json")), bill)?;
    let changes = fs::read_to_string(paths.root.join("CHANGELOG.md"))?;
    fs::write(folder.join("CHANGES.md"), section(&changes, VERSION)?)?;
    checksums(&folder)?;

    wheel::check(paths, &wheel)?;
    if let Ok(other) = &other {
        aarch64::try_wheel(paths, other)?.print(aarch64::TRIED);
    }
    tarball::check(paths, &archive)?;
    rpm.check(paths, &red_hat)?.print(rpm::TRIED);
    images_check::check(paths, &images)?.print(images_check::TRIED);
    deb::check(paths, &debian)?;
    deb::check_in_fresh_systems(paths, &debian)?;
    as_a_plain_user(paths, &wheel, &archive)?.print(TRIED);
    Ok(folder)
}

/// What debuggers read of the stripped files.
fn debug_information(paths: &Paths, tree: &Tree) -> Result<PathBuf> {
    let parent = tree.debug.parent().context("a directory lies in another")?;
    let name = format!("{NAME}-{VERSION}-debug-x86_64.tar.gz");
    tarball::pack(parent, "debug", &paths.target.join("packages").join(name))
}

/// What CHANGELOG.md says of a version; of one that is not released yet, what is unreleased.
fn section(changes: &str, version: &str) -> Result<String> {
    let of = |title: &str| {
        let start = changes.find(&format!("\n## {title}"))? + 1;
        let rest = &changes[start..];
        Some(rest[1..].find("\n## ").map_or(rest, |end| &rest[..end + 2]).to_owned())
    };
    of(&format!("[{version}]"))
        .or_else(|| of(version))
        .or_else(|| of("Unreleased"))
        .with_context(|| format!("CHANGELOG.md has no section of {version}"))
}

/// `SHA256SUMS` of all that is in a directory.
fn checksums(folder: &Path) -> Result<()> {
    let mut names: Vec<_> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<std::io::Result<_>>()?;
    names.sort();
    let sums = run_quietly(Command::new("sha256sum").current_dir(folder).args(names))?.stdout;
    fs::write(folder.join("SHA256SUMS"), sums).context("cannot write SHA256SUMS")
}

fn as_a_plain_user(paths: &Paths, wheel: &Path, archive: &Path) -> Result<Fresh> {
    if let Some(why) = fresh::obstacle(paths) {
        return Fresh::not_permitted(why);
    }
    let root = Root::unpack(paths, &fresh::archive(paths)?, "user", wheel)?;
    let inside = root.path.join("package");
    for file in [wheel, archive] {
        fs::copy(file, inside.join(file.file_name().context("a file has a name")?))?;
    }
    deb_chroot::run_inside(root, SCRIPT)
}

#[cfg(test)]
mod tests {
    use super::section;

    #[test]
    fn a_versions_changes_are_its_own() {
        let text =
            "# Changes\n\n## Unreleased\n\n- new\n\n## 0.2.0\n\n- second\n\n## 0.1.0\n- first\n";
        assert_eq!(section(text, "0.2.0").unwrap(), "## 0.2.0\n\n- second\n\n");
        assert_eq!(section(text, "0.1.0").unwrap(), "## 0.1.0\n- first\n");
        assert_eq!(section(text, "0.3.0").unwrap(), "## Unreleased\n\n- new\n\n");
        assert!(section("# Changes\n", "0.1.0").is_err());
    }
}
