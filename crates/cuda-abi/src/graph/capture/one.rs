//! One capture: the streams that take part, and what the next work of each depends on.

use super::{Answer, CapturedGraph, MadeFor, Point, Stream, Tips};
use crate::graph::shape::EdgeData;
use crate::types::{
    CUgraphEdgeData, CUgraphNode, CUresult, CUstreamCaptureMode as Mode,
    CUstreamCaptureStatus as Status,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// One capture, from its begin to its end.
#[derive(Debug)]
pub struct Capture<G> {
    /// `cuStreamGetCaptureInfo`'s number.
    pub id: u64,
    /// What is being made.
    pub graph: Arc<G>,
    pub(super) mode: Mode,
    pub(super) thread: ThreadId,
    /// The stream that began it.
    pub(super) origin: u64,
    pub(super) made_for: MadeFor,
    pub(super) inner: Mutex<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) status: Status,
    pub(super) streams: HashMap<u64, Member>,
    /// Captured work that no captured work depends on, and that no stream was made to forget
    /// (`cuStreamUpdateCaptureDependencies`): the origin must depend on it in the end. Nodes that
    /// the program added by hand are never among it; the work of destroyed streams is.
    pub(super) unjoined: BTreeSet<usize>,
}

/// A stream that takes part.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) stream: Stream,
    /// What its next work depends on.
    pub(super) tips: Tips,
    /// Arrays that the last question was answered with; the caller reads them until the next call
    /// for this stream.
    pub(super) shown: (Box<[CUgraphNode]>, Box<[CUgraphEdgeData]>),
}

impl Member {
    pub(super) fn depend(&mut self, tips: Tips) {
        for tip in tips {
            if !self.tips.iter().any(|(node, _)| *node == tip.0) {
                self.tips.push(tip);
            }
        }
    }

    pub(super) fn nodes(&self) -> Vec<usize> {
        self.tips.iter().map(|(node, _)| *node).collect()
    }
}

impl<G: CapturedGraph> Capture<G> {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Active, invalidated, or none once it has ended.
    pub fn status(&self) -> Status {
        self.lock().status
    }

    /// Makes it end without a graph.
    pub fn invalidate(&self) {
        let mut inner = self.lock();
        if inner.status == Status::ACTIVE {
            inner.status = Status::INVALIDATED;
        }
    }

    pub(super) fn own_graph(&self) -> Option<Arc<G>> {
        (self.made_for == MadeFor::Capture).then(|| Arc::clone(&self.graph))
    }

    /// What ending it in its origin comes to.
    pub(super) fn outcome(&self) -> Answer {
        if self.mode != Mode::RELAXED && self.thread != std::thread::current().id() {
            return Err(CUresult::ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        let inner = self.lock();
        if inner.status != Status::ACTIVE {
            return Err(CUresult::ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let own = inner.streams.get(&self.origin).map(Member::nodes).unwrap_or_default();
        let joined = self.graph.ancestors(&own);
        match inner.unjoined.is_subset(&joined) {
            true => Ok(()),
            false => Err(CUresult::ERROR_STREAM_CAPTURE_UNJOINED),
        }
    }

    /// Makes the stream take part, or depend on more nodes if it does already.
    pub(super) fn join(&self, stream: Stream, tips: Tips) {
        let mut inner = self.lock();
        let member = inner.streams.entry(stream.id).or_insert_with(|| Member {
            stream,
            tips: Vec::new(),
            shown: Default::default(),
        });
        member.depend(tips);
    }

    /// Adds what a captured stream was given to do; returns the node.
    ///
    /// # Errors
    /// Why the graph refuses it: the capture is invalidated then. CUDA_ERROR_ILLEGAL_STATE if the
    /// stream takes no part any more.
    pub fn add(&self, stream: Stream, work: G::Work) -> Answer<usize> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let member = inner.streams.get_mut(&stream.id).ok_or(CUresult::ERROR_ILLEGAL_STATE)?;
        let added = self.graph.add_captured(work, &member.tips);
        match added {
            Ok(node) => {
                let before = std::mem::replace(&mut member.tips, vec![(node, EdgeData::default())]);
                before.iter().for_each(|(tip, _)| _ = inner.unjoined.remove(tip));
                inner.unjoined.insert(node);
            }
            Err(_) => inner.status = Status::INVALIDATED,
        }
        added
    }

    /// What the stream's next work depends on.
    pub fn tips(&self, stream: Stream) -> Vec<usize> {
        self.lock().streams.get(&stream.id).map(Member::nodes).unwrap_or_default()
    }

    /// Where an event is that is recorded in a captured stream now: who waits for it joins.
    pub fn point(self: &Arc<Self>, stream: Stream) -> Point<G> {
        Point { capture: Arc::clone(self), nodes: self.tips(stream) }
    }
}
