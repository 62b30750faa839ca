//! Questions about streams, capture among them: nothing is ever capturing.

use super::not_null;
use crate::client::run;
use crate::session::Result;
use crate::stream::{self, Target};
use cuda_abi::types::*;
use link::wire::command::LEGACY_STREAM;

pub(crate) unsafe fn cuStreamGetFlags(hStream: CUstream, flags: *mut u32) -> CUresult {
    run(|client| {
        not_null(flags)?;
        let target = stream::target(client, hStream)?;
        put!(flags, target.stream.map_or(0, |stream| stream.flags));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetPriority(hStream: CUstream, priority: *mut i32) -> CUresult {
    run(|client| {
        not_null(priority)?;
        let target = stream::target(client, hStream)?;
        put!(priority, target.stream.map_or(0, |stream| stream.priority));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetId(hStream: CUstream, streamId: *mut u64) -> CUresult {
    run(|client| {
        not_null(streamId)?;
        let target = stream::target(client, hStream)?;
        let default = if target.slot == LEGACY_STREAM { 1 } else { 2 };
        put!(streamId, target.stream.map_or(default, |stream| stream.id));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) -> CUresult {
    run(|client| {
        put!(pctx, stream::target(client, hStream)?.context.handle());
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCtx_v2(
    hStream: CUstream,
    pCtx: *mut CUcontext,
    pGreenCtx: *mut CUgreenCtx,
) -> CUresult {
    run(|client| {
        let target = stream::target(client, hStream)?;
        put_optional!(pCtx, target.context.handle());
        put_optional!(pGreenCtx, CUgreenCtx::NULL);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetGreenCtx(hStream: CUstream, phCtx: *mut CUgreenCtx) -> CUresult {
    run(|client| {
        stream::target(client, hStream)?;
        put!(phCtx, CUgreenCtx::NULL);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetDevice(hStream: CUstream, device: *mut CUdevice) -> CUresult {
    run(|client| {
        put!(device, stream::target(client, hStream)?.context.device);
        Ok(())
    })
}

/// Hints about priority and synchronisation are accepted and have no effect.
pub(crate) unsafe fn cuStreamSetAttribute(
    hStream: CUstream,
    _attr: CUstreamAttrID,
    value: *const CUstreamAttrValue,
) -> CUresult {
    run(|client| {
        not_null(value)?;
        stream::target(client, hStream).map(drop)
    })
}

pub(crate) unsafe fn cuStreamCopyAttributes(dst: CUstream, src: CUstream) -> CUresult {
    run(|client| {
        stream::target(client, dst)?;
        stream::target(client, src).map(drop)
    })
}

fn not_capturing(hStream: CUstream, then: impl FnOnce(Target) -> Result) -> CUresult {
    run(|client| then(stream::target(client, hStream)?))
}

pub(crate) unsafe fn cuStreamIsCapturing(
    hStream: CUstream,
    captureStatus: *mut CUstreamCaptureStatus,
) -> CUresult {
    not_capturing(hStream, |_| {
        put!(captureStatus, CUstreamCaptureStatus::NONE);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCaptureInfo(
    hStream: CUstream,
    captureStatus_out: *mut CUstreamCaptureStatus,
    id_out: *mut cuuint64_t,
) -> CUresult {
    not_capturing(hStream, |_| {
        put!(captureStatus_out, CUstreamCaptureStatus::NONE);
        put_optional!(id_out, 0);
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
    not_capturing(hStream, |_| {
        put!(captureStatus_out, CUstreamCaptureStatus::NONE);
        put_optional!(id_out, 0);
        put_optional!(graph_out, CUgraph::NULL);
        put_optional!(dependencies_out, core::ptr::null());
        put_optional!(numDependencies_out, 0);
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
    not_capturing(hStream, |_| {
        put!(captureStatus_out, CUstreamCaptureStatus::NONE);
        put_optional!(id_out, 0);
        put_optional!(graph_out, CUgraph::NULL);
        put_optional!(dependencies_out, core::ptr::null());
        put_optional!(edgeData_out, core::ptr::null());
        put_optional!(numDependencies_out, 0);
        Ok(())
    })
}

thread_local! {
    static CAPTURE_MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

pub(crate) unsafe fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CUresult {
    run(|_| {
        not_null(mode)?;
        // SAFETY: not null; the caller's variable.
        let asked = unsafe { mode.read() };
        if asked.0 > CUstreamCaptureMode::RELAXED.0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        put!(mode, CUstreamCaptureMode(CAPTURE_MODE.replace(asked.0)));
        Ok(())
    })
}
