//! Making and destroying a session's streams.

use super::{Posting, Session};
use crate::result::Result;
use cuda_abi::types::CUresult;
use link::wire::command::{DEFAULT_STREAM, NO_CALL, Opcode, StreamCreate, StreamDestroy};
use zerocopy::IntoBytes;

/// A stream that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamPlan {
    /// `CU_STREAM_*`, or `DEFAULT_STREAM`.
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// The executor's number of the SMs that it runs on.
    pub(crate) partition: u32,
    /// Slot of the default stream that a blocking one is ordered with.
    pub(crate) default_stream: u32,
}

impl Session {
    /// Makes a stream.
    pub(crate) fn create_stream(&self, context: u32, plan: StreamPlan) -> Result<u32> {
        self.check()?;
        let mut posting = self.lock();
        let body = self.plan_stream(&mut posting, context, plan)?;
        self.put(&mut posting, Opcode::StreamCreate, NO_CALL, context, &[body.as_bytes()])?;
        Ok(body.stream)
    }

    /// The same, and waits until it is there: where none can be made only this call fails, and not
    /// the session.
    pub(super) fn create_stream_now(&self, context: u32, plan: StreamPlan) -> Result<u32> {
        self.check()?;
        let body = self.plan_stream(&mut self.lock(), context, plan)?;
        let made = self.call(context, Opcode::StreamCreate, &[body.as_bytes()]);
        made.map(|_| body.stream).inspect_err(|_| self.lock().slots.give_back(body.stream))
    }

    /// Takes a slot for a stream.
    fn plan_stream(
        &self,
        posting: &mut Posting,
        context: u32,
        plan: StreamPlan,
    ) -> Result<StreamCreate> {
        let taken = posting.slots.take(context, |slot| self.words.completed(slot));
        let slot = taken.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        if plan.flags & DEFAULT_STREAM != 0 {
            posting.slots.make_default(slot);
        }
        Ok(StreamCreate {
            stream: slot,
            flags: plan.flags,
            priority: plan.priority,
            partition: plan.partition,
            legacy: plan.default_stream,
            reserved: 0,
        })
    }

    /// Destroys a stream once its work is done; returns at once.
    pub(crate) fn destroy_stream(&self, context: u32, slot: u32) -> Result {
        self.check()?;
        let mut posting = self.lock();
        let mark = posting.slots.mark(slot, context);
        self.signal(&mut posting, context, mark)?;
        let body = StreamDestroy { stream: slot, reserved: 0 };
        self.put(&mut posting, Opcode::StreamDestroy, NO_CALL, context, &[body.as_bytes()])?;
        posting.slots.give_back(slot);
        Ok(())
    }
}
