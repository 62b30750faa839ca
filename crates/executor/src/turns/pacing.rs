//! When a session may submit: so much inside the driver at a time, and in turns where clients
//! compete.
//!
//! A driver's queue is first come, first served, and what is in it cannot be taken back. So in
//! company a session has a *credit* of work inside the driver, two milliseconds by estimate; the
//! rest stays in its ring, from which its thread takes no launch until marks ([`super::marks`]) say
//! that work has ended. While a client of the latency class is busy the others' credit is the
//! kernel that runs. Alone, only kernels that last are bounded at all, to what keeps the device
//! busy until the next look, so that who comes later does not wait for seconds.
//!
//! Who keeps the device busy for long in company contends for turns: [`policy::turns::fairness`]
//! decides, by way of [`super::pace`]. Its thread waits with a bound, is woken when a turn passes,
//! and looks at its own marks meanwhile; no other command of its client waits, except behind a
//! launch in the ring.
//!
//! What is held may be what a kernel waits for. So a session whose work should have ended long ago
//! ([`looks`]) gets a launch through; what others have overtaken then counts no more; and where
//! nothing of anybody ends the turn is given up.

mod credit;
mod extent;
mod looks;

use super::costs::{Costs, Piece};
use super::marks::{Marks, Work};
use super::pace::Held;
use cuda_abi::types::*;
use extent::Extent;
use looks::{Concern, Looks};
use policy::turns::fairness::Claim;
use policy::turns::priorities::Class;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// From this cost on a client that waits for each kernel still keeps the device busy more than its
/// own program.
const CONTENDS_NS: u64 = 50_000;
/// What a kernel is taken to cost of which nothing is known.
const UNKNOWN_NS: u64 = 2_000_000;
/// Work inside the driver of a session in company.
const IN_COMPANY: Work = Work { cost_ns: 2_000_000, launches: 2 };
/// Marks per credit.
const MARKS: u64 = 4;
/// From so much in flight on it is looked whether all of it has ended: before the first mark is
/// recorded.
const SETTLE_NS: u64 = IN_COMPANY.cost_ns / MARKS / 2;

/// A launch that is being submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paced {
    slot: u32,
    cost_ns: u64,
    launches: u32,
}

/// One session's part.
#[derive(Debug)]
pub(crate) struct Pacing {
    pub(crate) claim: Claim,
    pub(crate) class: Class,
    marks: Marks,
    costs: Costs,
    extent: Extent,
    contends: bool,
    /// Launches since the last one that made it a contender.
    short_launches: u32,
    /// Nothing of other contenders is on the device.
    is_alone: bool,
    /// What it waits for.
    held: Held,
    /// With so much in flight it is looked at the completion words.
    settles_at_ns: u64,
    looks: Looks,
    /// Its thread sleeps long, as nobody waits for the end of its work.
    rests: bool,
    /// Others were told that it is away.
    is_away: bool,
    /// Since when a contender has had nothing to submit.
    quiet: Option<Instant>,
    /// Another thread's wish for another weight, 0: none.
    pub(crate) new_weight: std::sync::Arc<AtomicU32>,
}

impl Pacing {
    pub(crate) fn new(
        claim: Claim,
        class: Class,
        new_weight: std::sync::Arc<AtomicU32>,
        multiprocessors: u32,
    ) -> Self {
        Self {
            claim,
            class,
            marks: Marks::default(),
            costs: Costs::default(),
            extent: Extent::new(multiprocessors),
            contends: false,
            short_launches: 0,
            is_alone: false,
            held: Held::ForCredit,
            settles_at_ns: SETTLE_NS,
            looks: Looks::default(),
            rests: false,
            is_away: false,
            quiet: None,
            new_weight,
        }
    }

    /// How long to sleep until the next look at the marks.
    fn next_look(&mut self, concern: Concern, longest: Duration) -> Duration {
        self.looks.next(self.marks.ahead(), concern, longest)
    }

    /// Whether its work should have ended long ago.
    fn is_overdue(&mut self) -> bool {
        self.looks.is_overdue(self.marks.in_flight())
    }

    /// Whether enough was sampled of a piece.
    pub(crate) fn knows(&self, piece: Piece) -> bool {
        self.costs.is_settled(piece)
    }
}

#[cfg(test)]
mod tests;
