//! Graphs as such: making, copying and ending them, edges, questions about their shape; user objects.

use crate::client::{Client, run};
use crate::graph::params;
use crate::graph::{Graph, HostWork, NodeKind, UserObject, print, release};
use crate::session::Result;
use core::ffi::{c_char, c_void};
use cuda_abi::graph::arrays::{Ends, give_edges, give_nodes, read_dependencies, read_edges};
use cuda_abi::graph::shape::Edge;
use cuda_abi::types::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// User objects: the only flag, and it is required.
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// The graph takes references of the caller over.
const MOVE: u32 = 1;
/// Counts are C ints.
const MOST_REFERENCES: u32 = i32::MAX as u32;

pub(crate) unsafe fn cuGraphCreate(phGraph: *mut CUgraph, flags: u32) -> CUresult {
    run(|client| {
        super::not_null(phGraph)?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        put!(phGraph, Graph::create(client)?.handle);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphClone(phGraphClone: *mut CUgraph, originalGraph: CUgraph) -> CUresult {
    run(|client| {
        super::not_null(phGraphClone)?;
        put!(phGraphClone, client.graph(originalGraph)?.duplicate(client)?.handle);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphDestroy(hGraph: CUgraph) -> CUresult {
    run(|client| {
        client.graph(hGraph)?.forget(client);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphDestroyNode(hNode: CUgraphNode) -> CUresult {
    run(|client| client.graph_of(hNode)?.remove(client, hNode.0))
}

pub(crate) unsafe fn cuGraphNodeFindInClone(
    phNode: *mut CUgraphNode,
    hOriginalNode: CUgraphNode,
    hClonedGraph: CUgraph,
) -> CUresult {
    run(|client| {
        let graph = client.graph(hClonedGraph)?;
        let state = graph.lock();
        let found = state.shape.nodes().find(|(_, node)| node.origin == Some(hOriginalNode.0));
        let (handle, _) = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        put!(phNode, CUgraphNode(handle));
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphNodeGetType(
    hNode: CUgraphNode,
    type_: *mut CUgraphNodeType,
) -> CUresult {
    run(|client| {
        put!(type_, client.graph_of(hNode)?.kind(hNode)?.type_code());
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphGetNodes(
    hGraph: CUgraph,
    nodes: *mut CUgraphNode,
    numNodes: *mut usize,
) -> CUresult {
    run(|client| {
        let graph = client.graph(hGraph)?;
        let found: Vec<usize> = graph.lock().shape.nodes().map(|(key, _)| key).collect();
        // SAFETY: the caller's array.
        unsafe { give_nodes(&found, nodes, numNodes) }
    })
}

pub(crate) unsafe fn cuGraphGetRootNodes(
    hGraph: CUgraph,
    rootNodes: *mut CUgraphNode,
    numRootNodes: *mut usize,
) -> CUresult {
    run(|client| {
        let found = client.graph(hGraph)?.lock().shape.roots();
        // SAFETY: the caller's array.
        unsafe { give_nodes(&found, rootNodes, numRootNodes) }
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
        let graph = client.graph(hGraph)?;
        let edges: Vec<Edge> = graph.lock().shape.edges().collect();
        // SAFETY: the caller's arrays.
        unsafe { give_edges(&edges, Ends { from, to }, edgeData, numEdges) }
    })
}

pub(crate) unsafe fn cuGraphGetEdges(
    hGraph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    numEdges: *mut usize,
) -> CUresult {
    // SAFETY: the same function without edge data.
    unsafe { cuGraphGetEdges_v2(hGraph, from, to, core::ptr::null_mut(), numEdges) }
}

pub(crate) unsafe fn cuGraphNodeGetDependencies_v2(
    hNode: CUgraphNode,
    dependencies: *mut CUgraphNode,
    edgeData: *mut CUgraphEdgeData,
    numDependencies: *mut usize,
) -> CUresult {
    run(|client| {
        let graph = client.graph_of(hNode)?;
        let edges: Vec<Edge> = graph.lock().shape.dependencies(hNode.0).collect();
        let ends = Ends { from: dependencies, to: core::ptr::null_mut() };
        // SAFETY: the caller's arrays.
        unsafe { give_edges(&edges, ends, edgeData, numDependencies) }
    })
}

pub(crate) unsafe fn cuGraphNodeGetDependencies(
    hNode: CUgraphNode,
    dependencies: *mut CUgraphNode,
    numDependencies: *mut usize,
) -> CUresult {
    let no_data = core::ptr::null_mut();
    // SAFETY: the same function without edge data.
    unsafe { cuGraphNodeGetDependencies_v2(hNode, dependencies, no_data, numDependencies) }
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes_v2(
    hNode: CUgraphNode,
    dependentNodes: *mut CUgraphNode,
    edgeData: *mut CUgraphEdgeData,
    numDependentNodes: *mut usize,
) -> CUresult {
    run(|client| {
        let graph = client.graph_of(hNode)?;
        let edges: Vec<Edge> = graph.lock().shape.dependents(hNode.0).collect();
        let ends = Ends { from: core::ptr::null_mut(), to: dependentNodes };
        // SAFETY: the caller's arrays.
        unsafe { give_edges(&edges, ends, edgeData, numDependentNodes) }
    })
}

pub(crate) unsafe fn cuGraphNodeGetDependentNodes(
    hNode: CUgraphNode,
    dependentNodes: *mut CUgraphNode,
    numDependentNodes: *mut usize,
) -> CUresult {
    let no_data = core::ptr::null_mut();
    // SAFETY: the same function without edge data.
    unsafe { cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, no_data, numDependentNodes) }
}

pub(crate) unsafe fn cuGraphAddDependencies_v2(
    hGraph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edgeData: *const CUgraphEdgeData,
    numDependencies: usize,
) -> CUresult {
    run(|client| {
        // SAFETY: the caller's arrays.
        let edges = unsafe { read_edges(from, to, edgeData, numDependencies) }?;
        client.graph(hGraph)?.lock().shape.add_edges(&edges)
    })
}

pub(crate) unsafe fn cuGraphAddDependencies(
    hGraph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    numDependencies: usize,
) -> CUresult {
    // SAFETY: the same function without edge data.
    unsafe { cuGraphAddDependencies_v2(hGraph, from, to, core::ptr::null(), numDependencies) }
}

pub(crate) unsafe fn cuGraphRemoveDependencies_v2(
    hGraph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    edgeData: *const CUgraphEdgeData,
    numDependencies: usize,
) -> CUresult {
    run(|client| {
        // SAFETY: the caller's arrays.
        let edges = unsafe { read_edges(from, to, edgeData, numDependencies) }?;
        let ends: Vec<_> = edges.iter().map(|edge| (edge.from, edge.to)).collect();
        client.graph(hGraph)?.lock().shape.remove_edges(&ends)
    })
}

pub(crate) unsafe fn cuGraphRemoveDependencies(
    hGraph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    numDependencies: usize,
) -> CUresult {
    // SAFETY: the same function without edge data.
    unsafe { cuGraphRemoveDependencies_v2(hGraph, from, to, core::ptr::null(), numDependencies) }
}

pub(crate) unsafe fn cuGraphDebugDotPrint(
    hGraph: CUgraph,
    path: *const c_char,
    flags: u32,
) -> CUresult {
    run(|client| {
        let graph = client.graph(hGraph)?;
        // SAFETY: the caller's text.
        let path = OsStr::from_bytes(unsafe { super::c_name(path) }?.to_bytes());
        let written = std::fs::write(path, print(&graph, flags));
        written.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
    })
}

/// Adds a node and tells its handle.
///
/// # Safety
/// The caller's pointers are valid as for the functions that add nodes.
pub(super) unsafe fn add_node(
    client: &Client,
    graph: CUgraph,
    node: *mut CUgraphNode,
    dependencies: (*const CUgraphNode, *const CUgraphEdgeData, usize),
    make: impl FnOnce() -> Result<NodeKind>,
) -> Result {
    let graph = client.graph(graph)?;
    super::not_null(node)?;
    let (nodes, data, count) = dependencies;
    // SAFETY: the caller's promise.
    let after = unsafe { read_dependencies(nodes, data, count) }?;
    put!(node, graph.add(client, make()?, &after)?);
    Ok(())
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
        super::not_null(nodeParams)?;
        // SAFETY: not null; the caller's structure and arrays.
        unsafe {
            let mut asked = nodeParams.read();
            let kind = params::any(client, &mut asked, None)?;
            let after = (dependencies, dependencyData, numDependencies);
            add_node(client, hGraph, phGraphNode, after, || Ok(kind))?;
            nodeParams.write(asked);
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphAddNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    nodeParams: *mut CUgraphNodeParams,
) -> CUresult {
    let no_data = core::ptr::null();
    // SAFETY: the same function without edge data.
    unsafe {
        cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, no_data, numDependencies, nodeParams)
    }
}

fn is_count(count: u32) -> bool {
    (1..=MOST_REFERENCES).contains(&count)
}

pub(crate) unsafe fn cuUserObjectCreate(
    object_out: *mut CUuserObject,
    ptr: *mut c_void,
    destroy: CUhostFn,
    initialRefcount: u32,
    flags: u32,
) -> CUresult {
    run(|client| {
        super::not_null(object_out)?;
        if flags != NO_DESTRUCTOR_SYNC || !is_count(initialRefcount) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let destructor = HostWork::new(destroy, ptr)?;
        let make = |token| UserObject::new(token, destructor, initialRefcount);
        let made = client.graphs.user_objects.insert_with(make);
        put!(object_out, CUuserObject(made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuUserObjectRetain(object: CUuserObject, count: u32) -> CUresult {
    run(|client| {
        let found = client.graphs.user_objects.get(object.0);
        let found = found.filter(|_| is_count(count)).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        found.retain(count);
        Ok(())
    })
}

pub(crate) unsafe fn cuUserObjectRelease(object: CUuserObject, count: u32) -> CUresult {
    run(|client| {
        if !is_count(count) || client.graphs.user_objects.get(object.0).is_none() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        release(client, object.0, count);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> CUresult {
    run(|client| {
        let graph = client.graph(graph)?;
        let found = client.graphs.user_objects.get(object.0);
        let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if !is_count(count) || flags & !MOVE != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut state = graph.lock();
        let held = state.objects.entry(object.0).or_default();
        *held = held.checked_add(count).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if flags & MOVE == 0 {
            found.retain(count);
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphReleaseUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
) -> CUresult {
    run(|client| {
        let graph = client.graph(graph)?;
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
        release(client, object.0, released);
        Ok(())
    })
}
