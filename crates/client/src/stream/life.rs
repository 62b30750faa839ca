//! How streams are made and destroyed.

use super::captured;
use crate::client::Client;
use crate::context::Context;
use crate::result::Result;
use crate::stream::{Stream, stream_id};
use crate::thread::current;
use cuda_abi::graph::capture::LegacyOrder;
use cuda_abi::types::{CUdevice, CUresult, CUstream};
use std::sync::Arc;

/// The nearest priority that a device has.
pub(crate) fn clamped(client: &Client, device: CUdevice, priority: i32) -> Result<i32> {
    let (least, greatest) = client.device(device)?.info.stream_priorities;
    Ok(priority.clamp(greatest.min(least), least.max(greatest)))
}

/// Makes a stream in the current context.
pub(crate) fn create(client: &Client, flags: u32, priority: i32) -> Result<Arc<Stream>> {
    if flags > 1 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    create_in(client, &current::context()?, flags, priority)
}

/// Makes a stream in a context. The priority is clamped to the device's range, as CUDA does.
pub(crate) fn create_in(
    client: &Client,
    context: &Arc<Context>,
    flags: u32,
    priority: i32,
) -> Result<Arc<Stream>> {
    let (backend, wire_id) = context.backend()?;
    let priority = clamped(client, context.device, priority)?;
    let slot = backend.session.create_stream(wire_id, context.stream_plan(flags, priority))?;
    let id = stream_id::next();
    let stream = client.streams.insert_with(|token| Stream {
        token,
        context: Arc::clone(context),
        wire_id,
        slot,
        flags,
        priority,
        id,
    });
    stream.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// Destroys a stream; its work goes on.
pub(crate) fn destroy(client: &Client, handle: CUstream) -> Result {
    let stream = client.streams.remove(handle.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    client.stream_attributes.forget(stream.id);
    stream.destroy(client)
}

/// Takes a stream that is being destroyed out of its capture, if it is in one.
pub(crate) fn abandon_capture(client: &Client, context: &Context, slot: u32) {
    let stream = captured(context, slot, LegacyOrder::Blocking);
    client.graphs.registry.abandon_capture(stream);
}

impl Stream {
    fn destroy(&self, client: &Client) -> Result {
        abandon_capture(client, &self.context, self.slot);
        let (backend, id) = self.context.backend()?;
        // A graph's later segments would find no stream.
        backend.callbacks.await_continuation(&backend.session, self.slot)?;
        backend.session.destroy_stream(id, self.slot)
    }
}

/// Destroys the streams of a context that is ending.
pub(crate) fn end_context(client: &Client, context: &Context) {
    for stream in client.streams.select(|stream| stream.context.token == context.token) {
        client.streams.remove(stream.token);
        // A failed session has no streams left.
        let _ = stream.destroy(client);
    }
}
