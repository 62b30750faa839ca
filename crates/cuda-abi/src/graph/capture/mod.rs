//! Stream capture: streams whose work becomes nodes of a graph instead of being done.
//!
//! A capture begins in one stream; other streams join it by waiting for an event that was recorded
//! in it. Per stream it keeps the nodes that the stream's next work depends on. What would break
//! the order that is being captured ends it: it stays *invalidated* until its origin ends it. Which
//! call does what, and with which code, is as measured of NVIDIA's driver 580.
//!
//! | file | concept |
//! |---|---|
//! | `one` | one capture: its streams and what their next work depends on |
//! | `all` | all captures of a process: who may do what meanwhile |

mod all;
mod one;

pub use all::Captures;
pub use one::Capture;

use super::shape::EdgeData;
use crate::types::{
    CUgraphEdgeData, CUgraphNode, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus as Status,
};
use std::collections::BTreeSet;
use std::sync::Arc;

type Answer<T = ()> = Result<T, CUresult>;

/// Nodes that further work depends on, and how.
pub type Tips = Vec<(usize, EdgeData)>;

/// A graph that work is captured into.
pub trait CapturedGraph {
    /// What a node does.
    type Work;

    /// Adds a node; returns its key.
    ///
    /// # Errors
    /// Why it cannot be added.
    fn add_captured(
        self: &Arc<Self>,
        work: Self::Work,
        after: &[(usize, EdgeData)],
    ) -> Result<usize, CUresult>;

    /// The given nodes and everything that they depend on.
    fn ancestors(&self, of: &[usize]) -> BTreeSet<usize>;

    /// Whether all these nodes are in the graph.
    fn has_all(&self, nodes: &[(usize, EdgeData)]) -> bool;

    /// What the calling thread may do while captures are going on: global until it asks for
    /// something else (`cuThreadExchangeStreamCaptureMode`).
    fn thread_mode() -> CUstreamCaptureMode;
}

/// A mode that a program asks for, if there is such a one.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a mode that does not exist.
pub fn known_mode(mode: CUstreamCaptureMode) -> Answer<CUstreamCaptureMode> {
    match mode.0 <= CUstreamCaptureMode::RELAXED.0 {
        true => Ok(mode),
        false => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// A stream, as far as captures are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Different from every other stream's.
    pub id: u64,
    /// Its context.
    pub context: u64,
    /// Whether it waits for the legacy stream, and that for it.
    pub ordering: LegacyOrder,
}

/// How a stream relates to its context's legacy stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyOrder {
    /// It is the legacy stream.
    Itself,
    /// Ordered with it.
    Blocking,
    /// Not ordered with it.
    NonBlocking,
}

/// Whom a capture's graph was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeFor {
    /// For the capture: it goes with a capture that fails.
    Capture,
    /// By the program, which keeps it.
    Program,
}

/// Where in a capture an event was recorded.
#[derive(Debug)]
pub struct Point<G> {
    capture: Arc<Capture<G>>,
    nodes: Vec<usize>,
}

impl<G> Clone for Point<G> {
    fn clone(&self) -> Self {
        Self { capture: Arc::clone(&self.capture), nodes: self.nodes.clone() }
    }
}

/// Where an event was recorded last, for who waits for it.
#[derive(Debug)]
pub enum Recorded<G> {
    /// Nowhere.
    Never,
    /// In a stream that was not captured.
    Outside,
    /// In a capture.
    Captured(Point<G>),
}

/// What a stream that waits for an event has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing: there is nothing to wait for, or the capture knows.
    Nothing,
    /// To wait.
    Needed,
}

/// What a question about a stream's capture is answered with.
#[derive(Debug)]
pub struct Info<G> {
    /// Active or invalidated.
    pub status: Status,
    /// The capture's number.
    pub id: u64,
    /// What is being made.
    pub graph: Arc<G>,
    /// What the stream's next work depends on; valid until the next question about the stream.
    pub dependencies: *const CUgraphNode,
    /// As long as `dependencies`.
    pub edges: *const CUgraphEdgeData,
    /// Length of both.
    pub count: usize,
}

/// How a capture ended.
#[derive(Debug)]
pub enum Ended<G> {
    /// With a graph.
    Graph(Arc<G>),
    /// With an error; the graph, if it was made for the capture, is to be given up.
    Failed(CUresult, Option<Arc<G>>),
}

/// Whether a refused call also ends the capture that it conflicts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does.
    Invalidate,
    /// It does not.
    Keep,
}

/// How [`Captures::update`] changes dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// These as well.
    Add,
    /// These instead.
    Set,
}

#[cfg(test)]
mod tests;
