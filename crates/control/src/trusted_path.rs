//! Directories and files that nobody has had a hand in but their owner and root.
//!
//! What root makes, writes or removes by its path lands where that path leads, and whoever can
//! change an entry on the way decides where that is. So a path is walked from the root, entry by
//! entry, each opened in the directory before it and looked at through its descriptor. All entries,
//! symbolic links included, belong to root or to this process's own user. A directory that others
//! may write is sticky, so that they cannot rename what is in it. The last entry is no link. What
//! was found so can be changed by those two alone from then on: later steps may name it by its
//! path.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::core::origin::can_tell_user;

/// Links that a path may lead through, as in the kernel.
const MOST_LINKS: u32 = 40;
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// Why a path is not used.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The last entry is a link.
    #[error("{} is a symbolic link: name the place that it leads to, or remove it", path.display())]
    Link {
        /// The entry.
        path: PathBuf,
    },
    /// An entry is another user's.
    #[error(
        "{} belongs to user {uid}, who could put something else in its place: remove it, chown it to {}, or name another place",
        path.display(), name_of(*own)
    )]
    Foreign {
        /// The entry.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// This process's user.
        own: u32,
    },
    /// Others may change what is in a directory.
    #[error(
        "{} belongs to user {uid} and can be written by others (mode {mode:o}), who could change what is in it: `chmod {} {}`, or name another place",
        path.display(), cure(*mode), path.display()
    )]
    Writable {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permissions.
        mode: u32,
    },
    /// Something else has the name.
    #[error("{} is no {wanted}: remove it, or name another place", path.display())]
    Kind {
        /// The entry.
        path: PathBuf,
        /// What it should be.
        wanted: &'static str,
    },
    /// The same file is elsewhere, too.
    #[error("{} has {names} names, so it may be another's file: remove it", path.display())]
    Names {
        /// The entry.
        path: PathBuf,
        /// How many.
        names: u64,
    },
    /// The kernel's word.
    #[error("cannot {what} {}: {source}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn name_of(uid: u32) -> String {
    if uid == 0 { "root".to_owned() } else { format!("user {uid}") }
}

fn cure(mode: u32) -> &'static str {
    if mode & OTHERS_WRITE != 0 { "go-w" } else { "g-w" }
}

impl PathError {
    /// Whether nothing is there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    fn system(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        move |error| Self::System { what, path: path.to_owned(), source: error.into() }
    }
}

/// What a group may write, among the directories of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Groups {
    /// Nothing.
    Nothing,
    /// Those on the way.
    OnTheWay,
    /// All of them: whose own they are has chosen the group.
    All,
}

/// Who may have a hand in a path, beside root.
#[derive(Debug, Clone)]
pub struct Trust {
    user: u32,
    groups: Groups,
    /// Where users are not told apart, a directory on the way that is somebody's may be root's.
    uid_map: String,
}

impl Trust {
    /// For sockets, locks and all that must be where it is looked for.
    pub fn of_places() -> Self {
        Self::new(Groups::Nothing)
    }

    /// For logs. Ubuntu's `/var/log` can be written by its group `syslog`. Who is in it can put
    /// another directory of root's in the log directory's place, and nothing worse.
    pub fn of_logs() -> Self {
        Self::new(Groups::OnTheWay)
    }

    fn new(of_root: Groups) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let groups = if user == 0 { of_root } else { Groups::All };
        let uid_map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self { user, groups, uid_map }
    }

    fn owner(&self, path: &Path, found: &Stat) -> Result<(), PathError> {
        match found.st_uid == 0 || found.st_uid == self.user {
            true => Ok(()),
            false => {
                Err(PathError::Foreign { path: path.to_owned(), uid: found.st_uid, own: self.user })
            }
        }
    }

    /// A directory or a link that others come after.
    fn on_the_way(&self, path: &Path, found: &Stat) -> Result<(), PathError> {
        if can_tell_user(&self.uid_map, found.st_uid) {
            self.owner(path, found)?;
        }
        self.writers(path, found, self.groups == Groups::Nothing)
    }

    fn last(&self, path: &Path, found: &Stat) -> Result<(), PathError> {
        self.owner(path, found)?;
        self.writers(path, found, self.groups != Groups::All)
    }

    fn writers(&self, path: &Path, found: &Stat, counts_group: bool) -> Result<(), PathError> {
        let mode = found.st_mode & 0o7777;
        let by_group = counts_group && mode & GROUP_WRITES != 0;
        let is_safe = mode & STICKY != 0 || (mode & OTHERS_WRITE == 0 && !by_group);
        match is_safe || kind(found) == FileType::Symlink {
            true => Ok(()),
            false => Err(PathError::Writable { path: path.to_owned(), uid: found.st_uid, mode }),
        }
    }
}

