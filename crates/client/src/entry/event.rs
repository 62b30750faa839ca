//! Events.

use super::arguments::not_null;
use crate::client::run;
use crate::stream::events;
use crate::stream::events::Audience;
use crate::stream::targets;
use cuda_abi::types::*;

pub(crate) unsafe fn cuEventCreate(phEvent: *mut CUevent, Flags: u32) -> CUresult {
    run(|client| {
        not_null(phEvent)?;
        put!(phEvent, CUevent(events::create(client, Flags)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuEventDestroy_v2(hEvent: CUevent) -> CUresult {
    run(|client| events::destroy(client, hEvent))
}

pub(crate) unsafe fn cuEventDestroy(hEvent: CUevent) -> CUresult {
    run(|client| events::destroy(client, hEvent))
}

pub(crate) unsafe fn cuEventRecord(hEvent: CUevent, hStream: CUstream) -> CUresult {
    run(|client| {
        let event = events::get(client, hEvent)?;
        event.record(client, &targets::target(client, hStream)?, Audience::Any)
    })
}

pub(crate) unsafe fn cuEventRecordWithFlags(
    hEvent: CUevent,
    hStream: CUstream,
    flags: u32,
) -> CUresult {
    run(|client| {
        let audience = Audience::from_flags(flags)?;
        let event = events::get(client, hEvent)?;
        event.record(client, &targets::target(client, hStream)?, audience)
    })
}

pub(crate) unsafe fn cuEventQuery(hEvent: CUevent) -> CUresult {
    run(|client| {
        if events::look(client, hEvent, |event| event.is_done(client))? {
            Ok(())
        } else {
            Err(CUresult::ERROR_NOT_READY)
        }
    })
}

pub(crate) unsafe fn cuEventSynchronize(hEvent: CUevent) -> CUresult {
    run(|client| {
        events::look(client, hEvent, |event| {
            event.synchronize(client)?;
            event.context.backend()?.0.session.verdict()
        })
    })
}

pub(crate) unsafe fn cuEventElapsedTime_v2(
    pMilliseconds: *mut f32,
    hStart: CUevent,
    hEnd: CUevent,
) -> CUresult {
    run(|client| {
        not_null(pMilliseconds)?;
        let (start, end) = (events::get(client, hStart)?, events::get(client, hEnd)?);
        put!(pMilliseconds, start.elapsed_ms(&end)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuEventElapsedTime(
    pMilliseconds: *mut f32,
    hStart: CUevent,
    hEnd: CUevent,
) -> CUresult {
    // SAFETY: the same function by its newer name.
    unsafe { cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd) }
}
