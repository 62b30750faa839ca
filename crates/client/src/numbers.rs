//! Small numbers by which the executor knows events, modules and functions.

use crate::result::Result;
use cuda_abi::types::CUresult;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Hands out numbers from 1, the smallest first, and takes them back.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// What every number is below: the executor ends a session that goes beyond.
    limit: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u32,
    free: BTreeSet<u32>,
}

impl Numbers {
    /// All below `limit`.
    pub(crate) fn below(limit: u32) -> Self {
        Self { limit, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that nothing alive has; CUDA_ERROR_OUT_OF_MEMORY when all are taken.
    pub(crate) fn take(&self) -> Result<u32> {
        let mut state = self.lock();
        if let Some(number) = state.free.pop_first() {
            return Ok(number);
        }
        let next = state.last + 1;
        if next >= self.limit {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        state.last = next;
        Ok(next)
    }

    /// Gives a number back whose destruction has been posted.
    pub(crate) fn give_back(&self, number: u32) {
        self.lock().free.insert(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_the_executor_ends_them() {
        let numbers = Numbers::below(3);
        assert_eq!((numbers.take(), numbers.take()), (Ok(1), Ok(2)));
        assert_eq!(numbers.take(), Err(CUresult::ERROR_OUT_OF_MEMORY));
        numbers.give_back(1);
        assert_eq!(numbers.take(), Ok(1));
    }
}
