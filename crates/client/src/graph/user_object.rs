//! User objects: a program's resource whose destructor runs when the last graph and caller have let go of it.

use super::kinds::HostWork;
use crate::client::Client;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

/// A program's resource and the references to it.
pub(crate) struct UserObject {
    pub(crate) token: usize,
    destructor: HostWork,
    references: AtomicU32,
}

impl UserObject {
    pub(crate) fn new(token: usize, destructor: HostWork, references: u32) -> Self {
        Self { token, destructor, references: AtomicU32::new(references) }
    }

    pub(crate) fn retain(&self, count: u32) {
        // Relaxed: who retains holds a reference, so that it cannot go meanwhile.
        self.references.fetch_add(count, Ordering::Relaxed);
    }

    /// Whether these were the last.
    fn let_go(&self, count: u32) -> bool {
        // AcqRel: the last one to let go sees what the others did to the resource.
        let before = self.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
            Some(held.saturating_sub(count))
        });
        before.is_ok_and(|before| before <= count)
    }
}

/// Gives references back; with the last one the destructor runs, on the calling thread.
pub(crate) fn release(client: &Client, object: usize, count: u32) {
    let Some(found) = client.graphs.user_objects.get(object) else { return };
    if found.let_go(count) && client.graphs.user_objects.remove(object).is_some() {
        found.destructor.call();
    }
}

/// References of the same objects for another graph.
pub(super) fn retain_all(client: &Client, objects: &HashMap<usize, u32>) {
    for (&object, &count) in objects {
        if let Some(found) = client.graphs.user_objects.get(object) {
            found.retain(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;

    unsafe extern "C" fn nothing(_: *mut c_void) {}

    #[test]
    fn the_last_reference_is_the_one_that_counts() {
        let destructor = HostWork::new(Some(nothing), core::ptr::null_mut()).unwrap();
        let object = UserObject::new(1, destructor, 2);
        object.retain(1);
        assert!(!object.let_go(2));
        assert!(object.let_go(5), "more than there are");
    }
}
