//! Resources of a program: host functions with their argument, and user objects, whose destructor
//! runs when the last graph and caller have let go.

use super::Answer;
use crate::types::{CUhostFn, CUresult};
use core::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

/// `cuUserObjectCreate`'s only flag, and it is required: the destructor does not wait.
pub const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `cuGraphRetainUserObject`: the graph takes references of the caller over.
pub const MOVE: u32 = 1;
/// Counts are C ints.
const MOST_REFERENCES: u32 = i32::MAX as u32;

/// A host function with its argument.
#[derive(Clone, Copy, Debug)]
pub struct HostWork {
    /// The program's function.
    pub function: unsafe extern "C" fn(*mut c_void),
    /// The program's pointer.
    pub user_data: usize,
}

impl HostWork {
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE without a function.
    pub fn new(function: CUhostFn, user_data: *mut c_void) -> Answer<Self> {
        let function = function.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(Self { function, user_data: user_data.expose_provenance() })
    }

    /// The program's pointer.
    pub fn argument(&self) -> *mut c_void {
        core::ptr::with_exposed_provenance_mut(self.user_data)
    }

    /// Calls it.
    ///
    /// # Safety
    /// The program said that it may be called now, with this argument.
    pub unsafe fn call(&self) {
        // SAFETY: by the caller's promise.
        unsafe { (self.function)(self.argument()) };
    }
}

/// A program's resource and the references to it.
#[derive(Debug)]
pub struct UserObject {
    destructor: HostWork,
    references: AtomicU32,
}

/// Checks a number of references.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE unless it is a positive C int.
pub fn check_count(count: u32) -> Answer {
    match (1..=MOST_REFERENCES).contains(&count) {
        true => Ok(()),
        false => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

impl UserObject {
    /// An object with so many references of the caller.
    pub fn new(destructor: HostWork, references: u32) -> Self {
        Self { destructor, references: AtomicU32::new(references) }
    }

    /// More references.
    pub fn retain(&self, count: u32) {
        // Relaxed: who retains holds a reference, so that it cannot go meanwhile.
        self.references.fetch_add(count, Ordering::Relaxed);
    }

    /// Gives references back; says whether these were the last. Then nobody else may, and the
    /// destructor is to be called.
    pub(super) fn let_go(&self, count: u32) -> bool {
        // AcqRel: the last one to let go sees what the others did to the resource.
        let before = self.references.try_update(Ordering::AcqRel, Ordering::Acquire, |held| {
            Some(held.saturating_sub(count))
        });
        before.is_ok_and(|before| before <= count)
    }

    pub(super) fn destroy(&self) {
        // SAFETY: the program's destructor, whose time this is.
        unsafe { self.destructor.call() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn nothing(_: *mut c_void) {}

    #[test]
    fn the_last_reference_is_the_one_that_counts() {
        let destructor = HostWork::new(Some(nothing), core::ptr::null_mut()).unwrap();
        let object = UserObject::new(destructor, 2);
        object.retain(1);
        assert!(!object.let_go(2));
        assert!(object.let_go(5), "more than there are");
    }
}
