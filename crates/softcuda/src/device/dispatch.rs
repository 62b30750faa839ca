//! What starting, discarding and failing operations does; the other half of [`super::engine`].

use std::sync::Arc;

use super::clock::{self, ClockMode};
use super::engine::{Engine, ReadyTask, Started, State};
use super::fault::Sticky;
use super::grid::Grid;
use super::marker::MarkerState;
use super::memory::touch;
use super::ops::{GateState, Op};

impl Engine {
    /// Begins the operation at the head of stream `id`.
    pub(crate) fn start(
        &self,
        state: &mut State,
        id: u64,
        op: Op,
        again: &mut Vec<u64>,
    ) -> Started {
        match op {
            Op::Record(marker) => {
                again.extend(marker.resolve(MarkerState::Done { time_ns: self.time_ns(state) }));
                Started::Complete
            }
            Op::Wait(marker) if marker.is_resolved() => Started::Complete,
            Op::Wait(marker) => {
                marker.wait_for(id);
                Started::Waiting(Op::Wait(marker))
            }
            Op::Caller(gate) => {
                gate.set(GateState::Open);
                self.done.notify_all();
                Started::Busy
            }
            Op::Host(call) => {
                state.host_calls.push_back((id, call, None));
                self.host_work.notify_one();
                Started::Busy
            }
            Op::Task(task) => {
                state.tasks.push_back(ReadyTask { stream: id, task });
                self.work.notify_one();
                Started::Busy
            }
            Op::Launch(grid) => self.start_grid(state, id, grid),
            Op::WriteValue { address, value, width } => {
                if touch::write_value(&self.space.accessible().enter(), address, value, width) {
                    // Waits for this value need no timeout to see it.
                    again.append(&mut state.polls);
                    Started::Complete
                } else {
                    self.fail_stream(state, id, Sticky::IllegalAddress, again);
                    Started::Complete
                }
            }
            Op::WaitValue { address, value, width, condition } => {
                match touch::read_value(&self.space.accessible().enter(), address, width) {
                    Some(memory) if condition.holds(memory, value, width) => Started::Complete,
                    Some(_) => {
                        if !state.polls.contains(&id) {
                            state.polls.push(id);
                            self.work.notify_one();
                        }
                        Started::Waiting(Op::WaitValue { address, value, width, condition })
                    }
                    None => {
                        self.fail_stream(state, id, Sticky::IllegalAddress, again);
                        Started::Complete
                    }
                }
            }
        }
    }

    /// The time of what is done now.
    fn time_ns(&self, state: &State) -> u64 {
        match self.clock {
            ClockMode::Host => clock::now_ns(),
            ClockMode::Virtual => {
                let furthest = state.devices.iter().map(|placement| placement.now).max();
                clock::cycles_to_ns(furthest.unwrap_or(0))
            }
        }
    }

    fn start_grid(&self, state: &mut State, id: u64, grid: Arc<Grid>) -> Started {
        let Some(placement) = state.devices.get_mut(grid.device as usize) else {
            return Started::Complete;
        };
        grid.start(id);
        let wanted =
            usize::try_from(grid.units()).unwrap_or(usize::MAX).min(grid.mask.count() as usize);
        placement.grids.push(grid);
        if wanted == 1 {
            self.work.notify_one();
        } else {
            self.work.notify_all();
        }
        Started::Busy
    }

    /// Ends an operation of a failed context without doing it; `true`: somebody is still busy with
    /// it.
    pub(crate) fn discard(
        &self,
        state: &mut State,
        id: u64,
        op: Op,
        sticky: Sticky,
        again: &mut Vec<u64>,
    ) -> bool {
        match op {
            Op::Record(marker) => again.extend(marker.resolve(MarkerState::Failed)),
            Op::Caller(gate) => {
                gate.set(GateState::Failed(sticky));
                self.done.notify_all();
            }
            Op::Host(call) => {
                state.host_calls.push_back((id, call, Some(sticky)));
                self.host_work.notify_one();
                return true;
            }
            Op::Launch(_)
            | Op::Task(_)
            | Op::Wait(_)
            | Op::WriteValue { .. }
            | Op::WaitValue { .. } => {}
        }
        false
    }

    fn fail_stream(&self, state: &mut State, id: u64, sticky: Sticky, again: &mut Vec<u64>) {
        if let Some(context) = state.context_of(id) {
            again.extend(self.mark_failed(state, context, sticky));
        }
    }

    /// Gives a context its sticky error (the first one stays) and ends everything of it.
    pub(crate) fn fail_context(&self, state: &mut State, context: u64, sticky: Sticky) {
        for stream in self.mark_failed(state, context, sticky) {
            self.pump(state, stream);
        }
        self.done.notify_all();
    }

    /// The first half of [`Self::fail_context`]; returns the streams that have to be looked at.
    fn mark_failed(&self, state: &mut State, context: u64, sticky: Sticky) -> Vec<u64> {
        if !state.set_failed(context, sticky) {
            return Vec::new();
        }
        // Kernels: those that no worker is in end here, the others at the end of their slice.
        let mut ended: Vec<u64> = Vec::new();
        for placement in &mut state.devices {
            let mine: Vec<Arc<Grid>> = placement
                .grids
                .iter()
                .filter(|grid| grid.services.context == context)
                .cloned()
                .collect();
            for grid in mine {
                grid.stop();
                if placement.remove(&grid) {
                    ended.push(grid.stream());
                }
            }
        }
        // Tasks that no worker has taken yet.
        let (mine, others) = std::mem::take(&mut state.tasks)
            .into_iter()
            .partition(|ready: &ReadyTask| state.context_of(ready.stream) == Some(context));
        state.tasks = others;
        ended.extend(mine.iter().map(|ready| ready.stream));
        for stream in ended {
            state.end_head(stream);
        }
        state.streams_of(context)
    }

    /// Checks the streams that wait for values in memory.
    pub(crate) fn poll(&self, state: &mut State) {
        for stream in std::mem::take(&mut state.polls) {
            self.pump(state, stream);
        }
    }

    /// Completes a grid's launch after a slice, if it was the last to leave its SM. That need not
    /// be the slice that finished the last block: blocks finish without the lock, and another slice
    /// may come back here later.
    pub(crate) fn settle_grid(&self, state: &mut State, grid: &Arc<Grid>) {
        let Some(placement) = state.devices.get_mut(grid.device as usize) else { return };
        if (grid.is_finished() || grid.is_stopped()) && placement.remove(grid) {
            self.complete(state, grid.stream());
        }
    }
}
