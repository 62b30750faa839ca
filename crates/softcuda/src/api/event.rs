//! Events.

use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::types::{CUevent, CUresult, CUstream};

use super::driver::{current, current_even_failed};
use super::objects::Event;
use super::stream::find;
use super::table::fresh_handle;
use super::{Answer, out};
use crate::device::marker::{Marker, MarkerState};
use crate::device::ops::Op;

const NO_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;

api! {
    fn cuEventCreate(phEvent: *mut CUevent, Flags: u32) {
        let (driver, context) = current()?;
        let is_valid = Flags & !7 == 0 && (Flags & INTERPROCESS == 0 || Flags & NO_TIMING != 0);
        if phEvent.is_null() || !is_valid {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let handle = fresh_handle();
        let event = Event { context: context.handle, context_id: context.id, flags: Flags, recorded: Mutex::default() };
        driver.events.insert(handle, Arc::new(event));
        // SAFETY: the caller's pointer.
        unsafe { out::write(phEvent, CUevent(handle)) }
    }

    fn cuEventDestroy_v2(hEvent: CUevent) {
        let (driver, _) = current_even_failed()?;
        driver.events.remove(hEvent.0).map(|_| ())
    }

    fn cuEventRecord(hEvent: CUevent, hStream: CUstream) {
        record(hEvent, hStream, 0)
    }

    fn cuEventRecordWithFlags(hEvent: CUevent, hStream: CUstream, flags: u32) {
        record(hEvent, hStream, flags)
    }

    fn cuEventQuery(hEvent: CUevent) {
        let (driver, context) = current()?;
        let event = driver.events.get(hEvent.0)?;
        match event.marker().map_or(MarkerState::Done { time_ns: 0 }, |marker| marker.state()) {
            MarkerState::Pending => Err(CUresult::ERROR_NOT_READY),
            MarkerState::Done { .. } => {
                context.services.flush_console();
                Ok(())
            }
            MarkerState::Failed => Err(failure(driver, &event)),
        }
    }

    fn cuEventSynchronize(hEvent: CUevent) {
        let (driver, context) = current()?;
        let event = driver.events.get(hEvent.0)?;
        let Some(marker) = event.marker() else { return Ok(()) };
        let state = driver.engine.wait_marker(&marker);
        context.services.flush_console();
        if state == MarkerState::Failed { Err(failure(driver, &event)) } else { Ok(()) }
    }

    fn cuEventElapsedTime_v2(pMilliseconds: *mut f32, hStart: CUevent, hEnd: CUevent) {
        let (driver, _) = current()?;
        let (start, end) = (driver.events.get(hStart.0)?, driver.events.get(hEnd.0)?);
        if (start.flags | end.flags) & NO_TIMING != 0 {
            return Err(CUresult::ERROR_INVALID_HANDLE);
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

fn record(event: CUevent, stream: CUstream, flags: u32) -> Answer {
    let (driver, _, stream) = find(stream)?;
    let event = driver.events.get(event.0)?;
    if flags & !1 != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if event.context != stream.context {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    let marker = Arc::new(Marker::default());
    // Held while enqueueing, so that two records do not overtake each other.
    let mut recorded = event.recorded.lock().unwrap_or_else(PoisonError::into_inner);
    driver.engine.enqueue(stream.id, Op::Record(marker.clone()))?;
    *recorded = Some(marker);
    Ok(())
}

/// The error of the event's own context.
fn failure(driver: &super::driver::Driver, event: &Event) -> CUresult {
    driver
        .engine
        .context_error(event.context_id)
        .map_or(CUresult::ERROR_CONTEXT_IS_DESTROYED, CUresult::from)
}
