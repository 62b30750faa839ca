//! Conditions of graphs: values on the device that kernels set by a handle, which the executor's
//! driver chose.
//!
//! That driver makes a condition for a graph of its own. So the executor keeps an empty graph, a
//! *home*, for each graph here that has conditions, and fills it in when that is made executable.

use super::kinds::NodeKind;
use crate::context::Context;
use crate::context::backend::Backend;
use crate::handles::Table;
use crate::result::Result;
use cuda_abi::graph::conditional::{Condition, Value};
use cuda_abi::graph::registry::Registry;
use cuda_abi::types::{CUcontext, CUgraph, CUresult};
use link::wire::command::Opcode;
use link::wire::graph::{GraphCondition, GraphConditionReply, GraphHomeDestroy};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use zerocopy::IntoBytes;

/// A graph of the executor's, for conditions.
struct Home {
    backend: &'static Backend,
    /// The executor's number of the context.
    id: u32,
    /// From 1.
    number: u32,
}

/// Homes of all graphs, by the graphs' handles.
#[derive(Default)]
pub(crate) struct Homes(Mutex<HashMap<usize, Weak<Home>>>);

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Home({})", self.number)
    }
}

impl Value for Home {
    fn home(&self) -> u32 {
        self.number
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let body = GraphHomeDestroy { home: self.number, reserved: 0 };
        // A failed session has nothing left.
        let _ = self.backend.session.post(self.id, Opcode::GraphHomeDestroy, &body);
        self.backend.graphs.give_back(self.number);
    }
}

impl Homes {
    /// The home of a graph, made where there is none.
    fn of(&self, graph: CUgraph, backend: &'static Backend, id: u32) -> Result<Arc<Home>> {
        let mut homes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        homes.retain(|_, home| home.strong_count() > 0);
        let known = homes.get(&graph.0).and_then(Weak::upgrade);
        if let Some(home) = known.filter(|home| home.id == id) {
            return Ok(home);
        }
        let home = Arc::new(Home { backend, id, number: backend.graphs.take()? });
        homes.insert(graph.0, Arc::downgrade(&home));
        Ok(home)
    }

    /// `cuGraphConditionalHandleCreate`.
    pub(crate) fn create_condition(
        &self,
        registry: &Registry<NodeKind>,
        contexts: &Table<Context>,
        graph: CUgraph,
        context: CUcontext,
        (value, flags): (u32, u32),
    ) -> Result<u64> {
        let graph = registry.graph(graph)?.handle;
        let default = Condition::default_value(value, flags)?;
        let of = contexts.get(context.0).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        let (backend, id) = of.backend()?;
        let home = self.of(registry.root(graph), backend, id)?;
        let body = GraphCondition { home: home.number, value, flags, reserved: 0 };
        let reply: GraphConditionReply =
            backend.session.call_for(id, Opcode::GraphCondition, &[body.as_bytes()])?;
        let handle = reply.handle;
        registry.add_condition(Condition { handle, graph, context, default, value: home });
        Ok(handle)
    }
}
