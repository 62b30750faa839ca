//! Streams, and what a stream handle means in a call.

pub(crate) mod attributes;
pub(crate) mod callbacks;
pub(crate) mod events;
pub(crate) mod gates;
pub(crate) mod late;
pub(crate) mod spare_events;
pub(crate) mod stream_id;

use crate::client::Client;
use crate::context::Context;
use crate::context::backend::Backend;
use crate::graph::NodeKind;
use crate::session::Result;
use crate::session::slots::Mark;
use crate::stream::callbacks::Lane;
use crate::stream::gates::Ordered;
use crate::thread::current;
use cuda_abi::graph::capture::{self, Effect, LegacyOrder};
use cuda_abi::types::{CUdevice, CUresult, CUstream};
use link::wire::command::Opcode;
use std::sync::Arc;
use std::time::Instant;
use zerocopy::{Immutable, IntoBytes};

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A stream that the program made.
pub(crate) struct Stream {
    pub(crate) token: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) wire_id: u32,
    slot: u32,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// `cuStreamGetId`.
    pub(crate) id: u64,
}

/// Where a call's work goes.
pub(crate) struct Target {
    pub(crate) context: Arc<Context>,
    pub(crate) backend: &'static Backend,
    /// The executor's number of the context.
    pub(crate) id: u32,
    pub(crate) slot: u32,
    /// The program's own stream.
    pub(crate) stream: Option<OwnStream>,
}

/// What of a stream that the program made calls want to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnStream {
    pub(crate) id: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
}

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

