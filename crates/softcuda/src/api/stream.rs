//! Streams and host callbacks in stream order.

pub(crate) mod event;
pub(crate) mod memory_op;
pub(crate) mod stalls;
pub(crate) mod stream_attributes;
pub(crate) mod stream_values;
pub(crate) mod submit;

use std::ffi::c_void;
use std::sync::Arc;

use cuda_abi::graph::capture::{Effect, Recorded, Wait};
use cuda_abi::graph::user_object::HostWork;
use cuda_abi::types::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUgreenCtx, CUhostFn, CUresult, CUstream,
    CUstreamCallback,
};

use super::answer::Answer;
use super::driver::{Driver, current, current_or, driver};
use super::graph::{EventWork, NodeKind};
use super::objects::{Context, ContextKind, GREATEST_PRIORITY, LEAST_PRIORITY, Stream};
use super::out;
use super::table::fresh_handle;
use crate::api::stream::submit::submit;
use crate::device::engine::StreamKind;
use crate::device::fault::Sticky;
use crate::device::ops::Op;

/// `CU_EVENT_WAIT_EXTERNAL`: in a capture, a node of its own.
const EXTERNAL: u32 = 1;

api! {
    fn cuStreamCreate(phStream: *mut CUstream, Flags: u32) {
        // SAFETY: the caller's pointer.
        unsafe { create_here(phStream, Flags, LEAST_PRIORITY) }
    }

    fn cuStreamCreateWithPriority(phStream: *mut CUstream, flags: u32, priority: i32) {
        // SAFETY: the caller's pointer.
        unsafe { create_here(phStream, flags, priority) }
    }

    fn cuStreamDestroy_v2(hStream: CUstream) {
        let driver = driver()?;
        let stream = driver.streams.remove(hStream.0)?;
        driver.graphs.abandon_capture(stream.captured());
        driver.engine.destroy_stream(stream.id);
        Ok(())
    }

    fn cuStreamQuery(hStream: CUstream) {
        let (driver, context, stream) = find(hStream)?;
        driver.graphs.captures.refuse(stream.captured())?;
        driver.graphs.captures.refuse_unsafe_call()?;
        if driver.engine.query_stream(stream.id)? {
            context.services.flush_console();
            Ok(())
        } else {
            Err(CUresult::ERROR_NOT_READY)
        }
    }

    fn cuStreamSynchronize(hStream: CUstream) {
        let (driver, context, stream) = find(hStream)?;
        driver.graphs.captures.refuse(stream.captured())?;
        driver.graphs.captures.refuse_unsafe_call()?;
        let done = driver.engine.synchronize_stream(stream.id);
        context.services.flush_console();
        Ok(done?)
    }

    fn cuStreamWaitEvent(hStream: CUstream, hEvent: CUevent, Flags: u32) {
        let (driver, _, stream) = find(hStream)?;
        let event = driver.events.get(hEvent.0)?;
        if Flags & !1 != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if Flags & EXTERNAL != 0 && driver.is_capturing(&stream) {
            return submit(driver, &stream, NodeKind::EventWait(EventWork { handle: hEvent, event }));
        }
        let recorded = match event.captured() {
            // Other processes may have recorded it.
            Recorded::Never if event.shared().is_some() && !driver.is_capturing(&stream) => Recorded::Outside,
            recorded => recorded,
        };
        if driver.graphs.captures.wait(stream.captured(), recorded)? == Wait::Nothing {
            return Ok(());
        }
        match event.wait_op() {
            Some(wait) => Ok(driver.engine.enqueue(stream.id, wait)?),
            None => Ok(()),
        }
    }

    fn cuStreamGetFlags(hStream: CUstream, flags: *mut u32) {
        let (_, _, stream) = locate(hStream)?;
        let value = if stream.kind == StreamKind::NonBlocking { CreateFlags::NON_BLOCKING } else { 0 };
        // SAFETY: the caller's pointer.
        unsafe { out::write(flags, value) }
    }

    fn cuStreamGetPriority(hStream: CUstream, priority: *mut i32) {
        let (_, _, stream) = locate(hStream)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(priority, stream.priority()) }
    }

    fn cuStreamGetId(hStream: CUstream, streamId: *mut u64) {
        let (_, _, stream) = locate(hStream)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(streamId, stream.id) }
    }

    fn cuStreamGetDevice(hStream: CUstream, device: *mut CUdevice) {
        let (driver, _, stream) = locate(hStream)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(device, driver.context(stream.context)?.device as CUdevice) }
    }

    fn cuStreamGetCtx(hStream: CUstream, pctx: *mut CUcontext) {
        let (_, _, stream) = locate(hStream)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pctx, stream.context) }
    }

    fn cuStreamGetCtx_v2(hStream: CUstream, pCtx: *mut CUcontext, pGreenCtx: *mut CUgreenCtx) {
        let (driver, _, stream) = locate(hStream)?;
        let context = driver.context(stream.context)?;
        let (owner, green) = match context.kind {
            ContextKind::Green(green) => (driver.device(context.device as i32)?.primary_handle, green),
            _ => (context.handle, CUgreenCtx::NULL),
        };
        // SAFETY: the caller's pointers.
        unsafe {
            out::write_optional(pGreenCtx, green);
            out::write(pCtx, owner)
        }
    }

    fn cuStreamGetGreenCtx(hStream: CUstream, phCtx: *mut CUgreenCtx) {
        let (driver, _, stream) = locate(hStream)?;
        let green = match driver.context(stream.context)?.kind {
            ContextKind::Green(green) => green,
            _ => CUgreenCtx::NULL,
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(phCtx, green) }
    }

    fn cuStreamAttachMemAsync(hStream: CUstream, dptr: CUdeviceptr, length: usize, flags: u32) {
        let (driver, _, stream) = find(hStream)?;
        driver.graphs.captures.refuse(stream.captured())?;
        let found = driver.space.allocation_at(dptr).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // Managed memory is always accessible from everywhere: nothing to move.
        let is_whole = length == 0 || (found.base, found.size_bytes) == (dptr, length as u64);
        // To everything, the host, or a stream.
        let is_valid = is_whole && matches!(flags, 1 | 2 | 4);
        if is_valid { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    fn cuLaunchHostFunc(hStream: CUstream, fn_: CUhostFn, userData: *mut c_void) {
        let (driver, _, stream) = find(hStream)?;
        submit(driver, &stream, NodeKind::Host(HostWork::new(fn_, userData)?))
    }

    fn cuStreamAddCallback(hStream: CUstream, callback: CUstreamCallback, userData: *mut c_void, flags: u32) {
        let (driver, _, stream) = find(hStream)?;
        driver.graphs.captures.refuse(stream.captured())?;
        let function = callback.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let user = userData as usize;
        let call = move |failed: Option<Sticky>| {
            let status = failed.map_or(CUresult::SUCCESS, CUresult::from);
            // SAFETY: the program's function with the program's argument.
            unsafe { function(hStream, status, user as *mut c_void) };
        };
        Ok(driver.engine.enqueue(stream.id, Op::Host(Box::new(call)))?)
    }
}

alias! {
    cuStreamDestroy(hStream: CUstream) = cuStreamDestroy_v2;
}

/// Driver, current context and the stream of a handle, for work or waiting.
pub(crate) fn find(handle: CUstream) -> Answer<(&'static Driver, Arc<Context>, Arc<Stream>)> {
    peek(handle, Effect::Invalidate)
}

/// The same; `effect` says what becomes of a capture that the legacy stream cannot be used beside.
pub(crate) fn peek(
    handle: CUstream,
    effect: Effect,
) -> Answer<(&'static Driver, Arc<Context>, Arc<Stream>)> {
    let (driver, context, stream) = locate(handle)?;
    if stream.kind == StreamKind::Legacy {
        driver.graphs.captures.refuse_legacy(stream.context_id, effect)?;
    }
    Ok((driver, context, stream))
}

/// The same, for questions that have nothing to do with work.
fn locate(handle: CUstream) -> Answer<(&'static Driver, Arc<Context>, Arc<Stream>)> {
    if let Some(stream) = driver()?.streams.find(handle.0) {
        let (driver, context) = current_or(stream.context_id)?;
        return Ok((driver, context, stream));
    }
    let (driver, context) = current()?;
    let stream = driver.stream(&context, handle)?;
    Ok((driver, context, stream))
}

/// Flags of stream creation.
pub(crate) struct CreateFlags;

impl CreateFlags {
    /// The legacy stream and this one do not wait for each other.
    pub(crate) const NON_BLOCKING: u32 = 1;
}

/// # Safety
/// As for [`out::write`].
unsafe fn create_here(pointer: *mut CUstream, flags: u32, priority: i32) -> Answer {
    let (driver, context) = current()?;
    // SAFETY: by the caller's promise.
    unsafe { create(driver, &context, pointer, flags, priority) }
}

/// Creates a stream in a context; the priority is taken into the range that there is.
///
/// # Safety
/// As for [`out::write`].
pub(crate) unsafe fn create(
    driver: &Driver,
    context: &Context,
    pointer: *mut CUstream,
    flags: u32,
    priority: i32,
) -> Answer {
    if pointer.is_null() || flags & !CreateFlags::NON_BLOCKING != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let kind = match flags & CreateFlags::NON_BLOCKING {
        0 => StreamKind::Blocking,
        _ => StreamKind::NonBlocking,
    };
    let priority = priority.clamp(GREATEST_PRIORITY, LEAST_PRIORITY);
    let handle = fresh_handle();
    let id = driver.engine.create_stream(context.id, kind)?;
    let stream = Stream::new(id, (context.handle, context.id), kind, priority, context.mask);
    driver.streams.insert(handle, Arc::new(stream));
    // SAFETY: by the caller's promise.
    unsafe { out::write(pointer, CUstream(handle)) }
}
