//! What belongs to a thread: its stack of contexts, its default streams, whether it runs a host function.

use crate::backend::Backend;
use crate::context::Context;
use crate::session::Result;
use cuda_abi::types::CUresult;
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Arc;

thread_local! {
    static STACK: Stack = const { Stack(RefCell::new(Vec::new())) };
    static DEFAULT_STREAMS: RefCell<Vec<DefaultStream>> = const { RefCell::new(Vec::new()) };
    static NOW: Now = const { Now { in_callback: Cell::new(false), top: Cell::new(ptr::null()) } };
}

struct Stack(RefCell<Vec<Arc<Context>>>);

impl Drop for Stack {
    fn drop(&mut self) {
        NOW.with(|now| now.top.set(ptr::null()));
    }
}

/// What every call asks, in one place that needs no destructor, which makes it quick to reach.
struct Now {
    in_callback: Cell<bool>,
    /// The top of the stack, which holds a reference to it, or null.
    top: Cell<*const Context>,
}

/// Changes the stack; who takes contexts away drops them when that is done.
fn change<T>(change: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> Option<T> {
    let changed = STACK.try_with(|stack| {
        let mut stack = stack.0.borrow_mut();
        let result = change(&mut stack);
        NOW.with(|now| now.top.set(stack.last().map_or(ptr::null(), Arc::as_ptr)));
        result
    });
    changed.ok()
}

/// The thread's own default stream in a context. Destroyed with the thread, or when another is made after its context has ended.
struct DefaultStream {
    context: Arc<Context>,
    backend: &'static Backend,
    wire_id: u32,
    slot: u32,
}

impl Drop for DefaultStream {
    fn drop(&mut self) {
        if let Some(client) = crate::client::started().filter(|client| client.is_initialised()) {
            crate::stream::abandon_capture(client, &self.context, self.slot);
            // The session, which outlives contexts, may have failed; then there is no stream either.
            let _ = self.backend.session.destroy_stream(self.wire_id, self.slot);
        }
    }
}

/// The current context, alive or not; `None` without one, and in threads that are ending.
pub(crate) fn top() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.0.borrow().last().cloned()).ok().flatten()
}

/// What `look` finds of the current context, without the cost of a reference. It may not change the thread's stack.
pub(crate) fn look<T>(look: impl FnOnce(Option<&Context>) -> T) -> T {
    // SAFETY: null, or the top of this thread's stack, which holds a reference to it until `change` or the stack's end puts
    // another pointer here; neither happens while this function runs.
    NOW.with(|now| look(unsafe { now.top.get().as_ref() }))
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

/// The current context: CUDA_ERROR_INVALID_CONTEXT without one, CUDA_ERROR_CONTEXT_IS_DESTROYED if it is not alive.
pub(crate) fn context() -> Result<Arc<Context>> {
    let context = top().ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    if context.is_alive() { Ok(context) } else { Err(CUresult::ERROR_CONTEXT_IS_DESTROYED) }
}

/// The current context, or for a green one the context that it is part of, which has all but streams.
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

/// Takes a context that is being destroyed away, if it is on top; deeper and on other threads it stays, dead.
pub(crate) fn remove_if_top(token: usize) {
    if look(|top| top.is_some_and(|context| context.token == token)) {
        pop();
    }
}

/// The slot of the calling thread's default stream in a context, made on first use.
pub(crate) fn default_stream(context: &Arc<Context>) -> Result<u32> {
    let (backend, id) = context.backend()?;
    let made = DEFAULT_STREAMS.try_with(|streams| {
        let mut streams = streams.borrow_mut();
        let of_context = |s: &&DefaultStream| s.wire_id == id && Arc::ptr_eq(&s.context, context);
        if let Some(stream) = streams.iter().find(of_context) {
            return Ok(stream.slot);
        }
        streams.retain(|stream| stream.context.wire_id() == stream.wire_id);
        let slot = backend.session.create_stream(id, context.stream_plan(0, 0))?;
        streams.push(DefaultStream { context: Arc::clone(context), backend, wire_id: id, slot });
        Ok(slot)
    });
    made.unwrap_or(Err(CUresult::ERROR_DEINITIALIZED))
}

/// Whether this thread runs a host function of a stream, where CUDA allows no calls.
pub(crate) fn in_callback() -> bool {
    NOW.with(|now| now.in_callback.get())
}

/// Runs a host function of a stream.
pub(crate) fn run_callback(body: impl FnOnce()) {
    let set = |in_callback| NOW.with(|now| now.in_callback.set(in_callback));
    set(true);
    body();
    set(false);
}
