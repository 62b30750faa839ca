//! Open files that are kept for clients' memory: all clients of an executor together may have most
//! of what the process may open, so that some are left for clients that come, and each owner a part
//! of that.

use link::wire::owner::Owner;
use policy::budgets::{Budget, Part};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files of one region.
pub(crate) const OF_REGION: u64 = 1;
/// Of memory that other processes can have: the driver may have one, too.
pub(crate) const OF_MEMORY: u64 = 2;

/// How many files are kept, of how many.
#[derive(Debug)]
pub(crate) struct Descriptors {
    kept: Mutex<Budget>,
    most: u64,
}

/// Room for files of one owner, until it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    of: Arc<Descriptors>,
    owner: Owner,
    count: u64,
}

/// A file that is kept.
#[derive(Debug)]
pub(crate) struct Kept {
    file: OwnedFd,
    _room: Room,
}

impl Descriptors {
    /// Three quarters of what this process may open.
    pub(crate) fn of_process() -> Arc<Self> {
        Self::up_to(getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit / 4 * 3))
    }

    fn up_to(most: u64) -> Arc<Self> {
        let kept = Mutex::new(Budget::new(most, Part::THREE_QUARTERS, u64::MAX));
        Arc::new(Self { kept, most })
    }

    /// How many may be kept at a time.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Room for so many files more; `None`: the owner has its part.
    pub(crate) fn take(self: &Arc<Self>, owner: &Owner, count: u64) -> Option<Room> {
        let is_there = self.lock().take(owner, count);
        is_there.then(|| Room { of: Arc::clone(self), owner: owner.clone(), count })
    }

    /// The same for what the owner had in another executor.
    pub(crate) fn take_again(self: &Arc<Self>, owner: &Owner, count: u64) -> Room {
        self.lock().count(owner, count);
        Room { of: Arc::clone(self), owner: owner.clone(), count }
    }

    fn lock(&self) -> MutexGuard<'_, Budget> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Keeps a file there.
    pub(crate) fn keep(self, file: OwnedFd) -> Kept {
        Kept { file, _room: self }
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of.lock().give_back(&self.owner, self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn files_are_counted_until_they_are_closed() {
        let descriptors = Descriptors::up_to(16);
        let [one, other] = [1, 2].map(Owner::user);
        let keep = |owner: &Owner, count| {
            let room = descriptors.take(owner, count)?;
            Some(room.keep(File::open("/dev/null").unwrap().into()))
        };
        let mut kept: Vec<Kept> = (0..6).map(|_| keep(&one, OF_MEMORY).unwrap()).collect();
        assert!(keep(&one, OF_REGION).is_none(), "two for each");
        let of_other = [keep(&other, OF_REGION).unwrap(), keep(&other, OF_MEMORY).unwrap()];
        kept.pop();
        assert!(keep(&other, OF_REGION).is_some() && keep(&one, OF_MEMORY).is_none());
        drop((kept, of_other));
        let again = descriptors.take_again(&one, 100);
        assert!(keep(&other, 1).is_none());
        drop(again);
        assert!(keep(&other, 12).is_some());
        assert!(Descriptors::of_process().most() > 0);
    }
}
