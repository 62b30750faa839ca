//! Whether the portable build is the same wherever it is made: the product is built once more, of
//! the same sources in another directory, and compared byte by byte.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::run_quietly;
use crate::paths::Paths;
use crate::portable;

/// What cargo makes of [`portable::PACKAGES`].
const FILES: [&str; 4] = ["openmps", "libcuda.so", "libsoftcuda.so", "libspank_openmps.so"];

/// Builds it in another directory.
///
/// # Errors
/// Which file differs.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let ours = portable::build(paths)?;
    let directory = tempfile::Builder::new().prefix("openmps-elsewhere-").tempdir()?;
    let root = directory.path().join("a/longer/path/openmps");
    copy_sources(&paths.root, &root)?;
    let elsewhere = Paths { target: root.join("target"), root };
    // The tools are the same, but what zig compiles of its own is compiled once more.
    let (tools, their_tools) =
        (portable::folder(paths).canonicalize()?, portable::folder(&elsewhere));
    fs::create_dir_all(&their_tools)?;
    for part in ["venv", "installed.txt"] {
        symlink(tools.join(part), their_tools.join(part))?;
    }
    let theirs = portable::build(&elsewhere)?;
    for file in FILES {
        let read = |directory: &Path| {
            let file = directory.join(file);
            fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
        };
        let (one, other) = (read(&ours)?, read(&theirs)?);
        if one != other {
            let kept = directory.keep();
            bail!("{file} is not the same in {} (kept)", kept.display());
        }
    }
    println!("{} are the same in another directory", FILES.join(", "));
    Ok(())
}

/// What git has, and what it would add, as it is now.
fn copy_sources(from: &Path, to: &Path) -> Result<()> {
    let mut list = Command::new("git");
    list.current_dir(from).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let list = run_quietly(&mut list).context("only a git checkout knows its sources")?.stdout;
    for name in list.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let name = Path::new(OsStr::from_bytes(name));
        let file = from.join(name);
        // One that was removed and not committed.
        if !file.exists() {
            continue;
        }
        let copy = to.join(name);
        fs::create_dir_all(copy.parent().context("a file lies in a directory")?)?;
        fs::copy(&file, &copy).with_context(|| format!("cannot copy {}", file.display()))?;
    }
    Ok(())
}

/// No file may hold a path of this machine: of the checkout, of cargo's files, of the compiler.
///
/// # Errors
/// Which file holds which.
pub(crate) fn check_paths(paths: &Paths, files: &[PathBuf]) -> Result<()> {
    let sysroot = run_quietly(Command::new("rustc").args(["--print", "sysroot"]))?.stdout;
    let sysroot = PathBuf::from(OsStr::from_bytes(sysroot.trim_ascii_end()));
    let traces = [paths.root.canonicalize()?, portable::cargo_home()?, sysroot];
    let mut found = Vec::new();
    for file in files {
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        for trace in &traces {
            if holds(&bytes, trace) {
                found.push(format!("{} holds the path {}", file.display(), trace.display()));
            }
        }
    }
    ensure!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

fn holds(bytes: &[u8], path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    bytes.windows(path.len()).any(|window| window == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_this_machine_are_found() {
        let place = tempfile::tempdir().unwrap();
        let paths = Paths { root: place.path().to_owned(), target: place.path().join("target") };
        let file = |name: &str, text: String| {
            let path = place.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let root = place.path().canonicalize().unwrap();
        let bad = file("bad", format!("\0panicked at {}/src/a.rs\0", root.display()));
        let home = file("home", format!("{}/registry", portable::cargo_home().unwrap().display()));
        let good = file("good", "/openmps/src/a.rs /cargo/registry".to_owned());
        check_paths(&paths, std::slice::from_ref(&good)).unwrap();
        for bad in [bad, home] {
            let error = check_paths(&paths, &[good.clone(), bad.clone()]).unwrap_err().to_string();
            assert!(error.starts_with(&bad.display().to_string()), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
