//! Primary contexts.

use super::arguments::not_null;
use crate::client::run;
use core::ffi::c_int;
use cuda_abi::types::*;
use std::sync::atomic::Ordering;

pub(crate) unsafe fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) -> CUresult {
    run(|client| {
        not_null(pctx)?;
        let primary = &client.device(dev)?.primary;
        primary.retain(client)?;
        put!(pctx, primary.handle());
        Ok(())
    })
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease(dev: CUdevice) -> CUresult {
    run(|client| client.device(dev)?.primary.release(client))
}

pub(crate) unsafe fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) -> CUresult {
    run(|client| client.device(dev)?.primary.release(client))
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset(dev: CUdevice) -> CUresult {
    run(|client| {
        client.device(dev)?.primary.reset(client);
        Ok(())
    })
}

pub(crate) unsafe fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) -> CUresult {
    // SAFETY: the same function by its other name.
    unsafe { cuDevicePrimaryCtxReset(dev) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) -> CUresult {
    run(|client| {
        let primary = &client.device(dev)?.primary;
        super::context::check_flags(flags)?;
        // Relaxed: a value that orders nothing.
        primary.flags.store(flags, Ordering::Relaxed);
        Ok(())
    })
}

/// The older form's name differs, its behaviour does not.
pub(crate) unsafe fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) -> CUresult {
    // SAFETY: the same function by its newer name.
    unsafe { cuDevicePrimaryCtxSetFlags_v2(dev, flags) }
}

pub(crate) unsafe fn cuDevicePrimaryCtxGetState(
    dev: CUdevice,
    flags: *mut u32,
    active: *mut c_int,
) -> CUresult {
    run(|client| {
        let primary = &client.device(dev)?.primary;
        // Relaxed: a value that orders nothing.
        put_optional!(flags, primary.flags.load(Ordering::Relaxed));
        put_optional!(active, c_int::from(primary.is_alive()));
        Ok(())
    })
}
