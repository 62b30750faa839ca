//! Files that a command writes where its user says.
//!
//! Root may name a place in a directory where others make what they like, as `/tmp` is. What
//! another user has put there is not written: neither a link, which would lead to any file of
//! root's, nor that user's own file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path};

use anyhow::Context;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fcntl_getfl, fcntl_setfl, fstat, openat, statat,
};
use rustix::io::Errno;

/// Why root does not write a file.
#[derive(Debug, thiserror::Error)]
enum OutputError {
    #[error(
        "it is a symbolic link that another user may have made: remove it, or name another file"
    )]
    Link,
    #[error("it belongs to user {0}: remove it, or name another file")]
    Foreign(u32),
    #[error("it has {0} names, so it may be another's file: remove it, or name another file")]
    Names(u64),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Opens an empty file, new or not, for writing.
///
/// # Errors
/// The kernel's; and for root, that the file is another user's.
pub(crate) fn create(path: &Path) -> anyhow::Result<File> {
    let opened = match rustix::process::geteuid().is_root() {
        true => create_as_root(path),
        false => File::create(path).map_err(OutputError::from),
    };
    opened.with_context(|| format!("cannot write {}", path.display()))
}

/// Makes this a file's content.
///
/// # Errors
/// As for [`create`].
pub(crate) fn write(path: &Path, content: &str) -> anyhow::Result<()> {
    let written = create(path)?.write_all(content.as_bytes());
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn create_as_root(path: &Path) -> Result<File, OutputError> {
    let (directory, name) = directory_of(path)?;
    // Nothing is changed, and nobody waited for, before it is known what was opened.
    let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let writing = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = match openat(&directory, &name, writing | careful, Mode::from_raw_mode(0o666)) {
        Ok(file) => File::from(file),
        Err(error) => return cannot_open(&directory, &name, error),
    };
    let found = file.metadata()?;
    // A device is whose terminal it is, and only root makes any.
    if found.uid() != 0 && !found.file_type().is_char_device() {
        return Err(OutputError::Foreign(found.uid()));
    }
    if found.is_file() {
        if found.nlink() != 1 {
            return Err(OutputError::Names(found.nlink()));
        }
        file.set_len(0)?;
    }
    let flags = fcntl_getfl(&file).map_err(io::Error::from)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(io::Error::from)?;
    Ok(file)
}

/// In a directory for all the kernel itself refuses to open what is another's, and does not say
/// that.
fn cannot_open(directory: &OwnedFd, name: &OsStr, error: Errno) -> Result<File, OutputError> {
    let Ok(found) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return Err(OutputError::System(error.into()));
    };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink if is_roots(directory, &found)? => {
            let writing = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            let file = openat(directory, name, writing, Mode::from_raw_mode(0o666));
            Ok(file.map(File::from).map_err(io::Error::from)?)
        }
        FileType::Symlink => Err(OutputError::Link),
        _ if found.st_uid != 0 => Err(OutputError::Foreign(found.st_uid)),
        _ => Err(OutputError::System(error.into())),
    }
}

/// The directory that a path leads to, and the name there. A link on the way is followed if it is
/// root's, as `/var/run` is.
fn directory_of(path: &Path) -> Result<(OwnedFd, OsString), OutputError> {
    let path = std::path::absolute(path)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(OutputError::System(Errno::ISDIR.into()));
    };
    let entering = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut directory = openat(CWD, "/", entering, Mode::empty()).map_err(io::Error::from)?;
    for part in parent.components().filter(|part| *part != Component::RootDir) {
        let part = part.as_os_str();
        let next = openat(&directory, part, entering | OFlags::NOFOLLOW, Mode::empty());
        directory = match next {
            Ok(next) => next,
            Err(error) => {
                let found = statat(&directory, part, AtFlags::SYMLINK_NOFOLLOW);
                let found = found.map_err(io::Error::from)?;
                if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
                    return Err(OutputError::System(error.into()));
                }
                if !is_roots(&directory, &found)? {
                    return Err(OutputError::Link);
                }
                openat(&directory, part, entering, Mode::empty()).map_err(io::Error::from)?
            }
        };
    }
    Ok((directory, name.to_owned()))
}

