//! What a stream handle means in a call, and what captures have to say of it.

use crate::client::Client;
use crate::context::backend::Backend;
use crate::graph::kinds::NodeKind;
use crate::result::Result;
use crate::stream::{OwnStream, Stream, Target};
use crate::thread::current;
use cuda_abi::graph::capture::Effect;
use cuda_abi::types::{CUresult, CUstream};
use std::sync::Arc;

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
}
