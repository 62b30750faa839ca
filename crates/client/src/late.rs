//! What the program has destroyed, and what commands that the executor may hold still name.
//!
//! The executor holds a stream that waits for a value, and knows events and graphs by numbers. While it may hold anything, what is destroyed
//! keeps its number until all work that was posted before is done; nobody waits for that.

use crate::backend::Backend;
use crate::session::Result;
use crate::slots::Mark;
use crate::spare_events::Timing;
use link::wire::command::{EventDestroy, Opcode};
use link::wire::graph::GraphDestroy;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A number of the executor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Event(u32),
    /// An event that only this process names.
    OwnEvent(u32, Timing),
    Graph(u32),
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
    marks: Vec<Mark>,
}

/// Destroys it, now or once nothing that is held can name it.
pub(crate) fn destroy(backend: &Backend, context: u32, named: Named) -> Result {
    retire(backend)?;
    if !backend.session.may_hold() {
        return destroy_now(backend, context, named);
    }
    let marks = backend.session.outstanding(0)?;
    let mut late = backend.late.entries.lock().unwrap_or_else(PoisonError::into_inner);
    late.push(Entry { context, named, marks });
    // Relaxed: a hint; who misses an entry leaves it to the next.
    backend.late.count.store(late.len(), Ordering::Relaxed);
    Ok(())
}

/// Destroys what no work names any more.
fn retire(backend: &Backend) -> Result {
    // Relaxed: see `destroy`.
    if backend.late.count.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let mut late = backend.late.entries.lock().unwrap_or_else(PoisonError::into_inner);
    let is_done =
        |entry: &mut Entry| entry.marks.iter().all(|&mark| backend.session.is_complete(mark));
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
    }
    Ok(())
}
