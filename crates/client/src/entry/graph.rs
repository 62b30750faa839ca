//! Graphs as such: making, copying and ending them, edges, questions about their shape; user
//! objects. The rules are [`cuda_abi::graph`]'s.

use super::arguments::not_null;
use super::graph_params;
use crate::client::run;
use crate::graph::Graphs;
use core::ffi::{c_char, c_void};
use cuda_abi::graph::arrays::Ends;
use cuda_abi::graph::dot;
use cuda_abi::graph::model::Kind;
use cuda_abi::graph::params::Told;
use cuda_abi::types::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub(crate) unsafe fn cuGraphCreate(phGraph: *mut CUgraph, flags: u32) -> CUresult {
    run(|client| {
        not_null(phGraph)?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        put!(phGraph, client.graphs.registry.create().handle);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphClone(phGraphClone: *mut CUgraph, originalGraph: CUgraph) -> CUresult {
    run(|client| {
        not_null(phGraphClone)?;
        let registry = &client.graphs.registry;
        put!(phGraphClone, registry.duplicate(&*registry.graph(originalGraph)?)?.handle);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphDestroy(hGraph: CUgraph) -> CUresult {
    run(|client| {
        client.graphs.registry.destroy(hGraph)?;
        client.graphs.memory.collect(client);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphConditionalHandleCreate(
    pHandle_out: *mut CUgraphConditionalHandle,
    hGraph: CUgraph,
    ctx: CUcontext,
    defaultLaunchValue: u32,
    flags: u32,
) -> CUresult {
    run(|client| {
        not_null(pHandle_out)?;
        let asked = (defaultLaunchValue, flags);
        let Graphs { registry, homes, .. } = &client.graphs;
        let made = homes.create_condition(registry, &client.contexts, hGraph, ctx, asked)?;
        put!(pHandle_out, made);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphNodeFindInClone(
    phNode: *mut CUgraphNode,
    hOriginalNode: CUgraphNode,
    hClonedGraph: CUgraph,
) -> CUresult {
    run(|client| {
        put!(phNode, client.graphs.registry.find_in_clone(hOriginalNode, hClonedGraph)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphNodeGetType(
    hNode: CUgraphNode,
    type_: *mut CUgraphNodeType,
) -> CUresult {
    run(|client| {
        put!(type_, client.graphs.registry.kind(hNode)?.type_code());
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphGetEdges_v2(
    hGraph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    edgeData: *mut CUgraphEdgeData,
    numEdges: *mut usize,
) -> CUresult {
    run(|client| {
        let ends = Ends { from, to };
        // SAFETY: the caller's arrays.
        unsafe { client.graphs.registry.give_edges(hGraph, ends, edgeData, numEdges) }
    })
}

/// Declares functions that are the registry's: arguments and the method that has them, in order.
macro_rules! of_the_registry {
    ($($name:ident($($argument:ident: $ty:ty),*) = $method:ident;)*) => {$(
        pub(crate) unsafe fn $name($($argument: $ty),*) -> CUresult {
            run(|client| {
                let registry = &client.graphs.registry;
                // SAFETY: the caller's arrays, as far as there are some.
                #[allow(unused_unsafe)]
                unsafe { registry.$method($($argument),*) }
            })
        }
    )*};
}

of_the_registry! {
    cuGraphDestroyNode(hNode: CUgraphNode) = destroy_node;
    cuGraphGetNodes(hGraph: CUgraph, nodes: *mut CUgraphNode, numNodes: *mut usize) = give_nodes;
    cuGraphGetRootNodes(hGraph: CUgraph, rootNodes: *mut CUgraphNode, numRootNodes: *mut usize) = give_roots;
    cuGraphNodeGetDependencies_v2(hNode: CUgraphNode, dependencies: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependencies: *mut usize) = give_dependencies;
    cuGraphNodeGetDependentNodes_v2(hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependentNodes: *mut usize) = give_dependents;
    cuGraphAddDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) = add_dependencies;
    cuGraphRemoveDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) = remove_dependencies;
    cuUserObjectRetain(object: CUuserObject, count: u32) = retain_object;
    cuUserObjectRelease(object: CUuserObject, count: u32) = release_object;
    cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: u32, flags: u32) = retain_for_graph;
    cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) = release_for_graph;
}

/// Declares the functions of before edges had data: CUDA_ERROR_LOSSY_QUERY where there is some.
macro_rules! without_edge_data {
    ($($name:ident($($argument:ident: $ty:ty),*) = $target:ident($($pass:expr),*);)*) => {$(
        pub(crate) unsafe fn $name($($argument: $ty),*) -> CUresult {
            // SAFETY: the caller's promises are those of the target, which may be given no edge
            // data.
            unsafe { $target($($pass),*) }
        }
    )*};
}

without_edge_data! {
    cuGraphGetEdges(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, numEdges: *mut usize)
        = cuGraphGetEdges_v2(hGraph, from, to, core::ptr::null_mut(), numEdges);
    cuGraphNodeGetDependencies(hNode: CUgraphNode, dependencies: *mut CUgraphNode, numDependencies: *mut usize)
        = cuGraphNodeGetDependencies_v2(hNode, dependencies, core::ptr::null_mut(), numDependencies);
    cuGraphNodeGetDependentNodes(hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, numDependentNodes: *mut usize)
        = cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, core::ptr::null_mut(), numDependentNodes);
    cuGraphAddDependencies(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize)
        = cuGraphAddDependencies_v2(hGraph, from, to, core::ptr::null(), numDependencies);
    cuGraphRemoveDependencies(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, numDependencies: usize)
        = cuGraphRemoveDependencies_v2(hGraph, from, to, core::ptr::null(), numDependencies);
    cuGraphAddNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUgraphNodeParams)
        = cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, core::ptr::null(), numDependencies, nodeParams);
}

pub(crate) unsafe fn cuGraphDebugDotPrint(
    hGraph: CUgraph,
    path: *const c_char,
    flags: u32,
) -> CUresult {
    run(|client| {
        let graph = client.graphs.registry.graph(hGraph)?;
        // SAFETY: the caller's text.
        let path = OsStr::from_bytes(unsafe { super::arguments::c_name(path) }?.to_bytes());
        let written = std::fs::write(path, dot::print(&graph, flags));
        written.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
    })
}

pub(crate) unsafe fn cuGraphAddNode_v2(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    dependencyData: *const CUgraphEdgeData,
    numDependencies: usize,
    nodeParams: *mut CUgraphNodeParams,
) -> CUresult {
    run(|client| {
        not_null(nodeParams)?;
        // SAFETY: not null; the caller's structure and arrays.
        unsafe {
            let mut asked = nodeParams.read();
            let mut told = Told::Nothing;
            let after = (dependencies, dependencyData, numDependencies);
            let added = client.graphs.registry.add_node_at(hGraph, phGraphNode, after, |site| {
                let (kind, answer) = graph_params::any(client, site, &asked, None)?;
                told = answer;
                Ok(kind)
            });
            if added.is_err() {
                // Memory of a node that did not come to be.
                client.graphs.memory.collect(client);
            }
            added?;
            told.write(&mut asked);
            nodeParams.write(asked);
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuUserObjectCreate(
    object_out: *mut CUuserObject,
    ptr: *mut c_void,
    destroy: CUhostFn,
    initialRefcount: u32,
    flags: u32,
) -> CUresult {
    run(|client| {
        not_null(object_out)?;
        let made = client.graphs.registry.create_object(destroy, ptr, initialRefcount, flags)?;
        put!(object_out, made);
        Ok(())
    })
}
