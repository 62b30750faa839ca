//! Limits of the context that all clients share: stack, heap, the buffer of `printf`.
//!
//! What one client asks for all have, and it has that as long as it lives. It is charged for what
//! goes beyond what the context began with, as a context of its own would cost that, too. When it
//! ends, the limit falls to what others have asked for. A driver lowers heap and buffer until a
//! kernel has used them (`cuCtxSetLimit`); from then on they keep their size until the executor
//! ends, and count for nobody. The stack stays: after a lower limit the driver would make room
//! again for larger frames, which waits for all kernels ([`crate::turns::gate`]). Two limits are
//! hints by CUDA's own words, which any platform may ignore or clamp: those of the L2 cache are
//! accepted and stay as they are.

use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::log::log_server;
use link::wire::command::{LimitGet, LimitReply, LimitSet};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest stack per thread that a client may raise the context's to; it costs memory for every
/// resident thread.
const MAX_STACK_BYTES: u64 = 64 << 10;
const STACK_STEP_BYTES: u64 = 1 << 10;
/// A heap, or a buffer of `printf`, that a kernel has used stays as large as it is, so a client can
/// raise it to this part of the device's memory at most.
const LARGEST_PART: u64 = 64;
/// So many kernels that kernels have launched may wait, at most; each takes some hundred bytes.
const MAX_PENDING_LAUNCHES: u64 = 1 << 16;

impl State {
    pub(crate) fn limit_get(&mut self, wanted: LimitGet) -> Result<(), Failure> {
        let value = self.limit(CUlimit(wanted.limit))?;
        self.answer(&LimitReply { value })
    }

    pub(crate) fn limit_set(&mut self, wanted: LimitSet) -> Result<(), Failure> {
        let limit = CUlimit(wanted.limit);
        let now = self.limit(limit)?;
        let part_bytes = || self.context().memory_bytes() / LARGEST_PART;
        let (name, most) = match limit {
            CUlimit::MAX_L2_FETCH_GRANULARITY | CUlimit::PERSISTING_L2_CACHE_SIZE => return Ok(()),
            CUlimit::STACK_SIZE => ("stack of a thread", MAX_STACK_BYTES),
            CUlimit::MALLOC_HEAP_SIZE => ("heap", part_bytes()),
            CUlimit::PRINTF_FIFO_SIZE => ("buffer of printf", part_bytes()),
            CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT => ("pending launches", MAX_PENDING_LAUNCHES),
            _ if wanted.value <= now => return Ok(()),
            _ => return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED)),
        };
        let wishes = &self.shared.limit_wishes;
        // What is there in any case.
        let stays = if limit == CUlimit::STACK_SIZE { now } else { wishes.at_first(limit, now) };
        if wanted.value <= stays {
            return Ok(());
        }
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
        // In few steps: each holds everybody up for a moment and is logged. A stack costs memory
        // for every thread.
        let value = match limit {
            CUlimit::STACK_SIZE => wanted.value.next_multiple_of(STACK_STEP_BYTES),
            _ => wanted.value.next_power_of_two().min(most),
        };
        if limit == CUlimit::STACK_SIZE {
            self.charge_local(value)?;
            return self.raise(limit, name, value);
        }
        let session = self.handle.id;
        let more = wishes.ask(limit, session, value);
        let charged_bytes = match limit {
            CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT => 0,
            _ => more,
        };
        let charged = self.charge_or_hold(charged_bytes);
        let raised = charged.and_then(|()| {
            self.raise(limit, name, value).inspect_err(|_| self.memory.discharge(charged_bytes))
        });
        if raised.is_err() {
            self.shared.limit_wishes.take_back(limit, session, more);
        }
        raised
    }

    /// Raises a limit to this value, if it is lower.
    fn raise(&self, limit: CUlimit, name: &str, value: u64) -> Result<(), Failure> {
        if self.limit(limit)? >= value {
            return Ok(());
        }
        let _quiet = self.quiet()?;
        // Another session may have raised it further since, and would lose that.
        let now = self.limit(limit)?;
        if now < value {
            // SAFETY: no pointers. A driver raises neither heap nor buffer once a kernel has used
            // it.
            self.check(unsafe { self.driver().cuCtxSetLimit(limit, value as usize) })?;
            log_server!("{} raises the {name} from {now} to {value}, for all", self.handle.label);
        }
        Ok(())
    }

    /// At the session's end: others need not have what it has asked for.
    pub(crate) fn give_back_limits(&self) {
        let (wishes, session) = (&self.shared.limit_wishes, self.handle.id);
        if !wishes.has_any(session) {
            return;
        }
        self.quietly_each([()], |()| {
            wishes.end(session, |limit, value| {
                if self.limit(limit).is_ok_and(|now| now <= value) {
                    return;
                }
                // SAFETY: no pointers.
                let lowered = unsafe { self.driver().cuCtxSetLimit(limit, value as usize) };
                if let Err(code) = self.context().check(lowered) {
                    // A kernel has used it.
                    log_server!("{}: limit {} stays as it is: {code}", self.handle.label, limit.0);
                }
            });
        });
    }

    fn limit(&self, limit: CUlimit) -> Result<u64, Failure> {
        let mut value = 0;
        // SAFETY: `value` is written.
        self.check(unsafe { self.driver().cuCtxGetLimit(&mut value, limit) })?;
        Ok(value as u64)
    }
}

