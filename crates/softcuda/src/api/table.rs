//! Handles: numbers that stand for objects, looked up and never dereferenced.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cuda_abi::types::CUresult;

use super::answer::Answer;

/// First handle value; no program maps anything there.
const FIRST: usize = 0x5c0d_0000_0000;
/// Distance between handles; they look like addresses.
const STEP: usize = 16;

/// A handle value that no other object of the process ever had or will have.
pub(crate) fn fresh_handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(FIRST);
    // Relaxed: only uniqueness matters.
    NEXT.fetch_add(STEP, Ordering::Relaxed)
}

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    objects: RwLock<HashMap<usize, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { objects: RwLock::default() }
    }
}

impl<T> Table<T> {
    /// Adds an object under a handle from [`fresh_handle`].
    pub(crate) fn insert(&self, handle: usize, object: Arc<T>) {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).insert(handle, object);
    }

    /// The object of a handle, if there is one.
    pub(crate) fn find(&self, handle: usize) -> Option<Arc<T>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    /// The first object that a predicate selects.
    pub(crate) fn find_by(&self, selects: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.values().find(|object| selects(object)).cloned()
    }

    /// The object of a handle, or CUDA_ERROR_INVALID_HANDLE.
    pub(crate) fn get(&self, handle: usize) -> Answer<Arc<T>> {
        self.find(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Takes an object out, or CUDA_ERROR_INVALID_HANDLE.
    pub(crate) fn remove(&self, handle: usize) -> Answer<Arc<T>> {
        let removed = self.objects.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        removed.ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// All objects.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The handle of an object that a predicate selects.
    pub(crate) fn find_handle(&self, selects: impl Fn(&T) -> bool) -> Option<usize> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.iter().find(|(_, object)| selects(object)).map(|(handle, _)| *handle)
    }

    /// The handle of an object that a predicate selects, or of `object`, which is added then.
    pub(crate) fn find_handle_or_insert(&self, selects: impl Fn(&T) -> bool, object: T) -> usize {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        let known = objects.iter().find(|(_, object)| selects(object)).map(|(handle, _)| *handle);
        known.unwrap_or_else(|| {
            let handle = fresh_handle();
            objects.insert(handle, Arc::new(object));
            handle
        })
    }

    /// Takes out all objects that a predicate selects.
    pub(crate) fn remove_all(&self, selects: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        let handles: Vec<usize> = objects
            .iter()
            .filter(|(_, object)| selects(object))
            .map(|(handle, _)| *handle)
            .collect();
        handles.iter().filter_map(|handle| objects.remove(handle)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_until_it_is_removed_and_never_comes_back() {
        let table = Table::default();
        let handle = fresh_handle();
        table.insert(handle, Arc::new(7));
        assert_eq!(table.get(handle).as_deref(), Ok(&7));
        assert_eq!(table.get(handle + 1).err(), Some(CUresult::ERROR_INVALID_HANDLE));
        table.remove(handle).expect("is there");
        assert_eq!(table.get(handle).err(), Some(CUresult::ERROR_INVALID_HANDLE));
        assert_ne!(fresh_handle(), handle);
    }
}
