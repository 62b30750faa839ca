//! Green contexts: a device's primary context on some of its SMs only, and the resources that they
//! are made of.
//!
//! A green context shares memory, modules and errors with the primary context; what differs is the
//! set of SMs that work submitted through it runs on. Sets are exact. Behaviour and codes as
//! measured of NVIDIA's driver 580 on 132 SMs.

use std::sync::Arc;

use cuda_abi::types::{
    CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUdevice, CUevent, CUgreenCtx,
    CUresult, CUstream,
};

use super::context_stack::{current_handle, with_stack};
use super::sm_resource;
use crate::api::answer::Answer;
use crate::api::driver::{Driver, current, driver};
use crate::api::objects::{Context, GreenContext, ResourceDescription, SmResource, Stream};
use crate::api::out;
use crate::api::stream;
use crate::api::stream::CreateFlags;
use crate::api::table::fresh_handle;
use crate::device::engine::StreamKind;
use crate::device::grid::SmMask;
use crate::device::marker::Marker;
use crate::device::ops::Op;
use crate::device::sm_sets;

/// The flag that creating one requires.
const DEFAULT_STREAM: u32 = 1;
/// Flags of splitting.
const IGNORE_COSCHEDULING: u32 = 1;
const MAX_CLUSTER: u32 = 2;

