//! Stream capture; the rules are [`cuda_abi::graph::capture`]'s.

use super::arguments::not_null;
use crate::client::{Client, run};
use crate::graph::kinds::Graph;
use crate::result::Result;
use crate::stream::{Target, targets};
use crate::thread::here::here;
use cuda_abi::graph::arrays::read_dependencies;
use cuda_abi::graph::capture::{Change, Effect, Info, known_mode};
use cuda_abi::types::*;

fn begin(
    client: &Client,
    stream: CUstream,
    mode: CUstreamCaptureMode,
    into: Option<(std::sync::Arc<Graph>, cuda_abi::graph::capture::Tips)>,
) -> Result {
    let target = targets::target(client, stream)?;
    client.graphs.registry.begin_capture(target.captured(), mode, into)
}

pub(crate) unsafe fn cuStreamBeginCapture_v2(
    hStream: CUstream,
    mode: CUstreamCaptureMode,
) -> CUresult {
    run(|client| begin(client, hStream, mode, None))
}

/// Capture as CUDA 10.0 had it: global.
pub(crate) unsafe fn cuStreamBeginCapture(hStream: CUstream) -> CUresult {
    run(|client| begin(client, hStream, CUstreamCaptureMode::GLOBAL, None))
}

pub(crate) unsafe fn cuStreamBeginCaptureToGraph(
    hStream: CUstream,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    dependencyData: *const CUgraphEdgeData,
    numDependencies: usize,
    mode: CUstreamCaptureMode,
) -> CUresult {
    run(|client| {
        let graph = client.graphs.registry.graph(hGraph)?;
        // SAFETY: the caller's arrays.
        let after = unsafe { read_dependencies(dependencies, dependencyData, numDependencies) }?;
        begin(client, hStream, mode, Some((graph, after)))
    })
}

pub(crate) unsafe fn cuStreamEndCapture(hStream: CUstream, phGraph: *mut CUgraph) -> CUresult {
    run(|client| {
        let target = targets::target(client, hStream)?;
        let (graph, outcome) = client.graphs.registry.end_capture(target.captured());
        put_optional!(phGraph, graph);
        outcome
    })
}

/// The stream of a question: 906 for the legacy stream while a blocking one is captured, which
/// stays as it is.
fn asked(client: &Client, stream: CUstream) -> Result<Target> {
    let target = targets::located(client, stream)?;
    target.refuse_legacy(client, Effect::Keep)?;
    Ok(target)
}

fn info(client: &Client, stream: CUstream) -> Result<Option<Info<Graph>>> {
    if client.graphs.registry.captures.is_empty() {
        return targets::check(client, stream).map(|()| None);
    }
    Ok(client.graphs.registry.captures.info(asked(client, stream)?.captured()))
}

fn status(info: &Option<Info<Graph>>) -> CUstreamCaptureStatus {
    info.as_ref().map_or(CUstreamCaptureStatus::NONE, |info| info.status)
}

pub(crate) unsafe fn cuStreamIsCapturing(
    hStream: CUstream,
    captureStatus: *mut CUstreamCaptureStatus,
) -> CUresult {
    run(|client| {
        let captures = &client.graphs.registry.captures;
        if captures.is_empty() {
            targets::check(client, hStream)?;
            put!(captureStatus, CUstreamCaptureStatus::NONE);
            return Ok(());
        }
        let capture = captures.find(asked(client, hStream)?.captured());
        let status = capture.map_or(CUstreamCaptureStatus::NONE, |capture| capture.status());
        put!(captureStatus, status);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCaptureInfo(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut cuuint64_t,
) -> CUresult {
    run(|client| {
        let found = info(client, hStream)?;
        put!(captureStatus_out, status(&found));
        if let Some(info) = found {
            put_optional!(id_out, info.id);
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v3(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut cuuint64_t,
    graph_out: *mut CUgraph,
    dependencies_out: *mut *const CUgraphNode,
    edgeData_out: *mut *const CUgraphEdgeData,
    numDependencies_out: *mut usize,
) -> CUresult {
    run(|client| {
        let found = info(client, hStream)?;
        put!(captureStatus_out, status(&found));
        if let Some(info) = found.filter(|info| info.status == CUstreamCaptureStatus::ACTIVE) {
            put_optional!(id_out, info.id);
            put_optional!(graph_out, info.graph.handle);
            put_optional!(dependencies_out, info.dependencies);
            put_optional!(edgeData_out, info.edges);
            put_optional!(numDependencies_out, info.count);
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCaptureInfo_v2(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut cuuint64_t,
    graph_out: *mut CUgraph,
    dependencies_out: *mut *const CUgraphNode,
    numDependencies_out: *mut usize,
) -> CUresult {
    // SAFETY: the same function without edge data.
    unsafe {
        cuStreamGetCaptureInfo_v3(
            hStream,
            captureStatus_out,
            id_out,
            graph_out,
            dependencies_out,
            core::ptr::null_mut(),
            numDependencies_out,
        )
    }
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies_v2(
    hStream: CUstream,
    dependencies: *mut CUgraphNode,
    dependencyData: *const CUgraphEdgeData,
    numDependencies: usize,
    flags: u32,
) -> CUresult {
    run(|client| {
        let target = targets::target(client, hStream)?;
        let change = match flags {
            0 => Change::Add,
            1 => Change::Set,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller's arrays.
        let tips = unsafe { read_dependencies(dependencies, dependencyData, numDependencies) }?;
        client.graphs.registry.captures.update(target.captured(), change, tips)
    })
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies(
    hStream: CUstream,
    dependencies: *mut CUgraphNode,
    numDependencies: usize,
    flags: u32,
) -> CUresult {
    let no_data = core::ptr::null();
    // SAFETY: the same function without edge data.
    unsafe {
        cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, no_data, numDependencies, flags)
    }
}

pub(crate) unsafe fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CUresult {
    run(|_| {
        not_null(mode)?;
        // SAFETY: not null; the caller's variable.
        let asked = unsafe { mode.read() };
        let asked = known_mode(asked)?;
        put!(mode, here(|here| here.capture_mode.replace(asked)));
        Ok(())
    })
}
