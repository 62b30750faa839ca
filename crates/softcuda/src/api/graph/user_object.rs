//! User objects: a program's resource whose destructor runs when the last graph and caller have let go of it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::types::{CUgraph, CUhostFn, CUresult, CUuserObject};

use super::kinds::HostWork;
use crate::api::driver::{Driver, driver};
use crate::api::out;
use crate::api::table::fresh_handle;

/// The only flag, and it is required: the destructor does not wait.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// The graph takes references of the caller over.
const MOVE: u32 = 1;
/// Counts are C ints.
const MOST_REFERENCES: u32 = i32::MAX as u32;

/// A program's resource and the references to it.
#[derive(Debug)]
pub(crate) struct UserObject {
    destructor: HostWork,
    references: AtomicU32,
}

impl UserObject {
    pub(crate) fn retain(&self, count: u32) {
        // Relaxed: who retains holds a reference, so that it cannot go meanwhile.
        self.references.fetch_add(count, Ordering::Relaxed);
    }
}

api! {
    fn cuUserObjectCreate(object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initialRefcount: u32, flags: u32) {
        let driver = driver()?;
        if object_out.is_null() || flags != NO_DESTRUCTOR_SYNC || !is_count(initialRefcount) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let object = UserObject { destructor: HostWork::new(destroy, ptr)?, references: AtomicU32::new(initialRefcount) };
        let handle = fresh_handle();
        driver.user_objects.insert(handle, Arc::new(object));
        // SAFETY: the caller's pointer.
        unsafe { out::write(object_out, CUuserObject(handle)) }
    }

    fn cuUserObjectRetain(object: CUuserObject, count: u32) {
        let found = driver()?.user_objects.find(object.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if !is_count(count) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        found.retain(count);
        Ok(())
    }

    fn cuUserObjectRelease(object: CUuserObject, count: u32) {
        let driver = driver()?;
        if !is_count(count) || driver.user_objects.find(object.0).is_none() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        release(driver, object.0, count);
        Ok(())
    }

    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) {
        let driver = driver()?;
        let graph = driver.graph(graph)?;
        let found = driver.user_objects.find(object.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if !is_count(count) || flags & !MOVE != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if flags & MOVE == 0 {
            found.retain(count);
        }
        *graph.lock().objects.entry(object.0).or_default() += count;
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) {
        let driver = driver()?;
        let graph = driver.graph(graph)?;
        if !is_count(count) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let released = {
            let mut state = graph.lock();
            let held = state.objects.get_mut(&object.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let released = count.min(*held);
            *held -= released;
            if *held == 0 {
                state.objects.remove(&object.0);
            }
            released
        };
        release(driver, object.0, released);
        Ok(())
    }
}

fn is_count(count: u32) -> bool {
    (1..=MOST_REFERENCES).contains(&count)
}

/// Gives references back; with the last one the destructor runs, on the calling thread.
pub(crate) fn release(driver: &Driver, object: usize, count: u32) {
    let Some(found) = driver.user_objects.find(object) else { return };
    // AcqRel: the last one to let go sees what the others did to the resource.
    let before = found.references.try_update(Ordering::AcqRel, Ordering::Acquire, |references| {
        Some(references.saturating_sub(count))
    });
    if before.is_ok_and(|before| before <= count) && driver.user_objects.remove(object).is_ok() {
        let HostWork { function, user_data } = found.destructor;
        // SAFETY: the program's function with the program's argument.
        unsafe { function(user_data as *mut c_void) };
    }
}

/// References that an executable graph takes, of the same objects as its graph.
pub(crate) fn retain_all(driver: &Driver, objects: &HashMap<usize, u32>) {
    for (&object, &count) in objects {
        if let Some(found) = driver.user_objects.find(object) {
            found.retain(count);
        }
    }
}
