//! Questions about streams.

use super::not_null;
use crate::client::{Client, run};
use crate::session::Result;
use crate::stream::{self, Stream};
use cuda_abi::types::*;

/// What `of_own` finds of a stream that a program made, or `of_default` of a default stream.
fn look<T>(
    client: &Client,
    handle: CUstream,
    of_own: impl FnOnce(&Stream) -> T,
    of_default: impl FnOnce(&stream::Target) -> T,
) -> Result<T> {
    let own = client.streams.look(handle.0, |stream| match stream.context.backend() {
        Ok((_, id)) if id == stream.wire_id => Ok(of_own(stream)),
        Ok(_) => Err(CUresult::ERROR_INVALID_HANDLE),
        Err(error) => Err(error),
    });
    match own {
        Some(seen) => seen,
        None => stream::located(client, handle).map(|target| of_default(&target)),
    }
}

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
        let default = |target: &stream::Target| {
            if target.slot == target.context.default_stream() { 1 } else { 2 }
        };
        put!(streamId, look(client, hStream, |stream| stream.id, default)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) -> CUresult {
    run(|client| {
        let default = |target: &stream::Target| target.context.handle();
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
        let default = |target: &stream::Target| target.context.device;
        put!(device, look(client, hStream, |stream| stream.context.device, default)?);
        Ok(())
    })
}
