//! User objects in C.

use std::ffi::c_void;

use cuda_abi::types::{CUgraph, CUhostFn, CUresult, CUuserObject};

use crate::api::driver::driver;
use crate::api::out;

api! {
    fn cuUserObjectCreate(object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initialRefcount: u32, flags: u32) {
        let driver = driver()?;
        if object_out.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let object = driver.graphs.create_object(destroy, ptr, initialRefcount, flags)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(object_out, object) }
    }

    fn cuUserObjectRetain(object: CUuserObject, count: u32) {
        driver()?.graphs.retain_object(object, count)
    }

    fn cuUserObjectRelease(object: CUuserObject, count: u32) {
        driver()?.graphs.release_object(object, count)
    }

    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) {
        driver()?.graphs.retain_for_graph(graph, object, count, flags)
    }

    fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) {
        driver()?.graphs.release_for_graph(graph, object, count)
    }
}
