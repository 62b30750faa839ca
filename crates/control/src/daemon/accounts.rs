//! What the system's files say of users: whose subordinate ids are, as
//! [`crate::core::subordinates`] reads it. The files are read when they have changed.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::core::subordinates::SubordinateIds;

const SUBORDINATE_IDS: &str = "/etc/subuid";
const USERS: &str = "/etc/passwd";

/// Their latest state.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    ids: SubordinateIds,
    seen: Option<[Version; 2]>,
}

/// What changes when a file does: its inode, its length, and when it was changed. A file that is
/// not there has none.
type Version = Option<(u64, u64, i64, i64)>;

impl Accounts {
    /// Reads the files again if they have changed.
    pub(super) fn refresh(&mut self) {
        let now = [SUBORDINATE_IDS, USERS].map(|path| {
            let found = fs::metadata(path).ok()?;
            Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
        });
        if self.seen == Some(now) {
            return;
        }
        let read = |path| fs::read(path).unwrap_or_default();
        let [ids, users] = [SUBORDINATE_IDS, USERS].map(read);
        let [ids, users] = [&ids, &users].map(|text| String::from_utf8_lossy(text));
        self.ids = SubordinateIds::parse(&ids, &users);
        self.seen = Some(now);
    }

    /// The user who has this subordinate id.
    pub(super) fn owner(&self, id: u32) -> Option<u32> {
        self.ids.owner(id)
    }

    #[cfg(test)]
    pub(super) fn of(subuid: &str, passwd: &str) -> Self {
        Self { ids: SubordinateIds::parse(subuid, passwd), seen: None }
    }
}
