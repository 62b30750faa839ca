//! Limits of the context that all clients share: stack, heap, the buffer of `printf`.
//!
//! None can be lowered, since others may count on what there is; a client that asks for less has it. What is raised is
//! raised for all and charged to the client that asked. Two limits are hints by CUDA's own words, which any platform may
//! ignore or clamp: those of the L2 cache are accepted and stay as they are.

use super::failure::Failure;
use super::state::State;
use crate::log::log_server;
use cuda_abi::types::*;
use link::wire::command::{LimitGet, LimitReply, LimitSet};
use zerocopy::IntoBytes;

/// Largest stack per thread that a client may raise the context's to; it costs memory for every resident thread.
const MAX_STACK_BYTES: u64 = 64 << 10;
const STACK_STEP_BYTES: u64 = 1 << 10;
/// A heap, or a buffer of `printf`, stays as large as it once was, so a client can raise it to this part of the device's memory at most.
const LARGEST_PART: u64 = 64;
/// So many kernels that kernels have launched may wait, at most; each takes some hundred bytes.
const MAX_PENDING_LAUNCHES: u64 = 1 << 16;

impl State {
    pub(super) fn limit_get(&mut self, wanted: LimitGet) -> Result<(), Failure> {
        let value = self.limit(CUlimit(wanted.limit))?;
        self.reply.extend_from_slice(LimitReply { value }.as_bytes());
        Ok(())
    }

    pub(super) fn limit_set(&mut self, wanted: LimitSet) -> Result<(), Failure> {
        let limit = CUlimit(wanted.limit);
        let now = self.limit(limit)?;
        let part_bytes = || self.context().memory_bytes() / LARGEST_PART;
        let (name, most) = match limit {
            CUlimit::MAX_L2_FETCH_GRANULARITY | CUlimit::PERSISTING_L2_CACHE_SIZE => return Ok(()),
            _ if wanted.value <= now => return Ok(()),
            CUlimit::STACK_SIZE => ("stack of a thread", MAX_STACK_BYTES),
            CUlimit::MALLOC_HEAP_SIZE => ("heap", part_bytes()),
            CUlimit::PRINTF_FIFO_SIZE => ("buffer of printf", part_bytes()),
            CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT => ("pending launches", MAX_PENDING_LAUNCHES),
            _ => return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED)),
        };
        let label = self.handle.label.clone();
        if wanted.value > most {
            // Once, since a client may ask without end.
            if !std::mem::replace(&mut self.limit_refusal_is_said, true) {
                log_server!(
                    "{label} is refused a limit: {name} of {}, where a client can raise it to {most}",
                    wanted.value
                );
            }
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        // In few steps: each holds everybody up for a moment and is logged. A stack costs memory for every thread.
        let value = match limit {
            CUlimit::STACK_SIZE => wanted.value.next_multiple_of(STACK_STEP_BYTES),
            _ => wanted.value.next_power_of_two().min(most),
        };
        let charged_bytes = match limit {
            CUlimit::STACK_SIZE => {
                self.charge_local(value)?;
                0
            }
            CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT => 0,
            _ => value - now,
        };
        self.memory.charge(charged_bytes)?;
        let raised = self.quiet().and_then(|_quiet| {
            // Another session may have raised it further since, and would lose that.
            if self.limit(limit)? >= value {
                return Ok(false);
            }
            // SAFETY: no pointers.
            self.check(unsafe { self.driver().cuCtxSetLimit(limit, value as usize) })?;
            Ok(true)
        });
        match &raised {
            Ok(true) => log_server!("{label} raises the {name} from {now} to {value}, for all"),
            // A driver raises neither heap nor buffer once a kernel has used it.
            Ok(false) | Err(_) => self.memory.discharge(charged_bytes),
        }
        raised.map(drop)
    }

    fn limit(&self, limit: CUlimit) -> Result<u64, Failure> {
        let mut value = 0;
        // SAFETY: `value` is written.
        self.check(unsafe { self.driver().cuCtxGetLimit(&mut value, limit) })?;
        Ok(value as u64)
    }
}
