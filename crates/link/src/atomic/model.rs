//! loom's atomics, of which the ordering at one place can be weakened on purpose: a model that
//! finds nothing wrong then would find nothing wrong with a mistake either.

use loom::cell::UnsafeCell;
use loom::sync::atomic as checked;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::Location;

pub use loom::sync::atomic::Ordering;

/// Where an ordering stronger than relaxed is asked for: a file and a line of it.
pub type Place = (&'static str, u32);

/// loom runs all threads of a model on one thread of the system, and each test has its own.
#[derive(Default)]
struct Places {
    seen: BTreeSet<Place>,
    weakened: Option<(String, u32)>,
}

thread_local! {
    static PLACES: RefCell<Places> = RefCell::default();
}

/// The places that this thread's models have come to since this was asked last.
pub fn take_places() -> BTreeSet<Place> {
    PLACES.with_borrow_mut(|places| std::mem::take(&mut places.seen))
}

/// From now on this thread's models have a weaker ordering at this place: relaxed, or for a fence
/// acquire and release.
pub fn weaken(file: &str, line: u32) {
    PLACES.with_borrow_mut(|places| places.weakened = Some((file.to_owned(), line)));
}

#[track_caller]
fn is_weakened() -> bool {
    let caller = Location::caller();
    let (file, line) = (caller.file(), caller.line());
    PLACES.with_borrow_mut(|places| {
        places.seen.insert((file, line));
        places.weakened.as_ref().is_some_and(|weak| weak.1 == line && weak.0 == file)
    })
}

#[track_caller]
fn of_access(order: Ordering) -> Ordering {
    if order != Ordering::Relaxed && is_weakened() { Ordering::Relaxed } else { order }
}

/// [`core::sync::atomic::fence`].
#[track_caller]
pub fn fence(order: Ordering) {
    checked::fence(if is_weakened() { Ordering::AcqRel } else { order });
}

macro_rules! exchange {
    ($name:ident, $number:ty) => {
        #[track_caller]
        pub fn $name(
            &self,
            current: $number,
            new: $number,
            success: Ordering,
            failure: Ordering,
        ) -> Result<$number, $number> {
            self.0.$name(current, new, of_access(success), of_access(failure))
        }
    };
}

macro_rules! atomic {
    ($name:ident, $number:ty) => {
        /// The type of the same name in [`core::sync::atomic`].
        #[derive(Debug, Default)]
        pub struct $name(checked::$name);

        #[expect(missing_docs, reason = "as in core")]
        impl $name {
            pub fn new(value: $number) -> Self {
                Self(checked::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $number {
                self.0.load(of_access(order))
            }

            #[track_caller]
            pub fn store(&self, value: $number, order: Ordering) {
                self.0.store(value, of_access(order));
            }

            #[track_caller]
            pub fn swap(&self, value: $number, order: Ordering) -> $number {
                self.0.swap(value, of_access(order))
            }

            #[track_caller]
            pub fn fetch_add(&self, value: $number, order: Ordering) -> $number {
                self.0.fetch_add(value, of_access(order))
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $number, order: Ordering) -> $number {
                self.0.fetch_sub(value, of_access(order))
            }

            #[track_caller]
            pub fn fetch_and(&self, value: $number, order: Ordering) -> $number {
                self.0.fetch_and(value, of_access(order))
            }

            exchange!(compare_exchange, $number);
            exchange!(compare_exchange_weak, $number);
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);

impl AtomicU32 {
    /// What the kernel sees when it looks whether to put a thread to sleep.
    pub(crate) fn seen_by_kernel(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A word of data: loom reports whoever reads it while another may write it, or writes it while
/// another may read it.
#[derive(Debug, Default)]
pub struct DataWord(UnsafeCell<u64>);

// SAFETY: loom ends the model at an access that is not ordered after those of other threads.
unsafe impl Sync for DataWord {}

#[expect(missing_docs, reason = "as of an atomic")]
impl DataWord {
    pub fn new(value: u64) -> Self {
        Self(UnsafeCell::new(value))
    }

    #[track_caller]
    pub fn load(&self, _: Ordering) -> u64 {
        // SAFETY: loom has checked that nobody writes.
        self.0.with(|value| unsafe { *value })
    }

    #[track_caller]
    pub fn store(&self, value: u64, _: Ordering) {
        // SAFETY: loom has checked that nobody else reads or writes.
        self.0.with_mut(|place| unsafe { *place = value });
    }
}
