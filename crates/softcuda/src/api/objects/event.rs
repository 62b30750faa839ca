//! Events: what their handles stand for.

use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::graph::capture::{self, Point};

use super::context::Context;
use super::shared_event::SharedEvent;
use crate::api::answer::Answer;
use crate::api::graph::Graph;
use crate::device::marker::Marker;
use crate::device::ops::Op;

/// Flag of events without times.
pub(crate) const NO_TIMING: u32 = 2;
/// Flag of events that other processes see; needs the one before.
pub(crate) const INTERPROCESS: u32 = 4;

/// An event: flags and the point it was last recorded at.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context_id: u64,
    pub(crate) flags: u32,
    recorded: Mutex<Recorded>,
    /// Of events that other processes see.
    shared: Option<Arc<SharedEvent>>,
}

/// Where an event was last recorded.
#[derive(Debug, Clone, Default)]
pub(crate) enum Recorded {
    #[default]
    Never,
    At(Arc<Marker>),
    /// In a capture.
    Captured(Point<Graph>),
}

impl Event {
    /// An event that was never recorded.
    pub(crate) fn new(context: &Context, flags: u32) -> Self {
        Event { context_id: context.id, flags, recorded: Mutex::default(), shared: None }
    }

    /// An event that several processes record and wait for.
    pub(crate) fn new_shared(context: &Context, shared: Arc<SharedEvent>) -> Self {
        Event { shared: Some(shared), ..Event::new(context, INTERPROCESS | NO_TIMING) }
    }

    /// What other processes see of it.
    pub(crate) fn shared(&self) -> Option<&Arc<SharedEvent>> {
        self.shared.as_ref()
    }

    /// The operation that waits for the last record, if there is something to wait for.
    pub(crate) fn wait_op(&self) -> Option<Op> {
        match &self.shared {
            Some(shared) => shared.wait_op(),
            None => self.marker().map(Op::Wait),
        }
    }

    /// The operations of a record whose marker this is.
    pub(crate) fn record_ops(&self, marker: Arc<Marker>) -> Vec<Op> {
        let raise = self.shared.as_ref().map(SharedEvent::record_op);
        std::iter::once(Op::Record(marker)).chain(raise).collect()
    }

    /// Where it was last recorded.
    pub(crate) fn recorded(&self) -> Recorded {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, as captures see it.
    pub(crate) fn captured(&self) -> capture::Recorded<Graph> {
        match self.recorded() {
            Recorded::Never => capture::Recorded::Never,
            Recorded::At(_) => capture::Recorded::Outside,
            Recorded::Captured(point) => capture::Recorded::Captured(point),
        }
    }

    /// The marker of the last record, if there was one outside captures.
    pub(crate) fn marker(&self) -> Option<Arc<Marker>> {
        match self.recorded() {
            Recorded::At(marker) => Some(marker),
            _ => None,
        }
    }

    pub(crate) fn set_recorded(&self, recorded: Recorded) {
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = recorded;
    }

    /// Records it where `enqueue` puts the marker; two records do not overtake each other.
    pub(crate) fn record(&self, enqueue: impl FnOnce(Arc<Marker>) -> Answer) -> Answer {
        let marker = Arc::new(Marker::default());
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        enqueue(marker.clone())?;
        *recorded = Recorded::At(marker);
        Ok(())
    }
}
