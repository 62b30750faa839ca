//! What the device does for a session that is traced: kernels, copies and fills, with when they
//! ran, into the ring of `openmps trace`.
//!
//! Times come from events. An event costs the device something, so kernels that are known to be
//! short are timed *together*: events stand before the first and behind the last of them, and the
//! time between is divided among them ([`times`]). What lies together is a *span*, of one stream;
//! each stream has one that is open. How long a kernel takes is learned from those that are timed
//! alone: the first of each function, one now and then, and whatever is long. Work that follows at
//! once shares the event between.
//!
//! A traced session's launches are submitted as others are, many in one chain if they wait together
//! ([`crate::submit::batch`]): a chain lies within one span. What its client waits for is no reason
//! to end a span either; a stream that has nothing to do for a while is. So a program that waits
//! for each of its kernels pays for an event now and then, too.
//!
//! [`crate::turns::meter`] is like this, but samples. [`work`] says what a command is, [`telling`]
//! reads the events. The ring's format is [`link::trace`].

mod spans;
mod telling;
mod times;
mod work;

use cuda_abi::types::*;
use executor_link::counters::monotonic_ns;
use link::trace::{TraceRing, Words};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use telling::Clock;
use times::{Beginning, Known, Submitted, TOGETHER_NS, Timing};

/// `CU_EVENT_DEFAULT`: with timing.
const WITH_TIMING: u32 = 0;
/// Longest wait for a client's file, and for work to end and room when a trace ends.
const PATIENCE: Duration = Duration::from_secs(10);
/// A span that has so many pieces of work takes no more.
const MOST_TOGETHER: usize = 128;

/// A session's trace.
pub(crate) struct Tracing {
    ring: TraceRing,
    /// Records for which the ring had no room.
    unread: VecDeque<Words>,
    is_given_up: bool,
    /// By the functions' numbers.
    functions: Vec<Known>,
    last_text: u64,
    /// One of a stream.
    open: Vec<Span>,
    /// In the order in which they were closed.
    closed: VecDeque<Span>,
    free: Vec<CUevent>,
    /// Of spans that were told, to be used again.
    spare: Vec<Vec<Submitted>>,
    clock: Clock,
    /// When the last work of a stream ended.
    ended: HashMap<u32, u64>,
    /// Where the present command ends in the session's ring.
    position: u64,
    /// Of the launches that wait in the batch, in their order.
    waiting: VecDeque<Taken>,
    since_look: u32,
}

/// A command that was taken.
#[derive(Clone, Copy, Debug)]
struct Taken {
    position: u64,
    taken_ns: u64,
}

/// Work between two events on one stream.
struct Span {
    slot: u32,
    start: Arc<CUevent>,
    beginning: Beginning,
    expected_ns: u64,
    works: Vec<Submitted>,
    end: Option<End>,
}

/// The event behind a span.
struct End {
    event: Arc<CUevent>,
    recorded_ns: u64,
}

/// Work that is being submitted.
pub(crate) struct Begun {
    slot: u32,
    timing: Timing,
    submitted_ns: u64,
}

/// How long a session has had no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idleness {
    /// Its thread has just looked in vain.
    Begins,
    /// It has waited in vain.
    Lasts,
}

impl Span {
    fn has_room(&self) -> bool {
        self.works.len() < MOST_TOGETHER && self.expected_ns < TOGETHER_NS
    }
}

impl Tracing {
    fn known(&self, function: u32) -> Known {
        self.functions.get(function as usize).copied().unwrap_or_default()
    }

    /// The present command is taken now.
    fn take(&mut self) -> Taken {
        Taken { position: std::mem::take(&mut self.position), taken_ns: monotonic_ns() }
    }
}
