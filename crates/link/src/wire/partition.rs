//! Partitions: sets of SMs that work runs on, and the resources that they are made of (green
//! contexts, execution affinity, shares); see [`super::command`].
//!
//! A session's own share is partition 0. Further ones have numbers that the client chooses, and lie
//! within that share. Resources and descriptions have numbers that the executor chooses, from 1;
//! they live as long as the session, as in CUDA, where nothing destroys them.

use super::command::wire_struct;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The session's own share.
pub const OWN_SHARE: u32 = 0;
/// Partitions have numbers below this.
pub const MAX_PARTITIONS: u32 = 256;
/// Resources, and descriptions, that a session may have been given in all.
pub const MAX_RESOURCES: usize = 1 << 14;
/// Groups that a split may ask for.
pub const MAX_GROUPS: u32 = 512;
/// No more SMs than asked for: percentages.
pub const ROUND_DOWN: u32 = 0;
/// No fewer: execution affinity.
pub const ROUND_UP: u32 = 1;
/// Resources that a description may be made of.
pub const MAX_DESCRIBED: u32 = 1024;

wire_struct! {
    /// See [`super::command::Opcode::ResourceGet`].
    struct ResourceGet {
        /// Whose SMs.
        partition: u32,
        /// Zero.
        reserved: u32,
    }
    /// SMs: what a `CUdevResource` of them says.
    struct SmResource {
        /// Its number; 0 stands for no SMs.
        resource: u32,
        /// `smCount`.
        multiprocessors: u32,
        /// `minSmPartitionSize`.
        smallest_partition: u32,
        /// `smCoscheduledAlignment`.
        alignment: u32,
    }
    /// See [`super::command::Opcode::ResourceSplit`].
    struct ResourceSplit {
        /// What is split.
        resource: u32,
        /// SMs that a group has at least.
        least: u32,
        /// `CU_DEV_SM_RESOURCE_SPLIT_*`.
        flags: u32,
        /// Groups wanted at most; 0: only their number is asked for.
        room: u32,
    }
    /// Answer to [`super::command::Opcode::ResourceSplit`]; as many [`SmResource`] follow as were
    /// wanted and made.
    struct ResourceSplitReply {
        /// Groups.
        groups: u32,
        /// Zero.
        reserved: u32,
        /// What is left over.
        remaining: SmResource,
    }
    /// See [`super::command::Opcode::ResourceDescribe`]; `count` resource numbers follow, 4 bytes
    /// each.
    struct ResourceDescribe {
        /// How many.
        count: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`super::command::Opcode::ResourceDescribe`].
    struct DescriptionReply {
        /// Its number.
        description: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::command::Opcode::PartitionCreate`].
    struct PartitionCreate {
        /// The number that it gets, from 1.
        partition: u32,
        /// Of which SMs.
        description: u32,
    }
    /// See [`super::command::Opcode::PartitionTake`].
    struct PartitionTake {
        /// The number that it gets, from 1.
        partition: u32,
        /// How many SMs.
        multiprocessors: u32,
        /// [`ROUND_DOWN`] or [`ROUND_UP`], where the device has no unit of so many.
        rounding: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`super::command::Opcode::PartitionCreate`] and
    /// [`super::command::Opcode::PartitionTake`].
    struct PartitionReply {
        /// SMs that it has.
        multiprocessors: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::command::Opcode::PartitionDrop`].
    struct PartitionDrop {
        /// Which.
        partition: u32,
        /// Zero.
        reserved: u32,
    }
}
