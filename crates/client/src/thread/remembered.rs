//! What a thread looked up last: a few things of each kind, with a reference to each, so that
//! looking them up again writes to no memory that threads share.
//!
//! Whether such a thing is still alive says its *state*, a word that its table keeps for each of
//! its places and changes when the thing is removed. Who reads a state that is still the same has
//! found the thing as anybody with a reference has; removing it meanwhile is the program's race. A
//! thing that another thread removed stays in memory until its place here is needed, or the thread
//! ends.

use crate::thread::here::here;
use crate::thread::thread_end;
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds that are remembered are numbered below this; 0 is none of handles, but ranges of memory
/// ([`crate::memory::memory_map`]).
const KINDS: usize = 8;
/// Things of one kind; a power of two.
const WAYS: usize = 4;

/// See the module's description.
pub(crate) struct Remembered {
    entries: [Entry; KINDS * WAYS],
    /// Things that are being looked at: nothing is forgotten meanwhile. A panic in a look leaves it
    /// too high, and what is remembered as it is.
    looks: Cell<u32>,
}

/// A number for a table, different from all others' and not 0.
pub(crate) fn table_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only uniqueness matters.
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A thing, or nothing.
struct Entry {
    token: Cell<usize>,
    /// Number of the table; 0 for nothing.
    table: Cell<u64>,
    /// A word of the table, valid as long as that, or of the thing.
    state: Cell<*const AtomicU64>,
    /// What its state is while the thing is alive.
    alive: Cell<u64>,
    /// From `Arc::into_raw`.
    thing: Cell<*const ()>,
    drop: Cell<unsafe fn(*const ())>,
}

/// Where a thing is kept in its table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// Of the table; different from all others', and not 0.
    pub(crate) table: u64,
    pub(crate) token: usize,
    /// The number of its [`crate::handles::Kind`].
    pub(crate) kind: usize,
    /// Its number in the table.
    pub(crate) index: usize,
    /// What its state is while the thing is alive.
    pub(crate) alive: u64,
    pub(crate) state: &'a AtomicU64,
}

/// The thread is ending: what it remembers goes.
pub(crate) fn end() {
    let own = here(|here| here.remembered.replace(ptr::null_mut()));
    if !own.is_null() {
        // SAFETY: from `Box::into_raw`, and known to nobody any more: `here` has forgotten it, and
        // looks ended with the thread's calls.
        let own = unsafe { Box::from_raw(own) };
        own.entries.iter().for_each(Entry::clear);
    }
}

/// The thread's, or `None` before anything was remembered and when the thread is ending.
#[inline(always)]
fn own<'a>() -> Option<&'a Remembered> {
    // SAFETY: null, or from `Box::into_raw` until the thread ends; the references that come of this
    // end with a call.
    unsafe { here(|here| here.remembered.get()).as_ref() }
}

/// The thread's, made now if there is none; `None` when the thread is ending.
fn own_or_new<'a>() -> Option<&'a Remembered> {
    if own().is_none() && thread_end::may_keep() {
        let new = Box::into_raw(Box::new(Remembered {
            entries: [const { Entry::new() }; KINDS * WAYS],
            looks: Cell::new(0),
        }));
        here(|here| here.remembered.set(new));
    }
    own()
}

#[inline(always)]
fn entry(remembered: &Remembered, kind: usize, index: usize) -> Option<&Entry> {
    if kind < KINDS { remembered.entries.get(kind * WAYS + index % WAYS) } else { None }
}

