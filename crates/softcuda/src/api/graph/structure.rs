//! Graphs as such, in C: making, copying and ending them, edges, questions about their shape, text.

use std::ffi::c_char;

use cuda_abi::graph::arrays::Ends;
use cuda_abi::graph::dot;
use cuda_abi::types::{CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeType, CUresult};

use super::memory::collect;
use crate::api::driver::driver;
use crate::api::out;
use cuda_abi::graph::model::Kind;

api! {
    fn cuGraphCreate(phGraph: *mut CUgraph, flags: u32) {
        let driver = driver()?;
        if phGraph.is_null() || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer.
        unsafe { out::write(phGraph, driver.graphs.create().handle) }
    }

    fn cuGraphClone(phGraphClone: *mut CUgraph, originalGraph: CUgraph) {
        let driver = driver()?;
        let graph = driver.graphs.graph(originalGraph)?;
        if phGraphClone.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer.
        unsafe { out::write(phGraphClone, driver.graphs.duplicate(&graph)?.handle) }
    }

    fn cuGraphDestroy(hGraph: CUgraph) {
        let driver = driver()?;
        driver.graphs.destroy(hGraph)?;
        collect(driver);
        Ok(())
    }

    fn cuGraphDestroyNode(hNode: CUgraphNode) {
        driver()?.graphs.destroy_node(hNode)
    }

    fn cuGraphNodeFindInClone(phNode: *mut CUgraphNode, hOriginalNode: CUgraphNode, hClonedGraph: CUgraph) {
        let found = driver()?.graphs.find_in_clone(hOriginalNode, hClonedGraph)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(phNode, found) }
    }

    fn cuGraphNodeGetType(hNode: CUgraphNode, type_: *mut CUgraphNodeType) {
        let kind = driver()?.graphs.kind(hNode)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(type_, kind.type_code()) }
    }

    fn cuGraphGetNodes(hGraph: CUgraph, nodes: *mut CUgraphNode, numNodes: *mut usize) {
        // SAFETY: the caller's arrays.
        unsafe { driver()?.graphs.give_nodes(hGraph, nodes, numNodes) }
    }

    fn cuGraphGetRootNodes(hGraph: CUgraph, rootNodes: *mut CUgraphNode, numRootNodes: *mut usize) {
        // SAFETY: the caller's arrays.
        unsafe { driver()?.graphs.give_roots(hGraph, rootNodes, numRootNodes) }
    }

    fn cuGraphGetEdges_v2(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numEdges: *mut usize) {
        // SAFETY: the caller's arrays.
        unsafe { driver()?.graphs.give_edges(hGraph, Ends { from, to }, edgeData, numEdges) }
    }

    fn cuGraphNodeGetDependencies_v2(hNode: CUgraphNode, dependencies: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependencies: *mut usize) {
        // SAFETY: the caller's arrays.
        unsafe { driver()?.graphs.give_dependencies(hNode, dependencies, edgeData, numDependencies) }
    }

    fn cuGraphNodeGetDependentNodes_v2(hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependentNodes: *mut usize) {
        // SAFETY: the caller's arrays.
        unsafe { driver()?.graphs.give_dependents(hNode, dependentNodes, edgeData, numDependentNodes) }
    }

    fn cuGraphAddDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) {
        // SAFETY: the caller's arrays of `numDependencies`.
        unsafe { driver()?.graphs.add_dependencies(hGraph, from, to, edgeData, numDependencies) }
    }

    fn cuGraphRemoveDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) {
        // SAFETY: the caller's arrays of `numDependencies`.
        unsafe { driver()?.graphs.remove_dependencies(hGraph, from, to, edgeData, numDependencies) }
    }

    fn cuGraphDebugDotPrint(hGraph: CUgraph, path: *const c_char, flags: u32) {
        let graph = driver()?.graphs.graph(hGraph)?;
        // SAFETY: the caller's text.
        let path = unsafe { out::string(path)? };
        std::fs::write(path, dot::print(&graph, flags)).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
    }
}

/// The functions of before edges had data: CUDA_ERROR_LOSSY_QUERY where there is data.
macro_rules! without_edge_data {
    ($($name:ident($($arg:ident: $ty:ty),*) = $target:ident($($pass:expr),*);)*) => {
        $(
            #[allow(non_snake_case)]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> CUresult {
                // SAFETY: the caller's promises are those of the target, which may be given no edge
                // data.
                unsafe { $target($($pass),*) }
            }
        )*
    };
}

without_edge_data! {
    cuGraphGetEdges(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, numEdges: *mut usize)
        = cuGraphGetEdges_v2(hGraph, from, to, std::ptr::null_mut(), numEdges);
    cuGraphNodeGetDependencies(hNode: CUgraphNode, dependencies: *mut CUgraphNode, numDependencies: *mut usize)
        = cuGraphNodeGetDependencies_v2(hNode, dependencies, std::ptr::null_mut(), numDependencies);
    cuGraphNodeGetDependentNodes(hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, numDependentNodes: *mut usize)
        = cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, std::ptr::null_mut(), numDependentNodes);
    cuGraphAddDependencies(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize)
        = cuGraphAddDependencies_v2(hGraph, from, to, std::ptr::null(), numDependencies);
    cuGraphRemoveDependencies(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize)
        = cuGraphRemoveDependencies_v2(hGraph, from, to, std::ptr::null(), numDependencies);
}
