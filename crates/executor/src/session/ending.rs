//! A session that was told to end while its client is still there: terminated, or ended by its
//! guard.
//!
//! It submits nothing more, but what it has submitted may run. Whether it does is the driver's word
//! alone: the completion words lie in memory that kernels reach, so that a kernel can say there
//! that it has ended. The thread goes on to answer its client meanwhile.

use super::{Session, StepError, Wish};
use std::time::Duration;

/// Between two questions to the driver.
const REST_POLL: Duration = Duration::from_millis(1);

impl Session {
    /// Asks the driver once whether all has ended. The call waits for no work. It can wait for the
    /// context's lock while another thread makes a call that does, so what has not ended is noted
    /// before.
    pub(super) fn come_to_rest(&mut self) -> Result<(), StepError> {
        self.state.standing.note_asked();
        // What waits to be submitted is refused.
        self.submit_batch()?;
        if self.state.has_work_in_driver() {
            if !self.consumer.has_posted() {
                std::thread::sleep(REST_POLL);
            }
        } else if self.state.context().lost().is_none() {
            self.state.standing.note_rest();
            self.heeded = Wish::Rest;
        }
        Ok(())
    }
}