/// Whether root has made a link, where nobody else can put another in its place.
fn is_roots(directory: &OwnedFd, link: &Stat) -> Result<bool, OutputError> {
    let around = fstat(directory).map_err(io::Error::from)?;
    let mode = Mode::from_raw_mode(around.st_mode);
    let is_kept = !mode.intersects(Mode::WGRP | Mode::WOTH) || mode.contains(Mode::SVTX);
    Ok(link.st_uid == 0 && around.st_uid == 0 && is_kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    const OTHER: u32 = 12345;

    fn write(path: &Path) -> Result<(), String> {
        super::write(path, "new").map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn files_are_made_and_emptied() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        for _ in 0..2 {
            write(&path).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            fs::write(&path, "longer than that").unwrap();
        }
        // An own link leads where it leads.
        symlink(&path, place.path().join("link")).unwrap();
        write(&place.path().join("link")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        write(Path::new("/dev/null")).unwrap();
        let refused = write(&place.path().join("none/file")).unwrap_err();
        assert!(refused.starts_with("cannot write ") && refused.contains("No such"), "{refused}");
    }

    #[test]
    fn root_writes_nothing_that_another_user_has_put_there() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root");
        }
        let place = tempfile::tempdir().unwrap();
        let (victim, for_all) = (place.path().join("victim"), place.path().join("for-all"));
        fs::write(&victim, "root's").unwrap();
        fs::create_dir(&for_all).unwrap();
        fs::set_permissions(&for_all, Permissions::from_mode(0o1777)).unwrap();
        let path = |name: &str| for_all.join(name);
        symlink(&victim, path("link")).unwrap();
        lchown(path("link"), Some(OTHER), None).unwrap();
        fs::write(path("theirs"), "theirs").unwrap();
        chown(path("theirs"), Some(OTHER), None).unwrap();
        fs::hard_link(&victim, path("second")).unwrap();
        for name in ["link", "theirs", "second"] {
            let refused = write(&path(name)).unwrap_err();
            assert!(refused.starts_with("cannot write "), "{name}: {refused}");
        }
        assert_eq!(fs::read(path("theirs")).unwrap(), b"theirs");
        // A link of root's is no better where another user can put one in its place.
        let home = place.path().join("home");
        fs::create_dir(&home).unwrap();
        symlink(&victim, home.join("link")).unwrap();
        chown(&home, Some(OTHER), None).unwrap();
        write(&home.join("link")).unwrap_err();
        // Nor is one on the way, whoever has made it.
        let (rooms, inner) = (place.path().join("rooms"), place.path().join("rooms/inner"));
        fs::create_dir_all(&inner).unwrap();
        symlink(&rooms, home.join("way")).unwrap();
        lchown(home.join("way"), Some(OTHER), None).unwrap();
        symlink(&rooms, home.join("roots")).unwrap();
        for way in ["way", "roots"] {
            let refused = write(&home.join(way).join("inner/x")).unwrap_err();
            assert!(refused.contains("symbolic link"), "{refused}");
            assert!(!inner.join("x").exists());
        }
        // A link of root's among root's things is.
        symlink(&rooms, place.path().join("rooms-too")).unwrap();
        write(&place.path().join("rooms-too/inner/../inner/x")).unwrap();
        assert_eq!(fs::read(inner.join("x")).unwrap(), b"new");
        assert_eq!(fs::read(&victim).unwrap(), b"root's");
        // What is root's, or not there, is written, in either directory.
        fs::write(path("own"), "longer than that").unwrap();
        for file in [path("own"), path("fresh"), home.join("fresh")] {
            write(&file).unwrap();
            assert_eq!(fs::read(file).unwrap(), b"new");
        }
    }
}
