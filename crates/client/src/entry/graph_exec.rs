//! Executable graphs: making, updating, launching and ending them; graph memory of a device.

use super::arguments::not_null;
use crate::client::{Client, run};
use crate::graph::executable::Executable;
use crate::graph::making::instantiate;
use crate::graph::update::update;
use crate::result::Result;
use crate::stream::{Target, targets};
use core::ffi::{c_char, c_void};
use cuda_abi::boundary::default_stream;
use cuda_abi::functions::DefaultStream;
use cuda_abi::graph::params::update_outcome;
use cuda_abi::types::*;
use std::sync::Arc;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`: an act, not a property.
const UPLOAD: u64 = 2;

fn make(client: &Client, graph: CUgraph, flags: u64) -> Result<CUgraphExec> {
    client.graphs.registry.captures.refuse_unsafe_call()?;
    instantiate(client, &client.graphs.registry.graph(graph)?, flags)
}

pub(crate) unsafe fn cuGraphInstantiateWithFlags(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    flags: u64,
) -> CUresult {
    run(|client| {
        not_null(phGraphExec)?;
        put!(phGraphExec, make(client, hGraph, flags)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphInstantiateWithParams(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> CUresult {
    run(|client| {
        not_null(phGraphExec)?;
        not_null(instantiateParams)?;
        // SAFETY: not null; the caller's structure.
        let mut asked = unsafe { instantiateParams.read() };
        let outcome = make(client, hGraph, asked.flags);
        asked.hErrNode_out = CUgraphNode::NULL;
        let registry = &client.graphs.registry;
        asked.result_out = registry.instantiation_result(hGraph, outcome.map(drop));
        put!(instantiateParams, asked);
        let executable = outcome?;
        if asked.flags & UPLOAD != 0 {
            let stream = match default_stream() {
                DefaultStream::PerThread if asked.hUploadStream.is_null() => CUstream::PER_THREAD,
                _ => asked.hUploadStream,
            };
            let target = targets::target(client, stream)?;
            client.executable(executable)?.upload(&target)?;
        }
        put!(phGraphExec, executable);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphInstantiate_v2(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    phErrorNode: *mut CUgraphNode,
    logBuffer: *mut c_char,
    bufferSize: usize,
) -> CUresult {
    run(|client| {
        not_null(phGraphExec)?;
        put_optional!(phErrorNode, CUgraphNode::NULL);
        if bufferSize > 0 {
            put_optional!(logBuffer, 0);
        }
        put!(phGraphExec, make(client, hGraph, 0)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphInstantiate(
    phGraphExec: *mut CUgraphExec,
    hGraph: CUgraph,
    phErrorNode: *mut CUgraphNode,
    logBuffer: *mut c_char,
    bufferSize: usize,
) -> CUresult {
    // SAFETY: the same function by its newer name.
    unsafe { cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize) }
}

pub(crate) unsafe fn cuGraphExecDestroy(hGraphExec: CUgraphExec) -> CUresult {
    run(|client| client.executable(hGraphExec)?.destroy(client))
}

pub(crate) unsafe fn cuGraphExecGetFlags(
    hGraphExec: CUgraphExec,
    flags: *mut cuuint64_t,
) -> CUresult {
    run(|client| {
        put!(flags, client.executable(hGraphExec)?.flags & !UPLOAD);
        Ok(())
    })
}

/// The stream of a launch, which is refused where streams are captured (as NVIDIA's driver does),
/// and the executable graph.
fn launched(
    client: &Client,
    executable: CUgraphExec,
    stream: CUstream,
) -> Result<(Target, Arc<Executable>)> {
    let target = targets::target(client, stream)?;
    client.graphs.registry.captures.refuse(target.captured())?;
    Ok((target, client.executable(executable)?))
}

pub(crate) unsafe fn cuGraphUpload(hGraphExec: CUgraphExec, hStream: CUstream) -> CUresult {
    run(|client| {
        let (target, executable) = launched(client, hGraphExec, hStream)?;
        executable.upload(&target)
    })
}

pub(crate) unsafe fn cuGraphLaunch(hGraphExec: CUgraphExec, hStream: CUstream) -> CUresult {
    run(|client| {
        let (target, executable) = launched(client, hGraphExec, hStream)?;
        executable.launch(client, &target)
    })
}

fn updated(
    client: &Client,
    executable: CUgraphExec,
    graph: CUgraph,
) -> Result<CUgraphExecUpdateResultInfo> {
    update(client, &*client.executable(executable)?, &*client.graphs.registry.graph(graph)?)
}

pub(crate) unsafe fn cuGraphExecUpdate_v2(
    hGraphExec: CUgraphExec,
    hGraph: CUgraph,
    resultInfo: *mut CUgraphExecUpdateResultInfo,
) -> CUresult {
    run(|client| {
        not_null(resultInfo)?;
        let info = updated(client, hGraphExec, hGraph)?;
        put!(resultInfo, info);
        update_outcome(&info)
    })
}

pub(crate) unsafe fn cuGraphExecUpdate(
    hGraphExec: CUgraphExec,
    hGraph: CUgraph,
    hErrorNode_out: *mut CUgraphNode,
    updateResult_out: *mut CUgraphExecUpdateResult,
) -> CUresult {
    run(|client| {
        not_null(updateResult_out)?;
        let info = updated(client, hGraphExec, hGraph)?;
        put_optional!(hErrorNode_out, info.errorNode);
        put!(updateResult_out, info.result);
        update_outcome(&info)
    })
}

pub(crate) unsafe fn cuGraphNodeSetEnabled(
    hGraphExec: CUgraphExec,
    hNode: CUgraphNode,
    isEnabled: u32,
) -> CUresult {
    run(|client| {
        client.graphs.registry.graph_of(hNode)?;
        client.executable(hGraphExec)?.set_enabled(client, hNode, isEnabled != 0)
    })
}

pub(crate) unsafe fn cuGraphNodeGetEnabled(
    hGraphExec: CUgraphExec,
    hNode: CUgraphNode,
    isEnabled: *mut u32,
) -> CUresult {
    run(|client| {
        put!(isEnabled, u32::from(client.executable(hGraphExec)?.is_enabled(hNode)?));
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: *mut c_void,
) -> CUresult {
    run(|client| {
        let ordinal = client.device(device)?.ordinal;
        put!(value.cast::<u64>(), client.graphs.memory.attribute(ordinal, attr)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attr: CUgraphMem_attribute,
    value: *mut c_void,
) -> CUresult {
    run(|client| {
        let ordinal = client.device(device)?.ordinal;
        not_null(value)?;
        // SAFETY: not null; the caller's 64-bit value.
        if unsafe { value.cast::<u64>().read() } != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        client.graphs.memory.reset(ordinal, attr)
    })
}

pub(crate) unsafe fn cuDeviceGraphMemTrim(device: CUdevice) -> CUresult {
    run(|client| {
        client.graphs.memory.trim(client.device(device)?.ordinal);
        Ok(())
    })
}
