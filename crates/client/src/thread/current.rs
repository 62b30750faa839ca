//! What belongs to a thread: its stack of contexts, its default streams.

use crate::client::{self, Client};
use crate::context::Context;
use crate::context::backend::Backend;
use crate::result::Result;
use crate::stream::stream_id;
use crate::thread::here::here;
use crate::thread::thread_end;
use crate::thread::thread_end::Endings;
use cuda_abi::types::CUresult;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

// Without destructors: see `thread_end`.
thread_local! {
    static STACK: ManuallyDrop<RefCell<Vec<Arc<Context>>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    static DEFAULT_STREAMS: ManuallyDrop<RefCell<Vec<DefaultStream>>> =
        const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Changes the stack; who takes contexts away drops them when that is done. `None` in a thread that
/// has ended.
fn change<T>(change: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> Option<T> {
    thread_end::may_keep_with(&ENDINGS).then(|| {
        STACK.with(|stack| {
            let mut stack = stack.borrow_mut();
            let result = change(&mut stack);
            here(|here| here.top.set(stack.last().map_or(ptr::null(), Arc::as_ptr)));
            result
        })
    })
}

/// How both end: the streams first, as their end may look things up.
static ENDINGS: Endings = Endings {
    is_passed_over: || client::started().is_some_and(Client::is_forked),
    first: end_default_streams,
    last: end_stack,
};

/// The thread is ending, and its default streams go with it.
fn end_default_streams() {
    drop(DEFAULT_STREAMS.with(|streams| streams.take()));
}

/// The same of its stack.
fn end_stack() {
    here(|here| here.top.set(ptr::null()));
    drop(STACK.with(|stack| stack.take()));
}

/// The thread's own default stream in a context. Destroyed with the thread, or when another is made
/// after its context has ended.
struct DefaultStream {
    context: Arc<Context>,
    backend: &'static Backend,
    wire_id: u32,
    slot: u32,
    /// `cuStreamGetId`.
    id: u64,
}

impl Drop for DefaultStream {
    fn drop(&mut self) {
        if let Some(client) = client::started().filter(|client| client.is_initialised()) {
            crate::stream::life::abandon_capture(client, &self.context, self.slot);
            client.stream_attributes.forget(self.id);
            // The session, which outlives contexts, may have failed; then there is no stream
            // either.
            let _ = self.backend.session.destroy_stream(self.wire_id, self.slot);
        }
    }
}

/// The current context, alive or not; `None` without one, and in threads that have ended.
pub(crate) fn top() -> Option<Arc<Context>> {
    let top = here(|here| here.top.get());
    // SAFETY: null, or from an `Arc` of which the stack holds a reference; this makes another.
    unsafe {
        top.as_ref()?;
        Arc::increment_strong_count(top);
        Some(Arc::from_raw(top))
    }
}

/// What `look` finds of the current context, without the cost of a reference. It may not change the
/// thread's stack.
#[inline(always)]
pub(crate) fn look<T>(look: impl FnOnce(Option<&Context>) -> T) -> T {
    // SAFETY: null, or the top of this thread's stack, which holds a reference to it until `change`
    // or the stack's end puts another pointer here; neither happens while this function runs.
    look(unsafe { here(|here| here.top.get()).as_ref() })
}

/// The same of a current context that is alive; else as [`context`].
pub(crate) fn look_alive<T>(see: impl FnOnce(&Context) -> Result<T>) -> Result<T> {
    look(|context| {
        let context = context.ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        if !context.is_alive() {
            return Err(CUresult::ERROR_CONTEXT_IS_DESTROYED);
        }
        see(context)
    })
}

/// The same of the context that [`owner`] gives.
pub(crate) fn look_owner<T>(see: impl FnOnce(&Arc<Context>) -> Result<T>) -> Result<T> {
    // One reference, to the current context; its owner is part of it.
    see(context()?.owner())
}

/// The current context: CUDA_ERROR_INVALID_CONTEXT without one, CUDA_ERROR_CONTEXT_IS_DESTROYED if
/// it is not alive.
pub(crate) fn context() -> Result<Arc<Context>> {
    let context = top().ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    if context.is_alive() { Ok(context) } else { Err(CUresult::ERROR_CONTEXT_IS_DESTROYED) }
}

/// The current context, or for a green one the context that it is part of, which has all but
/// streams.
pub(crate) fn owner() -> Result<Arc<Context>> {
    context().map(|context| Arc::clone(context.owner()))
}

/// Puts a context on top.
pub(crate) fn push(context: Arc<Context>) {
    change(|stack| stack.push(context));
}

/// Takes the top context away.
pub(crate) fn pop() -> Option<Arc<Context>> {
    change(Vec::pop).flatten()
}

/// Replaces the top context.
pub(crate) fn replace(context: Arc<Context>) {
    pop();
    push(context);
}

/// Takes a context that is being destroyed away, if it is on top; deeper and on other threads it
/// stays, dead.
pub(crate) fn remove_if_top(token: usize) {
    if look(|top| top.is_some_and(|context| context.token == token)) {
        pop();
    }
}

/// The slot of the calling thread's default stream in a context, made on first use.
pub(crate) fn default_stream(context: &Arc<Context>) -> Result<u32> {
    look_at_default_stream(context, |stream| stream.slot)
}

/// Its id.
pub(crate) fn default_stream_id(context: &Arc<Context>) -> Result<u64> {
    look_at_default_stream(context, |stream| stream.id)
}

fn look_at_default_stream<T>(
    context: &Arc<Context>,
    look: impl FnOnce(&DefaultStream) -> T,
) -> Result<T> {
    let (backend, id) = context.backend()?;
    if !thread_end::may_keep_with(&ENDINGS) {
        return Err(CUresult::ERROR_DEINITIALIZED);
    }
    DEFAULT_STREAMS.with(|streams| {
        let mut streams = streams.borrow_mut();
        let of_context = |s: &&DefaultStream| s.wire_id == id && Arc::ptr_eq(&s.context, context);
        if let Some(stream) = streams.iter().find(of_context) {
            return Ok(look(stream));
        }
        streams.retain(|stream| stream.context.wire_id() == stream.wire_id);
        let slot = backend.session.create_stream(id, context.stream_plan(0, 0))?;
        let context = Arc::clone(context);
        let made = DefaultStream { context, backend, wire_id: id, slot, id: stream_id::next() };
        let seen = look(&made);
        streams.push(made);
        Ok(seen)
    })
}
