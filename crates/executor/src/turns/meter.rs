//! What a session's launches cost: how long the driver takes to accept them, and how long they run.
//!
//! Both are sampled, so that a launch costs nothing for being metered: one launch in eight is timed
//! on the host, and at most one in [`SAMPLE_INTERVAL`] gets an event before and after it, whose
//! distance stands for all launches since the sample before.
//!
//! What was sampled with certainty is sampled now and then only ([`super::costs`]); until then one
//! launch after the other of it is.
//!
//! A chain of launches says of each of its kernels what a launch by itself cannot where kernels are
//! short: between the events of a lone one lies the time that the driver takes to submit it as
//! well. Where several clients queue for the driver that is more than a short kernel takes, so it
//! is taken off where it is known to lie between them: the stream was idle when the sample began.

mod sampling;

use super::costs::Piece;
use cuda_abi::types::*;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Longer submissions are not taken off: this thread may have lost its core when the kernel had
/// begun.
const LONGEST_SUBMISSION: Duration = Duration::from_micros(40);
/// One launch in so many is timed.
const TIMED: u64 = 8;

/// A session's samples.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Recorded, the oldest first.
    pending: VecDeque<Sample>,
    /// Events of samples that were read.
    free: Vec<(CUevent, CUevent)>,
    launches: u64,
    launches_at_sample: u64,
    sampled: Option<Instant>,
    /// Of the launches in hand.
    stream: StreamBefore,
}

/// What a stream did before launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StreamBefore {
    /// All its earlier work had ended. Never said on a software GPU, whose events may go by a clock
    /// of its own.
    Idle,
    #[default]
    MayBeBusy,
}

/// Events before and after a launch, which stand for so many launches.
#[derive(Debug)]
struct Sample {
    start: CUevent,
    end: CUevent,
    launches: u64,
    /// How many lie between the events.
    count: u32,
    sampled: Sampled,
    /// What the host took from before the first event until after the last.
    host: Duration,
    /// Nobody else had work on the device when it began.
    alone: bool,
    /// When it began.
    stream: StreamBefore,
    /// What the driver took to accept what lies between the events.
    submission: Duration,
}

impl Sample {
    /// Whether the submission is known to lie between the events.
    fn contains_submission(&self) -> bool {
        self.stream == StreamBefore::Idle && self.submission <= LONGEST_SUBMISSION
    }

    /// How long what lies between the events ran, of the time between them.
    fn kernel_time(&self, between: Duration) -> Duration {
        match self.contains_submission() {
            true => between.saturating_sub(self.submission).max(Duration::from_nanos(1)),
            false => between,
        }
    }

    /// How much of that the host may have taken.
    fn host_time(&self) -> Duration {
        match self.contains_submission() {
            true => self.host.saturating_sub(self.submission),
            false => self.host,
        }
    }
}

/// What lies between the events of a sample.
#[derive(Debug)]
enum Sampled {
    Piece(Piece),
    /// A chain's functions, each once, and what they were taken to cost together.
    Chain {
        functions: Vec<u32>,
        cost_ns: u64,
    },
}

/// A launch that is being measured.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    started: Option<Instant>,
    ended: Option<CUevent>,
    /// Since before the first event was recorded.
    sampled: Option<Instant>,
}

impl Meter {
    /// Whether one of the next so many launches is to be timed.
    fn is_timed(&self, launches: u32) -> bool {
        self.launches.next_multiple_of(TIMED) < self.launches + u64::from(launches)
    }

    fn is_being_sampled(&self, piece: Piece) -> bool {
        let is_sampled =
            |sample: &Sample| matches!(sample.sampled, Sampled::Piece(of) if of == piece);
        self.pending.iter().any(is_sampled)
    }
}
