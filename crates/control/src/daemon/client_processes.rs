//! Processes of clients that were handed on: which of them have ended. One descriptor to poll
//! stands for all of them, however many there are.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};

/// Ends that are told at a time.
const ENDS_PER_ROUND: usize = 64;

/// All that are watched. One whose descriptor is closed is watched no longer.
#[derive(Debug)]
pub(super) struct ClientProcesses {
    epoll: OwnedFd,
}

impl ClientProcesses {
    /// Watches nobody yet.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Readable when one has ended.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Watches a client's process. Where the kernel has no room for that, only its server says when
    /// it leaves.
    pub(super) fn watch(&self, client: u64, process: &OwnedFd) {
        // Told once, so that one whose descriptor somebody still holds does not wake the daemon for
        // ever.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let _ = epoll::add(&self.epoll, process, epoll::EventData::new_u64(client), flags);
    }

    /// Clients whose processes have ended.
    pub(super) fn ended(&self) -> Vec<u64> {
        let mut buffer = [MaybeUninit::uninit(); ENDS_PER_ROUND];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, &mut buffer, Some(&now)) {
            Ok((ended, _)) => ended.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        }
    }
}
