//! Copies that wait for none of the program's work, and that none of it waits for: what memory of
//! two sides and copies between devices need.
//!
//! They are done in their order by a stream that the program does not know. Its completion is a
//! word in shared memory, so that who waits sees the end at once.

use crate::result::Result;
use crate::session::Session;
use crate::session::slots::Mark;
use crate::session::streams::StreamPlan;
use link::wire::command::{Copy, LEGACY_STREAM, Opcode};
use std::sync::{Mutex, PoisonError};
use zerocopy::IntoBytes;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// All SMs that the client has.
const WHOLE_SHARE: u32 = 0;
/// Copies are no context's work.
const NO_CONTEXT: u32 = 0;

/// A session's stream for them, once there was one.
#[derive(Default)]
pub(crate) struct QuietStream(Mutex<Option<u32>>);

impl QuietStream {
    fn slot(&self, session: &Session) -> Result<u32> {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = *made {
            return Ok(slot);
        }
        let plan = StreamPlan {
            flags: NON_BLOCKING,
            priority: 0,
            partition: WHOLE_SHARE,
            default_stream: LEGACY_STREAM,
        };
        Ok(*made.insert(session.create_stream_now(NO_CONTEXT, plan)?))
    }
}

impl Session {
    /// Makes the stream for quiet copies, unless it is there: from then on only a session that has
    /// failed refuses one.
    pub(crate) fn open_quiet_stream(&self) -> Result {
        self.quiet().slot(self).map(drop)
    }

    /// Posts a copy of so many bytes behind those that were posted before.
    pub(crate) fn post_quiet_copy(
        &self,
        destination: u64,
        source: u64,
        size_bytes: u64,
    ) -> Result<Mark> {
        let stream = self.quiet().slot(self)?;
        let body = Copy { stream, reserved: 0, destination, source, size_bytes };
        self.post_work(NO_CONTEXT, stream, Opcode::Copy, &[body.as_bytes()])
    }

    /// The same where it is waited for in a moment.
    pub(crate) fn start_quiet_copy(
        &self,
        destination: u64,
        source: u64,
        size_bytes: u64,
    ) -> Result<Mark> {
        let mark = self.post_quiet_copy(destination, source, size_bytes)?;
        self.request(NO_CONTEXT, mark)?;
        Ok(mark)
    }

    /// Waits until a copy is done, and all before it.
    pub(crate) fn await_quiet_copy(&self, mark: Mark) -> Result {
        self.wait_quietly(NO_CONTEXT, mark)
    }

    /// Copies, and waits for that.
    pub(crate) fn copy_quietly(&self, destination: u64, source: u64, size_bytes: u64) -> Result {
        let mark = self.post_quiet_copy(destination, source, size_bytes)?;
        self.await_quiet_copy(mark)
    }
}
