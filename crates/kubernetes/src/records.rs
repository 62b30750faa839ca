//! The plugin's records on disk: what containers were told must outlive the plugin, since the kubelet never asks again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::ledger::Allocation;

/// Of the file; another one is refused.
const SCHEMA: u32 = 1;

/// Why records cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// The file or its directory.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another plugin has them.
    #[error("{} is another plugin's that runs: one plugin per node", path.display())]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// Not what this program wrote.
    #[error("{} is not understood ({problem}): remove it; containers that run keep their shares, and what the kubelet lists is not lent twice", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    schema: u32,
    allocations: Vec<Allocation>,
}

/// The file, and the lock that makes this the only plugin.
#[derive(Debug)]
pub(crate) struct Records {
    path: PathBuf,
    _lock: File,
}

impl Records {
    /// Takes a directory, making it if need be, and reads what is there.
    ///
    /// # Errors
    /// [`RecordsError`].
    pub(crate) fn open(directory: &Path) -> Result<(Self, Vec<Allocation>), RecordsError> {
        let path = directory.join("allocations.json");
        let in_file = |path: &Path| {
            let path = path.to_owned();
            move |source| RecordsError::File { path, source }
        };
        fs::create_dir_all(directory).map_err(in_file(directory))?;
        let lock_path = directory.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(in_file(&lock_path))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| RecordsError::InUse { path: directory.to_owned() })?;
        let records = Self { path, _lock: lock };
        let text = match fs::read(&records.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((records, Vec::new()));
            }
            Err(source) => return Err(in_file(&records.path)(source)),
        };
        let wrong = |problem: String| RecordsError::Content { path: records.path.clone(), problem };
        let content: Content =
            serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if content.schema != SCHEMA {
            return Err(wrong(format!("its schema is {}", content.schema)));
        }
        Ok((records, content.allocations))
    }

    /// Writes all of them, whole or not at all, and to the disk.
    ///
    /// # Errors
    /// [`RecordsError`].
    pub(crate) fn write(&self, allocations: &[Allocation]) -> Result<(), RecordsError> {
        let content = Content { schema: SCHEMA, allocations: allocations.to_vec() };
        let fresh = self.path.with_extension("new");
        let written = || -> io::Result<()> {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&fresh)?;
            file.write_all(&serde_json::to_vec_pretty(&content)?)?;
            file.sync_all()?;
            fs::rename(&fresh, &self.path)
        };
        written().map_err(|source| RecordsError::File { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(id: &str) -> Allocation {
        Allocation {
            id: id.to_owned(),
            resource: "a.b/c".to_owned(),
            gpu: "GPU-1".to_owned(),
            devices: ["GPU-1::0".to_owned()].into(),
            sm_percent_per_unit: Some(1),
            memory_bytes_per_unit: 2,
            lent_at: 3,
            succeeded_at: None,
            owner: None,
        }
    }

    #[test]
    fn what_was_written_is_read_by_the_next_plugin_and_by_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let (records, nothing) = Records::open(directory.path()).unwrap();
        assert_eq!(nothing, []);
        let all = [allocation("one"), allocation("two")];
        records.write(&all).unwrap();
        let second = Records::open(directory.path()).unwrap_err();
        assert!(matches!(second, RecordsError::InUse { .. }), "{second}");
        drop(records);
        let (_records, read) = Records::open(directory.path()).unwrap();
        assert_eq!(read, all);
    }

    #[test]
    fn what_is_not_ours_is_not_overwritten() {
        for text in ["", "{}", r#"{"schema":2,"allocations":[]}"#] {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("allocations.json"), text).unwrap();
            let error = Records::open(directory.path()).unwrap_err();
            assert!(matches!(error, RecordsError::Content { .. }), "{text}: {error}");
        }
    }
}
