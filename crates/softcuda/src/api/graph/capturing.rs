//! Stream capture in C.

use std::sync::Arc;

use cuda_abi::graph::arrays::read_dependencies;
use cuda_abi::graph::capture::{Change, Effect, Info, known_mode};
use cuda_abi::types::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureStatus, cuuint64_t,
};

use super::{Graph, thread_mode};
use crate::api::answer::Answer;
use crate::api::driver::{Driver, driver};
use crate::api::objects::Stream;
use crate::api::out;
use crate::api::stream::{find, peek};

api! {
    fn cuStreamBeginCapture_v2(hStream: CUstream, mode: CUstreamCaptureMode) {
        let (driver, _, stream) = find(hStream)?;
        driver.graphs.begin_capture(stream.captured(), mode, None)
    }

    fn cuStreamBeginCaptureToGraph(hStream: CUstream, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, mode: CUstreamCaptureMode) {
        let (driver, _, stream) = find(hStream)?;
        let graph = driver.graphs.graph(hGraph)?;
        // SAFETY: the caller's arrays of `numDependencies`.
        let after = unsafe { read_dependencies(dependencies, dependencyData, numDependencies)? };
        driver.graphs.begin_capture(stream.captured(), mode, Some((graph, after)))
    }

    fn cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph) {
        let (driver, _, stream) = find(hStream)?;
        let (graph, outcome) = driver.graphs.end_capture(stream.captured());
        // SAFETY: the caller's pointer, which may be NULL here.
        unsafe { out::write_optional(phGraph, graph) };
        outcome
    }

    fn cuStreamIsCapturing(hStream: CUstream, captureStatus: *mut CUstreamCaptureStatus) {
        let (driver, stream) = asked(hStream)?;
        let capture = driver.graphs.captures.find(stream.captured());
        let status = capture.map_or(CUstreamCaptureStatus::NONE, |capture| capture.status());
        // SAFETY: the caller's pointer.
        unsafe { out::write(captureStatus, status) }
    }

    fn cuStreamGetCaptureInfo(hStream: CUstream, captureStatus_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t) {
        let found = info(hStream)?;
        // SAFETY: the caller's pointers.
        unsafe {
            out::write(captureStatus_out, status(&found))?;
            if let Some(info) = found {
                out::write_optional(id_out, info.id);
            }
        }
        Ok(())
    }

    fn cuStreamGetCaptureInfo_v3(
        hStream: CUstream,
        captureStatus_out: *mut CUstreamCaptureStatus,
        id_out: *mut cuuint64_t,
        graph_out: *mut CUgraph,
        dependencies_out: *mut *const CUgraphNode,
        edgeData_out: *mut *const CUgraphEdgeData,
        numDependencies_out: *mut usize,
    ) {
        let found = info(hStream)?;
        // SAFETY: the caller's pointers.
        unsafe {
            out::write(captureStatus_out, status(&found))?;
            if let Some(info) = found.filter(|info| info.status == CUstreamCaptureStatus::ACTIVE) {
                out::write_optional(id_out, info.id);
                out::write_optional(graph_out, info.graph.handle);
                out::write_optional(dependencies_out, info.dependencies);
                out::write_optional(edgeData_out, info.edges);
                out::write_optional(numDependencies_out, info.count);
            }
        }
        Ok(())
    }

    fn cuStreamUpdateCaptureDependencies_v2(hStream: CUstream, dependencies: *mut CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, flags: u32) {
        let (driver, _, stream) = find(hStream)?;
        let change = match flags {
            0 => Change::Add,
            1 => Change::Set,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller's arrays of `numDependencies`.
        let tips = unsafe { read_dependencies(dependencies, dependencyData, numDependencies)? };
        driver.graphs.captures.update(stream.captured(), change, tips)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) {
        driver()?;
        // SAFETY: the caller's pointer.
        unsafe {
            let wanted = out::read(mode)?;
            out::write(mode, thread_mode::replace(known_mode(wanted)?))
        }
    }
}

/// Capture as CUDA 10.0 had it: global.
#[allow(non_snake_case)]
pub(crate) unsafe fn cuStreamBeginCapture(hStream: CUstream) -> CUresult {
    // SAFETY: no pointers.
    unsafe { cuStreamBeginCapture_v2(hStream, CUstreamCaptureMode::GLOBAL) }
}

/// As version 3, without edge data.
#[allow(non_snake_case)]
pub(crate) unsafe fn cuStreamGetCaptureInfo_v2(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut cuuint64_t,
    graph_out: *mut CUgraph,
    dependencies_out: *mut *const CUgraphNode,
    numDependencies_out: *mut usize,
) -> CUresult {
    // SAFETY: the caller's promises are those of version 3, which may be asked for no edge data.
    unsafe {
        cuStreamGetCaptureInfo_v3(
            hStream,
            captureStatus_out,
            id_out,
            graph_out,
            dependencies_out,
            std::ptr::null_mut(),
            numDependencies_out,
        )
    }
}

/// As version 2, without edge data.
#[allow(non_snake_case)]
pub(crate) unsafe fn cuStreamUpdateCaptureDependencies(
    hStream: CUstream,
    dependencies: *mut CUgraphNode,
    numDependencies: usize,
    flags: u32,
) -> CUresult {
    let no_data = std::ptr::null();
    // SAFETY: the caller's promises are those of version 2, which may be given no edge data.
    unsafe {
        cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, no_data, numDependencies, flags)
    }
}

/// The stream of a question: 906 for the legacy stream while a blocking one is captured, which
/// stays as it is.
fn asked(handle: CUstream) -> Answer<(&'static Driver, Arc<Stream>)> {
    let (driver, _, stream) = peek(handle, Effect::Keep)?;
    Ok((driver, stream))
}

fn info(handle: CUstream) -> Answer<Option<Info<Graph>>> {
    let (driver, stream) = asked(handle)?;
    Ok(driver.graphs.captures.info(stream.captured()))
}

fn status(info: &Option<Info<Graph>>) -> CUstreamCaptureStatus {
    info.as_ref().map_or(CUstreamCaptureStatus::NONE, |info| info.status)
}
