//! Limits, cache preferences, profiler and log switches of a context.

use crate::client::run;
use crate::thread::current;
use core::ffi::{c_char, c_void};
use cuda_abi::types::*;
use link::wire::command::{LimitGet, LimitReply, LimitSet, Opcode};
use zerocopy::IntoBytes;

pub(crate) unsafe fn cuCtxGetLimit(pvalue: *mut usize, limit: CUlimit) -> CUresult {
    run(|_| {
        super::arguments::not_null(pvalue)?;
        if let Some(known) = current::look_alive(|context| Ok(context.limits.get(limit)))? {
            put!(pvalue, known);
            return Ok(());
        }
        let context = current::context()?;
        let (backend, id) = context.backend()?;
        let body = LimitGet { limit: limit.0, reserved: 0 };
        let reply: LimitReply =
            backend.session.call_for(id, Opcode::LimitGet, &[body.as_bytes()])?;
        let value = reply.value as usize;
        context.limits.set(limit, value);
        put!(pvalue, value);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxSetLimit(limit: CUlimit, value: usize) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        let context = current::context()?;
        let (backend, id) = context.backend()?;
        let body = LimitSet { limit: limit.0, reserved: 0, value: value as u64 };
        let answer = backend.session.call(id, Opcode::LimitSet, &[body.as_bytes()]);
        // What it is now is the executor's to say.
        context.limits.forget();
        answer.map(drop)
    })
}

/// Preferences are accepted: devices of today choose by themselves.
pub(crate) unsafe fn cuCtxSetCacheConfig(_config: CUfunc_cache) -> CUresult {
    run(|_| current::context().map(drop))
}

pub(crate) unsafe fn cuCtxGetCacheConfig(pconfig: *mut CUfunc_cache) -> CUresult {
    run(|_| {
        current::context()?;
        put!(pconfig, CUfunc_cache(0));
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxSetSharedMemConfig(_config: CUsharedconfig) -> CUresult {
    run(|_| current::context().map(drop))
}

pub(crate) unsafe fn cuCtxGetSharedMemConfig(pConfig: *mut CUsharedconfig) -> CUresult {
    run(|_| {
        current::context()?;
        // Four-byte banks.
        put!(pConfig, CUsharedconfig(1));
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxResetPersistingL2Cache() -> CUresult {
    run(|_| current::context().map(drop))
}

pub(crate) unsafe fn cuProfilerStart() -> CUresult {
    run(|_| Ok(()))
}

pub(crate) unsafe fn cuProfilerStop() -> CUresult {
    run(|_| Ok(()))
}

/// Accepted; there are no log entries, so the callback is never called.
pub(crate) unsafe fn cuLogsRegisterCallback(
    callbackFunc: CUlogsCallback,
    _userData: *mut c_void,
    callback_out: *mut CUlogsCallbackHandle,
) -> CUresult {
    run(|_| {
        if callbackFunc.is_none() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        put_optional!(callback_out, CUlogsCallbackHandle(1));
        Ok(())
    })
}

pub(crate) unsafe fn cuLogsUnregisterCallback(_callback: CUlogsCallbackHandle) -> CUresult {
    run(|_| Ok(()))
}

pub(crate) unsafe fn cuLogsCurrent(iterator_out: *mut CUlogIterator, _flags: u32) -> CUresult {
    run(|_| {
        put!(iterator_out, 0);
        Ok(())
    })
}

pub(crate) unsafe fn cuLogsDumpToMemory(
    _iterator: *mut CUlogIterator,
    buffer: *mut c_char,
    size: *mut usize,
    _flags: u32,
) -> CUresult {
    run(|_| {
        put!(buffer, 0);
        put!(size, 0);
        Ok(())
    })
}
