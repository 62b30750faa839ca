//! Graphs as such: making, copying and ending them, edges, and questions about their shape.

use cuda_abi::types::{CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeType, CUresult};

use super::model::{Edge, EdgeData, Graph};
use crate::api::driver::{Driver, driver};
use crate::api::{Answer, out};

api! {
    fn cuGraphCreate(phGraph: *mut CUgraph, flags: u32) {
        let driver = driver()?;
        if phGraph.is_null() || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer.
        unsafe { out::write(phGraph, Graph::create(driver).handle) }
    }

    fn cuGraphClone(phGraphClone: *mut CUgraph, originalGraph: CUgraph) {
        let driver = driver()?;
        let graph = driver.graph(originalGraph)?;
        if phGraphClone.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer.
        unsafe { out::write(phGraphClone, graph.duplicate(driver)?.handle) }
    }

    fn cuGraphDestroy(hGraph: CUgraph) {
        let driver = driver()?;
        driver.graph(hGraph)?.forget(driver);
        Ok(())
    }

    fn cuGraphDestroyNode(hNode: CUgraphNode) {
        let driver = driver()?;
        driver.graph_of(hNode)?.remove(driver, hNode.0)
    }

    fn cuGraphNodeFindInClone(phNode: *mut CUgraphNode, hOriginalNode: CUgraphNode, hClonedGraph: CUgraph) {
        let driver = driver()?;
        let state = driver.graph(hClonedGraph)?;
        let state = state.lock();
        let found = state.nodes.iter().find(|(_, node)| node.origin == Some(hOriginalNode.0));
        let (handle, _) = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(phNode, CUgraphNode(*handle)) }
    }

    fn cuGraphNodeGetType(hNode: CUgraphNode, type_: *mut CUgraphNodeType) {
        let kind = driver()?.graph_of(hNode)?.kind(hNode)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(type_, kind.type_code()) }
    }

    fn cuGraphGetNodes(hGraph: CUgraph, nodes: *mut CUgraphNode, numNodes: *mut usize) {
        let found: Vec<usize> = driver()?.graph(hGraph)?.lock().nodes.keys().copied().collect();
        // SAFETY: the caller's arrays.
        unsafe { give_nodes(&found, nodes, numNodes) }
    }

    fn cuGraphGetRootNodes(hGraph: CUgraph, rootNodes: *mut CUgraphNode, numRootNodes: *mut usize) {
        let found = driver()?.graph(hGraph)?.lock().roots();
        // SAFETY: the caller's arrays.
        unsafe { give_nodes(&found, rootNodes, numRootNodes) }
    }

    fn cuGraphGetEdges_v2(hGraph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numEdges: *mut usize) {
        let edges = driver()?.graph(hGraph)?.lock().edges.clone();
        // SAFETY: the caller's arrays.
        unsafe { give_edges(&edges, Ends { from, to }, edgeData, numEdges) }
    }

    fn cuGraphNodeGetDependencies_v2(hNode: CUgraphNode, dependencies: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependencies: *mut usize) {
        let edges: Vec<Edge> = driver()?.graph_of(hNode)?.lock().dependencies(hNode.0).collect();
        let ends = Ends { from: dependencies, to: std::ptr::null_mut() };
        // SAFETY: the caller's arrays.
        unsafe { give_edges(&edges, ends, edgeData, numDependencies) }
    }

    fn cuGraphNodeGetDependentNodes_v2(hNode: CUgraphNode, dependentNodes: *mut CUgraphNode, edgeData: *mut CUgraphEdgeData, numDependentNodes: *mut usize) {
        let edges: Vec<Edge> = driver()?.graph_of(hNode)?.lock().dependents(hNode.0).collect();
        let ends = Ends { from: std::ptr::null_mut(), to: dependentNodes };
        // SAFETY: the caller's arrays.
        unsafe { give_edges(&edges, ends, edgeData, numDependentNodes) }
    }

    fn cuGraphAddDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) {
        // SAFETY: the caller's arrays of `numDependencies`.
        let edges = unsafe { read_edges(from, to, edgeData, numDependencies)? };
        driver()?.graph(hGraph)?.lock().add_edges(&edges)
    }

    fn cuGraphRemoveDependencies_v2(hGraph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edgeData: *const CUgraphEdgeData, numDependencies: usize) {
        // SAFETY: the caller's arrays of `numDependencies`.
        let edges = unsafe { read_edges(from, to, edgeData, numDependencies)? };
        let edges: Vec<(usize, usize)> = edges.iter().map(|edge| (edge.from, edge.to)).collect();
        driver()?.graph(hGraph)?.lock().remove_edges(&edges)
    }
}

