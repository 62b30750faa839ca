//! What keeper and executor say to each other, over the socket that the executor inherits.

use link::wire::attach::Window;
use link::wire::owner::Owner;
use policy::faults::suspects::Code;
use policy::limits::{GuardMode, MemoryBound};
use policy::turns::fairness::Claim;
use policy::turns::priorities::Class;
use policy::turns::repeatable::Repeatable;
use serde::{Deserialize, Serialize};

/// From the keeper.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ToExecutor {
    /// The first message; comes with the file of [`crate::counters::CounterPage`], and the log's
    /// pipe. Answered by `Ready` or `Failed`.
    Start {
        /// The driver's number of the device.
        device: u32,
        /// Its place among the devices that the server serves.
        index: u32,
        /// How many those are.
        devices: u32,
    },
    /// A client's first context here, or a session whose executor is gone. Comes with the session
    /// file, the completion file, the executor's end of the session socket, the file of
    /// [`crate::standing`] and the journal's. Answered by `SessionOpened` or `SessionRefused`.
    OpenSession(Box<OpenSession>),
    /// To one that stands by: a session of another executor has code of which the file comes along.
    Warm(CodeOptions),
    /// To the same: one session less has it.
    Cool(CodeOptions),
    /// To one that stands by: memory in the device window of a session of another executor, to be
    /// mapped; comes with a descriptor for each. Answered by `MappedAhead`.
    MapAhead {
        /// Which.
        session: u64,
        /// The session's.
        window: Window,
        /// First address and length of each.
        grants: Vec<(u64, u64)>,
    },
    /// To the same: the session does not have this any more.
    UnmapAhead {
        /// Which.
        session: u64,
        /// First address.
        address: u64,
    },
    /// To the same: nothing of the session's is to be mapped any more.
    ForgetAhead {
        /// Which.
        session: u64,
    },
    /// What a session has that is announced next, but for what is mapped already; comes with a
    /// descriptor for each.
    Inherit {
        /// Which.
        session: u64,
        /// What they are.
        heirlooms: Vec<Heirloom>,
    },
    /// The client is gone. Answered by `SessionClosed`, once its work has ended.
    CloseSession {
        /// Which.
        session: u64,
    },
    /// From now on the session does nothing and answers every call with `code`.
    EndSession {
        /// Which.
        session: u64,
        /// A `CUresult`.
        code: u32,
    },
    /// From now on this is the second executor of its device and domain: clients reserve addresses
    /// in a part of the area that is its own.
    BeSecond,
    /// Answer to `Stuck`.
    Relocate {
        /// Which session.
        session: u64,
        /// Where it is to wait.
        verdict: Verdict,
    },
    /// The session may go back among the others, or to the first context, when nothing of it is in
    /// flight.
    ComeBack {
        /// Which session.
        session: u64,
    },
    /// The session is to go on on another device, when nothing of it is in flight. It asks for
    /// memory there by `Twin`, copies what it has, and says `Left`; or it says `Stays`.
    MoveAway {
        /// Which session.
        session: u64,
    },
    /// All code that is to run apart: sessions that have it, or are about to, are `Stuck`.
    Quarantine(Vec<Code>),
    /// No session takes commands any more: the keeper is about to end the process, and waits for
    /// what is on the device.
    Quiesce,
    /// They do again.
    Resume,
    /// From now on the session's share of a contested device goes by this weight.
    Weigh {
        /// Which.
        session: u64,
        /// See [`policy::turns::fairness::Claim`].
        weight: u32,
    },
    /// Whether sessions may keep grants that their clients have given up. `Forbidden` is answered
    /// by `NothingKept`, also by one that stands by, which unmaps all that it has mapped ahead.
    SetKeeping(Keeping),
    /// Memory is to be moved out to the host, where nothing of the session is in flight.
    Move {
        /// Which session.
        session: u64,
        /// What and when.
        order: MoveOrder,
    },
    /// The session's work is to run on other SMs. Answered by `Reshared`.
    Reshare {
        /// Which.
        session: u64,
        /// See [`policy::orders`].
        order: u64,
        /// Which SMs.
        share: ShareWish,
    },
    /// Make these reservations, by name and number of SMs, the only ones. Answered by `Reserved`;
    /// sessions stay where they are until they are told.
    Reserve {
        /// The daemon's number of the change.
        change: u64,
        /// All that there are to be.
        reservations: Vec<(String, u32)>,
    },
    /// From now on the session may hold this much device memory.
    BoundMemory {
        /// Which.
        session: u64,
        /// Its own limit.
        bound: MemoryBound,
    },
    /// From now on the sessions of a group may hold this much device memory together.
    GroupMemoryLimit {
        /// Its name.
        group: String,
        /// Absent: no limit.
        limit_bytes: Option<u64>,
    },
    /// Answer to `Grant` and, once for each allocation, to `Return`; comes with the memory's
    /// descriptor when granted.
    Granted {
        /// Which session asked.
        session: u64,
        /// What it got.
        grant: GrantOutcome,
    },
}

