//! Memory without addresses and addresses without memory: `cuMemCreate`, `cuMemAddressReserve` and
//! their kin; see [`super::command`].
//!
//! Reserved addresses are unique in the server, as windows are. Memory counts for its client as
//! long as it is held or mapped; imported memory counts for who made it.

use super::command::wire_struct;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Pieces of memory have numbers below this.
pub const MAX_MEMORIES: u32 = 1 << 20;
/// [`MemorySetAccess::access`]: none.
pub const ACCESS_NONE: u32 = 0;
/// [`MemorySetAccess::access`]: reading and writing.
pub const ACCESS_READ_WRITE: u32 = 3;
/// [`MemoryCreate::sharing`]: never exported.
pub const SHARING_NONE: u32 = 0;
/// [`MemoryCreate::sharing`]: may be exported as a descriptor.
pub const SHARING_DESCRIPTOR: u32 = 1;

wire_struct! {
    /// See [`super::command::Opcode::AddressReserve`].
    struct AddressReserve {
        /// Length; whole granules of the device.
        size_bytes: u64,
        /// A power of two, or 0.
        alignment_bytes: u64,
    }
    /// Answer to [`AddressReserve`].
    struct AddressReply {
        /// First address.
        address: u64,
    }
    /// See [`super::command::Opcode::AddressFree`].
    struct AddressFree {
        /// First address of a reservation.
        address: u64,
        /// Length of that reservation.
        size_bytes: u64,
    }
    /// See [`super::command::Opcode::MemoryCreate`].
    struct MemoryCreate {
        /// Length; whole granules of the device.
        size_bytes: u64,
        /// Number.
        memory: u32,
        /// [`SHARING_NONE`] or [`SHARING_DESCRIPTOR`].
        sharing: u32,
    }
    /// Answer to [`MemoryCreate`].
    struct MemoryCreateReply {
        /// Names it to the executors of other devices: [`super::peer::PeerMap::key`].
        key: u64,
    }
    /// See [`super::command::Opcode::MemoryRelease`], [`super::command::Opcode::MemoryExport`] and
    /// [`super::command::Opcode::MemoryImport`].
    struct MemoryNumber {
        /// Number.
        memory: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::command::Opcode::MemoryMap`].
    struct MemoryMap {
        /// Where, in a reservation.
        address: u64,
        /// How much.
        size_bytes: u64,
        /// From which byte of the memory on.
        offset_bytes: u64,
        /// Number.
        memory: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::command::Opcode::MemoryUnmap`].
    struct MemoryUnmap {
        /// First address of a mapping.
        address: u64,
        /// To the end of a mapping.
        size_bytes: u64,
    }
    /// See [`super::command::Opcode::MemorySetAccess`]: for whole mappings without gaps.
    struct MemorySetAccess {
        /// First address of a mapping.
        address: u64,
        /// To the end of a mapping.
        size_bytes: u64,
        /// [`ACCESS_NONE`] or [`ACCESS_READ_WRITE`].
        access: u32,
        /// Zero.
        reserved: u32,
    }
}

/// Over the session socket, with one descriptor: from the client before
/// [`super::command::Opcode::MemoryImport`], and from the executor before it answers
/// [`super::command::Opcode::MemoryExport`]. One at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFile {
    /// The number, as in the command.
    pub memory: u32,
}
