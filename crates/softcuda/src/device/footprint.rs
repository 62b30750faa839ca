//! What blocks occupy on an SM and what an SM offers: occupancy.

use super::properties::limits;

/// What one block occupies on an SM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Footprint {
    pub(crate) blocks: u32,
    pub(crate) warps: u32,
    pub(crate) registers: u32,
    pub(crate) shared_bytes: u32,
}

impl Footprint {
    /// Sum of two footprints, saturating.
    pub(crate) fn plus(self, other: Self) -> Self {
        Footprint {
            blocks: self.blocks.saturating_add(other.blocks),
            warps: self.warps.saturating_add(other.warps),
            registers: self.registers.saturating_add(other.registers),
            shared_bytes: self.shared_bytes.saturating_add(other.shared_bytes),
        }
    }

    /// What is left after `other` leaves.
    pub(crate) fn minus(self, other: Self) -> Self {
        Footprint {
            blocks: self.blocks.saturating_sub(other.blocks),
            warps: self.warps.saturating_sub(other.warps),
            registers: self.registers.saturating_sub(other.registers),
            shared_bytes: self.shared_bytes.saturating_sub(other.shared_bytes),
        }
    }

    /// Whether it fits into `limit`.
    pub(crate) fn within(self, limit: Self) -> bool {
        self.blocks <= limit.blocks
            && self.warps <= limit.warps
            && self.registers <= limit.registers
            && self.shared_bytes <= limit.shared_bytes
    }
}

/// What one SM offers to blocks.
pub(crate) const SM_CAPACITY: Footprint = Footprint {
    blocks: limits::BLOCKS_PER_SM,
    warps: limits::THREADS_PER_SM / limits::WARP_THREADS,
    registers: limits::REGISTERS_PER_SM,
    shared_bytes: limits::SHARED_PER_SM,
};

/// What a block of a kernel occupies on an SM.
pub(crate) fn block_footprint(
    threads: u32,
    registers_per_thread: u32,
    shared_bytes: u32,
) -> Footprint {
    let warps = threads.div_ceil(limits::WARP_THREADS).max(1);
    let registers = registers_per_thread.next_multiple_of(limits::REGISTER_UNIT);
    let shared =
        (shared_bytes + limits::RESERVED_SHARED_PER_BLOCK).next_multiple_of(limits::SHARED_UNIT);
    Footprint {
        blocks: 1,
        warps,
        registers: warps * limits::WARP_THREADS * registers,
        shared_bytes: shared,
    }
}

/// How many blocks of this footprint fit on one empty SM.
pub(crate) fn blocks_per_sm(block: Footprint, limit: Footprint) -> u32 {
    let share = |have: u32, need: u32| have.checked_div(need).unwrap_or(u32::MAX);
    share(limit.blocks, block.blocks.max(1))
        .min(share(limit.warps, block.warps))
        .min(share(limit.registers, block.registers))
        .min(share(limit.shared_bytes, block.shared_bytes))
}
