//! Block barriers: sixteen of them, each with its own count of arrivals.

/// What a barrier instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::exec) enum BarrierOp {
    /// Arrive and wait.
    Sync,
    /// Arrive only.
    Arrive,
    /// Arrive, wait, and get the number of true predicates.
    Popc,
    /// ... whether all predicates are true.
    And,
    /// ... whether any predicate is true.
    Or,
    /// `barrier.cluster.arrive`
    ClusterArrive,
    /// `barrier.cluster.wait`
    ClusterWait,
}

/// A barrier instruction as its `ins.x` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) struct BarrierCall {
    pub(in crate::exec) op: BarrierOp,
    /// Whether there is an explicit thread count.
    pub(in crate::exec) counted: bool,
}

impl BarrierCall {
    pub(in crate::exec) fn encode(self) -> u32 {
        self.op as u32 | u32::from(self.counted) << 8
    }

    pub(in crate::exec) fn decode(x: u32) -> Self {
        let op = match x & 0xff {
            0 => BarrierOp::Sync,
            1 => BarrierOp::Arrive,
            2 => BarrierOp::Popc,
            3 => BarrierOp::And,
            4 => BarrierOp::Or,
            5 => BarrierOp::ClusterArrive,
            _ => BarrierOp::ClusterWait,
        };
        Self { op, counted: x >> 8 & 1 != 0 }
    }
}

/// Most warps of a block.
const WARPS: usize = 32;

/// Barriers per block.
pub(in crate::exec) const BARRIERS: usize = 16;

/// One barrier of a block.
#[derive(Clone, Debug, Default)]
pub(in crate::exec) struct Barrier {
    /// Threads that have arrived, idle lanes of a partial warp included.
    pub(in crate::exec) arrived: u32,
    /// Explicit count; 0 means all live threads of the block.
    pub(in crate::exec) expected: u32,
    /// True predicates and predicates so far.
    pub(in crate::exec) trues: u32,
    pub(in crate::exec) votes: u32,
    /// Lanes that have arrived in this round, by warp.
    lanes: [u32; WARPS],
}

impl Barrier {
    /// Counts the arrival of `mask` of warp `warp`, whose live lanes are `live`.
    pub(in crate::exec) fn arrive(&mut self, warp: usize, mask: u32, live: u32, trues: u32) {
        let before = weight(self.lanes[warp % WARPS], live);
        self.lanes[warp % WARPS] |= mask;
        self.arrived += weight(self.lanes[warp % WARPS], live) - before;
        self.trues += trues.count_ones();
        self.votes += mask.count_ones();
    }

    /// Whether everybody is there; `live_warps` are the live lanes of each warp.
    pub(in crate::exec) fn is_complete(&self, live_warps: impl Iterator<Item = u32>) -> bool {
        if self.votes == 0 {
            return false;
        }
        if self.expected != 0 {
            return self.arrived >= self.expected;
        }
        live_warps.enumerate().all(|(warp, live)| live & !self.lanes[warp % WARPS] == 0)
    }

    /// Starts the next round.
    pub(in crate::exec) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Threads that an arrival counts for: a whole warp's counts 32 however few threads it has.
fn weight(lanes: u32, live: u32) -> u32 {
    if lanes != 0 && live & !lanes == 0 { 32 } else { lanes.count_ones() }
}
