//! Memory of one device of a client in the executor of another one, so that its kernels and copies
//! there reach it; see [`super::command`].
//!
//! It is at the same address in both. The client has sessions on both devices, and asks for what it
//! needs, when it needs it; the keeper, whose memory it is, knows whether it may.

use super::command::wire_struct;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_struct! {
    /// See [`super::command::Opcode::PeerShow`].
    struct PeerShow {
        /// First address of the grant, or key of the memory that has no address of its own.
        address: u64,
    }
    /// See [`super::command::Opcode::PeerMap`]. Memory of the device window is named by its grant
    /// and lies where that lies; memory without an address of its own lies where the client has
    /// mapped it, in a range that it has reserved on the device that the memory is of.
    struct PeerMap {
        /// The server's number of the device that the memory is of.
        device: u32,
        /// Zero.
        reserved: u32,
        /// First address of a grant, or what [`super::virtual_memory::MemoryCreateReply`] said.
        key: u64,
        /// Where; of a grant, its first address.
        address: u64,
        /// How much; of a grant, all of it.
        size_bytes: u64,
        /// From which byte of the memory on; of a grant, 0.
        offset_bytes: u64,
        /// First address of the reserved range; of a grant, 0.
        range_base: u64,
        /// Its length; of a grant, 0.
        range_bytes: u64,
    }
    /// See [`super::command::Opcode::StreamWaitPeer`].
    struct StreamWaitPeer {
        /// Slot of the stream that waits.
        stream: u32,
        /// The server's number of the other device.
        device: u32,
        /// Slot of the stream there.
        slot: u32,
        /// Zero.
        reserved: u32,
        /// The completion value that its work ends with.
        value: u64,
    }
    /// See [`super::command::Opcode::PeerUnmap`].
    struct PeerUnmap {
        /// First address of what was mapped.
        address: u64,
        /// Its length.
        size_bytes: u64,
    }
}
