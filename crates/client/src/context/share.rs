//! The SMs that a context runs on, where those are not the whole share of its client: execution
//! affinity, shares by context, green contexts.
//!
//! Such a context has a partition in the executor and a default stream of its own.

use crate::context::Context;
use crate::context::backend::Backend;
use crate::result::Result;
use crate::session::streams::StreamPlan;
use link::wire::command::{DEFAULT_STREAM, LEGACY_STREAM, Opcode};
use link::wire::partition::{
    OWN_SHARE, PartitionCreate, PartitionDrop, PartitionReply, PartitionTake, ROUND_DOWN, ROUND_UP,
};
use zerocopy::IntoBytes;

/// What decides which SMs a context has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// At most so many: `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, as it was when the context was made.
    /// The device's attribute says how many.
    Percentage(u32),
    /// At least so many, as far as the client's share has them: execution affinity.
    Affinity(u32),
    /// Those of a description of resources: a green context.
    Described(u32),
}

/// A context's partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// The executor's number.
    pub(crate) partition: u32,
    /// Slot of the context's default stream.
    pub(crate) default_stream: u32,
    pub(crate) multiprocessors: u32,
    pub(crate) wish: Wish,
}

impl Share {
    /// Has the executor make a partition for the context that it knows as `id`.
    pub(crate) fn take(backend: &Backend, id: u32, wish: Wish) -> Result<Self> {
        let partition = backend.partitions.take()?;
        let made = Self::make(backend, id, wish, partition);
        made.inspect_err(|_| backend.partitions.give_back(partition))
    }

    fn make(backend: &Backend, id: u32, wish: Wish, partition: u32) -> Result<Self> {
        let session = &backend.session;
        let reply: PartitionReply = match wish {
            Wish::Percentage(multiprocessors) | Wish::Affinity(multiprocessors) => {
                let rounding = match wish {
                    Wish::Affinity(_) => ROUND_UP,
                    _ => ROUND_DOWN,
                };
                let body = PartitionTake { partition, multiprocessors, rounding, reserved: 0 };
                session.call_for(id, Opcode::PartitionTake, &[body.as_bytes()])
            }
            Wish::Described(description) => {
                let body = PartitionCreate { partition, description };
                session.call_for(id, Opcode::PartitionCreate, &[body.as_bytes()])
            }
        }?;
        let plan = StreamPlan {
            flags: DEFAULT_STREAM,
            priority: 0,
            partition,
            default_stream: LEGACY_STREAM,
        };
        let default_stream = session.create_stream(id, plan)?;
        Ok(Self { partition, default_stream, multiprocessors: reply.multiprocessors, wish })
    }

    /// Gives the partition up; the context's work has ended.
    pub(crate) fn drop(self, backend: &Backend, id: u32) {
        // A failed session has no partitions left.
        let _ = backend.session.destroy_stream(id, self.default_stream);
        let body = PartitionDrop { partition: self.partition, reserved: 0 };
        if backend.session.post(id, Opcode::PartitionDrop, &body).is_ok() {
            backend.partitions.give_back(self.partition);
        }
    }
}

impl Context {
    /// The executor's number of the SMs that the context's work runs on.
    pub(crate) fn partition(&self) -> u32 {
        self.share().map_or(OWN_SHARE, |share| share.partition)
    }

    /// A stream of the context's.
    pub(crate) fn stream_plan(&self, flags: u32, priority: i32) -> StreamPlan {
        let share = self.share();
        StreamPlan {
            flags,
            priority,
            partition: share.map_or(OWN_SHARE, |share| share.partition),
            default_stream: share.map_or(LEGACY_STREAM, |share| share.default_stream),
        }
    }
}