api! {
    fn cuDeviceGetDevResource(device: CUdevice, resource: *mut CUdevResource, type_: CUdevResourceType) {
        let driver = driver()?;
        driver.device(device)?;
        let whole = SmResource { device: device as u32, mask: SmMask::first(driver.config.sm_count) };
        // SAFETY: the caller's pointer.
        unsafe { give(resource, type_, whole) }
    }

    fn cuCtxGetDevResource(hCtx: CUcontext, resource: *mut CUdevResource, type_: CUdevResourceType) {
        let (driver, context) = current()?;
        let context = if hCtx.is_null() { context } else { driver.context(hCtx)? };
        // SAFETY: the caller's pointer.
        unsafe { give(resource, type_, SmResource { device: context.device, mask: context.mask }) }
    }

    fn cuGreenCtxGetDevResource(hCtx: CUgreenCtx, resource: *mut CUdevResource, type_: CUdevResourceType) {
        let context = driver()?.green(hCtx)?.context.clone();
        // SAFETY: the caller's pointer.
        unsafe { give(resource, type_, SmResource { device: context.device, mask: context.mask }) }
    }

    fn cuDevSmResourceSplitByCount(result: *mut CUdevResource, nbGroups: *mut u32, input: *const CUdevResource, remaining: *mut CUdevResource, useFlags: u32, minCount: u32) {
        let driver = driver()?;
        // SAFETY: the caller's pointers; the result has room for as many groups as it says.
        unsafe {
            let room = out::read(nbGroups)?;
            let from = SmResource::from_c(driver, &out::read(input)?)?;
            if useFlags & !(IGNORE_COSCHEDULING | MAX_CLUSTER) != 0 {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            let step = match useFlags & IGNORE_COSCHEDULING {
                0 => sm_sets::COSCHEDULED_SMS,
                _ => sm_sets::INDEPENDENT_SMS,
            };
            let most = if result.is_null() { u32::MAX } else { room };
            let split = sm_sets::split(from.mask, minCount, step, most);
            let split = split.ok_or(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION)?;
            if !result.is_null() {
                for (index, &mask) in split.groups.iter().enumerate() {
                    out::write(result.add(index), SmResource { mask, ..from }.to_c())?;
                }
            }
            let rest = SmResource { mask: split.remaining, ..from };
            out::write_optional(remaining, rest.to_c());
            out::write(nbGroups, split.groups.len() as u32)
        }
    }

    fn cuDevResourceGenerateDesc(phDesc: *mut CUdevResourceDesc, resources: *mut CUdevResource, nbResources: u32) {
        let driver = driver()?;
        // SAFETY: the caller's array of `nbResources`.
        let resources = unsafe { out::read_array(resources, nbResources as usize)? };
        let union = sm_resource::union(driver, &resources)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(phDesc, driver.description(ResourceDescription { resource: union })) }
    }

    fn cuGreenCtxCreate(phCtx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: u32) {
        let driver = driver()?;
        let device = driver.device(dev)?;
        let description = driver.descriptions.find(desc.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if phCtx.is_null() || flags != DEFAULT_STREAM || description.resource.device != dev as u32 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let primary = device.retain(driver, dev)?;
        let handle = CUcontext(fresh_handle());
        let green = CUgreenCtx(fresh_handle());
        let number = driver.engine.fresh_number();
        let context = Arc::new(primary.green(handle, green, number, description.resource.mask));
        driver.contexts.insert(handle.0, context.clone());
        driver.green_contexts.insert(green.0, Arc::new(GreenContext { device: dev, context }));
        // SAFETY: the caller's pointer.
        unsafe { out::write(phCtx, green) }
    }

    fn cuGreenCtxDestroy(hCtx: CUgreenCtx) {
        let driver = driver()?;
        let green = driver.green_contexts.remove(hCtx.0).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        if current_handle() == green.context.handle {
            with_stack(|stack| { stack.pop(); });
        }
        driver.end_green(&green.context);
        // After a reset there is nothing left to release.
        let _ = driver.device(green.device)?.release(driver);
        Ok(())
    }

    fn cuCtxFromGreenCtx(pContext: *mut CUcontext, hCtx: CUgreenCtx) {
        // SAFETY: the caller's pointer.
        unsafe { out::write(pContext, driver()?.green(hCtx)?.context.handle) }
    }

    fn cuGreenCtxGetId(greenCtx: CUgreenCtx, greenCtxId: *mut u64) {
        // SAFETY: the caller's pointer.
        unsafe { out::write(greenCtxId, driver()?.green(greenCtx)?.context.number) }
    }

    fn cuGreenCtxStreamCreate(phStream: *mut CUstream, greenCtx: CUgreenCtx, flags: u32, priority: i32) {
        let driver = driver()?;
        let green = driver.green(greenCtx)?;
        if flags != CreateFlags::NON_BLOCKING {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer.
        unsafe { stream::create(driver, &green.context, phStream, flags, priority) }
    }

    fn cuGreenCtxRecordEvent(hCtx: CUgreenCtx, hEvent: CUevent) {
        let driver = driver()?;
        record_all(driver, &driver.green(hCtx)?.context.clone(), hEvent)
    }

    fn cuGreenCtxWaitEvent(hCtx: CUgreenCtx, hEvent: CUevent) {
        let driver = driver()?;
        wait_all(driver, &driver.green(hCtx)?.context.clone(), hEvent)
    }

    fn cuCtxRecordEvent(hCtx: CUcontext, hEvent: CUevent) {
        let (driver, context) = current()?;
        let context = if hCtx.is_null() { context } else { driver.context(hCtx)? };
        record_all(driver, &context, hEvent)
    }

    fn cuCtxWaitEvent(hCtx: CUcontext, hEvent: CUevent) {
        let (driver, context) = current()?;
        let context = if hCtx.is_null() { context } else { driver.context(hCtx)? };
        wait_all(driver, &context, hEvent)
    }
}

impl Driver {
    /// The green context of a handle, or CUDA_ERROR_INVALID_VALUE.
    fn green(&self, handle: CUgreenCtx) -> Answer<Arc<GreenContext>> {
        let found = self.green_contexts.find(handle.0).filter(|green| green.context.is_alive());
        found.ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// The handle of a description; equal ones are one, since they are never destroyed.
    fn description(&self, wanted: ResourceDescription) -> CUdevResourceDesc {
        let same = |description: &ResourceDescription| *description == wanted;
        CUdevResourceDesc(self.descriptions.find_handle_or_insert(same, wanted))
    }
}

/// Writes a resource of the only type there is, SMs.
///
/// # Safety
/// As for [`out::write`].
unsafe fn give(
    pointer: *mut CUdevResource,
    type_: CUdevResourceType,
    resource: SmResource,
) -> Answer {
    if type_ != CUdevResourceType::SM {
        return Err(CUresult::ERROR_INVALID_RESOURCE_TYPE);
    }
    // SAFETY: by the caller's promise.
    unsafe { out::write(pointer, resource.to_c()) }
}

/// The context's streams: for a green context its own, for another all but those of green contexts.
fn streams_of(driver: &Driver, context: &Context) -> Vec<Arc<Stream>> {
    let mut streams = driver.streams.all();
    streams.retain(|stream| stream.context == context.handle);
    streams.push(context.legacy_stream());
    streams.extend(context.per_thread_streams());
    streams
}

/// Records an event after everything that was submitted to the context.
fn record_all(driver: &Driver, context: &Context, event: CUevent) -> Answer {
    driver.graphs.captures.refuse_synchronizing(context.id)?;
    let event = driver.events.get(event.0)?;
    if event.context_id != context.id {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    // A stream of its own waits for all the others; it ends itself.
    let gathering = driver.engine.create_stream(context.id, StreamKind::NonBlocking)?;
    let recorded = event.record(|marker| {
        let mut plan = Vec::new();
        for stream in streams_of(driver, context) {
            let reached = Arc::new(Marker::default());
            plan.push((stream.id, Op::Record(reached.clone())));
            plan.push((gathering, Op::Wait(reached)));
        }
        plan.extend(event.record_ops(marker).into_iter().map(|op| (gathering, op)));
        Ok(driver.engine.enqueue_plan(plan)?)
    });
    driver.engine.destroy_stream(gathering);
    recorded
}

/// Makes what is submitted from now on to the context's streams wait for an event.
fn wait_all(driver: &Driver, context: &Context, event: CUevent) -> Answer {
    driver.graphs.captures.refuse_synchronizing(context.id)?;
    let event = driver.events.get(event.0)?;
    let streams = streams_of(driver, context);
    let waits = streams.iter().filter_map(|stream| Some((stream.id, event.wait_op()?)));
    Ok(driver.engine.enqueue_plan(waits.collect())?)
}
