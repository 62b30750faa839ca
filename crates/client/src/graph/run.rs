//! What a launch of an executable graph does, and whether the last one has ended.

use super::plan::HostAction;
use crate::result::Result;
use crate::session::Session;
use crate::stream::event::Event;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What a launch does, segment by segment.
pub(super) type Run = Arc<[RunSegment]>;

/// One segment, as far as launches are concerned.
pub(super) struct RunSegment {
    pub(super) graph: Option<u32>,
    /// Events that its graph records.
    pub(super) records: Vec<Arc<Event>>,
    pub(super) prints: bool,
    pub(super) host: Vec<HostAction>,
}

/// Whether a launch has segments that were not posted.
#[derive(Default)]
pub(super) struct Chain {
    is_running: Mutex<bool>,
    ended: Condvar,
}

/// Ends its chain when it is dropped.
pub(super) struct ChainEnd(Arc<Chain>);

impl Chain {
    /// Waits until all segments of the last launch were posted.
    pub(super) fn wait(&self, session: &Session) -> Result {
        let mut is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        while *is_running {
            session.check()?;
            let waited = self.ended.wait_timeout(is_running, CHECK_INTERVAL);
            is_running = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Whether it has such segments now.
    pub(super) fn is_running(&self) -> bool {
        *self.is_running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A launch begins that does.
    pub(super) fn begin(chain: &Arc<Self>) -> ChainEnd {
        chain.set(true);
        ChainEnd(Arc::clone(chain))
    }

    fn set(&self, is_running: bool) {
        *self.is_running.lock().unwrap_or_else(PoisonError::into_inner) = is_running;
        self.ended.notify_all();
    }
}

impl Drop for ChainEnd {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