/// What `see` finds, with the help of `look`, of a thing that is remembered, alive and, by its
/// token or itself, the one that is meant; `look` comes back if it is not.
///
/// # Safety
/// The table's things are of type `T`; it is there until this returns.
#[inline(always)]
pub(crate) unsafe fn look<T, R, L>(
    (table, kind, index): (u64, usize, usize),
    is_meant: impl FnOnce(usize, &T) -> bool,
    look: L,
    see: impl FnOnce(L, &T) -> R,
) -> Result<R, L> {
    let Some(remembered) = own() else { return Err(look) };
    let Some(entry) = entry(remembered, kind, index) else { return Err(look) };
    if entry.table.get() != table || !entry.is_alive() {
        return Err(look);
    }
    let thing = entry.thing.get().cast::<T>();
    // SAFETY: the entry holds a reference to a `T`, by the caller's promise, which `is_meant` has
    // no means to end.
    if !is_meant(entry.token.get(), unsafe { &*thing }) {
        return Err(look);
    }
    remembered.looks.set(remembered.looks.get() + 1);
    // SAFETY: the entry holds a reference to a `T`, by the caller's promise, and keeps it while
    // `looks` counts this look.
    let seen = see(look, unsafe { &*thing });
    remembered.looks.set(remembered.looks.get().wrapping_sub(1));
    Ok(seen)
}

/// A reference to a thing that is remembered and alive.
///
/// # Safety
/// As for [`look`].
#[inline(always)]
pub(crate) unsafe fn get<T>(
    (table, kind, index): (u64, usize, usize),
    token: usize,
) -> Option<Arc<T>> {
    let entry = entry(own()?, kind, index)?;
    if entry.token.get() != token || entry.table.get() != table || !entry.is_alive() {
        return None;
    }
    let thing = entry.thing.get().cast::<T>();
    // SAFETY: from `Arc::into_raw` of a `T`, by the caller's promise; the entry has one reference,
    // this makes another.
    unsafe {
        Arc::increment_strong_count(thing);
        Some(Arc::from_raw(thing))
    }
}

/// Remembers a thing, in place of another.
pub(crate) fn keep<T>(place: Place<'_>, thing: &Arc<T>) {
    if place.kind >= KINDS {
        return;
    }
    let Some(remembered) = own_or_new() else { return };
    let Some(entry) = entry(remembered, place.kind, place.index) else { return };
    if remembered.looks.get() != 0 {
        return;
    }
    // What is dropped may look things up, so it must find the new entry whole.
    let former = entry.take();
    entry.token.set(place.token);
    entry.table.set(place.table);
    entry.state.set(place.state);
    entry.alive.set(place.alive);
    entry.thing.set(Arc::into_raw(Arc::clone(thing)).cast());
    entry.drop.set(drop_arc::<T>);
    drop(former);
}

/// Forgets a thing that was removed.
pub(crate) fn forget((table, kind, index): (u64, usize, usize), token: usize) {
    let Some(remembered) = own().filter(|remembered| remembered.looks.get() == 0) else { return };
    let Some(entry) = entry(remembered, kind, index) else { return };
    if entry.token.get() == token && entry.table.get() == table {
        entry.clear();
    }
}

/// # Safety
/// `thing` is from `Arc::into_raw` of a `T`, and given up.
unsafe fn drop_arc<T>(thing: *const ()) {
    // SAFETY: the caller's promise.
    drop(unsafe { Arc::from_raw(thing.cast::<T>()) });
}

/// A reference that was taken out of an entry.
struct Former(*const (), unsafe fn(*const ()));

impl Drop for Former {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the pointer and the function of one entry, which has forgotten both.
            unsafe { self.1(self.0) };
        }
    }
}

impl Entry {
    const fn new() -> Self {
        Self {
            token: Cell::new(0),
            table: Cell::new(0),
            state: Cell::new(ptr::null()),
            alive: Cell::new(0),
            thing: Cell::new(ptr::null()),
            drop: Cell::new(drop_arc::<()>),
        }
    }

    /// Whether the thing's state is what it was; only for the table that it is in.
    #[inline(always)]
    fn is_alive(&self) -> bool {
        // SAFETY: a word of the table, which the caller has at hand, or of the thing, which this
        // entry has. Acquire: with the Release of whoever removes it (`Table::remove`,
        // `Area::forget`); who has learned of a removal finds it.
        unsafe { &*self.state.get() }.load(Ordering::Acquire) == self.alive.get()
    }

    fn take(&self) -> Former {
        self.token.set(0);
        self.table.set(0);
        Former(self.thing.replace(ptr::null()), self.drop.get())
    }

    fn clear(&self) {
        drop(self.take());
    }
}
