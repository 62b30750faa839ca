//! What a server knows of a fault: whose it was, or may have been, and what ran. Made by the
//! server, shown by the daemon and its front ends.

use crate::printable;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many faults a server remembers; the log has all of them.
pub const FAULTS_KEPT: usize = 6;
/// Clients that a report names at most; the log names all.
pub const ACCUSED_KEPT: usize = 4;
/// Calls of each kind that a report has of a client at most.
pub const CALLS_KEPT: usize = 8;

/// A fault, or a kill that cost an executor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// Counted from 1 since the server started.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub unix_time_ms: u64,
    /// Device index.
    pub device: u32,
    /// The `CUresult`.
    pub code: u32,
    /// Its name, or why the executor went.
    pub what: String,
    /// What is known of whose it was.
    pub blame: Blame,
    /// The address that was not to be touched, where it is known.
    #[serde(default)]
    pub address: Option<u64>,
    /// The culprit, or the suspects.
    pub accused: Vec<Accused>,
}

/// How sure it is whose fault it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// Nobody had work on the device.
    #[default]
    Nobody,
    /// One client had, or was inside the driver.
    Culprit,
    /// Several had: each may have done it.
    Suspects,
}

/// One client that may have done it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Accused {
    /// See [`super::attach::Welcome::client_id`].
    pub client_id: u64,
    /// Process id in the daemon's namespace.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// What it was started as.
    pub command: String,
    /// Launches not known to have ended, the oldest first.
    pub in_flight: Vec<CallRecord>,
    /// Its last calls, the oldest first.
    pub last_calls: Vec<CallRecord>,
}

/// One call of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    /// What it did: the name of the command.
    pub call: String,
    /// The kernel, as its module names it; of a graph, one of its kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecord>,
    /// How long before the fault, in microseconds.
    pub age_us: u64,
}

/// A launch's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRecord {
    /// The kernel; names of more than some hundred bytes are cut off.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
    /// The client's number of the stream; 0 is its default stream.
    pub stream: u32,
}

impl fmt::Display for LaunchRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, stream } = self;
        write!(
            formatter,
            "{kernel} grid ({gx},{gy},{gz}) block ({bx},{by},{bz}) shared {shared_bytes} B stream {stream}"
        )
    }
}

impl fmt::Display for CallRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.launch {
            Some(launch) => write!(formatter, "{} {launch}", self.call),
            None => formatter.write_str(&self.call),
        }
    }
}

impl fmt::Display for FaultReport {
    /// One line for people.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "fault {} on device {}: {}", self.number, self.device, self.what)?;
        if let Some(address) = self.address {
            write!(formatter, " at {address:#x}")?;
        }
        formatter.write_str(match self.blame {
            Blame::Nobody => ", of nobody known",
            Blame::Culprit => ", of",
            Blame::Suspects => ", suspects",
        })?;
        for (index, accused) in self.accused.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let command = printable(&accused.command);
            write!(formatter, "{comma} {} ({command}, user {})", accused.pid, accused.uid)?;
            match accused.in_flight.as_slice() {
                [] => {}
                [one] => write!(formatter, " in {one}")?,
                [first, rest @ ..] => write!(formatter, " in {first} or {} later", rest.len())?,
            }
        }
        Ok(())
    }
}
