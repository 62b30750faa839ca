//! Green contexts, and the SMs that they are made of.
//!
//! A resource is a number that the executor gave out, in the structure's private bytes; the
//! executor checks it when it comes back. Only what a device's client may use can be split.

use super::arguments::not_null;
use super::context::or_current;
use crate::client::{Client, run};
use crate::context::backend::Backend;
use crate::context::green::{Description, Green};
use crate::context::{Context, Lifetime};
use crate::result::Result;
use crate::stream::events;
use crate::stream::events::Audience;
use crate::stream::{Target, life, targets};
use crate::thread::current;
use cuda_abi::types::*;
use link::wire::command::Opcode;
use link::wire::partition::{
    DescriptionReply, MAX_DESCRIBED, MAX_GROUPS, OWN_SHARE, ResourceDescribe, ResourceGet,
    ResourceSplit, ResourceSplitReply, SmResource,
};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Marks structures that this library has filled in.
const MAGIC: [u8; 8] = *b"openmpSM";
/// The flag that a green context must be created with.
const DEFAULT_STREAM: u32 = 1;
/// `CU_STREAM_NON_BLOCKING`, which a green context's streams must have.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_DEV_SM_RESOURCE_SPLIT_*`.
const SPLIT_FLAGS: u32 = 3;

fn to_c(device: CUdevice, known: SmResource) -> CUdevResource {
    let mut resource = CUdevResource::default();
    if known.resource == 0 {
        return resource;
    }
    resource.type_ = CUdevResourceType::SM;
    resource._internal_padding[..8].copy_from_slice(&MAGIC);
    resource._internal_padding[8..12].copy_from_slice(&device.to_le_bytes());
    resource._internal_padding[12..16].copy_from_slice(&known.resource.to_le_bytes());
    resource.anonymous.sm = CUdevSmResource {
        smCount: known.multiprocessors,
        minSmPartitionSize: known.smallest_partition,
        smCoscheduledAlignment: known.alignment,
    };
    resource
}

