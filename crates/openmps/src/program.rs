//! Whether there is a program of some name, asked before anything is started for it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::servable;

/// Where shells and the C library look when PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The file that is run for this word: it itself if it has a slash, else the first of that name in
/// PATH.
///
/// # Errors
/// `NotFound`, or `PermissionDenied` where there are only files that cannot be executed.
pub(crate) fn find(word: &OsStr) -> io::Result<PathBuf> {
    if word.as_bytes().contains(&b'/') {
        let path = PathBuf::from(word);
        return executable(&path).map(|()| path);
    }
    let directories = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut worst = io::Error::from(io::ErrorKind::NotFound);
    for directory in std::env::split_paths(&directories) {
        let path = directory.join(word);
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => worst = error,
            Err(_) => {}
        }
    }
    Err(worst)
}

/// As [`find`], for a program that is to be a client.
///
/// # Errors
/// As there; and why it cannot be one.
pub(crate) fn find_servable(word: &OsStr) -> io::Result<PathBuf> {
    let path = find(word)?;
    servable::check(&path).map_err(io::Error::other)?;
    Ok(path)
}

fn executable(path: &Path) -> io::Result<()> {
    if path.metadata()?.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(access(path, Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use super::find;
    use std::ffi::OsStr;
    use std::io::ErrorKind;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let kind = |word: &str| find(OsStr::new(word)).map_err(|error| error.kind());
        assert!(kind("sh").unwrap().ends_with("sh"));
        assert!(kind("/bin/sh").is_ok());
        assert_eq!(kind("no-such-program"), Err(ErrorKind::NotFound));
        assert_eq!(kind("/nowhere/sh"), Err(ErrorKind::NotFound));
        assert_eq!(kind("/dev/null"), Err(ErrorKind::PermissionDenied));
        assert_eq!(kind("/bin/"), Err(ErrorKind::PermissionDenied));
    }
}
