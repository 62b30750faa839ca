//! Contexts and the calling thread's stack of them.

use super::arguments::not_null;
use crate::client::{Client, run};
use crate::context::{Context, Lifetime};
use crate::memory::peer;
use crate::result::Result;
use crate::thread::current;
use cuda_abi::types::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ALL_FLAGS: u32 = 0xff;

/// Scheduling flags exclude each other.
pub(super) fn check_flags(flags: u32) -> Result {
    let known = flags & !ALL_FLAGS == 0 && matches!(flags & 7, 0 | 1 | 2 | 4);
    if known { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

fn create(client: &'static Client, pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> Result {
    create_on(client, pctx, flags, dev, None)
}

/// A context of its own; with at most so many SMs, if that is asked for.
fn create_on(
    client: &'static Client,
    pctx: *mut CUcontext,
    flags: u32,
    dev: CUdevice,
    affinity: Option<u32>,
) -> Result {
    not_null(pctx)?;
    check_flags(flags)?;
    client.device(dev)?;
    let made =
        client.contexts.insert_with(|token| Context::new(token, dev, Lifetime::Created, flags));
    let context = made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    if let Err(error) = context.open_on(client, affinity) {
        client.contexts.remove(context.token);
        return Err(error);
    }
    put!(pctx, context.handle());
    current::push(context);
    Ok(())
}

/// The function of the API before 3.2, whose contexts no MPS has served (MPS guide, 2.3.2: of 4.0
/// at least).
pub(crate) unsafe fn cuCtxCreate(_pctx: *mut CUcontext, _flags: u32, _dev: CUdevice) -> CUresult {
    run(|_| {
        crate::error!(
            "cuCtxCreate of the API before CUDA 4.0 makes no context under MPS: build the program with a newer cuda.h, without CUDA_FORCE_API_VERSION"
        );
        Err(CUresult::ERROR_NOT_SUPPORTED)
    })
}

pub(crate) unsafe fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) -> CUresult {
    run(|client| create(client, pctx, flags, dev))
}

/// The number of SMs that execution affinity asks for, if it does: one parameter at most, as there
/// is one kind.
///
/// # Safety
/// `params` has so many elements, or is null.
unsafe fn affinity(params: *const CUexecAffinityParam, count: i32) -> Result<Option<u32>> {
    match count {
        0 => return Ok(None),
        1 => not_null(params)?,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    // SAFETY: not null; the caller's promise.
    let param = unsafe { params.read() };
    if param.type_ != CUexecAffinityType::SM_COUNT {
        return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    // SAFETY: the only member there is for this type, a number.
    match unsafe { param.param.smCount.val } {
        0 => Err(CUresult::ERROR_INVALID_VALUE),
        count => Ok(Some(count)),
    }
}

pub(crate) unsafe fn cuCtxCreate_v3(
    pctx: *mut CUcontext,
    paramsArray: *mut CUexecAffinityParam,
    numParams: i32,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    run(|client| {
        // SAFETY: the caller's array.
        let affinity = unsafe { affinity(paramsArray, numParams) }?;
        create_on(client, pctx, flags, dev, affinity)
    })
}

pub(crate) unsafe fn cuCtxCreate_v4(
    pctx: *mut CUcontext,
    ctxCreateParams: *mut CUctxCreateParams,
    flags: u32,
    dev: CUdevice,
) -> CUresult {
    run(|client| {
        let mut wanted = None;
        if !ctxCreateParams.is_null() {
            // SAFETY: not null; the caller's structure.
            let params = unsafe { ctxCreateParams.read() };
            // SAFETY: the caller's array.
            wanted = unsafe { affinity(params.execAffinityParams, params.numExecAffinityParams) }?;
            if !params.cigParams.is_null() {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
        }
        create_on(client, pctx, flags, dev, wanted)
    })
}

pub(crate) unsafe fn cuCtxDestroy_v2(ctx: CUcontext) -> CUresult {
    run(|client| client.context(ctx.0)?.destroy(client))
}

pub(crate) unsafe fn cuCtxDestroy(ctx: CUcontext) -> CUresult {
    // SAFETY: the same function by its newer name.
    unsafe { cuCtxDestroy_v2(ctx) }
}

pub(crate) unsafe fn cuCtxAttach(pctx: *mut CUcontext, flags: u32) -> CUresult {
    run(|_| {
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        not_null(pctx)?;
        let context = current::context()?;
        context.attach()?;
        put!(pctx, context.handle());
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxDetach(ctx: CUcontext) -> CUresult {
    run(|client| client.context(ctx.0)?.detach(client))
}

pub(crate) unsafe fn cuCtxGetCurrent(pctx: *mut CUcontext) -> CUresult {
    run(|_| {
        put!(pctx, current::look(|top| top.map_or(CUcontext::NULL, Context::handle)));
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxSetCurrent(ctx: CUcontext) -> CUresult {
    run(|client| {
        if ctx.is_null() {
            current::pop();
            return Ok(());
        }
        if current::look(|top| top.is_some_and(|top| top.token == ctx.0)) {
            return Ok(());
        }
        current::replace(client.context(ctx.0)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxPushCurrent_v2(ctx: CUcontext) -> CUresult {
    run(|client| {
        if ctx == CUcontext::NULL {
            // As an H200's driver says of it.
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // The one that is on top is at hand.
        let again = current::top().filter(|top| top.token == ctx.0 && top.is_alive());
        current::push(again.map_or_else(|| client.context(ctx.0), Ok)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxPushCurrent(ctx: CUcontext) -> CUresult {
    // SAFETY: the same function by its newer name.
    unsafe { cuCtxPushCurrent_v2(ctx) }
}

pub(crate) unsafe fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) -> CUresult {
    run(|_| {
        let popped = current::pop().ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        put_optional!(pctx, popped.handle());
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxPopCurrent(pctx: *mut CUcontext) -> CUresult {
    // SAFETY: the same function by its newer name.
    unsafe { cuCtxPopCurrent_v2(pctx) }
}

/// What `see` finds of the context that a handle names, or of the current one in place of NULL.
fn look<T>(client: &Client, ctx: CUcontext, see: impl Fn(&Context) -> T) -> Result<T> {
    let seen = current::look(|top| {
        let top = top.filter(|top| ctx.is_null() || top.token == ctx.0)?;
        Some(see(top))
    });
    match seen {
        Some(seen) => Ok(seen),
        None => or_current(client, ctx).map(|context| see(&context)),
    }
}

/// The same context.
pub(super) fn or_current(client: &Client, ctx: CUcontext) -> Result<Arc<Context>> {
    if ctx.is_null() {
        current::top().ok_or(CUresult::ERROR_INVALID_CONTEXT)
    } else {
        client.context(ctx.0)
    }
}

pub(crate) unsafe fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    // SAFETY: the same function with the current context.
    unsafe { cuCtxGetDevice_v2(device, CUcontext::NULL) }
}

pub(crate) unsafe fn cuCtxGetDevice_v2(device: *mut CUdevice, ctx: CUcontext) -> CUresult {
    run(|client| {
        put!(device, look(client, ctx, |context| context.device)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32) -> CUresult {
    run(|client| {
        put!(version, look(client, ctx, |context| context.api_version)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxGetId(ctx: CUcontext, ctxId: *mut u64) -> CUresult {
    run(|client| {
        put!(ctxId, look(client, ctx, |context| context.id)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxGetFlags(flags: *mut u32) -> CUresult {
    run(|_| {
        // Relaxed: a value that orders nothing.
        put!(flags, current::look_alive(|context| Ok(context.flags.load(Ordering::Relaxed)))?);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxSetFlags(flags: u32) -> CUresult {
    run(|_| {
        check_flags(flags)?;
        // Relaxed: a value that orders nothing.
        current::context()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxSynchronize() -> CUresult {
    // SAFETY: the same function with the current context.
    unsafe { cuCtxSynchronize_v2(CUcontext::NULL) }
}

pub(crate) unsafe fn cuCtxSynchronize_v2(ctx: CUcontext) -> CUresult {
    run(|client| {
        let context = or_current(client, ctx)?;
        let (backend, _) = context.backend()?;
        client.graphs.registry.captures.refuse_synchronizing(context.token as u64)?;
        context.synchronize(client)?;
        backend.session.verdict()
    })
}

pub(crate) unsafe fn cuCtxGetStreamPriorityRange(
    leastPriority: *mut i32,
    greatestPriority: *mut i32,
) -> CUresult {
    run(|client| {
        let device = current::look_alive(|context| Ok(context.device))?;
        let (least, greatest) = client.device(device)?.info.stream_priorities;
        put_optional!(leastPriority, least);
        put_optional!(greatestPriority, greatest);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxEnablePeerAccess(peerContext: CUcontext, Flags: u32) -> CUresult {
    run(|client| {
        let (viewer, owner) = (current::context()?, client.context(peerContext.0)?);
        if Flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        peer::enable(client, &viewer, &owner)
    })
}

pub(crate) unsafe fn cuCtxDisablePeerAccess(peerContext: CUcontext) -> CUresult {
    run(|client| {
        let (viewer, owner) = (current::context()?, client.context(peerContext.0)?);
        peer::disable(client, &viewer, &owner)
    })
}

/// The multiprocessors that the current context's work runs on.
pub(crate) unsafe fn cuCtxGetExecAffinity(
    pExecAffinity: *mut CUexecAffinityParam,
    type_: CUexecAffinityType,
) -> CUresult {
    run(|client| {
        if type_ != CUexecAffinityType::SM_COUNT {
            return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        let val = current::context()?.multiprocessors(client)?;
        let param = CUexecAffinityParam_v1_param { smCount: CUexecAffinitySmCount { val } };
        put!(pExecAffinity, CUexecAffinityParam { type_, param });
        Ok(())
    })
}
