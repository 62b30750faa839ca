//! Executable graphs that nothing names any more, and that may still run.
//!
//! A driver is to keep an executable graph that is destroyed until it has run. NVIDIA's 580 gives
//! the parameters of nodes that were set later to other graphs at once: a kernel that had not begun
//! then runs with the parameters of another one, of any client (docs/lab-notebook.md). So a graph
//! is destroyed only when all that its session had submitted before has ended.

use crate::session::state::State;
use cuda_abi::types::{CUevent, CUgraphExec, CUresult};
use std::time::Duration;

/// So many come together before events are recorded behind them.
const TOGETHER: usize = 8;
/// Between two looks of a session that waits until its work has ended, at first and at most.
const LOOK: Duration = Duration::from_micros(20);
const LONGEST_LOOK: Duration = Duration::from_millis(2);

/// Those of one session.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// Behind them nothing was recorded yet.
    new: Vec<CUgraphExec>,
    /// They have ended when all of `fence` has been reached.
    fenced: Vec<CUgraphExec>,
    fence: Vec<CUevent>,
}

impl State {
    /// Destroys an executable graph, now or when it has ended.
    pub(crate) fn retire_executable(&mut self, executable: CUgraphExec) {
        if executable == CUgraphExec::NULL {
            return;
        }
        if !self.may_work() {
            return self.destroy_executable(executable);
        }
        self.retired.new.push(executable);
        if self.retired.new.len() < TOGETHER || !self.fence_is_reached() {
            return;
        }
        self.end_fenced();
        self.retired.fenced = std::mem::take(&mut self.retired.new);
        let words = &self.handle.words;
        self.retired.fence = self.streams.fence(&self.shared.context, |slot| words.completed(slot));
    }

    /// Destroys all that were retired: the session's work has ended.
    pub(crate) fn end_retired(&mut self) {
        self.end_fenced();
        for executable in std::mem::take(&mut self.retired.new) {
            self.destroy_executable(executable);
        }
    }

    /// Waits until what the session has submitted has ended, or nobody wants to know any more.
    pub(crate) fn await_end_of_work(&mut self) {
        let mut look = LOOK;
        while !self.has_ended() && !self.handle.gives_up() && self.ended().is_none() {
            std::thread::sleep(look);
            look = (look * 2).min(LONGEST_LOOK);
        }
    }

    fn fence_is_reached(&self) -> bool {
        let driver = self.driver();
        // SAFETY: a live event of this session.
        let is_reached = |&event: &CUevent| unsafe { driver.cuEventQuery(event) };
        self.retired.fence.iter().map(is_reached).all(|found| found != CUresult::ERROR_NOT_READY)
    }

    fn end_fenced(&mut self) {
        self.shared.context.end_events(self.retired.fence.drain(..));
        for executable in std::mem::take(&mut self.retired.fenced) {
            self.destroy_executable(executable);
        }
    }

    fn destroy_executable(&self, executable: CUgraphExec) {
        // SAFETY: a live handle of this session, which nothing names any more and which has ended.
        let _ = unsafe { self.driver().cuGraphExecDestroy(executable) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Step;
    use crate::testbed::{Bed, Client, Work, graphs, set_work};

    fn retire(client: &mut Client, count: usize) {
        (0..count).for_each(|_| client.session.state().retire_executable(CUgraphExec(1 as _)));
    }

    fn ended() -> usize {
        graphs().1 as usize
    }

    #[test]
    fn a_session_at_rest_destroys_at_once() {
        let bed = Bed::new();
        let mut client = bed.open();
        retire(&mut client, 3);
        assert_eq!(ended(), 3);
        client.session.state().retire_executable(CUgraphExec::NULL);
        assert_eq!(ended(), 3);
    }

    #[test]
    fn beside_endless_work_nothing_is_destroyed() {
        let bed = Bed::new();
        let mut client = bed.open();
        client.post_launch();
        assert_eq!(client.serve(), Step::Nothing);
        set_work(Work::Lasts);
        retire(&mut client, 5 * TOGETHER);
        assert_eq!(ended(), 0);
    }

    #[test]
    fn who_never_rests_keeps_few() {
        let bed = Bed::new();
        let mut client = bed.open();
        for round in 0..50 {
            // Its signals are not asked for: only what was recorded says that work has ended.
            client.post_launch();
            assert_eq!(client.serve(), Step::Nothing);
            retire(&mut client, TOGETHER);
            assert_eq!(ended(), round * TOGETHER);
        }
        client.session.state().end_retired();
        assert_eq!(ended(), 50 * TOGETHER);
    }
}
