//! Values that libraries keep per context (export table CONTEXT_LOCAL_STORAGE).
//!
//! libcudart looks its state up here before every call, so a lookup is one shared lock and a short
//! scan. When a context is reset or destroyed, the driver library must call
//! [`ContextStorage::destroy_context`]; without that libcudart keeps modules of the dead context.

use core::ffi::c_void;
use std::sync::{PoisonError, RwLock};

use crate::types::{CUcontext, CUresult};

/// Called with context, key and value when the context ends.
pub type Destructor = Option<unsafe extern "C" fn(CUcontext, *mut c_void, *mut c_void)>;

#[derive(Clone, Copy)]
struct Entry {
    context: CUcontext,
    key: usize,
    value: usize,
    destructor: Destructor,
}

/// The values of all contexts of the process.
pub struct ContextStorage(RwLock<Vec<Entry>>);

impl Default for ContextStorage {
    fn default() -> Self {
        Self::new()
    }
}

impl ContextStorage {
    /// An empty storage.
    pub const fn new() -> Self {
        Self(RwLock::new(Vec::new()))
    }

    /// Stores `value` under `key`, replacing what was there without calling its destructor.
    pub fn set(
        &self,
        context: CUcontext,
        key: *mut c_void,
        value: *mut c_void,
        destructor: Destructor,
    ) {
        let entry = Entry { context, key: key as usize, value: value as usize, destructor };
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match entries.iter_mut().find(|e| e.context == context && e.key == entry.key) {
            Some(old) => *old = entry,
            None => entries.push(entry),
        }
    }

    /// The value under `key`, or `CUDA_ERROR_INVALID_VALUE`.
    pub fn get(&self, context: CUcontext, key: *mut c_void) -> Result<*mut c_void, CUresult> {
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = entries.iter().find(|e| e.context == context && e.key == key as usize);
        found.map(|entry| entry.value as *mut c_void).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Forgets the value under `key` without calling its destructor, or
    /// `CUDA_ERROR_INVALID_VALUE` if there is none.
    pub fn delete(&self, context: CUcontext, key: *mut c_void) -> Result<(), CUresult> {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let found = entries.iter().position(|e| e.context == context && e.key == key as usize);
        entries.remove(found.ok_or(CUresult::ERROR_INVALID_VALUE)?);
        Ok(())
    }

    /// Forgets all values of `context` and calls their destructors, newest first.
    ///
    /// # Safety
    /// The destructors stored for the context must still be callable.
    pub unsafe fn destroy_context(&self, context: CUcontext) {
        loop {
            // One at a time and with the lock released: a destructor may call back.
            let entry = {
                let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
                let Some(last) = entries.iter().rposition(|e| e.context == context) else { return };
                entries.remove(last)
            };
            if let Some(destructor) = entry.destructor {
                // SAFETY: the caller vouches for the destructors, and they get what they were
                // stored with.
                unsafe {
                    destructor(context, entry.key as *mut c_void, entry.value as *mut c_void)
                };
            }
        }
    }

    /// Forgets everything, calling nothing: for the child of a fork.
    pub fn clear(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static DESTROYED: Mutex<Vec<(usize, usize, usize)>> = Mutex::new(Vec::new());
    static STORAGE: ContextStorage = ContextStorage::new();

    unsafe extern "C" fn note(context: CUcontext, key: *mut c_void, value: *mut c_void) {
        // Calls back, as a runtime does.
        assert!(STORAGE.get(context, key).is_err());
        DESTROYED.lock().unwrap().push((context.0, key as usize, value as usize));
    }

    fn pointer(value: usize) -> *mut c_void {
        value as *mut c_void
    }

    #[test]
    fn values_belong_to_a_context_and_end_with_it() {
        let (one, two) = (CUcontext(1), CUcontext(2));
        STORAGE.set(one, pointer(10), pointer(100), Some(note));
        STORAGE.set(one, pointer(11), pointer(110), Some(note));
        STORAGE.set(one, pointer(12), pointer(120), Some(note));
        STORAGE.set(two, pointer(10), pointer(200), Some(note));
        STORAGE.set(one, pointer(11), pointer(111), None);
        assert_eq!(STORAGE.get(one, pointer(10)), Ok(pointer(100)));
        assert_eq!(STORAGE.get(one, pointer(11)), Ok(pointer(111)));
        assert_eq!(STORAGE.get(two, pointer(10)), Ok(pointer(200)));
        assert_eq!(STORAGE.get(two, pointer(11)), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(STORAGE.delete(one, pointer(12)), Ok(()));
        assert_eq!(STORAGE.delete(one, pointer(12)), Err(CUresult::ERROR_INVALID_VALUE));
        // SAFETY: `note` is always callable.
        unsafe { STORAGE.destroy_context(one) };
        assert_eq!(*DESTROYED.lock().unwrap(), [(1, 10, 100)]);
        assert_eq!(STORAGE.get(two, pointer(10)), Ok(pointer(200)));
        STORAGE.clear();
        assert!(STORAGE.get(two, pointer(10)).is_err());
    }
}
