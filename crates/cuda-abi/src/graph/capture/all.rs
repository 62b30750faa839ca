//! All captures of a process, and what calls may be made while there are some.

use super::one::{Capture, Inner};
use super::{
    Answer, CapturedGraph, Change, Effect, Ended, Info, LegacyOrder, MadeFor, Recorded, Stream,
    Tips, Wait,
};
use crate::graph::shape::EdgeData;
use crate::types::{
    CUgraphNode, CUresult, CUstreamCaptureMode as Mode, CUstreamCaptureStatus as Status,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All captures of a process that have not ended.
#[derive(Debug)]
pub struct Captures<G> {
    active: Mutex<Vec<Arc<Capture<G>>>>,
    /// Length of `active`, so that calls outside captures need no lock.
    count: AtomicUsize,
    next_id: AtomicU64,
}

impl<G> Default for Captures<G> {
    fn default() -> Self {
        Self { active: Mutex::default(), count: AtomicUsize::new(0), next_id: AtomicU64::new(0) }
    }
}

impl<G: CapturedGraph> Captures<G> {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Capture<G>>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is being captured.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // Relaxed: a thread sees its own captures; of other threads' the order is the program's
        // affair.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// The capture that a stream takes part in, whatever its status.
    pub fn find(&self, stream: Stream) -> Option<Arc<Capture<G>>> {
        if self.is_empty() {
            return None;
        }
        let active = self.lock();
        active.iter().find(|capture| capture.lock().streams.contains_key(&stream.id)).cloned()
    }

    /// The stream's capture while it is active.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED when it was invalidated.
    pub fn active(&self, stream: Stream) -> Answer<Option<Arc<Capture<G>>>> {
        match self.find(stream) {
            Some(capture) if capture.status() == Status::ACTIVE => Ok(Some(capture)),
            Some(_) => Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED),
            None => Ok(None),
        }
    }

    /// Invalidates the capture that the stream takes part in, if any.
    pub fn invalidate(&self, stream: Stream) {
        if let Some(capture) = self.find(stream) {
            capture.invalidate();
        }
    }

    /// Refuses a call that cannot be captured, and invalidates the capture.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
    pub fn refuse(&self, stream: Stream) -> Answer {
        match self.find(stream) {
            None => Ok(()),
            Some(capture) => {
                capture.invalidate();
                Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Refuses a call that may touch running work, if there are captures that it would break; they
    /// are invalidated.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
    pub fn refuse_unsafe_call(&self) -> Answer {
        if self.is_empty() {
            return Ok(());
        }
        let thread_mode = G::thread_mode();
        if thread_mode == Mode::RELAXED {
            return Ok(());
        }
        let thread = std::thread::current().id();
        self.refuse_because_of(|capture| {
            capture.mode != Mode::RELAXED && capture.thread == thread
                || capture.mode == Mode::GLOBAL && thread_mode == Mode::GLOBAL
        })
    }

    /// Refuses a call that waits for all work of a context in which something is captured.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
    pub fn refuse_synchronizing(&self, context: u64) -> Answer {
        self.refuse_unsafe_call()?;
        if self.is_empty() {
            return Ok(());
        }
        self.refuse_because_of(|capture| {
            capture.lock().streams.values().any(|member| member.stream.context == context)
        })
    }

    fn refuse_because_of(&self, concerns: impl Fn(&Capture<G>) -> bool) -> Answer {
        let concerned: Vec<_> =
            self.lock().iter().filter(|capture| concerns(capture)).cloned().collect();
        concerned.iter().for_each(|capture| capture.invalidate());
        match concerned.is_empty() {
            true => Ok(()),
            false => Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED),
        }
    }

    /// Refuses the use of the legacy stream while a blocking stream of its context is captured.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT.
    pub fn refuse_legacy(&self, context: u64, effect: Effect) -> Answer {
        if self.is_empty() {
            return Ok(());
        }
        let is_concerned = |capture: &&Arc<Capture<G>>| {
            capture.lock().streams.values().any(|member| {
                member.stream.context == context && member.stream.ordering == LegacyOrder::Blocking
            })
        };
        let concerned: Vec<_> = self.lock().iter().filter(is_concerned).cloned().collect();
        if effect == Effect::Invalidate {
            concerned.iter().for_each(|capture| capture.invalidate());
        }
        match concerned.is_empty() {
            true => Ok(()),
            false => Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT),
        }
    }

    /// Begins a capture in a stream, into a graph that `make` makes for it, or after nodes of a
    /// given one.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown mode and nodes that are not in the graph,
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for the legacy stream, CUDA_ERROR_ILLEGAL_STATE for a
    /// stream that is being captured; those of `make`.
    pub fn begin(
        &self,
        stream: Stream,
        mode: Mode,
        into: Option<(Arc<G>, Tips)>,
        make: impl FnOnce() -> Answer<Arc<G>>,
    ) -> Answer {
        if mode.0 > Mode::RELAXED.0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if stream.ordering == LegacyOrder::Itself {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.find(stream).is_some() {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        let (graph, tips, made_for) = match into {
            Some((graph, tips)) if graph.has_all(&tips) => (graph, tips, MadeFor::Program),
            Some(_) => return Err(CUresult::ERROR_INVALID_VALUE),
            None => (make()?, Vec::new(), MadeFor::Capture),
        };
        let capture = Arc::new(Capture {
            // Relaxed: only uniqueness matters.
            id: self.next_id.fetch_add(1, Ordering::Relaxed) + 1,
            mode,
            thread: std::thread::current().id(),
            origin: stream.id,
            graph,
            made_for,
            inner: Mutex::new(Inner {
                status: Status::ACTIVE,
                streams: HashMap::new(),
                unjoined: BTreeSet::new(),
            }),
        });
        capture.join(stream, tips);
        let mut active = self.lock();
        active.push(capture);
        // Relaxed: see `is_empty`.
        self.count.store(active.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Ends the stream's capture. Whatever the outcome, except that the stream did not begin it,
    /// the capture is over.
    pub fn end(&self, stream: Stream) -> Ended<G> {
        let Some(capture) = self.find(stream) else {
            return Ended::Failed(CUresult::ERROR_ILLEGAL_STATE, None);
        };
        if capture.origin != stream.id {
            capture.invalidate();
            return Ended::Failed(CUresult::ERROR_STREAM_CAPTURE_UNMATCHED, None);
        }
        let outcome = capture.outcome();
        self.finish(&capture);
        match outcome {
            Ok(()) => Ended::Graph(Arc::clone(&capture.graph)),
            Err(code) => Ended::Failed(code, capture.own_graph()),
        }
    }

    /// Takes a stream that is being destroyed out. If it began its capture, that is over; returns a
    /// graph to be given up.
    pub fn abandon(&self, stream: Stream) -> Option<Arc<G>> {
        let capture = self.find(stream)?;
        if capture.origin != stream.id {
            capture.lock().streams.remove(&stream.id);
            return None;
        }
        self.finish(&capture);
        capture.own_graph()
    }

    fn finish(&self, capture: &Arc<Capture<G>>) {
        let mut active = self.lock();
        {
            let mut inner = capture.lock();
            inner.status = Status::NONE;
            inner.streams.clear();
        }
        active.retain(|other| !Arc::ptr_eq(other, capture));
        // Relaxed: see `is_empty`.
        self.count.store(active.len(), Ordering::Relaxed);
    }

    /// A stream waits for an event, as far as captures are concerned.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_ISOLATION, _MERGE or _INVALIDATED, and CUDA_ERROR_INVALID_VALUE
    /// for an event of a capture that is over; the captures concerned are invalidated.
    pub fn wait(&self, stream: Stream, recorded: Recorded<G>) -> Answer<Wait> {
        let own = self.active(stream)?;
        let point = match (recorded, own) {
            (Recorded::Never, _) => return Ok(Wait::Nothing),
            (Recorded::Outside, None) => return Ok(Wait::Needed),
            (Recorded::Outside, Some(capture)) => {
                capture.invalidate();
                return Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
            }
            (Recorded::Captured(point), own) => {
                match point.capture.status() {
                    Status::ACTIVE => {}
                    Status::INVALIDATED => return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED),
                    _ => {
                        // Its capture is over: there is nothing left to wait for.
                        if let Some(own) = own {
                            own.invalidate();
                        }
                        return Err(CUresult::ERROR_INVALID_VALUE);
                    }
                }
                if let Some(own) = own.filter(|own| !Arc::ptr_eq(own, &point.capture)) {
                    own.invalidate();
                    point.capture.invalidate();
                    return Err(CUresult::ERROR_STREAM_CAPTURE_MERGE);
                }
                point
            }
        };
        if stream.ordering == LegacyOrder::Itself {
            point.capture.invalidate();
            return Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let tips = point.nodes.into_iter().map(|node| (node, EdgeData::default())).collect();
        point.capture.join(stream, tips);
        Ok(Wait::Nothing)
    }

    /// Refuses questions about an event that was recorded in a capture, and such that are unsafe
    /// now.
    ///
    /// # Errors
    /// CUDA_ERROR_CAPTURED_EVENT, with the capture invalidated; CUDA_ERROR_INVALID_VALUE if the
    /// capture is over; and as for [`Self::refuse_unsafe_call`].
    pub fn refuse_question(&self, recorded: &Recorded<G>) -> Answer {
        let Recorded::Captured(point) = recorded else { return self.refuse_unsafe_call() };
        if point.capture.status() != Status::NONE {
            point.capture.invalidate();
            return Err(CUresult::ERROR_CAPTURED_EVENT);
        }
        self.refuse_unsafe_call()?;
        Err(CUresult::ERROR_INVALID_VALUE)
    }

    /// Changes what a captured stream's next work depends on.
    ///
    /// # Errors
    /// CUDA_ERROR_ILLEGAL_STATE for a stream that is not captured,
    /// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, and CUDA_ERROR_INVALID_VALUE for nodes of other
    /// graphs.
    pub fn update(&self, stream: Stream, change: Change, tips: Tips) -> Answer {
        let capture = self.active(stream)?.ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        if !capture.graph.has_all(&tips) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut inner = capture.lock();
        let inner = &mut *inner;
        let member = inner.streams.get_mut(&stream.id).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        if change == Change::Set {
            let forgotten = member.tips.drain(..);
            forgotten.for_each(|(tip, _)| _ = inner.unjoined.remove(&tip));
        }
        member.depend(tips);
        Ok(())
    }

    /// Answers a question about a stream; `None` outside captures.
    pub fn info(&self, stream: Stream) -> Option<Info<G>> {
        let capture = self.find(stream)?;
        let mut inner = capture.lock();
        let status = inner.status;
        let member = inner.streams.get_mut(&stream.id)?;
        let nodes = member.tips.iter().map(|(node, _)| CUgraphNode(*node)).collect();
        let edges = member.tips.iter().map(|(_, data)| data.to_c()).collect();
        member.shown = (nodes, edges);
        Some(Info {
            status,
            id: capture.id,
            graph: Arc::clone(&capture.graph),
            dependencies: member.shown.0.as_ptr(),
            edges: member.shown.1.as_ptr(),
            count: member.tips.len(),
        })
    }
}
