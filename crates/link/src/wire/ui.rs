//! A front end (`nvidia-cuda-mps-control`, `openmps ps`) and the daemon.

use super::daemon::{ServerSnapshot, ServerStatus};
use super::group_socket::{GroupHolder, GroupSocket};
use super::shares::{ChangeReport, DeviceMove, GroupLimits, LimitChange, Reservation};
use crate::pieces::Piece;
use serde::{Deserialize, Serialize};

/// From the front end, after [`super::attach::Hello::Ui`]; each gets one [`UiReply`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UiRequest {
    /// A line of the original's shell.
    Command {
        /// Without its newline.
        line: String,
    },
    /// Everything, for our own commands; answered by [`UiReply::State`].
    State,
    /// Change running shares; answered by [`UiReply::Changed`] or [`UiReply::Refused`].
    Limit(LimitChange),
    /// Reserve SMs; answered as [`UiRequest::Limit`].
    Reserve(Reservation),
    /// Give a reservation up; answered as [`UiRequest::Limit`].
    Release {
        /// Its name.
        name: String,
    },
    /// Have clients go on on another device; answered as [`UiRequest::Limit`].
    Move(DeviceMove),
    /// Have all clients of a device go on on others, and keep programs that start from it; answered
    /// as [`UiRequest::Limit`].
    Drain {
        /// The servers' number of it.
        device: u32,
    },
    /// Let programs that start use a drained device again; answered as [`UiRequest::Limit`].
    Undrain {
        /// The servers' number of it.
        device: u32,
    },
    /// Open a socket for the clients of a group; one that is open alike stays. Answered as
    /// [`UiRequest::Limit`].
    OpenSocket(GroupSocket),
    /// Say which container has a group; what was said before is forgotten. Answered as
    /// [`UiRequest::Limit`].
    NameHolder(GroupHolder),
    /// End the processes of the clients that came by a group's socket, which may be closed by now.
    /// Answered by [`UiReply::Ended`].
    EndClients {
        /// The socket's directory.
        directory: String,
    },
    /// Close a group's socket: its clients stay, those that still wait for a server are refused,
    /// and no more come. Answered as [`UiRequest::Limit`].
    CloseSocket {
        /// Its directory.
        directory: String,
    },
}

/// From the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UiReply {
    /// What a command printed.
    Command {
        /// For standard output, with its newlines.
        output: String,
        /// For standard error: what was wrong and what to do; empty when all went well.
        error: String,
        /// What the original's front end exits with after this command: not 0 only after a `quit`
        /// that had to use force.
        #[serde(default)]
        exit_status: u8,
    },
    /// The daemon's state.
    State(DaemonState),
    /// What came of a change of shares.
    Changed(ChangeReport),
    /// Clients that were attached, and whose processes have been killed now; empty when there were
    /// none.
    Ended {
        /// They.
        clients: Vec<EndedClient>,
    },
    /// Of an answer that is longer than a packet.
    Piece(Piece),
    /// Nothing was changed.
    Refused {
        /// What was wrong and what to do.
        message: String,
    },
}

/// A client whose process the daemon has killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedClient {
    /// Its process id.
    pub pid: u32,
    /// Its command line, in its own words.
    pub command: String,
}

/// The daemon and its servers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonState {
    /// The daemon's process id.
    pub daemon_pid: u32,
    /// Where its logs are; absent: it does not say.
    #[serde(default)]
    pub log_directory: Option<String>,
    /// Its servers.
    pub servers: Vec<ServerState>,
    /// Groups with limits.
    #[serde(default)]
    pub groups: Vec<GroupLimits>,
    /// Reserved SMs.
    #[serde(default)]
    pub reservations: Vec<Reservation>,
    /// Drained devices, by the servers' numbers.
    #[serde(default)]
    pub drained: Vec<u32>,
    /// Open sockets of groups.
    #[serde(default)]
    pub sockets: Vec<GroupSocket>,
    /// Which containers have groups, where somebody has said so.
    #[serde(default)]
    pub holders: Vec<GroupHolder>,
}

/// One server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerState {
    /// Process id.
    pub pid: u32,
    /// The user it serves.
    pub uid: u32,
    /// Its state.
    pub status: ServerStatus,
    /// What it said last.
    pub snapshot: ServerSnapshot,
    /// It did not answer in time: `snapshot` is what it said to an earlier question.
    #[serde(default)]
    pub silent: bool,
}