/// What to do about directories that are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Make them, entered by all users and changed by this one.
    Make,
    /// Report them.
    Report,
}

/// A directory that nobody else has had a hand in.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    trust: Trust,
}

impl Directory {
    /// Walks to a directory; `path` is absolute.
    ///
    /// # Errors
    /// [`PathError`]: which entry is wrong, and what to do about it.
    pub fn open(path: &Path, trust: Trust, missing: Missing) -> Result<Self, PathError> {
        if !path.is_absolute() {
            return Err(PathError::system("find", path)(Errno::INVAL));
        }
        let mut walk = Walk::new(trust)?;
        let mut left: VecDeque<OsString> = names(path).collect();
        while let Some(name) = left.pop_front() {
            // A link on the way: what it leads to comes before the rest.
            if let Some(target) = walk.step(&name, left.is_empty(), missing)? {
                left = names(&target).chain(left).collect();
            }
        }
        let Walk { at, path, trust, .. } = walk;
        Ok(Self { fd: at, path, trust })
    }

    /// Where it is: the path without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A regular file of root's or this user's in it, that has no other name, opened with these
    /// flags; it is not waited for anybody.
    ///
    /// # Errors
    /// [`PathError`]. Nothing was written.
    pub fn file(&self, name: &str, flags: OFlags, mode: u32) -> Result<File, PathError> {
        let path = self.path.join(name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode));
        let file = opened.map_err(|error| match error {
            // A pipe that nobody reads, a socket, a directory.
            Errno::NXIO | Errno::ISDIR => {
                PathError::Kind { path: path.clone(), wanted: "regular file" }
            }
            other => self.cannot_open(name, other),
        })?;
        let found = rustix::fs::fstat(&file).map_err(PathError::system("look at", &path))?;
        if kind(&found) != FileType::RegularFile {
            return Err(PathError::Kind { path, wanted: "regular file" });
        }
        self.trust.owner(&path, &found)?;
        match found.st_nlink as u64 {
            1 => Ok(File::from(file)),
            names => Err(PathError::Names { path, names }),
        }
    }

    /// In a directory for all the kernel itself refuses to open with `CREATE` what is another's,
    /// and does not say that.
    fn cannot_open(&self, name: &str, error: Errno) -> PathError {
        let path = self.path.join(name);
        let found = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        match found.map(|found| (kind(&found), self.trust.owner(&path, &found))) {
            Ok((FileType::Symlink, _)) => PathError::Link { path },
            Ok((_, Err(foreign))) => foreign,
            _ => PathError::system("open", &path)(error),
        }
    }

    /// Opens a log in it for appending; made with mode 0644.
    ///
    /// # Errors
    /// As for [`Self::file`].
    pub fn log(&self, name: &str) -> Result<File, PathError> {
        self.file(name, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, 0o644)
    }

    /// Puts a file where another one may be: who reads it meanwhile has all of the one or of the
    /// other, and a link is replaced, not followed.
    ///
    /// # Errors
    /// As for [`Self::file`], and the kernel's; the other one is still there.
    pub fn replace(&self, name: &str, content: &[u8], mode: u32) -> Result<(), PathError> {
        let fresh = format!("{name}.new");
        let path = self.path.join(&fresh);
        // Of a process that was killed. What is there after that, somebody else has put there.
        self.remove(&fresh)?;
        let mut file = self.file(&fresh, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?;
        let written = file.write_all(content).and_then(|()| file.sync_all());
        written.map_err(|source| PathError::System {
            what: "write",
            path: path.clone(),
            source,
        })?;
        self.rename(&fresh, name)
    }

    /// Gives an entry another name, and takes that from whatever has it; a link is renamed, or
    /// replaced, itself.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), PathError> {
        let renamed = rustix::fs::renameat(&self.fd, from, &self.fd, to);
        renamed.map_err(PathError::system("rename", &self.path.join(from)))
    }

    /// Removes an entry that is no directory; that there is none is no error.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, name: &str) -> Result<(), PathError> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(PathError::system("remove", &self.path.join(name))(error)),
        }
    }

    /// The directory as a descriptor that can be locked, and whose mode can be set.
    ///
    /// # Errors
    /// The kernel's.
    pub fn handle(&self) -> Result<File, PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.fd, ".", flags, Mode::empty());
        opened.map(File::from).map_err(PathError::system("open", &self.path))
    }
}

