//! What a client puts into the ring.
//!
//! A command is a [`Header`], the struct of its opcode, and what that struct says follows it; its
//! length is a multiple of [`ALIGN`]. Streams, events, modules, functions and regions are named by
//! small numbers *that the client chooses*, so that making one needs no answer; the executor keeps
//! a table for each and refuses numbers beyond its bounds. The ring is one total order: a number
//! may be used again as soon as its destruction has been posted.
//!
//! *Posted* commands get no answer: what fails sets the session's error, except a launch, a graph's
//! change or a function's attribute that the driver refuses, which is reported once. *Called* ones
//! get a [`super::layout::CallSlot`].

mod facts;
mod memory;
mod module;
mod rows;
mod stream;
mod table;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use facts::{
    Again, Content, Does, Effect, Facts, Keeps, KeyOf, Memory, Order, Part, Refusal, Repeat, Role,
    Time, Trail,
};
pub use memory::*;
pub use module::*;
pub use stream::*;
pub use table::{Opcode, Request};

/// Alignment and granularity of commands in the ring.
pub const ALIGN: usize = 16;
/// Longest command: a launch with 32 KiB of parameters and its attributes.
pub const MAX_COMMAND_BYTES: usize = 64 * 1024;
/// Longest of what follows a header.
pub const PAYLOAD_LIMIT_BYTES: usize = MAX_COMMAND_BYTES - size_of::<Header>();
/// [`Header::call_slot`] of a posted command.
pub const NO_CALL: u16 = u16::MAX;
/// Events have numbers below this.
pub const MAX_EVENTS: u32 = 1 << 20;
/// Modules have numbers below this.
pub const MAX_MODULES: u32 = 1 << 16;
/// Longest image of a module: an executor copies it, several times while it is loaded. The largest
/// of frameworks' libraries have some hundred megabytes.
pub const MAX_IMAGE_BYTES: u64 = 512 << 20;
/// Functions have numbers below this; the executor's table is as long as the highest number in use.
pub const MAX_FUNCTIONS: u32 = 1 << 20;
/// Regions that a session may have at a time.
pub const MAX_REGIONS: usize = 1 << 16;
/// Stream slot of the client's legacy default stream. It, and it alone, is ordered with all
/// blocking streams.
pub const LEGACY_STREAM: u32 = 0;
/// [`StreamCreate::flags`]: a default stream for a context that has a partition of its own. As for
/// the legacy stream, the blocking streams that name it are ordered with it.
pub const DEFAULT_STREAM: u32 = 1 << 31;
/// Separates the PTX texts of an image that are to be linked when it is loaded; a comment.
pub const LINKED_TEXTS: &str = "\n//@@openmps-linked-text@@\n";

/// Starts every command.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Header {
    /// An [`Opcode`].
    pub opcode: u16,
    /// Index of the call slot, or [`NO_CALL`].
    pub call_slot: u16,
    /// Length of the whole command.
    pub size_bytes: u32,
    /// The context it belongs to: [`super::attach::ContextOpened::context_id`].
    pub context: u32,
    /// Zero.
    pub reserved: u32,
}

macro_rules! wire_struct {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty,)* })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }

        #[cfg(test)]
        $crate::wire::version::described::described!($name { $($field: $ty),* });
        )*
    };
}

wire_struct! {
    /// See [`Opcode::LimitGet`].
    struct LimitGet {
        /// `CUlimit`.
        limit: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`Opcode::LimitGet`].
    struct LimitReply {
        /// Its value.
        value: u64,
    }
    /// See [`Opcode::LimitSet`].
    struct LimitSet {
        /// `CUlimit`.
        limit: u32,
        /// Zero.
        reserved: u32,
        /// Its new value.
        value: u64,
    }
}

pub(super) use wire_struct;
