//! Stream capture: streams whose work becomes nodes of a graph instead of being done.
//!
//! A capture begins in one stream; other streams join it by waiting for an event that was recorded in it. Per stream it keeps the nodes
//! that the stream's next work depends on. What would break the order that is being captured ends it: it stays *invalidated*
//! until its origin ends it. Which call does what, and with which code, is as measured of NVIDIA's driver 580.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

use cuda_abi::types::{
    CUgraphEdgeData, CUgraphNode, CUresult, CUstreamCaptureMode as Mode,
    CUstreamCaptureStatus as Status,
};

use super::kinds::NodeKind;
use super::model::{EdgeData, Graph};
use crate::api::Answer;
use crate::api::driver::Driver;
use crate::api::objects::{Event, Recorded, Stream};
use crate::device::engine::StreamKind;

/// Nodes that further work depends on, and how.
pub(crate) type Tips = Vec<(usize, EdgeData)>;

thread_local! {
    /// What the thread may do while captures are going on.
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::GLOBAL) };
}

/// One capture, from its begin to its end.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: u64,
    mode: Mode,
    thread: ThreadId,
    /// The engine's number of the stream that began it.
    origin: u64,
    pub(crate) graph: Arc<Graph>,
    /// Whether the graph was made for this capture.
    owns_graph: bool,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    status: Status,
    streams: HashMap<u64, Member>,
}

/// A stream that takes part.
#[derive(Debug)]
struct Member {
    stream: Weak<Stream>,
    context_id: u64,
    kind: StreamKind,
    /// What its next work depends on.
    tips: Tips,
    /// Arrays that the last question was answered with; the caller reads them until the next call for this stream.
    shown: (Box<[CUgraphNode]>, Box<[CUgraphEdgeData]>),
}

/// All captures of the process that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    active: Mutex<Vec<Arc<Capture>>>,
    /// Length of `active`, so that calls outside captures need no lock.
    count: AtomicUsize,
    next_id: AtomicU64,
}

/// What a question about a stream's capture is answered with.
pub(crate) struct Info {
    pub(crate) status: Status,
    pub(crate) id: u64,
    pub(crate) graph: Arc<Graph>,
    pub(crate) dependencies: *const CUgraphNode,
    pub(crate) edges: *const CUgraphEdgeData,
    pub(crate) count: usize,
}

/// Sets the thread's mode and returns the one before.
pub(crate) fn exchange_thread_mode(mode: Mode) -> Mode {
    THREAD_MODE.with(|cell| cell.replace(mode))
}

/// The stream's capture while it is active; 901 when it was invalidated.
pub(crate) fn of(stream: &Stream) -> Answer<Option<Arc<Capture>>> {
    match stream.capture() {
        Some(capture) if capture.status() == Status::ACTIVE => Ok(Some(capture)),
        Some(_) => Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED),
        None => Ok(None),
    }
}

/// Invalidates the capture that the stream takes part in, if any.
pub(crate) fn invalidate(stream: &Stream) {
    if let Some(capture) = stream.capture() {
        capture.invalidate();
    }
}

