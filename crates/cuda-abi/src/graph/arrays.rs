//! Nodes and edges in the arrays of C callers.

use super::shape::{Edge, EdgeData};
use crate::types::{CUgraphEdgeData, CUgraphNode, CUresult};

type Answer<T = ()> = Result<T, CUresult>;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

/// # Safety
/// `array` is null or has `count` elements.
unsafe fn read_all<T: Copy>(array: *const T, count: usize) -> Answer<Vec<T>> {
    if array.is_null() {
        return if count == 0 { Ok(Vec::new()) } else { Err(INVALID) };
    }
    // SAFETY: by the caller's promise.
    Ok((0..count).map(|place| unsafe { array.add(place).read_unaligned() }).collect())
}

/// Answers "how many" without an array; with one fills it, zeros behind the end, and tells how many
/// there were room for.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE without `count`.
///
/// # Safety
/// `array` and `count` are null or valid, the array for `*count` elements.
pub unsafe fn give<T: Copy + Default>(found: &[T], array: *mut T, count: *mut usize) -> Answer {
    if count.is_null() {
        return Err(INVALID);
    }
    // SAFETY: by the caller's promise.
    unsafe {
        if array.is_null() {
            count.write_unaligned(found.len());
            return Ok(());
        }
        let room = count.read_unaligned();
        for place in 0..room {
            array.add(place).write_unaligned(found.get(place).copied().unwrap_or_default());
        }
        count.write_unaligned(found.len().min(room));
    }
    Ok(())
}

/// Gives nodes.
///
/// # Errors
/// As for [`give`].
///
/// # Safety
/// As for [`give`].
pub unsafe fn give_nodes(found: &[usize], array: *mut CUgraphNode, count: *mut usize) -> Answer {
    let nodes: Vec<CUgraphNode> = found.iter().copied().map(CUgraphNode).collect();
    // SAFETY: by the caller's promise.
    unsafe { give(&nodes, array, count) }
}

/// Arrays for the two ends of edges; either may be missing.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// For what comes first.
    pub from: *mut CUgraphNode,
    /// For what waits.
    pub to: *mut CUgraphNode,
}

/// Gives edges.
///
/// # Errors
/// CUDA_ERROR_LOSSY_QUERY where edges have data that is not asked for, and as for [`give`].
///
/// # Safety
/// The arrays, as far as they are given, have `*count` elements.
pub unsafe fn give_edges(
    edges: &[Edge],
    ends: Ends,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    let is_asked = !ends.from.is_null() || !ends.to.is_null();
    if is_asked && data.is_null() && edges.iter().any(|edge| !edge.data.is_default()) {
        return Err(CUresult::ERROR_LOSSY_QUERY);
    }
    if count.is_null() {
        return Err(INVALID);
    }
    // SAFETY: by the caller's promise; each array is filled from the same room.
    unsafe {
        let room = count.read_unaligned();
        let nodes = |end: fn(&Edge) -> usize| -> Vec<CUgraphNode> {
            edges.iter().map(|edge| CUgraphNode(end(edge))).collect()
        };
        give(&nodes(|edge| edge.from), ends.from, count)?;
        if !ends.to.is_null() {
            count.write_unaligned(room);
            give(&nodes(|edge| edge.to), ends.to, count)?;
        }
        if !data.is_null() {
            count.write_unaligned(room);
            let all: Vec<CUgraphEdgeData> = edges.iter().map(|edge| edge.data.to_c()).collect();
            give(&all, data, count)?;
        }
    }
    Ok(())
}

/// Reads edges.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a missing array and unknown edge data.
///
/// # Safety
/// The arrays have `count` elements; the data may be missing.
pub unsafe fn read_edges(
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Answer<Vec<Edge>> {
    // SAFETY: by the caller's promise.
    let (from, to, data) =
        unsafe { (read_all(from, count)?, read_all(to, count)?, read_data(data, count)?) };
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
    unsafe { read_all(data, count)? }.iter().map(EdgeData::from_c).collect()
}

/// Reads the dependencies that a caller names for a new node.
///
/// # Errors
/// As for [`read_edges`].
///
/// # Safety
/// The arrays have `count` elements; the data may be missing.
pub unsafe fn read_dependencies(
    nodes: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Answer<Vec<(usize, EdgeData)>> {
    // SAFETY: by the caller's promise.
    let (nodes, data) = unsafe { (read_all(nodes, count)?, read_data(data, count)?) };
    Ok(nodes.into_iter().map(|node| node.0).zip(data).collect())
}
