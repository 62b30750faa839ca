//! What the program has destroyed, and what commands that the executor may hold, or host functions,
//! still use.
//!
//! The executor holds a stream that waits for a value, and knows events and graphs by numbers.
//! While it may hold anything, what is destroyed keeps its number until all work that was posted
//! before is done; nobody waits for that. Buffers through which graphs copy are used by host
//! functions, too.

use crate::context::backend::Backend;
use crate::memory::bounce::Bounce;
use crate::result::Result;
use crate::session::slots::Mark;
use crate::stream::spare_events::Timing;
use link::wire::command::{EventDestroy, Opcode};
use link::wire::graph::GraphDestroy;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What is destroyed: by the executor's number, or by its address.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    Event(u32),
    /// An event that only this process names.
    OwnEvent(u32, Timing),
    Graph(u32),
    /// Memory that work reads or writes.
    Bounce(Bounce),
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Late {
    entries: Mutex<Vec<Entry>>,
    /// Length of `entries`, so that nobody locks an empty list.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Entry {
    context: u32,
    named: Named,
    until: Until,
}

/// What must have happened.
#[derive(Debug)]
enum Until {
    /// No host function is due that might post work or use the memory itself; then the work as
    /// well.
    HostFunctions,
    Work(Vec<Mark>),
}

/// Destroys it, now or once nothing can use it.
pub(crate) fn destroy(backend: &Backend, context: u32, named: Named) -> Result {
    retire(backend)?;
    let until = match named {
        Named::Bounce(_) => Until::HostFunctions,
        // Commands come to the executor in their order.
        _ if !backend.session.may_hold() => return destroy_now(backend, context, named),
        _ => Until::Work(backend.session.outstanding(0)?),
    };
    let mut late = backend.late.entries.lock().unwrap_or_else(PoisonError::into_inner);
    late.push(Entry { context, named, until });
    // Relaxed: a hint; who misses an entry leaves it to the next.
    backend.late.count.store(late.len(), Ordering::Relaxed);
    drop(late);
    retire(backend)
}

/// Destroys what nothing uses any more.
pub(crate) fn retire(backend: &Backend) -> Result {
    // Relaxed: see `destroy`.
    if backend.late.count.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let mut late = backend.late.entries.lock().unwrap_or_else(PoisonError::into_inner);
    for entry in late.iter_mut() {
        if matches!(entry.until, Until::HostFunctions) && backend.session.gates().are_open() {
            entry.until = Until::Work(backend.session.outstanding(0)?);
        }
    }
    let is_done = |entry: &mut Entry| match &entry.until {
        Until::HostFunctions => false,
        Until::Work(marks) => marks.iter().all(|&mark| backend.session.is_complete(mark)),
    };
    let done: Vec<Entry> = late.extract_if(.., is_done).collect();
    backend.late.count.store(late.len(), Ordering::Relaxed);
    drop(late);
    done.iter().try_for_each(|entry| destroy_now(backend, entry.context, entry.named))
}

fn destroy_now(backend: &Backend, context: u32, named: Named) -> Result {
    let session = &backend.session;
    match named {
        Named::OwnEvent(event, timing) => {
            session.check()?;
            if let Err(event) = backend.spare_events.keep(timing, event) {
                return destroy_now(backend, context, Named::Event(event));
            }
        }
        Named::Event(event) => {
            session.post(context, Opcode::EventDestroy, &EventDestroy { event, reserved: 0 })?;
            backend.events.give_back(event);
        }
        Named::Graph(graph) => {
            session.post(context, Opcode::GraphDestroy, &GraphDestroy { graph, reserved: 0 })?;
            backend.graphs.give_back(graph);
        }
        Named::Bounce(bounce) => bounce.free(&backend.host_heap, session, context)?,
    }
    Ok(())
}
