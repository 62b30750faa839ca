//! Streams: making, waiting, host functions, memory operations.

use super::arguments::not_null;
use crate::client::run;
use crate::graph::kinds::NodeKind;
use crate::result::Result;
use crate::stream::events;
use crate::stream::events::Audience;
use crate::stream::{life, targets};
use core::ffi::c_void;
use cuda_abi::graph::user_object::HostWork;
use cuda_abi::types::*;

pub(crate) unsafe fn cuStreamCreate(phStream: *mut CUstream, Flags: u32) -> CUresult {
    // SAFETY: the same function with the default priority.
    unsafe { cuStreamCreateWithPriority(phStream, Flags, 0) }
}

pub(crate) unsafe fn cuStreamCreateWithPriority(
    phStream: *mut CUstream,
    flags: u32,
    priority: i32,
) -> CUresult {
    run(|client| {
        not_null(phStream)?;
        put!(phStream, CUstream(life::create(client, flags, priority)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuStreamDestroy_v2(hStream: CUstream) -> CUresult {
    run(|client| life::destroy(client, hStream))
}

pub(crate) unsafe fn cuStreamDestroy(hStream: CUstream) -> CUresult {
    run(|client| life::destroy(client, hStream))
}

pub(crate) unsafe fn cuStreamQuery(hStream: CUstream) -> CUresult {
    run(|client| {
        let target = targets::target(client, hStream)?;
        target.refuse_waiting(client)?;
        if target.is_idle()? { Ok(()) } else { Err(CUresult::ERROR_NOT_READY) }
    })
}

pub(crate) unsafe fn cuStreamSynchronize(hStream: CUstream) -> CUresult {
    run(|client| {
        let target = targets::target(client, hStream)?;
        target.refuse_waiting(client)?;
        target.synchronize()?;
        target.backend.session.verdict()
    })
}

pub(crate) unsafe fn cuStreamWaitEvent(hStream: CUstream, hEvent: CUevent, Flags: u32) -> CUresult {
    run(|client| {
        let audience = Audience::from_flags(Flags)?;
        let event = events::get(client, hEvent)?;
        event.hold(client, &targets::target(client, hStream)?, audience)
    })
}

/// A caller's pointer, on its way to the thread that calls the caller's function.
struct UserData(*mut c_void);

// SAFETY: the pointer is only handed back to the program, which passed it for use on another
// thread.
unsafe impl Send for UserData {}

pub(crate) unsafe fn cuLaunchHostFunc(
    hStream: CUstream,
    fn_: CUhostFn,
    userData: *mut c_void,
) -> CUresult {
    run(|client| {
        let work = HostWork::new(fn_, userData)?;
        let target = targets::target(client, hStream)?;
        if target.capture(client, || Ok(NodeKind::Host(work)))? {
            return Ok(());
        }
        let call = move |outcome: Result| {
            if outcome.is_ok() {
                // SAFETY: the program's function with the program's argument, at its turn.
                unsafe { work.call() };
            }
        };
        target.backend.callbacks.enqueue(&target.backend.session, target.lane(), Box::new(call))
    })
}

pub(crate) unsafe fn cuStreamAddCallback(
    hStream: CUstream,
    callback: CUstreamCallback,
    userData: *mut c_void,
    flags: u32,
) -> CUresult {
    run(|client| {
        let function = callback.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let target = targets::target(client, hStream)?;
        target.refuse_capture(client)?;
        let data = UserData(userData);
        let call = move |outcome: Result| {
            let UserData(pointer) = { data };
            // SAFETY: the program's own function, with the argument that it asked for.
            unsafe { function(hStream, outcome.into(), pointer) };
        };
        target.backend.callbacks.enqueue(&target.backend.session, target.lane(), Box::new(call))
    })
}
