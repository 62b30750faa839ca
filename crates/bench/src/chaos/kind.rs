//! The faults.

use crate::peer::Peer;
use serde::{Deserialize, Serialize};

/// What a bad client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A kernel writes to address 0x10.
    IllegalAddress,
    /// A kernel writes a word to an address that is not a multiple of its size.
    Misaligned,
    /// A kernel executes `trap`.
    Trap,
    /// A kernel's assertion fails.
    Assert,
    /// A kernel calls itself without end.
    StackOverflow,
    /// A kernel writes beyond shared memory.
    SharedOutOfRange,
    /// A kernel does not end; its process is killed.
    Endless,
    /// A process is killed at a random moment, with work in flight.
    Killed,
    /// A kernel prints more than there is room for.
    Printf,
    /// Images whose contents are damaged, in random ways.
    CorruptImage,
    /// A process exits with work in flight and all objects alive.
    Exit,
    /// A kernel does not end; an operator ends its client.
    Terminated,
    /// Calls with one mistake each, addresses of other processes among them, all of which are
    /// refused.
    RefusedCalls,
    /// A client writes mutated commands into its ring.
    HostileRing,
    /// Mutated messages and stray descriptors on the daemon's socket, and on that of a client.
    HostileMessages,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 15] = [
        Self::IllegalAddress,
        Self::Misaligned,
        Self::Trap,
        Self::Assert,
        Self::StackOverflow,
        Self::SharedOutOfRange,
        Self::Endless,
        Self::Killed,
        Self::Printf,
        Self::CorruptImage,
        Self::Exit,
        Self::Terminated,
        Self::RefusedCalls,
        Self::HostileRing,
        Self::HostileMessages,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::IllegalAddress => "illegal_address",
            Self::Misaligned => "misaligned",
            Self::Trap => "trap",
            Self::Assert => "assert",
            Self::StackOverflow => "stack_overflow",
            Self::SharedOutOfRange => "shared_out_of_range",
            Self::Endless => "endless",
            Self::Killed => "killed",
            Self::Printf => "printf",
            Self::CorruptImage => "corrupt_image",
            Self::Exit => "exit",
            Self::Terminated => "terminated",
            Self::RefusedCalls => "refused_calls",
            Self::HostileRing => "hostile_ring",
            Self::HostileMessages => "hostile_messages",
        }
    }

    /// The kind of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it is made under this peer: attacks on a protocol are of no use to who speaks
    /// another one, and a native library does not look at handles.
    pub fn is_for(self, peer: Peer) -> bool {
        peer == Peer::Openmps
            || !matches!(self, Self::RefusedCalls | Self::HostileRing | Self::HostileMessages)
    }

    /// As a number that is not 0, and back.
    pub fn code(self) -> u64 {
        self as u64 + 1
    }

    /// See [`Self::code`].
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Whether it must go on until somebody ends it from outside.
    pub fn ends_from_outside(self) -> bool {
        matches!(self, Self::Endless | Self::Killed | Self::Terminated)
    }
}
