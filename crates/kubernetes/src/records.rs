//! The plugin's records on disk: what containers were told must outlive the plugin, since the
//! kubelet never asks again.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use control::trusted_path::{Directory, Missing, PathError, Trust};
use rustix::fs::{FlockOperation, OFlags};
use serde::{Deserialize, Serialize};

use crate::ledger::Allocation;

/// The file's name in the plugin's directory.
const NAME: &str = "allocations.json";
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
    /// The directory, or a file in it, could be somebody else's.
    #[error(transparent)]
    Place(#[from] PathError),
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
    directory: Directory,
    /// For messages.
    path: PathBuf,
    _lock: File,
}

impl Records {
    /// Takes a directory, making it if need be, and reads what is there.
    ///
    /// # Errors
    /// [`RecordsError`].
    pub(crate) fn open(directory: &Path) -> Result<(Self, Vec<Allocation>), RecordsError> {
        let path = directory.join(NAME);
        let in_file = |path: &Path| {
            let path = path.to_owned();
            move |source| RecordsError::File { path, source }
        };
        // The plugin is root: whoever else could change what is in there would have it write
        // elsewhere.
        let absolute = std::path::absolute(directory).map_err(in_file(directory))?;
        let place = Directory::open(&absolute, Trust::of_places(), Missing::Make)?;
        let lock = place.file("lock", OFlags::WRONLY | OFlags::CREATE, 0o600)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| RecordsError::InUse { path: directory.to_owned() })?;
        let file = place.file(NAME, OFlags::RDONLY, 0);
        let records = Self { directory: place, path, _lock: lock };
        let mut text = Vec::new();
        match file {
            Ok(mut file) => file.read_to_end(&mut text).map_err(in_file(&records.path))?,
            Err(error) if error.is_not_found() => return Ok((records, Vec::new())),
            Err(error) => return Err(error.into()),
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
        let text = serde_json::to_vec_pretty(&content).map_err(|error| RecordsError::File {
            path: self.path.clone(),
            source: error.into(),
        })?;
        Ok(self.directory.replace(NAME, &text, 0o600)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

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
    fn nothing_is_written_through_links() {
        let place = tempfile::tempdir().unwrap();
        let (directory, victim) = (place.path().join("plugin"), place.path().join("victim"));
        fs::create_dir(&directory).unwrap();
        fs::write(&victim, "theirs").unwrap();
        let (records, _) = Records::open(&directory).unwrap();
        for name in ["allocations.new", "allocations.json.new", "allocations.json"] {
            let _ = fs::remove_file(directory.join(name));
            symlink(&victim, directory.join(name)).unwrap();
            records.write(&[allocation("one")]).unwrap();
            assert_eq!(fs::read(&victim).unwrap(), b"theirs", "{name}");
        }
        fs::remove_file(directory.join("allocations.json")).unwrap();
        symlink(&victim, directory.join("allocations.json")).unwrap();
        drop(records);
        assert!(matches!(Records::open(&directory).unwrap_err(), RecordsError::Place(_)));
        // Whoever can put another lock in the place could have two plugins.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(Records::open(&directory).unwrap_err(), RecordsError::Place(_)));
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