/// What becomes of a session that is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Verdict {
    /// There is no other context for it.
    Stays,
    /// There is one: it leaves as soon as nothing of it is in flight, if it is still stuck.
    Leaves,
}

/// Why a session would be better off in another context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// It waits for the end of others' kernels.
    Kernels,
    /// It is to open what a session shares that is not here, by its command at this position of
    /// the ring.
    Sharing(u64),
    /// It has code that is to run apart.
    Quarantine(Code),
    /// None: a test has sessions go to and fro.
    Test,
}

/// What a session that leaves takes along of its device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Baggage {
    /// Nothing: it is the same memory where it goes on.
    Nothing,
    /// What it had is copied to memory of another device.
    Copies,
}

/// When an event was recorded, for the executor that a session goes to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventTime {
    /// The client's number of it.
    pub event: u32,
    /// Milliseconds of the clock that all processes share.
    pub at_ms: f64,
}

/// What a session is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenSession {
    /// Unique in the server.
    pub session: u64,
    /// `{PID: x, Context ID: y}`, for the log.
    pub label: String,
    /// Its slot in the counter page.
    pub counter_slot: usize,
    /// See `link::wire::attach::ContextOpened`.
    pub device_window: Window,
    /// See `link::wire::attach::ContextOpened`.
    pub host_window: Window,
    /// Device memory that it may be granted in all.
    pub memory: MemoryBound,
    /// SMs that its work may run on.
    pub share: ShareWish,
    /// The group that it belongs to.
    pub group: Option<GroupMembership>,
    /// Whether it had an executor before, which has left it work that is done and a journal.
    pub origin: Origin,
    /// Its claim on a device that others want, too.
    pub claim: Claim,
    /// Whether its launches go before those of others.
    pub class: Class,
    /// Whether its kernels' accesses are checked.
    pub guard: GuardMode,
    /// For whom it counts.
    pub owner: Owner,
    /// What its client's control group may have of the host's memory, where that is known.
    pub most_pinned_bytes: Option<u64>,
    /// Kernels that may be run again. If there are any, the file of [`crate::redo`] comes with the
    /// others, last.
    pub repeatable: Repeatable,
    /// Of events that were recorded in another context.
    pub event_times: Vec<EventTime>,
}

/// How code is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeOptions {
    /// `u32::MAX`: the driver's default.
    pub optimization_level: u32,
    /// 0: the driver's default.
    pub max_registers: u32,
}

/// Where a session comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// It begins.
    New,
    /// Another executor served it.
    Inherited,
}

/// What the keeper has of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Heirloom {
    /// Device memory.
    Grant {
        /// First address, or key.
        address: u64,
        /// Length.
        size_bytes: u64,
    },
    /// A file that an executor gave to keep.
    File {
        /// Its number.
        number: u64,
    },
}

/// The SMs that a session's work may run on: as many as it may have, within its group's, within its
/// reservation's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareWish {
    /// Absent: all that it could have.
    pub multiprocessors: Option<u32>,
    /// Its group, if that has a share.
    pub group: Option<GroupShare>,
    /// Absent: what nobody has reserved.
    pub reservation: Option<String>,
}

/// The SMs that the sessions of a group share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupShare {
    /// The group's name.
    pub name: String,
    /// How many.
    pub multiprocessors: u32,
}