/// What captures know a stream by.
fn captured(context: &Context, slot: u32, ordering: LegacyOrder) -> capture::Stream {
    // Slots are numbered by device.
    let id = u64::from(context.device.unsigned_abs()) << 32 | u64::from(slot);
    capture::Stream { id, context: context.token as u64, ordering }
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

/// What a stream handle means: NULL and `CU_STREAM_LEGACY` the legacy stream and
/// `CU_STREAM_PER_THREAD` the thread's own, both of the current context; else a stream that the
/// program made. CUDA_ERROR_INVALID_HANDLE for what is none, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for
/// the legacy stream while a blocking one is captured; that capture is invalidated.
pub(crate) fn target(client: &Client, handle: CUstream) -> Result<Target> {
    let target = located(client, handle)?;
    target.refuse_legacy(client, Effect::Invalidate)?;
    Ok(target)
}

/// What `see` finds of a stream that the program made: CUDA_ERROR_INVALID_HANDLE for what is none.
fn look_own<T>(
    client: &Client,
    handle: CUstream,
    see: impl FnOnce(&Stream, &'static Backend) -> T,
) -> Result<T> {
    let seen = client.streams.look(handle.0, |stream| match stream.context.backend()? {
        (backend, id) if id == stream.wire_id => Ok(see(stream, backend)),
        _ => Err(CUresult::ERROR_INVALID_HANDLE),
    });
    seen.unwrap_or(Err(CUresult::ERROR_INVALID_HANDLE))
}

/// What `of_own` finds of a stream that the program made, or `of_default` of a default stream.
pub(crate) fn look<T>(
    client: &Client,
    handle: CUstream,
    of_own: impl FnOnce(&Stream) -> T,
    of_default: impl FnOnce(&Target) -> T,
) -> Result<T> {
    if handle.0 > CUstream::PER_THREAD.0 {
        look_own(client, handle, |stream, _| of_own(stream))
    } else {
        located(client, handle).map(|target| of_default(&target))
    }
}

/// `cuStreamGetId`.
pub(crate) fn id_of(client: &Client, handle: CUstream) -> Result<u64> {
    look(client, handle, |stream| Ok(stream.id), Target::stream_id)?
}

/// Whether a handle means a stream, as [`located`] says.
pub(crate) fn check(client: &Client, handle: CUstream) -> Result {
    match handle {
        CUstream::NULL | CUstream::LEGACY => current::look_alive(|_| Ok(())),
        _ => look(client, handle, |_| (), |_| ()),
    }
}

/// The same as [`target`], for questions that have nothing to do with work.
pub(crate) fn located(client: &Client, handle: CUstream) -> Result<Target> {
    if handle.0 > CUstream::PER_THREAD.0 {
        return look_own(client, handle, |stream, backend| Target {
            context: Arc::clone(&stream.context),
            backend,
            id: stream.wire_id,
            slot: stream.slot,
            stream: Some(OwnStream {
                id: stream.id,
                flags: stream.flags,
                priority: stream.priority,
            }),
        });
    }
    let context = current::context()?;
    let (backend, id) = context.backend()?;
    let slot = if handle == CUstream::PER_THREAD {
        current::default_stream(&context)?
    } else {
        context.default_stream()
    };
    Ok(Target { context, backend, id, slot, stream: None })
}

impl Target {
    /// `cuStreamGetId`: default streams have one per context, and one per thread in it.
    pub(crate) fn stream_id(&self) -> Result<u64> {
        match &self.stream {
            Some(stream) => Ok(stream.id),
            None if self.slot == self.context.default_stream() => {
                Ok(self.context.default_stream_id)
            }
            None => current::default_stream_id(&self.context),
        }
    }

    /// Whether the stream is ordered with the legacy stream.
    pub(crate) fn ordered(&self) -> Ordered {
        match &self.stream {
            Some(stream) if stream.flags & NON_BLOCKING != 0 => Ordered::Alone,
            _ => Ordered::With(self.context.default_stream()),
        }
    }

    /// The stream, for threads without a call of the program's.
    pub(crate) fn lane(&self) -> Lane {
        Lane { id: self.id, slot: self.slot, ordered: self.ordered() }
    }

    /// What captures know the stream by.
    pub(crate) fn captured(&self) -> capture::Stream {
        let ordering = match self.ordered() {
            Ordered::With(default) if self.slot == default => LegacyOrder::Itself,
            Ordered::With(_) => LegacyOrder::Blocking,
            Ordered::Alone => LegacyOrder::NonBlocking,
        };
        captured(&self.context, self.slot, ordering)
    }

    /// Refuses the legacy stream while a blocking one is captured.
    pub(crate) fn refuse_legacy(&self, client: &Client, effect: Effect) -> Result {
        if self.slot == self.context.default_stream() {
            let captures = &client.graphs.registry.captures;
            return captures.refuse_legacy(self.context.token as u64, effect);
        }
        Ok(())
    }

    /// Makes a node of the work if the stream is being captured; says whether it was.
    pub(crate) fn capture(
        &self,
        client: &Client,
        work: impl FnOnce() -> Result<NodeKind>,
    ) -> Result<bool> {
        let stream = self.captured();
        match client.graphs.registry.captures.active(stream)? {
            Some(capture) => capture.add(stream, work()?).map(|_| true),
            None => Ok(false),
        }
    }

    /// Refuses what cannot be captured if the stream is being captured, which ends the capture.
    pub(crate) fn refuse_capture(&self, client: &Client) -> Result {
        client.graphs.registry.captures.refuse(self.captured())
    }

    /// Refuses waiting for the stream, as [`Self::refuse_capture`], and while other captures forbid
    /// it.
    pub(crate) fn refuse_waiting(&self, client: &Client) -> Result {
        self.refuse_capture(client)?;
        client.graphs.registry.captures.refuse_unsafe_call()
    }

    /// Waits while host functions hold the stream; before every post.
    pub(crate) fn pass_gates(&self) -> Result {
        self.backend.session.pass_gates(self.slot, self.ordered())
    }

    /// Posts one piece of work.
    pub(crate) fn post(&self, opcode: Opcode, body: &(impl IntoBytes + Immutable)) -> Result<Mark> {
        self.post_parts(opcode, &[body.as_bytes()])
    }

    /// Posts one piece of work whose command consists of several parts.
    pub(crate) fn post_parts(&self, opcode: Opcode, parts: &[&[u8]]) -> Result<Mark> {
        self.pass_gates()?;
        let session = &self.backend.session;
        let _announced = session.announce(opcode)?;
        session.post_work(self.id, self.slot, opcode, parts)
    }

    /// Posts a wait for a value, or for another device.
    pub(crate) fn post_wait(&self, opcode: Opcode, body: &[u8]) -> Result {
        self.pass_gates()?;
        let session = &self.backend.session;
        let _announced = session.announce(opcode)?;
        session.post_wait(self.id, self.slot, opcode, body)
    }

    /// Waits for one piece of work.
    pub(crate) fn wait(&self, mark: Mark) -> Result {
        self.backend.session.wait(self.id, mark)
    }

    /// Waits for a copy of so many bytes between the host's and the device's memory.
    pub(crate) fn wait_for_copy(&self, mark: Mark, size_bytes: u64) -> Result {
        let rate = &self.backend.copy_rate;
        let Some(expected) = rate.expected(size_bytes) else { return self.wait(mark) };
        let began = Instant::now();
        let woke = self.backend.session.wait_expecting(self.id, mark, expected)?;
        rate.learn(size_bytes, began.elapsed(), woke);
        Ok(())
    }

    /// Waits for all work of the stream so far.
    pub(crate) fn synchronize(&self) -> Result {
        self.pass_gates()?;
        let mark = self.backend.session.mark(self.id, self.slot)?;
        self.wait(mark)?;
        self.backend.session.check()
    }

    /// Whether all work of the stream so far is done.
    pub(crate) fn is_idle(&self) -> Result<bool> {
        if self.backend.session.gates().is_held(self.slot, self.ordered()) {
            return self.backend.session.check().map(|()| false);
        }
        let mark = self.backend.session.mark(self.id, self.slot)?;
        self.backend.session.query(self.id, mark)
    }
}
