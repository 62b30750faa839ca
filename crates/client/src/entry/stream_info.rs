//! Questions about streams.

use super::arguments::not_null;
use crate::client::run;
use crate::stream::Target;
use crate::stream::targets::{id_of, located, look};
use cuda_abi::types::*;

pub(crate) unsafe fn cuStreamGetFlags(hStream: CUstream, flags: *mut u32) -> CUresult {
    run(|client| {
        not_null(flags)?;
        put!(flags, look(client, hStream, |stream| stream.flags, |_| 0)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetPriority(hStream: CUstream, priority: *mut i32) -> CUresult {
    run(|client| {
        not_null(priority)?;
        put!(priority, look(client, hStream, |stream| stream.priority, |_| 0)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetId(hStream: CUstream, streamId: *mut u64) -> CUresult {
    run(|client| {
        not_null(streamId)?;
        put!(streamId, id_of(client, hStream)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) -> CUresult {
    run(|client| {
        let default = |target: &Target| target.context.handle();
        put!(pctx, look(client, hStream, |stream| stream.context.handle(), default)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCtx_v2(
    hStream: CUstream,
    pCtx: *mut CUcontext,
    pGreenCtx: *mut CUgreenCtx,
) -> CUresult {
    run(|client| {
        let target = located(client, hStream)?;
        put_optional!(pCtx, target.context.owner().handle());
        put_optional!(pGreenCtx, super::green::handle_of(client, &target.context));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetGreenCtx(hStream: CUstream, phCtx: *mut CUgreenCtx) -> CUresult {
    run(|client| {
        let target = located(client, hStream)?;
        put!(phCtx, super::green::handle_of(client, &target.context));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetDevice(hStream: CUstream, device: *mut CUdevice) -> CUresult {
    run(|client| {
        let default = |target: &Target| target.context.device;
        put!(device, look(client, hStream, |stream| stream.context.device, default)?);
        Ok(())
    })
}