/// A group as one of its sessions is told of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupMembership {
    /// Its name.
    pub name: String,
    /// Device memory that all of its sessions may hold together; absent: no limit.
    pub memory_limit_bytes: Option<u64>,
}

/// Where granted memory is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// In the session's device window.
    Window,
    /// Wherever the client maps it: the address of the answer is a key.
    Piece,
}

/// Whether memory that clients have given up stays with their sessions for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keeping {
    Allowed,
    /// Memory is short.
    Forbidden,
}

/// What a session is to move out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum MoveOrder {
    /// These allocations, (first address, length). Answered by `MovedOut`.
    Start {
        /// At most some hundreds.
        allocations: Vec<(u64, u64)>,
        /// Whether the session takes no command before.
        pauses: bool,
    },
    /// From now on the session takes no command before it has done what it was told.
    Pause,
    /// What is not done yet is not to be done.
    CallOff,
}

/// Answer to a wish for memory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum GrantOutcome {
    /// The answer comes later: others must make room first.
    Waits,
    /// Memory to be mapped at this address.
    Memory {
        /// First address.
        address: u64,
        /// Length.
        size_bytes: u64,
    },
    /// Answer to `Peer`.
    Peer(PeerMemory),
    /// Answer to `Watch`, with the session's memory and its completion words.
    Signals {
        /// Which session that is.
        session: u64,
    },
    /// None; a `CUresult`.
    Refused(u32),
}

/// Memory of another device of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMemory {
    /// Where addresses of that device lie: the client's window, if it is a grant; else what clients
    /// reserve there.
    pub window: Window,
    /// Length.
    pub size_bytes: u64,
}

