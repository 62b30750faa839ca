//! Whether the server lives.
//!
//! A thread per connection sleeps until the kernel says that the other side has closed it, whatever
//! killed that side, and then raises the flag that every call looks at. So a posted command, which
//! waits for no answer, fails as soon as one that does.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bound of one sleep; nothing depends on its length.
const SLEEP: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// Raised once and for all when any connection to the server is lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Health(Arc<AtomicBool>);

impl Health {
    /// Whether a connection is lost.
    pub(crate) fn is_lost(&self) -> bool {
        // Acquire: with the Release in `raise`; nothing else is published by it.
        self.0.load(Ordering::Acquire)
    }

    fn raise(&self) {
        // Release: with the Acquire in `is_lost`.
        self.0.store(true, Ordering::Release);
    }

    /// Watches a connection until it closes; `then` runs once after the flag is raised.
    pub(crate) fn watch(
        &self,
        socket: &impl AsFd,
        then: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        self.watch_and_hear(socket, PollFlags::RDHUP, || {}, then)
    }

    /// As [`Self::watch`]; `hear` runs whenever there is something else of `flags`.
    pub(crate) fn watch_and_hear(
        &self,
        socket: &impl AsFd,
        flags: PollFlags,
        hear: impl FnMut() + Send + 'static,
        then: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let socket = socket.as_fd().try_clone_to_owned()?;
        let health = self.clone();
        crate::thread::spawn("openmps-health", move || {
            wait_for_close(&socket, flags, hear);
            health.raise();
            then();
        })
    }
}

fn wait_for_close(socket: &OwnedFd, flags: PollFlags, mut hear: impl FnMut()) {
    loop {
        let mut polled = [PollFd::new(socket, flags)];
        match rustix::event::poll(&mut polled, Some(&SLEEP)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) if polled[0].revents().is_empty() => {}
            Ok(_) if polled[0].revents() == PollFlags::IN => hear(),
            Ok(_) | Err(_) => return,
        }
    }
}