/// The functions of before edges had data: CUDA_ERROR_LOSSY_QUERY where there is data.
macro_rules! without_edge_data {
    ($($name:ident($($arg:ident: $ty:ty),*) = $target:ident($($pass:expr),*);)*) => {
        $(
            #[allow(non_snake_case)]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> CUresult {
                // SAFETY: the caller's promises are those of the target, which may be given no edge data.
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

/// Answers "how many" without an array; with one fills it, zeros behind the end, and tells how many there were room for.
///
/// # Safety
/// `array`, if given, has `*count` elements.
unsafe fn give<T: Copy + Default>(found: &[T], array: *mut T, count: *mut usize) -> Answer {
    // SAFETY: by the caller's promise.
    unsafe {
        let room = out::read(count)?;
        if array.is_null() {
            return out::write(count, found.len());
        }
        for place in 0..room {
            out::write(array.add(place), found.get(place).copied().unwrap_or_default())?;
        }
        out::write(count, found.len().min(room))
    }
}

/// # Safety
/// As for [`give`].
unsafe fn give_nodes(found: &[usize], array: *mut CUgraphNode, count: *mut usize) -> Answer {
    let nodes: Vec<CUgraphNode> = found.iter().copied().map(CUgraphNode).collect();
    // SAFETY: by the caller's promise.
    unsafe { give(&nodes, array, count) }
}

/// Arrays for the two ends of edges; either may be missing.
struct Ends {
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
}

/// # Safety
/// The arrays, as far as they are given, have `*count` elements.
unsafe fn give_edges(
    edges: &[Edge],
    ends: Ends,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    let is_asked = !ends.from.is_null() || !ends.to.is_null();
    if is_asked && data.is_null() && edges.iter().any(|edge| !edge.data.is_default()) {
        return Err(CUresult::ERROR_LOSSY_QUERY);
    }
    // SAFETY: by the caller's promise; each array is filled from the same room.
    unsafe {
        let room = out::read(count)?;
        let from: Vec<CUgraphNode> = edges.iter().map(|edge| CUgraphNode(edge.from)).collect();
        let to: Vec<CUgraphNode> = edges.iter().map(|edge| CUgraphNode(edge.to)).collect();
        let all: Vec<CUgraphEdgeData> = edges.iter().map(|edge| edge.data.to_c()).collect();
        give(&from, ends.from, count)?;
        if !ends.to.is_null() {
            out::write(count, room)?;
            give(&to, ends.to, count)?;
        }
        if !data.is_null() {
            out::write(count, room)?;
            give(&all, data, count)?;
        }
    }
    Ok(())
}

/// # Safety
/// The arrays have `count` elements; the data may be missing.
unsafe fn read_edges(
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Answer<Vec<Edge>> {
    // SAFETY: by the caller's promise.
    let (from, to, data) = unsafe {
        (out::read_array(from, count)?, out::read_array(to, count)?, read_data(data, count)?)
    };
    let edges = from.into_iter().zip(to).zip(data);
    Ok(edges.map(|((from, to), data)| Edge { from: from.0, to: to.0, data }).collect())
}

/// # Safety
/// The array, if given, has `count` elements.
unsafe fn read_data(data: *const CUgraphEdgeData, count: usize) -> Answer<Vec<EdgeData>> {
    if data.is_null() {
        return Ok(vec![EdgeData::default(); count]);
    }
    // SAFETY: by the caller's promise.
    unsafe { out::read_array(data, count)? }.iter().map(EdgeData::from_c).collect()
}

/// The dependencies that a caller names for a new node.
///
/// # Safety
/// The arrays have `count` elements; the data may be missing.
pub(crate) unsafe fn read_dependencies(
    nodes: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Answer<Vec<(usize, EdgeData)>> {
    // SAFETY: by the caller's promise.
    let (nodes, data) = unsafe { (out::read_array(nodes, count)?, read_data(data, count)?) };
    Ok(nodes.into_iter().map(|node| node.0).zip(data).collect())
}

/// Adds a node and tells its handle.
///
/// # Safety
/// The caller's pointers are valid as for the functions that add nodes.
pub(crate) unsafe fn add_node(
    driver: &Driver,
    graph: CUgraph,
    node: *mut CUgraphNode,
    dependencies: (*const CUgraphNode, *const CUgraphEdgeData, usize),
    make: impl FnOnce() -> Answer<super::kinds::NodeKind>,
) -> Answer {
    let graph = driver.graph(graph)?;
    if node.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: by the caller's promise.
    unsafe {
        let dependencies = read_dependencies(dependencies.0, dependencies.1, dependencies.2)?;
        out::write(node, graph.add(driver, make()?, &dependencies)?)
    }
}
