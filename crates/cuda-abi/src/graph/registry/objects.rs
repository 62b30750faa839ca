//! User objects of a process, and those that its graphs hold.

use super::{Answer, Graph, INVALID, Kind, Registry};
use crate::graph::user_object::{HostWork, MOVE, NO_DESTRUCTOR_SYNC, UserObject, check_count};
use crate::types::{CUgraph, CUhostFn, CUuserObject};
use core::ffi::c_void;
use std::sync::Arc;

impl<K: Kind> Registry<K> {
    fn object(&self, handle: CUuserObject) -> Answer<Arc<UserObject>> {
        self.lock().objects.get(&handle.0).cloned().ok_or(INVALID)
    }

    /// `cuUserObjectCreate`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE without a destructor or references, and for other flags than the
    /// one that is required.
    pub fn create_object(
        &self,
        destroy: CUhostFn,
        argument: *mut c_void,
        references: u32,
        flags: u32,
    ) -> Answer<CUuserObject> {
        check_count(references)?;
        if flags != NO_DESTRUCTOR_SYNC {
            return Err(INVALID);
        }
        let object = UserObject::new(HostWork::new(destroy, argument)?, references);
        let handle = (self.naming.object)();
        self.lock().objects.insert(handle, Arc::new(object));
        Ok(CUuserObject(handle))
    }

    /// `cuUserObjectRetain`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown object and no references.
    pub fn retain_object(&self, object: CUuserObject, count: u32) -> Answer {
        let found = self.object(object)?;
        check_count(count)?;
        found.retain(count);
        Ok(())
    }

    /// `cuUserObjectRelease`.
    ///
    /// # Errors
    /// As for [`Self::retain_object`].
    pub fn release_object(&self, object: CUuserObject, count: u32) -> Answer {
        self.object(object)?;
        check_count(count)?;
        self.release(object.0, count);
        Ok(())
    }

    /// `cuGraphRetainUserObject`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for unknown graphs, objects and flags, and no references.
    pub fn retain_for_graph(
        &self,
        graph: CUgraph,
        object: CUuserObject,
        count: u32,
        flags: u32,
    ) -> Answer {
        let (graph, found) = (self.graph(graph)?, self.object(object)?);
        check_count(count)?;
        if flags & !MOVE != 0 {
            return Err(INVALID);
        }
        let mut contents = graph.lock();
        let (held, references) =
            contents.objects.entry(object.0).or_insert_with(|| (Arc::clone(&found), 0));
        *references = references.checked_add(count).ok_or(INVALID)?;
        if flags & MOVE == 0 {
            held.retain(count);
        }
        Ok(())
    }

    /// `cuGraphReleaseUserObject`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for unknown graphs, objects that the graph does not hold, and no
    /// references.
    pub fn release_for_graph(&self, graph: CUgraph, object: CUuserObject, count: u32) -> Answer {
        let graph = self.graph(graph)?;
        check_count(count)?;
        let released = {
            let mut contents = graph.lock();
            let (_, held) = contents.objects.get_mut(&object.0).ok_or(INVALID)?;
            let released = count.min(*held);
            *held -= released;
            if *held == 0 {
                contents.objects.remove(&object.0);
            }
            released
        };
        self.release(object.0, released);
        Ok(())
    }

    /// References of a graph's user objects for an executable graph, until they are
    /// [`Self::release_all`]d.
    pub fn retain_all(&self, graph: &Graph<K>) -> Vec<(usize, u32)> {
        let contents = graph.lock();
        let objects = contents.objects.iter();
        objects
            .map(|(&handle, (object, count))| {
                object.retain(*count);
                (handle, *count)
            })
            .collect()
    }

    /// Gives references back.
    pub fn release_all(&self, objects: &[(usize, u32)]) {
        objects.iter().for_each(|&(handle, count)| self.release(handle, count));
    }

    /// Gives references back; with the last one the destructor runs, on the calling thread.
    pub(super) fn release(&self, handle: usize, count: u32) {
        let Ok(object) = self.object(CUuserObject(handle)) else { return };
        if object.let_go(count) && self.lock().objects.remove(&handle).is_some() {
            object.destroy();
        }
    }
}
