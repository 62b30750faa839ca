//! A map from names that only grows, which readers share without a lock: kernels by name, as
//! libraries look them up again and again.
//!
//! Entries are never moved or removed before the map ends. When there are many, a larger index is
//! made and the smaller one kept, for whoever still reads it.

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Places of the first index; a power of two, as all are.
const FIRST_PLACES: usize = 16;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Names<V> {
    /// The largest of `Owned::indexes`, or null.
    index: AtomicPtr<Index<V>>,
    owned: Mutex<Owned<V>>,
    /// Threads share the values, which the pointer and the lock do not say.
    shared: PhantomData<V>,
}

/// What is freed when the map ends. Boxes of boxes: readers hold addresses of entries and of
/// indexes.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "addresses must stay")]
struct Owned<V> {
    entries: Vec<Box<Entry<V>>>,
    indexes: Vec<Box<Index<V>>>,
}

#[derive(Debug)]
struct Entry<V> {
    hash: u64,
    name: CString,
    value: V,
}

/// Entries by hash, at the first free place from theirs on; never more than half full.
#[derive(Debug)]
struct Index<V> {
    places: Box<[AtomicPtr<Entry<V>>]>,
}

/// The right to add names, while nobody else does.
pub(crate) struct Adding<'a, V> {
    names: &'a Names<V>,
    owned: MutexGuard<'a, Owned<V>>,
}

impl<V> Default for Names<V> {
    fn default() -> Self {
        let owned = Mutex::new(Owned { entries: Vec::new(), indexes: Vec::new() });
        Self { index: AtomicPtr::new(ptr::null_mut()), owned, shared: PhantomData }
    }
}

impl<V> Names<V> {
    /// The value of a name.
    pub(crate) fn get(&self, name: &CStr) -> Option<&V> {
        // Acquire: with the Release in `Adding::insert`. SAFETY: null, or an index that lives as
        // long as the map.
        let index = unsafe { self.index.load(Ordering::Acquire).as_ref() }?;
        let hash = hash(name.to_bytes());
        let mut place = hash as usize;
        loop {
            // Acquire: with the Release in `Index::put`. SAFETY: null, or an entry that lives as
            // long as the map.
            let entry = unsafe { index.at(place).load(Ordering::Acquire).as_ref() }?;
            if entry.hash == hash && entry.name.as_c_str() == name {
                return Some(&entry.value);
            }
            place = place.wrapping_add(1);
        }
    }

    /// Keeps others from adding names; readers go on.
    pub(crate) fn adding(&self) -> Adding<'_, V> {
        Adding { names: self, owned: self.owned.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

impl<V> Adding<'_, V> {
    /// All values, in the order in which they were added.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.owned.entries.iter().map(|entry| &entry.value)
    }

    /// Adds a name that is not there.
    pub(crate) fn insert(&mut self, name: CString, value: V) {
        let hash = hash(name.to_bytes());
        let entry = Box::new(Entry { hash, name, value });
        let pointer = ptr::from_ref(&*entry).cast_mut();
        self.owned.entries.push(entry);
        match self.owned.indexes.last() {
            Some(index) if self.owned.entries.len() * 2 <= index.places.len() => {
                index.put(hash, pointer);
            }
            last => {
                let count = last.map_or(FIRST_PLACES, |index| index.places.len() * 2);
                let places = (0..count).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
                let index = Box::new(Index { places });
                for entry in &self.owned.entries {
                    index.put(entry.hash, ptr::from_ref(&**entry).cast_mut());
                }
                // Release: with the Acquire in `Names::get`, which finds the places filled.
                self.names.index.store(ptr::from_ref(&*index).cast_mut(), Ordering::Release);
                self.owned.indexes.push(index);
            }
        }
    }
}

impl<V> Index<V> {
    fn at(&self, place: usize) -> &AtomicPtr<Entry<V>> {
        &self.places[place & (self.places.len() - 1)]
    }

    fn put(&self, hash: u64, entry: *mut Entry<V>) {
        let mut place = hash as usize;
        // Relaxed: only who adds names writes here, one at a time.
        while !self.at(place).load(Ordering::Relaxed).is_null() {
            place = place.wrapping_add(1);
        }
        // Release: with the Acquire in `Names::get`, which finds the entry whole.
        self.at(place).store(entry, Ordering::Release);
    }
}

/// Eight bytes at a time. Names are the program's own, so who makes them collide slows itself down.
fn hash(name: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: [u8; 8]| {
        let product = u128::from(hash ^ u64::from_le_bytes(word)) * u128::from(MULTIPLIER);
        product as u64 ^ (product >> 64) as u64
    };
    let mut hash = name.len() as u64 ^ MULTIPLIER;
    for &word in name.as_chunks::<8>().0 {
        hash = mix(hash, word);
    }
    // The end again, as far as it was not hashed; pieces that overlap spare the copy of so many
    // bytes.
    let last = match (name.last_chunk::<8>(), name.first_chunk::<4>(), name.last_chunk::<4>()) {
        (Some(&last), ..) => last,
        (None, Some(&[a, b, c, d]), Some(&[e, f, g, h])) => [a, b, c, d, e, f, g, h],
        _ => match *name {
            [a, b, c] => [a, b, c, 0, 0, 0, 0, 0],
            [a, b] => [a, b, 0, 0, 0, 0, 0, 0],
            [a] => [a, 0, 0, 0, 0, 0, 0, 0],
            _ => [0; 8],
        },
    };
    mix(hash, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> CString {
        CString::new(format!("_Z9kernel_{number}PfS_")).unwrap()
    }

    #[test]
    fn names_are_found_while_others_are_added() {
        const COUNT: usize = 1000;
        let names = Names::default();
        assert_eq!(names.get(c""), None);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // Each is found from some moment on, and all before it with it.
                for last in 0..COUNT {
                    while names.get(&name(last)).is_none() {
                        std::hint::spin_loop();
                    }
                    assert_eq!(names.get(&name(last / 2)), Some(&(last / 2)));
                }
            });
            for number in 0..COUNT {
                assert_eq!(names.get(&name(number)), None);
                names.adding().insert(name(number), number);
            }
            reader.join().unwrap();
        });
        assert_eq!(names.get(&name(COUNT)), None);
        assert!(names.adding().values().copied().eq(0..COUNT));
    }

    #[test]
    fn names_of_any_length_differ() {
        let names = Names::default();
        let all: Vec<_> = (0..40).map(|length| CString::new("a".repeat(length)).unwrap()).collect();
        for name in &all {
            names.adding().insert(name.clone(), name.as_bytes().len());
        }
        assert!(all.iter().all(|name| names.get(name) == Some(&name.as_bytes().len())));
    }
}