/// Opens a regular file for reading, whoever's it is and wherever. Nothing else is opened: a pipe
/// would block, and a device can act.
///
/// # Errors
/// [`PathError`]: a link or another kind of file; the kernel's.
pub fn regular_file(path: &Path) -> Result<File, PathError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = rustix::fs::openat(CWD, path, flags, Mode::empty());
    let entry = entry.map_err(PathError::system("open", path))?;
    let found = rustix::fs::fstat(&entry).map_err(PathError::system("look at", path))?;
    match kind(&found) {
        FileType::RegularFile => {}
        FileType::Symlink => return Err(PathError::Link { path: path.to_owned() }),
        _ => return Err(PathError::Kind { path: path.to_owned(), wanted: "regular file" }),
    }
    // What was looked at, and no other that may have its name by now.
    let held = format!("/proc/self/fd/{}", entry.as_raw_fd());
    let opened = rustix::fs::openat(CWD, held, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    opened.map(File::from).map_err(PathError::system("open", path))
}

/// The entries of a path, `/` left out: a walk begins there.
fn names(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// How far a walk has come.
struct Walk {
    at: OwnedFd,
    path: PathBuf,
    trust: Trust,
    links: u32,
}

impl Walk {
    fn new(trust: Trust) -> Result<Self, PathError> {
        let path = PathBuf::from("/");
        let at = root()?;
        let found = rustix::fs::fstat(&at).map_err(PathError::system("look at", &path))?;
        trust.on_the_way(&path, &found)?;
        Ok(Self { at, path, trust, links: 0 })
    }

    /// Goes to an entry, or says where it leads as a link.
    fn step(
        &mut self,
        name: &OsStr,
        is_last: bool,
        missing: Missing,
    ) -> Result<Option<PathBuf>, PathError> {
        let path = match name == ".." {
            true => self.path.parent().unwrap_or(Path::new("/")).to_owned(),
            false => self.path.join(name),
        };
        let entry = self.enter(name, &path, missing)?;
        let found = rustix::fs::fstat(&entry).map_err(PathError::system("look at", &path))?;
        match kind(&found) {
            FileType::Symlink if is_last => return Err(PathError::Link { path }),
            FileType::Symlink => {
                self.trust.on_the_way(&path, &found)?;
                return self.follow(&entry, &path).map(Some);
            }
            FileType::Directory if is_last => self.trust.last(&path, &found)?,
            FileType::Directory => self.trust.on_the_way(&path, &found)?,
            _ => return Err(PathError::Kind { path, wanted: "directory" }),
        }
        (self.at, self.path) = (entry, path);
        Ok(None)
    }

    fn enter(&self, name: &OsStr, path: &Path, missing: Missing) -> Result<OwnedFd, PathError> {
        let open = || {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&self.at, name, flags, Mode::empty())
        };
        match open() {
            Err(Errno::NOENT) if missing == Missing::Make => {}
            opened => return opened.map_err(PathError::system("open", path)),
        }
        match rustix::fs::mkdirat(&self.at, name, Mode::from_raw_mode(0o755)) {
            // Another was faster: what is there now is looked at like all else.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(PathError::system("make", path)(error)),
        }
        open().map_err(PathError::system("open", path))
    }

    fn follow(&mut self, link: &OwnedFd, path: &Path) -> Result<PathBuf, PathError> {
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(PathError::system("follow", path)(Errno::LOOP));
        }
        // The link that the descriptor holds, and no other that may have its name by now.
        let target = rustix::fs::readlinkat(link, "", Vec::new());
        let target = target.map_err(PathError::system("follow", path))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            (self.at, self.path) = (root()?, PathBuf::from("/"));
        }
        Ok(target)
    }
}

