//! Executable graphs in C: making, updating, launching and ending them; graph memory of a device.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_abi::graph::params::update_outcome;
use cuda_abi::graph::snapshot::Snapshot;
use cuda_abi::types::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUdevice, CUgraph, CUgraphExec, CUgraphExecUpdateResult,
    CUgraphExecUpdateResultInfo, CUgraphMem_attribute, CUgraphNode, CUresult, CUstream, cuuint64_t,
};

use super::executable::Executable;
use super::{memory, update};
use crate::api::answer::Answer;
use crate::api::driver::{Driver, current, driver};
use crate::api::out;
use crate::api::stream::find;

/// Flags of instantiation that exist; launching from the device is refused.
const FLAGS: u64 = 0xf;
const DEVICE_LAUNCH: u64 = 4;

api! {
    fn cuGraphInstantiateWithFlags(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, flags: u64) {
        // SAFETY: the caller's pointer.
        unsafe { instantiate(phGraphExec, hGraph, flags) }
    }

    fn cuGraphInstantiateWithParams(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, instantiateParams: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) {
        // SAFETY: the caller's pointers.
        unsafe {
            let mut asked = out::read(instantiateParams)?;
            let outcome = instantiate(phGraphExec, hGraph, asked.flags);
            asked.hErrNode_out = CUgraphNode::NULL;
            asked.result_out = driver()?.graphs.instantiation_result(hGraph, outcome);
            out::write(instantiateParams, asked)?;
            outcome
        }
    }

    fn cuGraphInstantiate_v2(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize) {
        // SAFETY: the caller's pointers; the log stays empty.
        unsafe {
            out::write_optional(phErrorNode, CUgraphNode::NULL);
            if bufferSize > 0 {
                out::write_optional(logBuffer, 0);
            }
            instantiate(phGraphExec, hGraph, 0)
        }
    }

    fn cuGraphExecDestroy(hGraphExec: CUgraphExec) {
        let driver = driver()?;
        let executable = driver.executables.remove(hGraphExec.0).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        executable.forget(driver);
        Ok(())
    }

    fn cuGraphExecGetFlags(hGraphExec: CUgraphExec, flags: *mut cuuint64_t) {
        let executable = driver()?.executable(hGraphExec)?;
        // SAFETY: the caller's pointer. Upload is an act, not a property.
        unsafe { out::write(flags, executable.flags & !2) }
    }

    fn cuGraphUpload(hGraphExec: CUgraphExec, hStream: CUstream) {
        let (driver, _, stream) = find(hStream)?;
        driver.graphs.captures.refuse(stream.captured())?;
        // There is nowhere to upload to; the handles are checked all the same.
        driver.executable(hGraphExec).map(|_| ())
    }

    fn cuGraphLaunch(hGraphExec: CUgraphExec, hStream: CUstream) {
        let (driver, _, stream) = find(hStream)?;
        // As NVIDIA's driver: launches of graphs are not captured.
        driver.graphs.captures.refuse(stream.captured())?;
        let executable = driver.executable(hGraphExec)?;
        executable.launch(driver, &stream)
    }

    fn cuGraphExecUpdate_v2(hGraphExec: CUgraphExec, hGraph: CUgraph, resultInfo: *mut CUgraphExecUpdateResultInfo) {
        let info = update(hGraphExec, hGraph)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(resultInfo, info)? };
        update_outcome(&info)
    }

    fn cuGraphExecUpdate(hGraphExec: CUgraphExec, hGraph: CUgraph, hErrorNode_out: *mut CUgraphNode, updateResult_out: *mut CUgraphExecUpdateResult) {
        let info = update(hGraphExec, hGraph)?;
        // SAFETY: the caller's pointers.
        unsafe {
            out::write_optional(hErrorNode_out, info.errorNode);
            out::write(updateResult_out, info.result)?;
        }
        update_outcome(&info)
    }

    fn cuGraphNodeSetEnabled(hGraphExec: CUgraphExec, hNode: CUgraphNode, isEnabled: u32) {
        let driver = driver()?;
        driver.graphs.graph_of(hNode)?;
        driver.executable(hGraphExec)?.set_enabled(hNode, isEnabled != 0)
    }

    fn cuGraphNodeGetEnabled(hGraphExec: CUgraphExec, hNode: CUgraphNode, isEnabled: *mut u32) {
        let is_enabled = driver()?.executable(hGraphExec)?.is_enabled(hNode)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(isEnabled, is_enabled.into()) }
    }

    fn cuDeviceGetGraphMemAttribute(device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) {
        let driver = driver()?;
        let marks = &driver.device(device)?.graph_memory;
        let (used, reserved) = memory::usage(driver, device as u32);
        let bytes = match attr {
            CUgraphMem_attribute::USED_MEM_CURRENT => used,
            // Relaxed: statistics.
            CUgraphMem_attribute::USED_MEM_HIGH => marks.used.load(Ordering::Relaxed),
            CUgraphMem_attribute::RESERVED_MEM_CURRENT => reserved,
            CUgraphMem_attribute::RESERVED_MEM_HIGH => marks.reserved.load(Ordering::Relaxed),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller's pointer to a 64-bit value.
        unsafe { out::write(value.cast::<u64>(), bytes) }
    }

    fn cuDeviceSetGraphMemAttribute(device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) {
        let driver = driver()?;
        let marks = &driver.device(device)?.graph_memory;
        // SAFETY: the caller's pointer to a 64-bit value.
        if unsafe { out::read(value.cast::<u64>())? } != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let (used, reserved) = memory::usage(driver, device as u32);
        match attr {
            // Relaxed: statistics; high-water marks can only be reset.
            CUgraphMem_attribute::USED_MEM_HIGH => marks.used.store(used, Ordering::Relaxed),
            CUgraphMem_attribute::RESERVED_MEM_HIGH => marks.reserved.store(reserved, Ordering::Relaxed),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuDeviceGraphMemTrim(device: CUdevice) {
        let driver = driver()?;
        driver.device(device)?;
        memory::trim(driver, device as u32);
        Ok(())
    }
}

alias! {
    cuGraphInstantiate(phGraphExec: *mut CUgraphExec, hGraph: CUgraph, phErrorNode: *mut CUgraphNode, logBuffer: *mut c_char, bufferSize: usize) = cuGraphInstantiate_v2;
}

impl Driver {
    /// The executable graph of a handle, or CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn executable(&self, handle: CUgraphExec) -> Answer<Arc<Executable>> {
        self.executables.find(handle.0).ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

/// # Safety
/// As for [`out::write`].
unsafe fn instantiate(pointer: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Answer {
    let (driver, _) = current()?;
    driver.graphs.captures.refuse_unsafe_call()?;
    let graph = driver.graphs.graph(graph)?;
    if pointer.is_null() || flags & !FLAGS != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let executable = Executable::new(driver, &graph, flags)?;
    // SAFETY: by the caller's promise.
    unsafe { out::write(pointer, executable.handle) }
}

/// Updates an executable graph; what does not fit together is told in the answer.
fn update(executable: CUgraphExec, graph: CUgraph) -> Answer<CUgraphExecUpdateResultInfo> {
    let (driver, _) = current()?;
    let executable = driver.executable(executable)?;
    let new = Snapshot::of(&*driver.graphs.graph(graph)?)?;
    let mut info = CUgraphExecUpdateResultInfo::default();
    if let Err(mismatch) = update::update(&executable, &new) {
        info.result = mismatch.outcome;
        info.errorNode = CUgraphNode(mismatch.node);
        info.errorFromNode = CUgraphNode(mismatch.from);
    }
    Ok(info)
}
