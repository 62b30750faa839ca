//! Code that nobody has any more, kept for whoever loads the same next: a load and an unload wait
//! for a quiet moment and hold others' work, this does not. It is as the driver loaded it
//! ([`super::pristine`]) and has one owner at a time. Compared by content. While memory is short
//! nothing is kept.

use super::pristine::{Initial, Setting};
use crate::Shared;
use cuda_abi::types::*;
use executor_link::messages::FromExecutor;
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Images beyond this size are not kept.
pub(crate) const MAX_SPARE_BYTES: u64 = 256 << 10;
/// Images that are kept, the least recently unloaded first to go.
const MOST_SPARES: usize = 64;
/// What those may take of the device together, by the same estimate as for clients. Nobody pays for
/// it.
const MOST_SPARE_BYTES: u64 = 32 << 20;
/// The same, and their bytes, of what is loaded ahead: code that somebody has now. Beyond
/// [`MOST_SPARES`] it goes one by one as other code is given up.
const MOST_AHEAD: usize = 1024;
const MOST_AHEAD_BYTES: usize = 32 << 20;
/// So long quiet moments are waited for when memory is short: less than the keeper waits for an
/// answer.
const MOST_WAIT: Duration = Duration::from_millis(500);

/// What code was loaded from, and what its owners have asked for.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) image: Vec<u8>,
    pub(crate) optimization_level: u32,
    pub(crate) max_registers: u32,
    /// What it takes of the device, by estimate.
    pub(crate) loaded_bytes: u64,
    functions: Vec<(CString, CUkernel, CUfunction)>,
    /// What was set when it was loaded; `None` if it has no variables.
    pub(crate) initial: Option<Initial>,
    /// What its owner has changed of its functions, in this order.
    pub(crate) changed: Vec<Setting>,
}

impl Origin {
    pub(crate) fn new(
        image: Vec<u8>,
        optimization_level: u32,
        max_registers: u32,
        loaded_bytes: u64,
    ) -> Self {
        Self {
            image,
            optimization_level,
            max_registers,
            loaded_bytes,
            functions: Vec::new(),
            initial: None,
            changed: Vec::new(),
        }
    }

    fn is_of(&self, other: &Self) -> bool {
        self.optimization_level == other.optimization_level
            && self.max_registers == other.max_registers
            && self.image == other.image
    }

    /// Whether nothing of it can have been changed.
    pub(crate) fn is_as_loaded(&self) -> bool {
        self.initial.is_none() && self.changed.is_empty()
    }

    /// A function that was asked for before.
    pub(crate) fn function(&self, name: &CStr) -> Option<(CUkernel, CUfunction)> {
        let mut known = self.functions.iter();
        known.find(|known| known.0.as_c_str() == name).map(|known| (known.1, known.2))
    }

    /// Remembers one.
    pub(crate) fn note(&mut self, name: CString, kernel: CUkernel, function: CUfunction) {
        self.functions.push((name, kernel, function));
    }
}

/// Why a spare is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// Its owner has given it up.
    GivenUp,
    /// Somebody has it in another executor.
    Ahead,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    kept: VecDeque<(Origin, CUlibrary, Kept)>,
    /// Memory is short.
    is_closed: bool,
}

impl Shelf {
    fn loaded_bytes(&self) -> u64 {
        self.kept.iter().map(|(origin, ..)| origin.loaded_bytes).sum()
    }
}

impl Spares {
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Code from the same image, if there is some.
    pub(crate) fn take(&self, wanted: &Origin) -> Option<(Origin, CUlibrary)> {
        let kept = &mut self.lock().kept;
        let place = kept.iter().position(|(origin, ..)| origin.is_of(wanted))?;
        kept.remove(place).map(|(origin, library, _)| (origin, library))
    }

    /// Whether there is code that was loaded ahead and that nobody has taken.
    pub(crate) fn has_ahead(&self) -> bool {
        self.lock().kept.iter().any(|(.., why)| *why == Kept::Ahead)
    }

