//! Small numbers by which the executor knows events, modules and functions.

use std::sync::Mutex;

/// Hands out numbers from 1, the smallest first, and takes them back.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u32,
    free: std::collections::BTreeSet<u32>,
}

impl Numbers {
    /// A number that nothing alive has.
    pub(crate) fn take(&self) -> u32 {
        let mut state = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.free.pop_first().unwrap_or_else(|| {
            state.last += 1;
            state.last
        })
    }

    /// Gives a number back whose destruction has been posted.
    pub(crate) fn give_back(&self, number: u32) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).free.insert(number);
    }
}
