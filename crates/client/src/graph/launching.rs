//! Launches of executable graphs.
//!
//! One segment without host work is one posted command. Otherwise the stream's later work is held
//! by a gate, as behind any host function; the thread that runs host functions posts the next
//! segment itself when it has done a segment's host work, before it lowers the gate. Meanwhile the
//! executable graph is neither changed nor launched again: who wants to waits.

use super::executable::{AUTO_FREE_ON_LAUNCH, Executable, NOT_MADE, State};
use super::kinds::NodeKind;
use super::plan::HostAction;
use super::run::{Chain, ChainEnd, Run, RunSegment};
use crate::client::{Client, Launches};
use crate::context::backend::Backend;
use crate::result::Result;
use crate::stream::Target;
use crate::stream::callbacks::{Lane, Turn};
use crate::stream::gates::Ordered;
use cuda_abi::graph::model::{Kind, Role};
use cuda_abi::graph::reuse::{Leftovers, MemoryUse};
use cuda_abi::types::CUresult;
use link::wire::command::Opcode;
use link::wire::graph::{GraphLaunch, GraphUpload};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Where a launch goes.
#[derive(Clone, Copy)]
struct Place {
    backend: &'static Backend,
    lane: Lane,
}

impl State {
    /// What a launch does, made afresh after a change.
    fn run(&mut self) -> Run {
        if let Some(run) = &self.run {
            return Arc::clone(run);
        }
        let segments = self.plan.segments.iter().enumerate();
        let run: Run = segments
            .map(|(index, segment)| {
                let kinds = || {
                    segment
                        .device
                        .iter()
                        .filter(|&&step| self.steps[step].is_enabled)
                        .map(|&step| &self.steps[step].kind)
                };
                let records = kinds().filter_map(|kind| match kind {
                    NodeKind::EventRecord(event) => Some(Arc::clone(event)),
                    _ => None,
                });
                let prints = |kind: &NodeKind| matches!(kind, NodeKind::Kernel(work) if work.function.prints);
                RunSegment {
                    graph: self.numbers[index],
                    records: records.collect(),
                    prints: kinds().any(prints)
                        || self.conditional_segment() == Some(index)
                            && self.bodies.steps().any(|step| prints(&step.kind)),
                    host: self.plan.host_work(&self.steps, index),
                }
            })
            .collect();
        self.run = Some(Arc::clone(&run));
        run
    }

    /// What steps do to memory of graphs, in order.
    fn memory_uses(&self) -> Vec<MemoryUse> {
        let uses = self.steps.iter().filter_map(|step| match step.kind.role() {
            Role::Memory(used) => Some(used),
            _ => None,
        });
        uses.collect()
    }
}

impl Executable {
    /// Launches it into a stream of its own device.
    pub(crate) fn launch(&self, client: &Client, target: &Target) -> Result {
        self.check_place(target)?;
        let mut state = loop {
            self.chain.wait(&self.backend.session)?;
            target.pass_gates()?;
            let state = self.lock();
            if !self.chain.is_running() {
                break state;
            }
        };
        if !state.is_made() {
            return Err(NOT_MADE);
        }
        let memories = &client.graphs.memory;
        let leftovers = match self.flags & AUTO_FREE_ON_LAUNCH {
            0 => Leftovers::Refused,
            _ => Leftovers::Freed,
        };
        let effect = memories.launch(state.memory_uses(), leftovers)?;
        let run = state.run();
        self.follow_last_launch(&mut state, &run, target.slot)?;
        let place = Place { backend: self.backend, lane: target.lane() };
        let last = run.len().saturating_sub(1);
        let chain = match run.iter().position(|segment| !segment.host.is_empty()) {
            Some(first) if first < last => {
                for event in run[first + 1..].iter().flat_map(|segment| &segment.records) {
                    event.will_be_recorded(place.lane.slot, place.lane.ordered);
                }
                Some(Chain::begin(&self.chain))
            }
            _ => None,
        };
        place.post_from(&run, 0, chain, Turn::Last)?;
        memories.note(&effect, self.context.device);
        drop(state);
        match client.launches {
            Launches::Asynchronous => Ok(()),
            Launches::Blocking => {
                target.synchronize()?;
                target.backend.session.verdict()
            }
        }
    }

    /// Launches of one executable graph follow one another. The driver sees to its part; this
    /// process's part could run into the last launch if that is in another stream.
    fn follow_last_launch(&self, state: &mut State, run: &Run, slot: u32) -> Result {
        let has_host_work = run.iter().any(|segment| !segment.host.is_empty());
        match state.launched_in.replace(slot) {
            Some(other) if has_host_work && other != slot => {
                let session = &self.backend.session;
                session.pass_gates(other, Ordered::Alone)?;
                session.wait_quietly(self.id, session.mark(self.id, other)?)
            }
            _ => Ok(()),
        }
    }

    fn check_place(&self, target: &Target) -> Result {
        if self.context.token != target.context.owner_token() {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        if self.id != target.context.owner().wire_id() {
            return Err(CUresult::ERROR_CONTEXT_IS_DESTROYED);
        }
        Ok(())
    }

    /// Makes the next launch cheaper.
    pub(crate) fn upload(&self, target: &Target) -> Result {
        self.check_place(target)?;
        self.chain.wait(&self.backend.session)?;
        let state = self.lock();
        match state.numbers.first().copied().flatten() {
            None => self.backend.session.check(),
            Some(graph) => {
                let body = GraphUpload { graph, stream: target.slot };
                target.post(Opcode::GraphUpload, &body).map(drop)
            }
        }
    }
}

impl Place {
    /// Posts segments up to the next host work, and has that and the rest done in its `turn`.
    fn post_from(self, run: &Run, mut index: usize, chain: Option<ChainEnd>, turn: Turn) -> Result {
        let Self { backend, lane: Lane { id, slot, .. } } = self;
        while let Some(segment) = run.get(index) {
            if let Some(graph) = segment.graph {
                let body = GraphLaunch { graph, stream: slot };
                let parts = [body.as_bytes()];
                let announced = backend.session.announce(Opcode::GraphLaunch)?;
                let mark = backend.session.post_work(id, slot, Opcode::GraphLaunch, &parts)?;
                drop(announced);
                if segment.prints {
                    backend.session.output().expect();
                }
                segment.records.iter().for_each(|event| event.was_recorded(mark));
            }
            if !segment.host.is_empty() {
                return self.continue_after(Arc::clone(run), index, chain, turn);
            }
            index += 1;
        }
        match turn {
            Turn::Last => Ok(()),
            Turn::Next => backend.callbacks.settle(&backend.session, self.lane),
        }
    }

    fn continue_after(self, run: Run, index: usize, chain: Option<ChainEnd>, turn: Turn) -> Result {
        let function = move |outcome: Result| {
            if outcome.is_err() {
                return;
            }
            run[index].host.iter().for_each(HostAction::act);
            // A post fails with the session, which every later call reports.
            let _ = self.post_from(&run, index + 1, chain, Turn::Next);
        };
        let Self { backend, lane } = self;
        backend.callbacks.continue_after(&backend.session, lane, turn, Box::new(function))
    }
}

impl HostAction {
    fn act(&self) {
        match self {
            // SAFETY: the program's own function, with the argument that it asked for, at its turn.
            Self::Call(work) => unsafe { work.call() },
            // SAFETY: one end is the program's memory, which it keeps valid for launches of the
            // graph; the other is the program's too, or a bounce buffer as long as the copy, which
            // lives as long as the executable graph.
            Self::Copy { to, from, extent } => unsafe {
                crate::copy::copy_here(*to, *from, *extent);
            },
        }
    }
}