fn root() -> Result<OwnedFd, PathError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, "/", flags, Mode::empty());
    opened.map_err(PathError::system("open", Path::new("/")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use tempfile::TempDir;

    const OTHER: u32 = 12345;

    /// A directory, and the rule of a user whose it is, or of one to whom it is foreign.
    struct Place {
        directory: TempDir,
    }

    impl Place {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn make(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.path(name);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn places() -> Trust {
        Trust { groups: Groups::Nothing, ..Trust::of_places() }
    }

    fn logs() -> Trust {
        Trust { groups: Groups::OnTheWay, ..Trust::of_logs() }
    }

    fn open(path: &Path, trust: Trust) -> Result<Directory, PathError> {
        Directory::open(path, trust, Missing::Report)
    }

    #[test]
    fn directories_are_made_for_all_to_enter() {
        let place = Place::new();
        let path = place.path("a/b/../c");
        assert!(open(&path, places()).unwrap_err().is_not_found());
        let directory = Directory::open(&path, places(), Missing::Make).unwrap();
        assert_eq!(directory.path(), place.path("a/c").canonicalize().unwrap());
        assert_eq!(fs::metadata(place.path("a/c")).unwrap().permissions().mode() & 0o022, 0);
        assert!(place.path("a/b").is_dir());
        assert!(open(Path::new("a/c"), places()).is_err(), "it is not absolute");
        open(Path::new("/"), places()).unwrap();
    }

    #[test]
    fn links_are_followed_on_the_way_only() {
        let place = Place::new();
        place.make("real/inside", 0o755);
        symlink("real", place.path("relative")).unwrap();
        symlink(place.path("relative"), place.path("absolute")).unwrap();
        symlink("round", place.path("round")).unwrap();
        let directory = open(&place.path("absolute/inside"), places()).unwrap();
        assert_eq!(directory.path(), place.path("real/inside").canonicalize().unwrap());
        let refused = open(&place.path("relative"), places()).unwrap_err();
        assert!(matches!(refused, PathError::Link { .. }), "{refused}");
        assert!(open(&place.path("round/x"), places()).is_err());
        fs::write(place.path("file"), "").unwrap();
        let refused = open(&place.path("file"), places()).unwrap_err();
        assert!(matches!(refused, PathError::Kind { .. }), "{refused}");
    }

    #[test]
    fn what_others_may_write_is_not_believed_unless_it_is_sticky() {
        let place = Place::new();
        for (mode, for_places, for_logs, is_last_for_logs) in [
            (0o755, true, true, true),
            (0o1777, true, true, true),
            (0o1775, true, true, true),
            (0o777, false, false, false),
            (0o775, false, true, false),
        ] {
            place.make("way/last", 0o755);
            place.make("way", mode);
            let (way, last) = (place.path("way"), place.path("way/last"));
            assert_eq!(open(&last, places()).is_ok(), for_places, "{mode:o}");
            assert_eq!(open(&last, logs()).is_ok(), for_logs, "{mode:o}");
            assert_eq!(open(&way, logs()).is_ok(), is_last_for_logs, "{mode:o}");
        }
        let refused = open(&place.make("way", 0o777), places()).unwrap_err().to_string();
        assert!(refused.contains("chmod go-w"), "{refused}");
        // A user's own groups are that user's business.
        let own = Trust { groups: Groups::All, ..places() };
        open(&place.make("way", 0o775), own.clone()).unwrap();
        assert!(open(&place.make("way", 0o777), own).is_err());
    }

    #[test]
    fn what_belongs_to_others_is_not_believed() {
        if me() != 0 {
            return eprintln!("skipped: needs root");
        }
        let place = Place::new();
        place.make("theirs/ours", 0o755);
        place.make("for-all", 0o1777);
        chown(place.path("theirs"), Some(OTHER), None).unwrap();
        symlink("..", place.path("for-all/link")).unwrap();
        std::os::unix::fs::lchown(place.path("for-all/link"), Some(OTHER), None).unwrap();
        for path in ["theirs", "theirs/ours", "for-all/link/for-all"] {
            let refused = open(&place.path(path), places()).unwrap_err();
            assert!(matches!(refused, PathError::Foreign { uid: OTHER, .. }), "{path}: {refused}");
        }
        // A user's own daemon: theirs and root's.
        let theirs = Trust { user: OTHER, ..places() };
        open(&place.path("theirs/ours"), theirs).unwrap();
        let third = Trust { user: OTHER + 1, ..places() };
        assert!(open(&place.path("theirs/ours"), third).is_err());
    }

    #[test]
    fn where_users_are_not_told_apart_the_last_is_ours() {
        if me() != 0 {
            return eprintln!("skipped: needs root");
        }
        let place = Place::new();
        place.make("way/last", 0o755);
        let unmapped = 65534;
        chown(place.path("way"), Some(unmapped), None).unwrap();
        let inside = Trust { uid_map: "0 1000 1".into(), ..places() };
        open(&place.path("way/last"), inside.clone()).unwrap();
        assert!(open(&place.path("way"), inside).is_err());
        assert!(open(&place.path("way/last"), places()).is_err());
    }

    #[test]
    fn files_are_regular_and_have_one_name() {
        let place = Place::new();
        let directory = open(&place.make("place", 0o755), places()).unwrap();
        directory.log("log").unwrap().write_all(b"1").unwrap();
        directory.log("log").unwrap().write_all(b"2").unwrap();
        assert_eq!(fs::read(place.path("place/log")).unwrap(), b"12");
        symlink("log", place.path("place/link")).unwrap();
        fs::create_dir(place.path("place/directory")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place.path("place/socket")).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, place.path("place/pipe"), pipe, mode, 0).unwrap();
        assert!(matches!(directory.log("link"), Err(PathError::Link { .. })));
        for name in ["directory", "socket", "pipe"] {
            let refused = directory.log(name).unwrap_err();
            assert!(matches!(refused, PathError::Kind { .. }), "{refused}");
        }
        fs::hard_link(place.path("place/log"), place.path("second")).unwrap();
        let refused = directory.log("log").unwrap_err();
        assert!(matches!(refused, PathError::Names { names: 2, .. }), "{refused}");
        directory.remove("log").unwrap();
        directory.remove("log").unwrap();
        assert_eq!(fs::read(place.path("second")).unwrap(), b"12");
    }

    #[test]
    fn files_are_replaced_and_links_not_followed() {
        let place = Place::new();
        let directory = open(&place.make("place", 0o755), places()).unwrap();
        let (victim, file) = (place.path("victim"), place.path("place/file"));
        fs::write(&victim, "theirs").unwrap();
        for name in ["file", "file.new"] {
            symlink(&victim, place.path("place").join(name)).unwrap();
            directory.replace("file", b"ours", 0o640).unwrap();
            assert_eq!(fs::read(&victim).unwrap(), b"theirs", "{name}");
            assert_eq!(fs::read(&file).unwrap(), b"ours", "{name}");
            assert!(fs::symlink_metadata(&file).unwrap().is_file(), "{name}");
            assert_eq!(fs::read_dir(place.path("place")).unwrap().count(), 1, "{name}");
        }
        // What cannot be written leaves what was there.
        fs::create_dir(place.path("place/file.new")).unwrap();
        directory.replace("file", b"new", 0o640).unwrap_err();
        assert_eq!(fs::read(&file).unwrap(), b"ours");
    }

    #[test]
    fn regular_files_are_read_and_nothing_else() {
        let place = Place::new();
        fs::write(place.path("file"), "text").unwrap();
        assert_eq!(io::read_to_string(regular_file(&place.path("file")).unwrap()).unwrap(), "text");
        symlink("file", place.path("link")).unwrap();
        let refused = regular_file(&place.path("link")).unwrap_err();
        assert!(matches!(refused, PathError::Link { .. }), "{refused}");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, place.path("pipe"), FileType::Fifo, mode, 0).unwrap();
        // Nobody writes to the pipe, and its opening would wait for that.
        for path in [place.path("pipe"), place.make("directory", 0o755), "/dev/null".into()] {
            let refused = regular_file(&path).unwrap_err();
            assert!(matches!(refused, PathError::Kind { .. }), "{refused}");
        }
        assert!(regular_file(&place.path("none")).unwrap_err().is_not_found());
    }
}