/// The device and the executor's number of a resource: 914 for another type, 1 for one that this
/// library did not make.
fn from_c(resource: &CUdevResource) -> Result<(CUdevice, u32)> {
    if resource.type_ != CUdevResourceType::SM {
        return Err(CUresult::ERROR_INVALID_RESOURCE_TYPE);
    }
    let private = &resource._internal_padding;
    if private[..8] != MAGIC {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let word = |at: usize| [private[at], private[at + 1], private[at + 2], private[at + 3]];
    Ok((CUdevice::from_le_bytes(word(8)), u32::from_le_bytes(word(12))))
}

/// Writes the SMs of a partition; there are resources of no other type.
fn give(
    out: *mut CUdevResource,
    type_: CUdevResourceType,
    (backend, id): (&Backend, u32),
    device: CUdevice,
    partition: u32,
) -> Result {
    if type_ != CUdevResourceType::SM {
        return Err(CUresult::ERROR_INVALID_RESOURCE_TYPE);
    }
    not_null(out)?;
    let body = ResourceGet { partition, reserved: 0 };
    let known = backend.session.call_for(id, Opcode::ResourceGet, &[body.as_bytes()])?;
    put!(out, to_c(device, known));
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetDevResource(
    device: CUdevice,
    resource: *mut CUdevResource,
    type_: CUdevResourceType,
) -> CUresult {
    run(|client| {
        let backend = client.device(device)?.session(client)?;
        give(resource, type_, (backend, 0), device, OWN_SHARE)
    })
}

fn give_of(context: &Context, out: *mut CUdevResource, type_: CUdevResourceType) -> Result {
    give(out, type_, context.backend()?, context.device, context.partition())
}

pub(crate) unsafe fn cuCtxGetDevResource(
    hCtx: CUcontext,
    resource: *mut CUdevResource,
    type_: CUdevResourceType,
) -> CUresult {
    run(|client| give_of(&*or_current(client, hCtx)?, resource, type_))
}

pub(crate) unsafe fn cuGreenCtxGetDevResource(
    hCtx: CUgreenCtx,
    resource: *mut CUdevResource,
    type_: CUdevResourceType,
) -> CUresult {
    run(|client| give_of(&find(client, hCtx)?.context, resource, type_))
}

pub(crate) unsafe fn cuDevSmResourceSplitByCount(
    result: *mut CUdevResource,
    nbGroups: *mut u32,
    input: *const CUdevResource,
    remaining: *mut CUdevResource,
    useFlags: u32,
    minCount: u32,
) -> CUresult {
    run(|client| {
        not_null(nbGroups)?;
        not_null(input)?;
        // SAFETY: not null; the caller's structures.
        let (room, input) = unsafe { (nbGroups.read(), input.read()) };
        let (device, resource) = from_c(&input)?;
        if useFlags & !SPLIT_FLAGS != 0 || (!result.is_null() && room == 0) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let room = if result.is_null() { 0 } else { room.min(MAX_GROUPS) };
        let body = ResourceSplit { resource, least: minCount, flags: useFlags, room };
        let backend = client.device(device)?.session(client)?;
        let reply = backend.session.call(0, Opcode::ResourceSplit, &[body.as_bytes()])?;
        const SHORT: CUresult = CUresult::ERROR_MPS_RPC_FAILURE;
        let (head, mut rest) = ResourceSplitReply::read_from_prefix(&reply).map_err(|_| SHORT)?;
        if room > 0 {
            for place in 0..head.groups.min(room) as usize {
                let (group, after) = SmResource::read_from_prefix(rest).map_err(|_| SHORT)?;
                rest = after;
                // SAFETY: the caller's array has room for as many groups as it said.
                unsafe { result.add(place).write(to_c(device, group)) };
            }
        }
        put_optional!(remaining, to_c(device, head.remaining));
        put!(nbGroups, head.groups);
        Ok(())
    })
}

pub(crate) unsafe fn cuDevResourceGenerateDesc(
    phDesc: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    nbResources: u32,
) -> CUresult {
    run(|client| {
        not_null(phDesc)?;
        not_null(resources)?;
        if nbResources == 0 || nbResources > MAX_DESCRIBED {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; the caller's array.
        let given = unsafe { core::slice::from_raw_parts(resources, nbResources as usize) };
        let (mut device, mut numbers) = (None, Vec::new());
        for resource in given {
            let (of, number) = from_c(resource)?;
            if *device.get_or_insert(of) != of {
                return Err(CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION);
            }
            numbers.push(number);
        }
        let device = device.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let backend = client.device(device)?.session(client)?;
        let body = ResourceDescribe { count: nbResources, reserved: 0 };
        let parts = [body.as_bytes(), numbers.as_bytes()];
        let reply: DescriptionReply =
            backend.session.call_for(0, Opcode::ResourceDescribe, &parts)?;
        let made = Description { device, number: reply.description };
        put!(phDesc, client.descriptions.add(made));
        Ok(())
    })
}

/// A green context that lives, or CUDA_ERROR_INVALID_VALUE.
fn find(client: &Client, handle: CUgreenCtx) -> Result<Arc<Green>> {
    let found = client.greens.get(handle.0).filter(|green| green.context.is_alive());
    found.ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// The green context's handle; NULL of a context that is not green.
pub(super) fn handle_of(client: &Client, context: &Context) -> CUgreenCtx {
    if context.lifetime != Lifetime::Green {
        return CUgreenCtx::NULL;
    }
    let found = client.greens.select(|green| green.context.token == context.token);
    found.first().map_or(CUgreenCtx::NULL, |green| CUgreenCtx(green.token))
}

pub(crate) unsafe fn cuGreenCtxCreate(
    phCtx: *mut CUgreenCtx,
    desc: CUdevResourceDesc,
    dev: CUdevice,
    flags: u32,
) -> CUresult {
    run(|client| {
        not_null(phCtx)?;
        let primary = Arc::clone(&client.device(dev)?.primary);
        let Description { device, number } = client.descriptions.get(desc)?;
        if flags != DEFAULT_STREAM || device != dev {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        primary.retain(client)?;
        let made = client.contexts.insert_with(|token| Context::green(token, &primary));
        let opened = made.ok_or(CUresult::ERROR_OUT_OF_MEMORY).and_then(|context| {
            let result = context.open_green(number);
            result.inspect_err(|_| drop(client.contexts.remove(context.token)))?;
            Ok(context)
        });
        let context = opened.inspect_err(|_| {
            let _ = primary.release(client);
        })?;
        let made = client.greens.insert_with(|token| Green { token, context });
        put!(phCtx, CUgreenCtx(made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuGreenCtxDestroy(hCtx: CUgreenCtx) -> CUresult {
    run(|client| {
        let green = client.greens.remove(hCtx.0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let context = &green.context;
        context.end(client);
        current::remove_if_top(context.token);
        client.contexts.remove(context.token);
        // After a reset of the primary context nothing is left to release.
        let _ = client.device(context.device)?.primary.release(client);
        Ok(())
    })
}

pub(crate) unsafe fn cuCtxFromGreenCtx(pContext: *mut CUcontext, hCtx: CUgreenCtx) -> CUresult {
    run(|client| {
        put!(pContext, find(client, hCtx)?.context.handle());
        Ok(())
    })
}

pub(crate) unsafe fn cuGreenCtxGetId(greenCtx: CUgreenCtx, greenCtxId: *mut u64) -> CUresult {
    run(|client| {
        put!(greenCtxId, find(client, greenCtx)?.context.id);
        Ok(())
    })
}

pub(crate) unsafe fn cuGreenCtxStreamCreate(
    phStream: *mut CUstream,
    greenCtx: CUgreenCtx,
    flags: u32,
    priority: i32,
) -> CUresult {
    run(|client| {
        not_null(phStream)?;
        let green = find(client, greenCtx)?;
        if flags != NON_BLOCKING {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let made = life::create_in(client, &green.context, flags, priority)?;
        put!(phStream, CUstream(made.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuGreenCtxRecordEvent(hCtx: CUgreenCtx, hEvent: CUevent) -> CUresult {
    run(|client| record_all(client, &find(client, hCtx)?.context, hEvent))
}

pub(crate) unsafe fn cuGreenCtxWaitEvent(hCtx: CUgreenCtx, hEvent: CUevent) -> CUresult {
    run(|client| wait_all(client, &find(client, hCtx)?.context, hEvent))
}

pub(crate) unsafe fn cuCtxRecordEvent(hCtx: CUcontext, hEvent: CUevent) -> CUresult {
    run(|client| record_all(client, &or_current(client, hCtx)?, hEvent))
}

pub(crate) unsafe fn cuCtxWaitEvent(hCtx: CUcontext, hEvent: CUevent) -> CUresult {
    run(|client| wait_all(client, &or_current(client, hCtx)?, hEvent))
}

fn place(context: &Arc<Context>, slot: u32) -> Result<Target> {
    let (backend, id) = context.backend()?;
    Ok(Target { context: Arc::clone(context), backend, id, slot, stream: None })
}

/// Records an event after all that was submitted to a context.
fn record_all(client: &Client, context: &Arc<Context>, event: CUevent) -> Result {
    client.graphs.registry.captures.refuse_synchronizing(context.token as u64)?;
    let event = events::get(client, event)?;
    if event.context_token() != context.owner_token() {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    let (backend, id) = context.backend()?;
    let session = &backend.session;
    session.gates().wait_all(|| session.check())?;
    // A stream of its own waits for all the others.
    let gathering = session.create_stream(id, context.stream_plan(NON_BLOCKING, 0))?;
    let recorded = place(context, gathering).and_then(|gathering| {
        for mark in session.outstanding(id)? {
            if mark.slot == gathering.slot {
                continue;
            }
            let reached = events::create_in(client, context.owner(), DISABLE_TIMING)?;
            let source = place(context, mark.slot)?;
            let ordered = reached
                .record(client, &source, Audience::Any)
                .and_then(|()| reached.hold(client, &gathering, Audience::Any));
            events::destroy(client, CUevent(reached.token))?;
            ordered?;
        }
        event.record(client, &gathering, Audience::Any)
    });
    session.destroy_stream(id, gathering)?;
    recorded
}

/// Makes what is submitted from now on to the context's streams wait for an event.
fn wait_all(client: &Client, context: &Arc<Context>, event: CUevent) -> Result {
    client.graphs.registry.captures.refuse_synchronizing(context.token as u64)?;
    let event = events::get(client, event)?;
    event.hold(client, &place(context, context.default_stream())?, Audience::Any)?;
    for stream in client.streams.select(|stream| stream.context.token == context.token) {
        event.hold(client, &targets::target(client, CUstream(stream.token))?, Audience::Any)?;
    }
    Ok(())
}
