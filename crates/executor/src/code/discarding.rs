//! Code that nobody needs any more, and that is to be unloaded when the device is quiet.
//!
//! A driver waits for all kernels before it unloads code. A session's thread that waits takes no
//! command of its client meanwhile, so a thread of the executor's own does it. It has all the time
//! there is: it holds nobody while what it last saw at work still is.

use crate::Shared;
use crate::session::state::State;
use crate::turns::gate::Quiet;
use cuda_abi::types::CUlibrary;
use executor_link::log::log_server;
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
/// Of one session. A client that loads and unloads beside others that are never idle must not fill
/// the device: beyond this it waits.
const MOST_OF_ONE: usize = 16;

/// Code that nothing names any more, and how many its session has of them.
#[derive(Debug)]
struct Left {
    library: CUlibrary,
    of_session: Arc<AtomicUsize>,
}

/// Where such code goes.
#[derive(Debug, Default)]
pub(crate) struct Discards(OnceLock<Mutex<Sender<Left>>>);

/// Starts the thread.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<(), String> {
    let (sender, code) = channel();
    let of_thread = Arc::clone(shared);
    std::thread::Builder::new()
        .name("discards".into())
        .spawn(move || unload_all(&of_thread, &code))
        .map_err(|error| format!("cannot start the thread that unloads code: {error}"))?;
    let _ = shared.discards.0.set(Mutex::new(sender));
    Ok(())
}

fn unload_all(shared: &Shared, code: &Receiver<Left>) {
    if let Err(code) = shared.context.make_current() {
        return log_server!("Code is not unloaded: {code}");
    }
    while let Ok(first) = code.recv() {
        let Some(quiet) = shared.await_calm() else { return };
        let mut next = Some(first);
        while let Some(Left { library, of_session }) = next {
            // SAFETY: a live library that nothing names any more.
            let unloaded = unsafe { shared.context.driver().cuLibraryUnload(library) };
            let _ = shared.context.check(unloaded);
            // Relaxed: the number is all that there is, and may be late.
            of_session.fetch_sub(1, Ordering::Relaxed);
            next = if quiet.is_long() { None } else { code.try_recv().ok() };
        }
    }
}

impl Shared {
    /// Waits for a quiet moment, however long it takes; `None` in a lost context.
    pub(crate) fn await_calm(&self) -> Option<Quiet<'_>> {
        let (mut rest, mut look, mut seen) = (REST, LOOK, Vec::new());
        for looks in 1_u32.. {
            if self.context.lost().is_some() {
                break;
            }
            if let Some(quiet) = self.context.gate.look_for_quiet(&self.context, look, &mut seen) {
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
}

impl State {
    /// Leaves code to the thread, unless that has enough of the session's; says whether it did.
    pub(crate) fn leave_code(&self, library: CUlibrary) -> bool {
        // Relaxed: as above.
        let has_room = self.handle.discarded.load(Ordering::Relaxed) < MOST_OF_ONE;
        has_room && self.abandon_code(library)
    }

    /// The same however much it has.
    pub(crate) fn abandon_code(&self, library: CUlibrary) -> bool {
        let Some(sender) = self.shared.discards.0.get() else { return false };
        let of_session = Arc::clone(&self.handle.discarded);
        of_session.fetch_add(1, Ordering::Relaxed);
        let sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.send(Left { library, of_session }).is_ok()
    }

    /// Has code unloaded, by the thread or in a quiet moment.
    pub(crate) fn unload_later(&self, library: CUlibrary) {
        if !self.leave_code(library) {
            self.quietly_each([library], |library| drop(self.unload(library)));
        }
    }
}
