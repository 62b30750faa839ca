//! Files that a client sends over the session's socket.
//!
//! What is wanted is looked at before it is taken: what else a client may have sent stays in the
//! socket, and is closed with it. Closing may block for as long as the client likes, so that is
//! never done by a session's thread, which must end when its client leaves.

use super::failure::Failure;
use super::state::State;
use rustix::fd::OwnedFd;
use serde::de::DeserializeOwned;
use std::time::Duration;

impl State {
    /// What the client sends next, which stays there: a message, and a copy of its one descriptor.
    pub(crate) fn look_at_file<T: DeserializeOwned>(
        &self,
        what: &str,
        timeout: Duration,
    ) -> Result<(T, OwnedFd), Failure> {
        let (message, mut descriptors) = self.memory.socket.peek_apart::<T>(timeout);
        let count = descriptors.len();
        let problem = match (message, descriptors.pop()) {
            (Ok(message), Some(file)) if count == 1 => return Ok((message, file)),
            (Ok(_), last) => {
                descriptors.extend(last);
                format!("{count} descriptors")
            }
            (Err(error), last) => {
                descriptors.extend(last);
                error.to_string()
            }
        };
        descriptors.into_iter().for_each(|descriptor| self.discard(descriptor));
        Err(Failure::Protocol(format!("no file came for {what}: {problem}")))
    }

    /// The same, taken.
    pub(crate) fn receive_file<T: DeserializeOwned>(
        &self,
        what: &str,
        timeout: Duration,
    ) -> Result<(T, OwnedFd), Failure> {
        let (_, copy) = self.look_at_file::<T>(what, timeout)?;
        self.discard(copy);
        match self.memory.socket.try_receive::<T>() {
            Ok(Some(mut received)) if received.descriptors.len() == 1 => {
                let file = received.descriptors.remove(0);
                Ok((received.message, file))
            }
            // There are too many open files.
            _ => Err(Failure::Protocol(format!("the file for {what} is lost"))),
        }
    }

    /// Has a descriptor of the client's closed, which may be anything.
    pub(crate) fn discard(&self, descriptor: OwnedFd) {
        self.shared.closer.close(&self.handle.owner, descriptor);
    }
}
