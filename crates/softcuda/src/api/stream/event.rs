//! Events.

use std::sync::Arc;
use std::time::Duration;

use cuda_abi::types::{CUevent, CUresult, CUstream};

use super::submit::submit;
use crate::api::answer::Answer;
use crate::api::driver::{Driver, current, current_or, driver};
use crate::api::graph::{EventWork, NodeKind};
use crate::api::objects::{Context, Event, INTERPROCESS, NO_TIMING, Recorded, SharedEvent};
use crate::api::out;
use crate::api::stream::find;
use crate::api::table::fresh_handle;
use crate::device::marker::MarkerState;

/// How often an event of several processes is looked at.
const SHARED_POLL_INTERVAL: Duration = Duration::from_micros(50);
/// `CU_EVENT_RECORD_EXTERNAL`: in a capture, a node of its own.
const EXTERNAL: u32 = 1;

api! {
    fn cuEventCreate(phEvent: *mut CUevent, Flags: u32) {
        let (driver, context) = current()?;
        let is_valid = Flags & !7 == 0 && (Flags & INTERPROCESS == 0 || Flags & NO_TIMING != 0);
        if phEvent.is_null() || !is_valid {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let handle = fresh_handle();
        let event = match Flags & INTERPROCESS {
            0 => Event::new(&context, Flags),
            _ => Event::new_shared(&context, SharedEvent::new(&driver.space, context.device)?),
        };
        driver.events.insert(handle, Arc::new(event));
        // SAFETY: the caller's pointer.
        unsafe { out::write(phEvent, CUevent(handle)) }
    }

    fn cuEventDestroy_v2(hEvent: CUevent) {
        let driver = driver()?;
        driver.events.remove(hEvent.0).map(|_| ())
    }

    fn cuEventRecord(hEvent: CUevent, hStream: CUstream) {
        record(hEvent, hStream, 0)
    }

    fn cuEventRecordWithFlags(hEvent: CUevent, hStream: CUstream, flags: u32) {
        record(hEvent, hStream, flags)
    }

    fn cuEventQuery(hEvent: CUevent) {
        let event = driver()?.events.get(hEvent.0)?;
        let (driver, context) = current_or(event.context_id)?;
        let state = uncaptured(driver, &event)?;
        if event.shared().is_some_and(|shared| shared.pending().is_some()) {
            return Err(CUresult::ERROR_NOT_READY);
        }
        match state {
            MarkerState::Pending => Err(CUresult::ERROR_NOT_READY),
            MarkerState::Done { .. } => {
                context.services.flush_console();
                Ok(())
            }
            MarkerState::Failed => Err(failure(driver, &event)),
        }
    }

    fn cuEventSynchronize(hEvent: CUevent) {
        let event = driver()?.events.get(hEvent.0)?;
        let (driver, context) = current_or(event.context_id)?;
        uncaptured(driver, &event)?;
        if let Some(shared) = event.shared() {
            return wait_shared(driver, &context, shared);
        }
        let Some(marker) = event.marker() else { return Ok(()) };
        let state = driver.engine.wait_marker(&marker);
        context.services.flush_console();
        if state == MarkerState::Failed { Err(failure(driver, &event)) } else { Ok(()) }
    }

    fn cuEventElapsedTime_v2(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) {
        let (start, end) = (driver()?.events.get(hStart.0)?, driver()?.events.get(hEnd.0)?);
        let (driver, _) = current_or(end.context_id)?;
        if (start.flags | end.flags) & NO_TIMING != 0 {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        if [&start, &end].iter().any(|event| matches!(event.recorded(), Recorded::Captured(_))) {
            return Err(CUresult::ERROR_CAPTURED_EVENT);
        }
        let time = |event: &Event| match event.marker().ok_or(CUresult::ERROR_INVALID_HANDLE)?.state() {
            MarkerState::Pending => Err(CUresult::ERROR_NOT_READY),
            MarkerState::Done { time_ns } => Ok(time_ns),
            MarkerState::Failed => Err(failure(driver, event)),
        };
        let elapsed_ns = time(&end)? as f64 - time(&start)? as f64;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pMilliseconds, (elapsed_ns / 1e6) as f32) }
    }
}

alias! {
    cuEventDestroy(hEvent: CUevent) = cuEventDestroy_v2;
    cuEventElapsedTime(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) = cuEventElapsedTime_v2;
}

fn record(handle: CUevent, stream: CUstream, flags: u32) -> Answer {
    let (driver, _, stream) = find(stream)?;
    let event = driver.events.get(handle.0)?;
    if flags & !EXTERNAL != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if event.context_id != stream.context_id {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    match driver.graphs.captures.active(stream.captured())? {
        Some(_) if flags & EXTERNAL != 0 => {
            submit(driver, &stream, NodeKind::EventRecord(EventWork { handle, event }))
        }
        Some(capture) => {
            event.set_recorded(Recorded::Captured(capture.point(stream.captured())));
            Ok(())
        }
        None => event
            .record(|marker| Ok(driver.engine.enqueue_all(stream.id, event.record_ops(marker))?)),
    }
}

/// Waits for a record of whichever process, as long as the own context has no error.
fn wait_shared(driver: &Driver, context: &Context, shared: &SharedEvent) -> Answer {
    let Some(number) = shared.pending() else { return Ok(()) };
    while !shared.is_done(number) {
        if let Some(sticky) = driver.engine.context_error(context.id) {
            return Err(sticky.into());
        }
        // Nobody wakes a process for another's event.
        std::thread::sleep(SHARED_POLL_INTERVAL);
    }
    context.services.flush_console();
    Ok(())
}

/// How far an event is that was not recorded in a capture: 907, and the capture is invalidated, if
/// it was; 1 if that capture is over. Asking is refused while other streams are captured, too.
fn uncaptured(driver: &Driver, event: &Event) -> Answer<MarkerState> {
    driver.graphs.captures.refuse_question(&event.captured())?;
    match event.recorded() {
        Recorded::Never => Ok(MarkerState::Done { time_ns: 0 }),
        Recorded::At(marker) => Ok(marker.state()),
        Recorded::Captured(_) => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// The error of the event's own context.
fn failure(driver: &Driver, event: &Event) -> CUresult {
    driver
        .engine
        .context_error(event.context_id)
        .map_or(CUresult::ERROR_CONTEXT_IS_DESTROYED, CUresult::from)
}
