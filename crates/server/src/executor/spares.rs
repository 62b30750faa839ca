//! Code that nobody has any more, kept for whoever loads the same next: a load and an unload wait for a quiet moment and hold others' work, this does
//! not. Only code without variables and with its functions' attributes as they were; it has one owner at a time. Compared by content.

use cuda_abi::types::*;
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

/// Images beyond this size are not kept.
pub(super) const MAX_SPARE_BYTES: u64 = 256 << 10;
/// Images that are kept, the least recently unloaded first to go.
const MOST_SPARES: usize = 64;
/// The same, and their bytes, of what is loaded ahead: code that somebody has now. Beyond [`MOST_SPARES`] it goes one by one as other code is given up.
const MOST_AHEAD: usize = 1024;
const MOST_AHEAD_BYTES: usize = 32 << 20;

/// What code was loaded from, and what its owners have asked for.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) image: Vec<u8>,
    pub(super) optimization_level: u32,
    pub(super) max_registers: u32,
    functions: Vec<(CString, CUkernel, CUfunction)>,
}

impl Origin {
    pub(super) fn new(image: Vec<u8>, optimization_level: u32, max_registers: u32) -> Self {
        Self { image, optimization_level, max_registers, functions: Vec::new() }
    }

    fn is_of(&self, other: &Self) -> bool {
        self.optimization_level == other.optimization_level
            && self.max_registers == other.max_registers
            && self.image == other.image
    }

    /// A function that was asked for before.
    pub(super) fn function(&self, name: &CStr) -> Option<(CUkernel, CUfunction)> {
        let mut known = self.functions.iter();
        known.find(|known| known.0.as_c_str() == name).map(|known| (known.1, known.2))
    }

    /// Remembers one.
    pub(super) fn note(&mut self, name: CString, kernel: CUkernel, function: CUfunction) {
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
pub(crate) struct Spares(Mutex<VecDeque<(Origin, CUlibrary, Kept)>>);

impl Spares {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(Origin, CUlibrary, Kept)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Code from the same image, if there is some.
    pub(super) fn take(&self, wanted: &Origin) -> Option<(Origin, CUlibrary)> {
        let mut kept = self.lock();
        let place = kept.iter().position(|(origin, ..)| origin.is_of(wanted))?;
        kept.remove(place).map(|(origin, library, _)| (origin, library))
    }

    /// Whether there is code that was loaded ahead and that nobody has taken.
    pub(super) fn has_ahead(&self) -> bool {
        self.lock().iter().any(|(.., why)| *why == Kept::Ahead)
    }

    /// Code that was loaded ahead and that nobody has taken: from this image, or any. It is to be unloaded.
    pub(super) fn take_back(&self, from: Option<&Origin>) -> Option<CUlibrary> {
        let mut kept = self.lock();
        let place = kept.iter().position(|(origin, _, why)| {
            *why == Kept::Ahead && from.is_none_or(|wanted| origin.is_of(wanted))
        })?;
        kept.remove(place).map(|(_, library, _)| library)
    }

    /// Keeps code that its owner has given up. What is returned is to be unloaded.
    pub(super) fn keep(&self, origin: Option<Origin>, library: CUlibrary) -> Option<CUlibrary> {
        let Some(origin) = origin else { return Some(library) };
        let mut kept = self.lock();
        kept.push_back((origin, library, Kept::GivenUp));
        if kept.len() <= MOST_SPARES {
            return None;
        }
        kept.pop_front().map(|(_, oldest, _)| oldest)
    }

    /// Keeps code that somebody has in another executor. What is returned is to be unloaded.
    pub(super) fn keep_ahead(&self, origin: Origin, library: CUlibrary) -> Vec<CUlibrary> {
        let mut kept = self.lock();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(number: usize) -> Origin {
        Origin::new(number.to_ne_bytes().to_vec(), 4, 0)
    }

    #[test]
    fn the_same_image_with_the_same_options_is_found_once() {
        let spares = Spares::default();
        let mut known = origin(1);
        known.note(c"f".into(), CUkernel(7), CUfunction(8));
        assert_eq!(spares.keep(Some(known), CUlibrary(5)), None);
        assert_eq!(spares.keep(None, CUlibrary(6)), Some(CUlibrary(6)));
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
        let large = Origin::new(vec![0; MOST_AHEAD_BYTES], 4, 0);
        assert_eq!(spares.keep_ahead(large, CUlibrary(7)).len(), MOST_AHEAD - 1);
    }

    #[test]
    fn what_was_loaded_ahead_for_nobody_is_taken_back() {
        let spares = Spares::default();
        spares.keep(Some(origin(1)), CUlibrary(1));
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
            assert_eq!(spares.keep(Some(origin(number)), CUlibrary(number)), None);
        }
        assert_eq!(
            spares.keep(Some(origin(MOST_SPARES)), CUlibrary(MOST_SPARES)),
            Some(CUlibrary(0))
        );
    }
}
