//! Memory and events of one client in another of the same server and device: `cuIpc*`, and pointers
//! of exported pools; see [`super::command`].
//!
//! What is shared has a token that nobody can guess: who has it may use it, for as long as its
//! owner's session lives. Memory stays mapped while it is open anywhere, whatever becomes of its
//! owner.

use super::command::wire_struct;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Things that a session may have exported, or opened, at a time.
pub const MAX_SHARED: usize = 1 << 16;

wire_struct! {
    /// Names what is shared.
    struct Token {
        /// Random.
        words: [u64; 2],
    }
    /// See [`super::command::Opcode::ShareMemory`]: device memory of the sender.
    struct ShareMemory {
        /// First address.
        address: u64,
        /// Length.
        size_bytes: u64,
    }
    /// See [`super::command::Opcode::UnshareMemory`].
    struct UnshareMemory {
        /// First address.
        address: u64,
    }
    /// Answer to [`super::command::Opcode::OpenMemory`].
    struct OpenMemoryReply {
        /// First address, the same as its owner's.
        address: u64,
        /// Length.
        size_bytes: u64,
    }
    /// See [`super::command::Opcode::ShareEvent`] and [`super::command::Opcode::EventQuery`].
    struct EventNumber {
        /// Number.
        event: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::command::Opcode::OpenEvent`].
    struct OpenEvent {
        /// What was shared.
        token: Token,
        /// Number that it gets here.
        event: u32,
        /// Zero.
        reserved: u32,
    }
}
