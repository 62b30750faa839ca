//! A client that is traced and the one who traces it (`openmps trace`).
//!
//! Either the client connects to the socket that [`SOCKET_VARIABLE`] names, or the tracer connects
//! to the daemon ([`super::attach::Hello::Trace`]), which hands that connection on to the server
//! and that to the client. The client then sends [`FromTraced`]; rings ([`crate::trace`]) come with
//! the packets. The connection's closing is the end, on either side.

use super::command::wire_struct;
use super::version::Versions;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Names the tracer's socket.
pub const SOCKET_VARIABLE: &str = "OPENMPS_TRACE";

/// From a traced client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromTraced {
    /// First, with the ring of its calls.
    Hello {
        /// Versions of the client wire that its library speaks.
        versions: Versions,
        /// Its process id, in its own PID namespace.
        pid: u32,
        /// Its command line.
        command: String,
    },
    /// It uses the native driver: none of its driver calls come here.
    Native,
    /// It is attached to a server: its driver calls are recorded from here on.
    Attached,
    /// It has a session with a device; with the ring in which the executor tells of work.
    Session {
        /// Ordinal of the device in the client.
        device: u32,
        /// The device's name.
        name: String,
    },
    /// Nothing more is recorded: answer to [`ToTraced::Stop`]. The sessions' rings are closed when
    /// their work has ended.
    Stopped,
}

/// To a traced client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToTraced {
    /// No more records.
    Stop,
}

/// With the ring of a session, from the client to the executor, before
/// [`super::command::Opcode::TraceStart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFile {
    /// That this is one.
    pub trace: (),
}

wire_struct! {
    /// See [`super::command::Opcode::TraceStart`] and [`super::command::Opcode::TraceStop`].
    struct TraceControl {
        /// Zero.
        reserved: u64,
    }
}
