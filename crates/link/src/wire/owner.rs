//! Whom something counts for.

use super::daemon::Peer;
use super::group_socket::Admission;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A user; of one who came in by a group's socket, of that socket alone, as root of one container
/// is not root of the next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// By the kernel's word; of subordinate ids, the user who has them.
    pub uid: u32,
    /// The group whose socket it came by; absent: the daemon's own.
    pub entrance: Option<String>,
}

impl Owner {
    /// Who came in so.
    pub fn new(peer: &Peer, admission: Option<&Admission>) -> Self {
        let entrance = admission.map(|admission| admission.group.clone());
        Self { uid: peer.accountable(), entrance }
    }

    /// Whoever came by the daemon's own socket and is this.
    pub fn of(peer: &Peer) -> Self {
        Self::user(peer.accountable())
    }

    /// Whoever counts for this user, by the daemon's own socket.
    pub fn user(uid: u32) -> Self {
        Self { uid, entrance: None }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "user {}", self.uid)?;
        match &self.entrance {
            Some(group) => write!(formatter, " of group {group}"),
            None => Ok(()),
        }
    }
}
