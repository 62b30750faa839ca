//! Questions about streams.

use super::not_null;
use crate::client::run;
use crate::stream;
use cuda_abi::types::*;

pub(crate) unsafe fn cuStreamGetFlags(hStream: CUstream, flags: *mut u32) -> CUresult {
    run(|client| {
        not_null(flags)?;
        let target = stream::located(client, hStream)?;
        put!(flags, target.stream.map_or(0, |stream| stream.flags));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetPriority(hStream: CUstream, priority: *mut i32) -> CUresult {
    run(|client| {
        not_null(priority)?;
        let target = stream::located(client, hStream)?;
        put!(priority, target.stream.map_or(0, |stream| stream.priority));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetId(hStream: CUstream, streamId: *mut u64) -> CUresult {
    run(|client| {
        not_null(streamId)?;
        let target = stream::located(client, hStream)?;
        let is_default = target.slot == target.context.default_stream();
        let default = if is_default { 1 } else { 2 };
        put!(streamId, target.stream.map_or(default, |stream| stream.id));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) -> CUresult {
    run(|client| {
        put!(pctx, stream::located(client, hStream)?.context.handle());
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCtx_v2(
    hStream: CUstream,
    pCtx: *mut CUcontext,
    pGreenCtx: *mut CUgreenCtx,
) -> CUresult {
    run(|client| {
        let target = stream::located(client, hStream)?;
        put_optional!(pCtx, target.context.owner().handle());
        put_optional!(pGreenCtx, super::green::handle_of(client, &target.context));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetGreenCtx(hStream: CUstream, phCtx: *mut CUgreenCtx) -> CUresult {
    run(|client| {
        let target = stream::located(client, hStream)?;
        put!(phCtx, super::green::handle_of(client, &target.context));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetDevice(hStream: CUstream, device: *mut CUdevice) -> CUresult {
    run(|client| {
        put!(device, stream::located(client, hStream)?.context.device);
        Ok(())
    })
}