/// What sessions have asked for and may count on, of limits that can be lowered.
#[derive(Debug, Default)]
pub(crate) struct Wishes(Mutex<BTreeMap<u32, Wished>>);

#[derive(Debug)]
struct Wished {
    /// The context's, before anybody asked for more.
    at_first: u64,
    /// By session; above that.
    values: BTreeMap<u64, u64>,
}

impl Wishes {
    /// What the context began with of a limit that is `now` so much.
    fn at_first(&self, limit: CUlimit, now: u64) -> u64 {
        let new = || Wished { at_first: now, values: BTreeMap::new() };
        self.lock().entry(limit.0).or_insert_with(new).at_first
    }

    /// A session asks for more than that. Returns how much more it has asked for than before.
    fn ask(&self, limit: CUlimit, session: u64, value: u64) -> u64 {
        let mut wishes = self.lock();
        let Some(wished) = wishes.get_mut(&limit.0) else { return 0 };
        let before = wished.values.get(&session).copied().unwrap_or(wished.at_first);
        if value > before {
            wished.values.insert(session, value);
        }
        value.saturating_sub(before)
    }

    /// It does not get so much more.
    fn take_back(&self, limit: CUlimit, session: u64, more: u64) {
        let mut wishes = self.lock();
        let Some(wished) = wishes.get_mut(&limit.0) else { return };
        if let Some(value) = wished.values.get_mut(&session) {
            *value -= more;
            if *value <= wished.at_first {
                wished.values.remove(&session);
            }
        }
    }

    fn has_any(&self, session: u64) -> bool {
        self.lock().values().any(|wished| wished.values.contains_key(&session))
    }

    /// A session has ended: calls `lower` with what is still to be had of each limit that it asked
    /// for. A session that asks meanwhile waits, and then sees what became of it.
    fn end(&self, session: u64, mut lower: impl FnMut(CUlimit, u64)) {
        for (&limit, wished) in self.lock().iter_mut() {
            if wished.values.remove(&session).is_some() {
                let most = wished.values.values().copied().max();
                lower(CUlimit(limit), most.unwrap_or(wished.at_first));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Wished>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_living_have_asked_for_stays() {
        let (wishes, heap) = (Wishes::default(), CUlimit::MALLOC_HEAP_SIZE);
        assert_eq!((wishes.at_first(heap, 8), wishes.at_first(heap, 64)), (8, 8));
        assert_eq!([wishes.ask(heap, 1, 64), wishes.ask(heap, 2, 16)], [56, 8]);
        assert_eq!(wishes.ask(heap, 2, 32), 16, "it has the others already");
        assert_eq!(wishes.ask(heap, 2, 16), 0, "it does not lose what it has");
        assert_eq!(wishes.ask(heap, 3, 128), 120);
        wishes.take_back(heap, 3, 120);
        assert!(wishes.has_any(2) && !wishes.has_any(3));
        let mut lowered = Vec::new();
        for session in [3, 1, 2] {
            wishes.end(session, |limit, value| lowered.push((session, limit.0, value)));
        }
        assert_eq!(lowered, [(1, heap.0, 32), (2, heap.0, 8)]);
    }
}