    /// Code that was loaded ahead and that nobody has taken: from this image, or any. It is to be
    /// unloaded.
    pub(crate) fn take_back(&self, from: Option<&Origin>) -> Option<CUlibrary> {
        self.remove_first(|origin, why| {
            why == Kept::Ahead && from.is_none_or(|wanted| origin.is_of(wanted))
        })
    }

    fn remove_first(&self, condition: impl Fn(&Origin, Kept) -> bool) -> Option<CUlibrary> {
        let kept = &mut self.lock().kept;
        let place = kept.iter().position(|(origin, _, why)| condition(origin, *why))?;
        kept.remove(place).map(|(_, library, _)| library)
    }

    /// Keeps code that its owner has given up and that is like new. What is returned is to be
    /// unloaded.
    pub(crate) fn keep(&self, origin: Origin, library: CUlibrary) -> Vec<CUlibrary> {
        let mut shelf = self.lock();
        if shelf.is_closed || origin.loaded_bytes > MOST_SPARE_BYTES {
            return vec![library];
        }
        shelf.kept.push_back((origin, library, Kept::GivenUp));
        let mut too_many = Vec::new();
        let mut bytes = shelf.loaded_bytes();
        // One at a time of what was loaded ahead.
        while bytes > MOST_SPARE_BYTES || (too_many.is_empty() && shelf.kept.len() > MOST_SPARES) {
            let Some((oldest, library, _)) = shelf.kept.pop_front() else { break };
            bytes -= oldest.loaded_bytes;
            too_many.push(library);
        }
        too_many
    }

    /// Keeps code that somebody has in another executor. What is returned is to be unloaded.
    pub(crate) fn keep_ahead(&self, origin: Origin, library: CUlibrary) -> Vec<CUlibrary> {
        let kept = &mut self.lock().kept;
        kept.push_back((origin, library, Kept::Ahead));
        let mut bytes: usize = kept.iter().map(|(origin, ..)| origin.image.len()).sum();
        let mut too_many = Vec::new();
        while kept.len() > MOST_AHEAD || bytes > MOST_AHEAD_BYTES {
            let Some((oldest, library, _)) = kept.pop_front() else { break };
            bytes -= oldest.image.len();
            too_many.push(library);
        }
        too_many
    }

    /// From now on nothing is kept that its owner gives up; says whether there is some.
    pub(crate) fn close(&self) -> bool {
        let mut shelf = self.lock();
        shelf.is_closed = true;
        shelf.kept.iter().any(|(.., why)| *why == Kept::GivenUp)
    }

    /// It may be kept again.
    pub(crate) fn open(&self) {
        self.lock().is_closed = false;
    }
}

impl Shared {
    /// Memory is short: unloads what is kept, in quiet moments, and keeps no more; then tells the
    /// keeper.
    pub(crate) fn give_up_spares(self: &Arc<Self>) {
        if !self.spares.close() {
            return self.tell(&FromExecutor::NothingKept);
        }
        let shared = Arc::clone(self);
        let unload = move || {
            shared.unload_spares();
            shared.tell(&FromExecutor::NothingKept);
        };
        // The main thread must not wait for others' kernels.
        if std::thread::Builder::new().name("unloading".into()).spawn(unload).is_err() {
            self.tell(&FromExecutor::NothingKept);
        }
    }

