//! Contexts as the first versions of the API had them: attached to and detached from, and sizes of
//! 32 bits.

use cuda_abi::types::{CUcontext, CUdevice, CUresult};

use crate::api::context;
use crate::api::context::cuCtxDestroy_v2;
use crate::api::driver::{current, driver};
use crate::api::objects::ContextKind;
use crate::api::out;

api! {
    fn cuCtxCreate(pctx: *mut CUcontext, flags: u32, dev: CUdevice) {
        // SAFETY: the caller's pointer.
        unsafe { context::create(pctx, flags, dev, 3010) }
    }

    fn cuCtxAttach(pctx: *mut CUcontext, flags: u32) {
        let (_, context) = current()?;
        if flags != 0 || pctx.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if matches!(context.kind, ContextKind::Primary | ContextKind::Green(_)) {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        context.attach();
        // SAFETY: the caller's pointer.
        unsafe { out::write(pctx, context.handle) }
    }

    fn cuCtxDetach(ctx: CUcontext) {
        if driver()?.context(ctx)?.detach() {
            return Ok(());
        }
        // SAFETY: no pointer is passed.
        unsafe { cuCtxDestroy_v2(ctx) }.ok()
    }

    fn cuDeviceTotalMem(bytes: *mut u32, dev: CUdevice) {
        let total_bytes = driver()?.device(dev)?.account.total_bytes();
        // SAFETY: the caller's pointer.
        unsafe { out::write(bytes, u32::try_from(total_bytes).unwrap_or(u32::MAX)) }
    }
}
