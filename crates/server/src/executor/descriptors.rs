//! Open files that are kept for clients' memory that can be shared: all clients of an executor together may have most of what the process may
//! open, so that some are left for clients that come.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many files are kept, of how many.
#[derive(Debug)]
pub(crate) struct Descriptors {
    kept: AtomicU64,
    most: u64,
}

/// A file that is kept.
#[derive(Debug)]
pub(crate) struct Kept {
    file: OwnedFd,
    of: Arc<Descriptors>,
}

impl Descriptors {
    /// Three quarters of what this process may open.
    pub(crate) fn of_process() -> Arc<Self> {
        Self::up_to(getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit / 4 * 3))
    }

    fn up_to(most: u64) -> Arc<Self> {
        Arc::new(Self { kept: AtomicU64::new(0), most })
    }

    /// How many may be kept at a time.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Whether there is no room for another one.
    pub(crate) fn are_used_up(&self) -> bool {
        // Relaxed: a count that guards nothing else; a few sessions may pass it at once, for which there is room left.
        self.kept.load(Ordering::Relaxed) >= self.most
    }

    /// Keeps a file until the result is dropped.
    pub(crate) fn keep(self: &Arc<Self>, file: OwnedFd) -> Kept {
        // Relaxed: as above.
        self.kept.fetch_add(1, Ordering::Relaxed);
        Kept { file, of: Arc::clone(self) }
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Relaxed: as above.
        self.of.kept.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn files_are_counted_until_they_are_closed() {
        let descriptors = Descriptors::up_to(2);
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        let first = descriptors.keep(file());
        assert!(!descriptors.are_used_up());
        let second = descriptors.keep(file());
        assert!(descriptors.are_used_up());
        drop(first);
        assert!(!descriptors.are_used_up());
        drop(second);
        assert!(Descriptors::up_to(0).are_used_up());
        assert!(Descriptors::of_process().most() > 0);
    }
}