/// From the executor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FromExecutor {
    /// The context is there.
    Ready {
        /// (least, greatest).
        stream_priorities: (i32, i32),
    },
    /// It could not be made; the process ends.
    Failed {
        /// What was wrong.
        message: String,
    },
    /// The session serves its client.
    SessionOpened {
        /// Which.
        session: u64,
    },
    /// Comes with a file that the session's next executor needs.
    Keep {
        /// Which.
        session: u64,
        /// The file's number in the session's journal.
        number: u64,
        /// It is code that may be loaded ahead.
        code: Option<CodeOptions>,
    },
    /// Answer to `MapAhead`.
    MappedAhead {
        /// Which session.
        session: u64,
        /// First addresses of what could not be mapped.
        failed: Vec<u64>,
    },
    /// Files that no executor needs any more.
    LetGo {
        /// Which session.
        session: u64,
        /// Their numbers.
        numbers: Vec<u64>,
    },
    /// Comes with the file in which a session's journal goes on.
    Journal {
        /// Which.
        session: u64,
    },
    /// The session could not be made.
    SessionRefused {
        /// Which.
        session: u64,
        /// A `CUresult`.
        code: u32,
        /// For the log.
        message: String,
    },
    /// A session wants device memory.
    Grant {
        /// Which.
        session: u64,
        /// At least this much.
        size_bytes: u64,
        /// Where it is to be.
        placement: Placement,
    },
    /// A session wants all memory back that it has moved out.
    Return {
        /// Which.
        session: u64,
    },
    /// A session does not wait any more for what it asked for.
    GaveUp {
        /// Which.
        session: u64,
    },
    /// Answer to `Move`.
    MovedOut {
        /// Which session.
        session: u64,
        /// First addresses of what is in host memory now, unmapped here.
        done: Vec<u64>,
        /// What stayed, and may be asked for another time.
        stayed: Vec<u64>,
        /// What stayed and must stay.
        fixed: Vec<u64>,
    },
    /// A session has unmapped a grant, or given up a piece.
    Released {
        /// Which.
        session: u64,
        /// First address of the grant, or the piece's key.
        address: u64,
    },
    /// Answer to `SetKeeping(Forbidden)`, after a `Released` for all that was kept.
    NothingKept,
    /// A session wants memory of its client's on another device; answered by `Granted`.
    Peer {
        /// Which.
        session: u64,
        /// The server's number of the device.
        device: u32,
        /// First address of a grant, or a piece's key.
        key: u64,
    },
    /// A session wants to see how far its client's session on another device is; answered by
    /// `Granted`.
    Watch {
        /// Which.
        session: u64,
        /// The server's number of the device.
        device: u32,
    },
    /// A session has given up such memory.
    PeerReleased {
        /// Which.
        session: u64,
        /// The server's number of the device.
        device: u32,
        /// First address of a grant, or a piece's key.
        key: u64,
    },
    /// A client has broken the protocol; its session takes no more commands. The keeper disconnects
    /// it.
    SessionBroken {
        /// Which.
        session: u64,
        /// What it did.
        message: String,
    },
    /// A guarded session was about to touch what it must not, and has ended with
    /// CUDA_ERROR_ILLEGAL_ADDRESS; the context lives.
    Guarded {
        /// Which.
        session: u64,
        /// What was to be touched.
        address: u64,
        /// By which kernel and thread, and what lies there.
        message: String,
    },
    /// A session's work runs on so many SMs now, and what was submitted before has ended.
    Reshared {
        /// Which.
        session: u64,
        /// The order that it follows; 0: the session has just begun.
        order: u64,
        /// How many.
        multiprocessors: u32,
        /// Why not all of it runs where it should.
        refused: Option<String>,
    },
    /// The reservations that there are now.
    Reserved {
        /// The change that asked for them.
        change: u64,
        /// By name and number of SMs.
        made: Vec<(String, u32)>,
        /// What could not be reserved.
        refused: Vec<String>,
    },
    /// All of a session's work has ended and nothing of it is left in the executor.
    SessionClosed {
        /// Which.
        session: u64,
    },
    /// A session would be better off in another context, and could go there. Answered by
    /// `Relocate`.
    Stuck {
        /// Which.
        session: u64,
        /// Why.
        reason: Reason,
    },
    /// It has what it waited for, and no answer yet.
    Unstuck {
        /// Which.
        session: u64,
    },
    /// A session has left for another context: nothing of it is in flight, and this executor
    /// touches none of its files any more.
    Left {
        /// Which.
        session: u64,
        /// When its events were recorded.
        event_times: Vec<EventTime>,
        /// What became of its memory.
        baggage: Baggage,
    },
    /// A session that is to go to another device wants memory there, for what it has at an address.
    /// Answered by `Granted`.
    Twin {
        /// Which.
        session: u64,
        /// First address of a grant.
        address: u64,
    },
    /// A session that was to go to another device does not, and goes on here.
    Stays {
        /// Which.
        session: u64,
        /// What keeps it.
        why: String,
    },
    /// What a session that has left had here is given back.
    Cleared {
        /// Which.
        session: u64,
    },
    /// A fault has ended the context. Sessions do nothing any more, and say nothing to their
    /// clients.
    ContextLost {
        /// A `CUresult`.
        code: u32,
    },
}

impl FromExecutor {
    /// The session that it is about: one of the executor's own.
    pub fn session(&self) -> Option<u64> {
        match self {
            Self::SessionOpened { session }
            | Self::Keep { session, .. }
            | Self::LetGo { session, .. }
            | Self::Journal { session }
            | Self::SessionRefused { session, .. }
            | Self::Grant { session, .. }
            | Self::Return { session }
            | Self::GaveUp { session }
            | Self::MovedOut { session, .. }
            | Self::Released { session, .. }
            | Self::Peer { session, .. }
            | Self::Watch { session, .. }
            | Self::PeerReleased { session, .. }
            | Self::SessionBroken { session, .. }
            | Self::Guarded { session, .. }
            | Self::Reshared { session, .. }
            | Self::SessionClosed { session }
            | Self::Stuck { session, .. }
            | Self::Unstuck { session }
            | Self::Left { session, .. }
            | Self::Twin { session, .. }
            | Self::Stays { session, .. }
            | Self::Cleared { session } => Some(*session),
            Self::Ready { .. }
            | Self::Failed { .. }
            // Of one that stands by, of whatever session.
            | Self::MappedAhead { .. }
            | Self::NothingKept
            | Self::Reserved { .. }
            | Self::ContextLost { .. } => None,
        }
    }
}
