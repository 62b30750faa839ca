//! Streams, and posting to them.

pub(crate) mod attributes;
pub(crate) mod callbacks;
pub(crate) mod event;
pub(crate) mod events;
pub(crate) mod gates;
pub(crate) mod late;
pub(crate) mod life;
pub(crate) mod spare_events;
pub(crate) mod stream_id;
pub(crate) mod targets;

use crate::context::Context;
use crate::context::backend::Backend;
use crate::result::Result;
use crate::session::slots::Mark;
use crate::stream::callbacks::Lane;
use crate::stream::gates::Ordered;
use cuda_abi::graph::capture::{self, LegacyOrder};
use link::wire::command::Opcode;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::{Immutable, IntoBytes};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A stream that the program made.
pub(crate) struct Stream {
    pub(crate) token: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) wire_id: u32,
    slot: u32,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// `cuStreamGetId`.
    pub(crate) id: u64,
}

/// Where a call's work goes.
pub(crate) struct Target {
    pub(crate) context: Arc<Context>,
    pub(crate) backend: &'static Backend,
    /// The executor's number of the context.
    pub(crate) id: u32,
    pub(crate) slot: u32,
    /// The program's own stream.
    pub(crate) stream: Option<OwnStream>,
}

/// What of a stream that the program made calls want to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnStream {
    pub(crate) id: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

/// What captures know a stream by.
fn captured(context: &Context, slot: u32, ordering: LegacyOrder) -> capture::Stream {
    // Slots are numbered by device.
    let id = u64::from(context.device.unsigned_abs()) << 32 | u64::from(slot);
    capture::Stream { id, context: context.token as u64, ordering }
}

impl Target {
    /// Whether the stream is ordered with the legacy stream.
    pub(crate) fn ordered(&self) -> Ordered {
        match &self.stream {
            Some(stream) if stream.flags & NON_BLOCKING != 0 => Ordered::Alone,
            _ => Ordered::With(self.context.default_stream()),
        }
    }

    /// The stream, for threads without a call of the program's.
    pub(crate) fn lane(&self) -> Lane {
        Lane { id: self.id, slot: self.slot, ordered: self.ordered() }
    }

    /// What captures know the stream by.
    pub(crate) fn captured(&self) -> capture::Stream {
        let ordering = match self.ordered() {
            Ordered::With(default) if self.slot == default => LegacyOrder::Itself,
            Ordered::With(_) => LegacyOrder::Blocking,
            Ordered::Alone => LegacyOrder::NonBlocking,
        };
        captured(&self.context, self.slot, ordering)
    }

    /// Waits while host functions hold the stream; before every post.
    pub(crate) fn pass_gates(&self) -> Result {
        self.backend.session.pass_gates(self.slot, self.ordered())
    }

    /// Posts one piece of work.
    pub(crate) fn post(&self, opcode: Opcode, body: &(impl IntoBytes + Immutable)) -> Result<Mark> {
        self.post_parts(opcode, &[body.as_bytes()])
    }

    /// Posts one piece of work whose command consists of several parts.
    pub(crate) fn post_parts(&self, opcode: Opcode, parts: &[&[u8]]) -> Result<Mark> {
        self.pass_gates()?;
        let session = &self.backend.session;
        let _announced = session.announce(opcode)?;
        session.post_work(self.id, self.slot, opcode, parts)
    }

    /// Posts a wait for a value, or for another device.
    pub(crate) fn post_wait(&self, opcode: Opcode, body: &[u8]) -> Result {
        self.pass_gates()?;
        let session = &self.backend.session;
        let _announced = session.announce(opcode)?;
        session.post_wait(self.id, self.slot, opcode, body)
    }

    /// Waits for one piece of work.
    pub(crate) fn wait(&self, mark: Mark) -> Result {
        self.backend.session.wait(self.id, mark)
    }

    /// Waits for a copy of so many bytes between the host's and the device's memory.
    pub(crate) fn wait_for_copy(&self, mark: Mark, size_bytes: u64) -> Result {
        let rate = &self.backend.copy_rate;
        let Some(expected) = rate.expected(size_bytes) else { return self.wait(mark) };
        let began = Instant::now();
        let woke = self.backend.session.wait_expecting(self.id, mark, expected)?;
        rate.learn(size_bytes, began.elapsed(), woke);
        Ok(())
    }

    /// Waits for all work of the stream so far.
    pub(crate) fn synchronize(&self) -> Result {
        self.pass_gates()?;
        let mark = self.backend.session.mark(self.id, self.slot)?;
        self.wait(mark)?;
        self.backend.session.check()
    }

    /// Whether all work of the stream so far is done.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        if self.backend.session.gates().is_held(self.slot, self.ordered()) {
            return self.backend.session.check().map(|()| false);
        }
        let mark = self.backend.session.mark(self.id, self.slot)?;
        self.backend.session.query(self.id, mark)
    }
}
