//! Conditions of graphs in C.

use std::sync::Arc;

use cuda_abi::graph::conditional::{Condition, Value};
use cuda_abi::types::{CUcontext, CUgraph, CUgraphConditionalHandle, CUresult};

use crate::api::driver::current;
use crate::api::out;
use crate::device::engine::Engine;

/// A value of the engine's, until nothing names it any more.
struct Kept {
    engine: Arc<Engine>,
    handle: u64,
}

impl Value for Kept {}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({:#x})", self.handle)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.engine.conditions.remove(self.handle);
    }
}

api! {
    fn cuGraphConditionalHandleCreate(pHandle_out: *mut CUgraphConditionalHandle, hGraph: CUgraph, ctx: CUcontext, defaultLaunchValue: u32, flags: u32) {
        let (driver, _) = current()?;
        let graph = driver.graphs.graph(hGraph)?.handle;
        if pHandle_out.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let default = Condition::default_value(defaultLaunchValue, flags)?;
        let context = driver.context(ctx)?.handle;
        let handle = driver.engine.conditions.create();
        let value = Arc::new(Kept { engine: driver.engine.clone(), handle });
        driver.graphs.add_condition(Condition { handle, graph, context, default, value });
        // SAFETY: the caller's pointer.
        unsafe { out::write(pHandle_out, handle) }
    }
}
