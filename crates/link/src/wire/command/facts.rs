//! What is known of each command beside its body and its answer: the columns of the table in
//! [`super::table`].

use std::hash::{DefaultHasher, Hash, Hasher};

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::Opcode;

/// A row's facts.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// What it gives the device to do.
    pub does: Does,
    /// Whether it holds its stream until something has come.
    pub holds_stream: bool,
    /// What it needs of device memory, and what it does to it.
    pub memory: Memory,
    /// How long the executor may be at it.
    pub time: Time,
    /// Whom its refusal by the driver concerns.
    pub refusal: Refusal,
    /// Whether it is among a client's last calls.
    pub trail: Trail,
    /// Whether it can be done again after an executor's end.
    pub repeat: Repeat,
    /// Whether the driver reads what the client made up.
    pub content: Content,
    /// Whether its work can be a graph's node.
    pub role: Role,
    /// What it does to the session's journal.
    pub journal: Effect,
    /// Length of its answer, without what follows that.
    pub answer_bytes: usize,
}

/// What a command gives the device to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// It launches a kernel.
    Kernel,
    /// It launches a graph.
    Graph,
    /// It copies.
    Copy,
    /// It fills.
    Fill,
    /// It asks when earlier work ends, and holds up nothing.
    Question,
    /// Anything else: what comes after it may have waited for it.
    Other,
}

impl Does {
    /// Whether it launches kernels: such commands wait for credit.
    pub fn launches(self) -> bool {
        matches!(self, Self::Kernel | Self::Graph)
    }
}

/// Where a command stands in the order of streams: slots and numbers of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Apart from all streams.
    Apart,
    /// Work of a stream.
    Work {
        /// Slot.
        stream: u32,
    },
    /// It launches a graph, which may wait for events and record some.
    Graph {
        /// Slot.
        stream: u32,
        /// Number.
        graph: u32,
    },
    /// It records an event.
    Record {
        /// Slot.
        stream: u32,
        /// Number.
        event: u32,
    },
    /// It waits for an event.
    Wait {
        /// Slot.
        stream: u32,
        /// Number.
        event: u32,
    },
    /// It signals that earlier work has ended.
    Signal {
        /// Slot.
        stream: u32,
    },
    /// It holds the stream until a value is in memory: see [`super::StreamWriteValue`].
    Value {
        /// Slot.
        stream: u32,
        /// 4 or 8.
        value_bytes: u32,
        /// Where.
        address: u64,
        /// What.
        value: u64,
        /// `CU_STREAM_WAIT_VALUE_*` flags.
        flags: u32,
    },
    /// It holds the stream until one of another device has come so far: see
    /// [`super::super::peer::StreamWaitPeer`].
    Peer {
        /// Slot.
        stream: u32,
        /// The other device.
        device: u32,
        /// Slot there.
        slot: u32,
        /// Value of the completion word there.
        value: u64,
    },
    /// It ends the stream.
    End {
        /// Slot.
        stream: u32,
    },
}

impl Order {
    /// Slot of its stream.
    pub fn stream(self) -> Option<u32> {
        match self {
            Self::Apart => None,
            Self::Work { stream }
            | Self::Graph { stream, .. }
            | Self::Record { stream, .. }
            | Self::Wait { stream, .. }
            | Self::Signal { stream }
            | Self::Value { stream, .. }
            | Self::Peer { stream, .. }
            | Self::End { stream } => Some(stream),
        }
    }
}

/// What a command needs of device memory, and what it does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// It may touch device memory, or make the driver look at it.
    Needs,
    /// The same, and what could be read before may not be there afterwards.
    NeedsAndTakes,
    /// It does without.
    Spares,
    /// It does without, and takes some away.
    SparesAndTakes,
}

impl Memory {
    /// Whether memory that was moved out must be there.
    pub fn is_needed(self) -> bool {
        matches!(self, Self::Needs | Self::NeedsAndTakes)
    }

    /// Whether memory may be gone afterwards.
    pub fn is_taken(self) -> bool {
        matches!(self, Self::NeedsAndTakes | Self::SparesAndTakes)
    }
}

/// How long the executor may be at a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// It only adds something to a stream, or looks at what is there.
    Short,
    /// The driver may make it wait.
    Long,
}

/// Whom it concerns that the driver refuses a posted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It leaves everything after it as it was: a native program would have got the error from that
    /// very call and gone on.
    Alone,
    /// Later commands, and waits, count on the object or signal that it makes.
    Session,
}

/// Whether a command is among a client's last calls, which a fault's report has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trail {
    /// It says something of what the client was doing.
    Told,
    /// It comes with any other call, or is noted with what it launches.
    Silent,
}

/// Whether a command can be done again after an executor's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Perhaps, by what its body says.
    Again,
    /// It ends what earlier commands name.
    Ends,
    /// Never.
    Never,
}

/// Whether the driver reads what the client made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Numbers that were checked.
    Plain,
    /// Code, names, descriptions.
    ToDriver,
}

/// What a command's work can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A command only.
    Command,
    /// A graph's node as well.
    Node,
}

/// The number by which an entry of the journal is found; `None` for bytes that are too short.
pub type KeyOf = fn(&[u8]) -> Option<u64>;

/// What a command does to the session's journal, from which the next executor makes the session
/// again.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// Nothing.
    None,
    /// It makes something, of which an entry tells.
    Makes {
        /// What is written down.
        keeps: Keeps,
        /// Key of the entry.
        key: KeyOf,
        /// How it is made again.
        again: Again,
        /// What it counts as where that takes long.
        part: Part,
    },
    /// It ends what these commands have made.
    Ends {
        /// Commands whose entries end.
        makers: &'static [Opcode],
        /// Key of these entries, from this command.
        key: KeyOf,
    },
    /// The executor writes down the thing that it makes or changes, not the command.
    Thing(Part),
}

/// What an entry has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// The command.
    Command,
    /// The command, then its answer.
    CommandAndAnswer,
    /// Its answer.
    Answer,
}

/// How what an entry tells of is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// The command is done again.
    AsBefore,
    /// The same, and the answer must be the same; what it is of.
    SameAnswer(&'static str),
    /// In a way of its own.
    Special,
    /// It cannot be.
    Never,
}

/// Parts of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Device memory and addresses.
    Memory,
    /// Pinned host memory.
    Pinned,
    /// Code.
    Code,
    /// Graphs.
    Graphs,
    /// Anything else.
    Others,
}

/// A key of two numbers.
pub(super) fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The key of what is known by all that it says.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn first<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_prefix(bytes).ok().map(|(value, _)| value)
}

pub(super) fn last<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Option<T> {
    T::read_from_suffix(bytes).ok().map(|(_, value)| value)
}
