//! Code and arrays that nobody needs any more.
//!
//! A driver waits for all kernels before it gives them back. A session's thread that did so would
//! take no command of its client meanwhile, so a thread of the executor's own does it. It has all
//! the time there is: it looks for a quiet moment now and then, and holds others for no longer than
//! a look takes.

use super::Shared;
use super::array::Held;
use super::gate::Quiet;
use super::state::State;
use crate::log::log_server;
use cuda_abi::types::{CUlibrary, CUresult};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// So long a look may hold others, at first and at most: a client that is alone may have more in
/// flight.
const LOOK: Duration = Duration::from_millis(2);
const LONGEST_LOOK: Duration = Duration::from_millis(64);
/// Looks in vain after which one takes twice as long.
const LOOKS: u32 = 8;
/// Between two looks, at first and at most.
const REST: Duration = Duration::from_millis(10);
const LONGEST_REST: Duration = Duration::from_millis(500);
/// Beyond so many things that wait, who discards one more waits for its end: a client that loads
/// and unloads beside others that are never idle must not fill the device.
const MOST_WAITING: usize = 64;

/// Something that nothing names any more.
#[derive(Debug)]
pub(super) enum Discarded {
    Code(CUlibrary),
    Array(Held),
}

/// Where such things go.
#[derive(Debug, Default)]
pub(crate) struct Discards {
    sender: OnceLock<Mutex<Sender<Discarded>>>,
    waiting: AtomicUsize,
}

impl Discards {
    /// Leaves something to the thread, which may have enough.
    fn leave(&self, thing: Discarded) -> Result<(), Discarded> {
        // Relaxed: the number is all that there is, and may be late.
        let has_room = self.waiting.load(Ordering::Relaxed) < MOST_WAITING;
        let Some(sender) = self.sender.get().filter(|_| has_room) else { return Err(thing) };
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.send(thing).map_err(|unsent| unsent.0)
    }
}

/// Starts the thread.
pub(super) fn start(shared: &Arc<Shared>) -> Result<(), String> {
    let (sender, things) = channel();
    let of_thread = Arc::clone(shared);
    std::thread::Builder::new()
        .name("discards".into())
        .spawn(move || discard_all(&of_thread, &things))
        .map_err(|error| format!("cannot start the thread that gives back code: {error}"))?;
    let _ = shared.discards.sender.set(Mutex::new(sender));
    Ok(())
}

fn discard_all(shared: &Shared, things: &Receiver<Discarded>) {
    if let Err(code) = shared.context.make_current() {
        return log_server!("No code is given back: {code}");
    }
    while let Ok(first) = things.recv() {
        let Some(quiet) = shared.await_calm() else { return };
        let mut next = Some(first);
        while let Some(thing) = next {
            shared.discards.waiting.fetch_sub(1, Ordering::Relaxed);
            shared.give_back_now(thing);
            next = if quiet.is_long() { None } else { things.try_recv().ok() };
        }
    }
}

impl Shared {
    /// Waits for a quiet moment, however long it takes; `None` in a lost context.
    pub(super) fn await_calm(&self) -> Option<Quiet<'_>> {
        let (mut rest, mut look) = (REST, LOOK);
        for looks in 1.. {
            if self.context.lost().is_some() {
                break;
            }
            if let Some(quiet) = self.gate.look_for_quiet(&self.context, look) {
                return Some(quiet);
            }
            std::thread::sleep(rest);
            rest = (rest * 2).min(LONGEST_REST);
            if looks % LOOKS == 0 {
                look = (look * 2).min(LONGEST_LOOK);
            }
        }
        None
    }

    /// In a quiet moment.
    fn give_back_now(&self, thing: Discarded) {
        let driver = self.context.driver();
        // SAFETY: live handles that nothing else names any more.
        let _ = self.context.check(unsafe {
            match thing {
                Discarded::Code(library) => driver.cuLibraryUnload(library),
                Discarded::Array(Held::Array(array)) => driver.cuArrayDestroy(array),
                Discarded::Array(Held::Mipmapped(array)) => driver.cuMipmappedArrayDestroy(array),
                Discarded::Array(Held::Level(..)) => CUresult::SUCCESS,
            }
        });
    }
}

impl State {
    /// Has something given back when the device is quiet.
    pub(in crate::executor) fn give_back_later(&self, thing: Discarded) {
        let refused = self.shared.discards.leave(thing).err();
        self.quietly_each(refused, |thing| self.shared.give_back_now(thing));
    }
}
