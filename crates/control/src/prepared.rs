//! Defaults that were set before there was a daemon: NVIDIA's MPS guide has such an example
//! (section 4.2.7), and the next daemon of the directory starts with them.
//!
//! A file of shell lines in the pipe directory, which the daemon takes away when it starts. It
//! believes the file of its own user and of root only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::OFlags;

use crate::core::command::{Command, parse_line};
use crate::directories::{Directories, PREPARED};
use crate::trusted_path::{Directory, Missing, PathError, Trust};

/// Longest file that a daemon reads.
const MAX_BYTES: u64 = 64 << 10;

/// Why a line was not kept.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// It is a setting, but not in order.
    #[error("{0}")]
    Refused(String),
    /// The file cannot be written.
    #[error("cannot keep it for the next daemon in {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file, or its directory, could be another's.
    #[error("cannot keep it for the next daemon: {0}")]
    Place(#[from] PathError),
}

/// Keeps a line for the next daemon, if it sets a default; returns what the original prints for it.
/// `None`: it is another command.
///
/// # Errors
/// [`PrepareError`].
pub fn keep(directories: &Directories, line: &str) -> Option<Result<String, PrepareError>> {
    let parsed = parse_line(line);
    let printed = match &parsed.command {
        Command::SetDefaultPercentage(value) => {
            value.as_ref().map(|value| format!("{value}\n")).unwrap_or_default()
        }
        Command::SetDefaultPriority(_) | Command::SetDefaultMemoryLimit(..) => String::new(),
        _ => return None,
    };
    if let Some(complaint) = parsed.complaint {
        return Some(Err(PrepareError::Refused(complaint)));
    }
    Some(append(directories, line).map(|()| printed))
}

fn append(directories: &Directories, line: &str) -> Result<(), PrepareError> {
    let pipe = Directory::open(directories.pipe(), Trust::of_places(), Missing::Make)?;
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let mut file = pipe.file(PREPARED, flags, 0o600)?;
    let path = directories.prepared();
    writeln!(file, "{line}").map_err(|source| PrepareError::File { path, source })
}

/// Takes the lines that were kept, and the file away; `daemon_uid` is the user whose file is
/// believed, beside root.
pub(crate) fn take(directories: &Directories, daemon_uid: u32) -> Vec<String> {
    let path = directories.prepared();
    // Not blocking: somebody may have put a pipe there.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(&path) else {
        return Vec::new();
    };
    let text = read(file, daemon_uid).unwrap_or_default();
    let _ = fs::remove_file(&path);
    text.lines().map(str::to_owned).collect()
}

fn read(file: File, daemon_uid: u32) -> io::Result<String> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || ![0, daemon_uid].contains(&metadata.uid()) {
        return Ok(String::new());
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn settings_are_kept_once_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let directories =
            Directories::from_variables(|_| Some(directory.path().join("pipe").into()));
        assert!(keep(&directories, "get_server_list").is_none());
        assert!(keep(&directories, "quit").is_none());
        assert!(keep(&directories, "set_default_device_pinned_mem_limit 0 3X").unwrap().is_err());
        assert!(!directories.prepared().exists());
        let line = "set_default_device_pinned_mem_limit 0 3G";
        assert_eq!(keep(&directories, line).unwrap().unwrap(), "");
        let printed = keep(&directories, "set_default_active_thread_percentage 40").unwrap();
        assert_eq!(printed.unwrap(), "40.0\n");
        let taken = take(&directories, uid());
        assert_eq!(taken, [line, "set_default_active_thread_percentage 40"]);
        assert!(take(&directories, uid()).is_empty() && !directories.prepared().exists());
    }

    #[test]
    fn another_users_file_is_not_believed() {
        if uid() != 0 {
            return eprintln!("skipped: needs root");
        }
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::from_variables(|_| Some(directory.path().into()));
        keep(&directories, "set_default_client_priority 1").unwrap().unwrap();
        std::os::unix::fs::chown(directories.prepared(), Some(12345), None).unwrap();
        assert!(take(&directories, 0).is_empty());
    }
}
