//! Conditions of graphs: values that kernels set and conditional nodes read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use super::numbers::Numbers;

/// First handle; programs treat handles as opaque numbers.
const FIRST: u64 = 0x5c0d_c000_0000;

/// All conditions of a process.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    values: RwLock<HashMap<u64, AtomicU32>>,
    numbers: Mutex<Numbers>,
}

impl Conditions {
    /// A condition with value 0; returns its handle.
    pub(crate) fn create(&self) -> u64 {
        let handle = FIRST + self.numbers.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        values.insert(handle, AtomicU32::new(0));
        handle
    }

    /// Sets a value; `false` when there is no such condition.
    pub(crate) fn set(&self, handle: u64, value: u32) -> bool {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: the engine's lock orders a kernel with the node that comes after it.
        values.get(&handle).map(|cell| cell.store(value, Ordering::Relaxed)).is_some()
    }

    /// The value now; 0 when there is no such condition.
    pub(crate) fn get(&self, handle: u64) -> u32 {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: as in `set`.
        values.get(&handle).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Ends a condition.
    pub(crate) fn remove(&self, handle: u64) {
        let removed = self.values.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        if removed.is_some() {
            let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            numbers.give_back(handle - FIRST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_set_while_it_exists() {
        let conditions = Conditions::default();
        let (first, second) = (conditions.create(), conditions.create());
        assert!(conditions.set(first, 7) && conditions.set(second, 9));
        assert_eq!((conditions.get(first), conditions.get(second)), (7, 9));
        conditions.remove(first);
        assert!(!conditions.set(first, 1));
        assert_eq!(conditions.get(first), 0);
        assert_eq!(conditions.create(), first, "the smallest that is free");
    }
}
