//! What orders default streams with their blocking ones, where both have work.

use super::{EVENT_DISABLE_TIMING, Streams};
use crate::context::Context;
use crate::session::failure::Failure;
use cuda_abi::types::*;

/// What a default stream is ordered with.
#[derive(Debug, Default)]
pub(super) struct Domain {
    /// Slots of blocking streams that are ahead of it.
    pub(super) ahead: Vec<u32>,
    /// Counts pieces of work on it.
    pub(super) work: u64,
    /// Recorded on it after so much work.
    pub(super) event: Option<(CUevent, u64)>,
}

impl Streams {
    /// Makes work of a blocking stream wait for that of its default stream, and notes that the
    /// latter must wait for it.
    pub(super) fn order_behind(
        &mut self,
        context: &Context,
        slot: u32,
        default: u32,
        handle: CUstream,
    ) -> Result<(), Failure> {
        let Some(domain) = domain_in(&mut self.domains, default) else { return Ok(()) };
        let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        let next_signal = stream.last_signal + 1;
        let behind = std::mem::replace(&mut stream.default_seen, domain.work) != domain.work;
        // A slot that has served another default stream meanwhile may be here still.
        if stream.ahead_of.replace(default) != Some(default) && !domain.ahead.contains(&slot) {
            domain.ahead.push(slot);
        }
        if behind {
            let event = self.default_event(context, default)?;
            // SAFETY: live handles of this session.
            context.check(unsafe { context.driver().cuStreamWaitEvent(handle, event, 0) })?;
            if self.slot(default).is_some_and(|stream| stream.unsignalled) {
                self.standing.note_before(default, slot, next_signal);
            }
        }
        Ok(())
    }

    pub(super) fn domain(&mut self, slot: u32) -> Option<&mut Domain> {
        domain_in(&mut self.domains, slot)
    }

    /// Where the domain of a default stream in a slot is; slots are bounded.
    pub(super) fn domain_place(&mut self, slot: u32) -> &mut Option<Domain> {
        let index = slot as usize;
        if self.domains.len() <= index {
            self.domains.resize_with(index + 1, || None);
        }
        &mut self.domains[index]
    }

    /// Makes a default stream wait for all work of its blocking streams so far; its signals come
    /// after that from `next_signal` on.
    pub(super) fn join_into_default(
        &mut self,
        context: &Context,
        default: u32,
        handle: CUstream,
        next_signal: u64,
    ) -> Result<(), Failure> {
        let Some(domain) = domain_in(&mut self.domains, default) else { return Ok(()) };
        if domain.ahead.is_empty() {
            return Ok(());
        }
        let driver = context.driver();
        for slot in std::mem::take(&mut domain.ahead) {
            let event = event_in(context, &mut self.join_event)?;
            let Some(stream) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else {
                continue;
            };
            stream.ahead_of.take_if(|of| *of == default);
            // SAFETY: live handles of this session. A wait means the record that came before it, so
            // the event can be used again.
            unsafe {
                context.check(driver.cuEventRecord(event, stream.handle))?;
                context.check(driver.cuStreamWaitEvent(handle, event, 0))?;
            }
            if stream.unsignalled {
                self.standing.note_before(slot, default, next_signal);
            }
        }
        Ok(())
    }

    /// An event after all work of a default stream so far.
    pub(super) fn default_event(
        &mut self,
        context: &Context,
        default: u32,
    ) -> Result<CUevent, Failure> {
        let handle = self.open_slot(default)?.handle;
        let domain = self.domain_place(default).get_or_insert_default();
        let (event, recorded_at) = match domain.event {
            Some(known) => known,
            None => (context.new_event(EVENT_DISABLE_TIMING)?, 0),
        };
        domain.event = Some((event, domain.work));
        if recorded_at != domain.work {
            // SAFETY: live handles of this session.
            context.check(unsafe { context.driver().cuEventRecord(event, handle) })?;
        }
        Ok(event)
    }
}

fn domain_in(domains: &mut [Option<Domain>], slot: u32) -> Option<&mut Domain> {
    domains.get_mut(slot as usize).and_then(Option::as_mut)
}

fn event_in(context: &Context, place: &mut Option<CUevent>) -> Result<CUevent, Failure> {
    match *place {
        Some(event) => Ok(event),
        None => Ok(*place.insert(context.new_event(EVENT_DISABLE_TIMING)?)),
    }
}

#[cfg(test)]
mod tests {
    use crate::session::state::State;
    use crate::testbed::Bed;
    use link::wire::command::{LEGACY_STREAM, StreamCreate};
    use zerocopy::FromZeros;

    /// As in a session that another executor has served: its streams are there, and its default
    /// stream is opened when it is used.
    #[test]
    fn a_default_stream_that_is_opened_later_waits_for_blocking_ones() {
        const BLOCKING: u32 = 1;
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        let wanted = StreamCreate { stream: BLOCKING, ..StreamCreate::new_zeroed() };
        state.stream_create(wanted).unwrap();
        let ahead = |state: &State| {
            state.streams.domains.first().and_then(|it| Some(it.as_ref()?.ahead.clone()))
        };
        state.stream_for_work(BLOCKING).unwrap();
        assert_eq!(ahead(state), Some(vec![BLOCKING]));
        state.stream_for_work(LEGACY_STREAM).unwrap();
        assert_eq!(ahead(state), Some(Vec::new()), "it has been waited for");
    }
}