    pub(crate) fn unload_spares(&self) {
        if self.context.make_current().is_err() {
            return;
        }
        let began = Instant::now();
        let given_up = || began.elapsed() >= MOST_WAIT || self.context.lost().is_some();
        loop {
            let Some(quiet) = self.context.gate.quiet(&self.context, "Code that is kept", given_up)
            else {
                return;
            };
            while !quiet.is_long() {
                let oldest = self.spares.remove_first(|_, why| why == Kept::GivenUp);
                let Some(library) = oldest else { return };
                // SAFETY: a live library that nobody has.
                let _ = unsafe { self.context.driver().cuLibraryUnload(library) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(number: usize) -> Origin {
        Origin::new(number.to_ne_bytes().to_vec(), 4, 0, 1)
    }

    #[test]
    fn the_same_image_with_the_same_options_is_found_once() {
        let spares = Spares::default();
        let mut known = origin(1);
        known.note(c"f".into(), CUkernel(7), CUfunction(8));
        assert_eq!(spares.keep(known, CUlibrary(5)), []);
        assert!(spares.take(&origin(2)).is_none());
        assert!(spares.take(&Origin { max_registers: 32, ..origin(1) }).is_none());
        let (found, library) = spares.take(&origin(1)).unwrap();
        assert_eq!(library, CUlibrary(5));
        assert_eq!(found.function(c"f"), Some((CUkernel(7), CUfunction(8))));
        assert_eq!(found.function(c"g"), None);
        assert!(spares.take(&origin(1)).is_none(), "it has an owner now");
    }

    #[test]
    fn what_is_loaded_ahead_is_bounded_and_found() {
        let spares = Spares::default();
        for number in 0..MOST_AHEAD {
            assert_eq!(spares.keep_ahead(origin(number), CUlibrary(number)), []);
        }
        let one_more = origin(MOST_AHEAD);
        assert_eq!(spares.keep_ahead(one_more, CUlibrary(MOST_AHEAD)), [CUlibrary(0)]);
        assert!(spares.take(&origin(0)).is_none() && spares.take(&origin(1)).is_some());
        let large = Origin::new(vec![0; MOST_AHEAD_BYTES], 4, 0, 1);
        assert_eq!(spares.keep_ahead(large, CUlibrary(7)).len(), MOST_AHEAD - 1);
    }

    #[test]
    fn what_was_loaded_ahead_for_nobody_is_taken_back() {
        let spares = Spares::default();
        spares.keep(origin(1), CUlibrary(1));
        for number in [1, 2, 2, 3] {
            spares.keep_ahead(origin(number), CUlibrary(10 + number));
        }
        assert_eq!(spares.take_back(Some(&origin(2))), Some(CUlibrary(12)));
        assert_eq!(spares.take_back(Some(&origin(4))), None);
        let left: Vec<_> = std::iter::from_fn(|| spares.take_back(None)).collect();
        assert_eq!(left, [CUlibrary(11), CUlibrary(12), CUlibrary(13)]);
        assert!(spares.take(&origin(1)).is_some(), "its owner gave it up here");
    }

    #[test]
    fn the_oldest_goes_first() {
        let spares = Spares::default();
        for number in 0..MOST_SPARES {
            assert_eq!(spares.keep(origin(number), CUlibrary(number)), []);
        }
        assert_eq!(spares.keep(origin(MOST_SPARES), CUlibrary(MOST_SPARES)), [CUlibrary(0)]);
        let large = Origin { loaded_bytes: MOST_SPARE_BYTES - 2, ..origin(0) };
        let gone = spares.keep(large, CUlibrary(99));
        assert_eq!(gone, (1..MOST_SPARES - 1).map(CUlibrary).collect::<Vec<_>>());
        let too_large = Origin { loaded_bytes: MOST_SPARE_BYTES + 1, ..origin(0) };
        assert_eq!(spares.keep(too_large, CUlibrary(100)), [CUlibrary(100)]);
    }

    #[test]
    fn nothing_is_kept_while_memory_is_short() {
        let spares = Spares::default();
        assert!(!spares.close());
        assert_eq!(spares.keep(origin(1), CUlibrary(1)), [CUlibrary(1)]);
        spares.open();
        assert_eq!(spares.keep(origin(1), CUlibrary(1)), []);
        assert!(spares.close());
        assert!(spares.take(&origin(1)).is_some(), "it is there until it is unloaded");
    }
}