/// Refuses a call that cannot be captured, and invalidates the capture: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
pub(crate) fn refuse(stream: &Stream) -> Answer {
    match stream.capture() {
        None => Ok(()),
        Some(capture) => {
            capture.invalidate();
            Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

impl Captures {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Capture>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        // Relaxed: a thread sees its own captures; of other threads' the order is the program's affair.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Captures that a call which may touch running work would break; they are invalidated and the call is refused.
    pub(crate) fn refuse_unsafe_call(&self) -> Answer {
        let thread_mode = THREAD_MODE.with(Cell::get);
        if self.is_empty() || thread_mode == Mode::RELAXED {
            return Ok(());
        }
        let thread = std::thread::current().id();
        self.refuse_because_of(|capture| {
            capture.mode != Mode::RELAXED && capture.thread == thread
                || capture.mode == Mode::GLOBAL && thread_mode == Mode::GLOBAL
        })
    }

    /// Refuses a call that waits for all work of a context in which something is captured.
    pub(crate) fn refuse_synchronizing(&self, context_id: u64) -> Answer {
        self.refuse_unsafe_call()?;
        if self.is_empty() {
            return Ok(());
        }
        self.refuse_because_of(|capture| {
            capture.lock().streams.values().any(|member| member.context_id == context_id)
        })
    }

    fn refuse_because_of(&self, concerns: impl Fn(&Capture) -> bool) -> Answer {
        let concerned: Vec<Arc<Capture>> =
            self.lock().iter().filter(|capture| concerns(capture)).cloned().collect();
        concerned.iter().for_each(|capture| capture.invalidate());
        match concerned.is_empty() {
            true => Ok(()),
            false => Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED),
        }
    }

    /// Whether a blocking stream of the context is captured: the legacy stream cannot be used then. 906; invalidates for work.
    pub(crate) fn refuse_legacy(&self, context_id: u64, effect: Effect) -> Answer {
        if self.is_empty() {
            return Ok(());
        }
        let concerned: Vec<Arc<Capture>> = self
            .lock()
            .iter()
            .filter(|capture| {
                let inner = capture.lock();
                inner.streams.values().any(|member| {
                    member.context_id == context_id && member.kind == StreamKind::Blocking
                })
            })
            .cloned()
            .collect();
        if effect == Effect::Invalidate {
            concerned.iter().for_each(|capture| capture.invalidate());
        }
        match concerned.is_empty() {
            true => Ok(()),
            false => Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT),
        }
    }

    /// Begins a capture in a stream, into a graph of its own or after nodes of a given one.
    pub(crate) fn begin(
        &self,
        driver: &Driver,
        stream: &Arc<Stream>,
        mode: Mode,
        into: Option<(Arc<Graph>, Tips)>,
    ) -> Answer {
        if mode.0 > Mode::RELAXED.0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if stream.kind == StreamKind::Legacy {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if stream.capture().is_some() {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        let owns_graph = into.is_none();
        let (graph, tips) = into.unwrap_or_else(|| (Graph::create(driver), Vec::new()));
        let capture = Arc::new(Capture {
            // Relaxed: only uniqueness matters.
            id: self.next_id.fetch_add(1, Ordering::Relaxed) + 1,
            mode,
            thread: std::thread::current().id(),
            origin: stream.id,
            graph,
            owns_graph,
            inner: Mutex::new(Inner { status: Status::ACTIVE, streams: HashMap::new() }),
        });
        capture.join(stream, tips);
        let mut active = self.lock();
        active.push(capture);
        // Relaxed: see `is_empty`.
        self.count.store(active.len(), Ordering::Relaxed);
        Ok(())
    }

    /// Ends the stream's capture and returns its graph. Whatever the outcome, except that the stream did not begin it, the capture is over.
    pub(crate) fn end(&self, driver: &Driver, stream: &Stream) -> Answer<Arc<Graph>> {
        let capture = stream.capture().ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        if capture.origin != stream.id {
            capture.invalidate();
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let outcome = capture.outcome();
        self.finish(&capture);
        if outcome.is_err() && capture.owns_graph {
            capture.graph.forget(driver);
        }
        outcome.map(|()| capture.graph.clone())
    }

    /// Drops the capture that a stream began, as when the stream is destroyed.
    pub(crate) fn abandon(&self, driver: &Driver, stream: &Stream) {
        let Some(capture) = stream.capture() else { return };
        if capture.origin == stream.id {
            self.finish(&capture);
            if capture.owns_graph {
                capture.graph.forget(driver);
            }
        } else {
            capture.lock().streams.remove(&stream.id);
        }
    }

    fn finish(&self, capture: &Arc<Capture>) {
        let members = {
            let mut inner = capture.lock();
            inner.status = Status::NONE;
            std::mem::take(&mut inner.streams)
        };
        for member in members.into_values() {
            if let Some(stream) = member.stream.upgrade() {
                stream.set_capture(None);
            }
        }
        let mut active = self.lock();
        active.retain(|other| !Arc::ptr_eq(other, capture));
        // Relaxed: see `is_empty`.
        self.count.store(active.len(), Ordering::Relaxed);
    }
}

/// Whether a refused call also ends the capture that it conflicts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Invalidate,
    Keep,
}

impl Capture {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Active, invalidated, or none once it has ended.
    pub(crate) fn status(&self) -> Status {
        self.lock().status
    }

    pub(crate) fn invalidate(&self) {
        let mut inner = self.lock();
        if inner.status == Status::ACTIVE {
            inner.status = Status::INVALIDATED;
        }
    }

    /// What ending it in its origin comes to.
    fn outcome(&self) -> Answer {
        if self.mode != Mode::RELAXED && self.thread != std::thread::current().id() {
            return Err(CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let inner = self.lock();
        if inner.status != Status::ACTIVE {
            return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let tips_of =
            |member: &Member| -> Vec<usize> { member.tips.iter().map(|(node, _)| *node).collect() };
        let own = inner.streams.get(&self.origin).map(tips_of).unwrap_or_default();
        let joined = self.graph.lock().ancestors(&own);
        let is_joined = |member: &Member| tips_of(member).iter().all(|node| joined.contains(node));
        match inner.streams.values().all(is_joined) {
            true => Ok(()),
            false => Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED),
        }
    }

    /// Makes the stream take part, or depend on more nodes if it does already.
    fn join(self: &Arc<Self>, stream: &Arc<Stream>, tips: Tips) {
        let mut inner = self.lock();
        let member = inner.streams.entry(stream.id).or_insert_with(|| Member {
            stream: Arc::downgrade(stream),
            context_id: stream.context_id,
            kind: stream.kind,
            tips: Vec::new(),
            shown: Default::default(),
        });
        for tip in tips {
            if !member.tips.iter().any(|(node, _)| *node == tip.0) {
                member.tips.push(tip);
            }
        }
        drop(inner);
        stream.set_capture(Some(self.clone()));
    }

    /// Adds what a capturing stream was given to do.
    pub(crate) fn add(
        &self,
        driver: &Driver,
        stream: &Stream,
        work: NodeKind,
    ) -> Answer<CUgraphNode> {
        let mut inner = self.lock();
        let member = inner.streams.get_mut(&stream.id).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        let added = self.graph.add(driver, work, &member.tips);
        match added {
            Ok(node) => member.tips = vec![(node.0, EdgeData::default())],
            Err(_) => inner.status = Status::INVALIDATED,
        }
        added
    }

    /// What the stream's next work depends on.
    fn tips(&self, stream: &Stream) -> Vec<usize> {
        let inner = self.lock();
        let member = inner.streams.get(&stream.id);
        member.map(|m| m.tips.iter().map(|(node, _)| *node).collect()).unwrap_or_default()
    }

    /// Records an event in a capturing stream: who waits for it joins.
    pub(crate) fn record(self: &Arc<Self>, stream: &Stream, event: &Event) {
        event.set_recorded(Recorded::Captured { capture: self.clone(), nodes: self.tips(stream) });
    }

    /// Changes what the stream's next work depends on.
    pub(crate) fn update(&self, stream: &Stream, change: Change, tips: Tips) -> Answer {
        {
            let state = self.graph.lock();
            if tips.iter().any(|(node, _)| !state.nodes.contains_key(node)) {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
        }
        let mut inner = self.lock();
        let member = inner.streams.get_mut(&stream.id).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        if change == Change::Set {
            member.tips.clear();
        }
        for tip in tips {
            if !member.tips.iter().any(|(node, _)| *node == tip.0) {
                member.tips.push(tip);
            }
        }
        Ok(())
    }

    /// Answers a question about a stream that takes part.
    pub(crate) fn info(&self, stream: &Stream) -> Answer<Info> {
        let mut inner = self.lock();
        let status = inner.status;
        let member = inner.streams.get_mut(&stream.id).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        let nodes = member.tips.iter().map(|(node, _)| CUgraphNode(*node)).collect();
        let edges = member.tips.iter().map(|(_, data)| data.to_c()).collect();
        member.shown = (nodes, edges);
        Ok(Info {
            status,
            id: self.id,
            graph: self.graph.clone(),
            dependencies: member.shown.0.as_ptr(),
            edges: member.shown.1.as_ptr(),
            count: member.tips.len(),
        })
    }
}

/// How [`Capture::update`] changes dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    Set,
}

/// A stream waits for an event where a capture is concerned: `true` when that is all there is to do.
pub(crate) fn wait(stream: &Arc<Stream>, event: &Event) -> Answer<bool> {
    let own = of(stream)?;
    match (event.recorded(), own) {
        // Other processes may have recorded it.
        (Recorded::Never, None) if event.shared().is_some() => Ok(false),
        (Recorded::Never, _) => Ok(true),
        (Recorded::At(_), None) => Ok(false),
        (Recorded::At(_), Some(capture)) => {
            capture.invalidate();
            Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION)
        }
        (Recorded::Captured { capture, nodes }, own) => {
            match capture.status() {
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
            if let Some(own) = own.filter(|own| !Arc::ptr_eq(own, &capture)) {
                own.invalidate();
                capture.invalidate();
                return Err(CUresult::ERROR_STREAM_CAPTURE_MERGE);
            }
            let tips = nodes.into_iter().map(|node| (node, EdgeData::default())).collect();
            capture.join(stream, tips);
            Ok(true)
        }
    }
}
