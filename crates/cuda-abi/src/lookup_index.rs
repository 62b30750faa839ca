//! Where a name of [`NAMES`] is, and which functions its symbols are: found by the compiler, so
//! that [`lookup`](crate::lookup::find) hashes a name once and compares it once. Programs look up
//! several hundred names when they start, and libraries again and again.

use crate::functions::FUNCTIONS;
use crate::lookup::NAMES;

/// Places of the hash table; a power of two, four times the names or so.
const PLACES: usize = 2048;

/// Positions in [`NAMES`], by hash; [`NONE`] where a search ends.
static PLACE: [u16; PLACES] = places();
const NONE: u16 = u16::MAX;

const SYMBOL_COUNT: usize = symbol_count();
/// The functions of all symbols of [`NAMES`], in their order: those of the legacy default stream
/// before those of the thread's own.
static FUNCTION: [u16; SYMBOL_COUNT] = functions();
/// Where in [`FUNCTION`] a name's begin.
static FIRST: [u16; NAMES.len()] = firsts();

/// The position of a name in [`NAMES`].
#[inline]
pub(crate) fn position(name: &[u8]) -> Option<usize> {
    let mut place = start(name);
    loop {
        let found = PLACE[place];
        if found == NONE {
            return None;
        }
        let found = usize::from(found);
        if NAMES[found].name.as_bytes() == name {
            return Some(found);
        }
        place = (place + 1) % PLACES;
    }
}

/// The position in [`FUNCTIONS`] of a symbol: the one at `symbol` of the name at `name`, counted
/// over both lists.
#[inline]
pub(crate) fn function(name: usize, symbol: usize) -> usize {
    usize::from(FUNCTION[usize::from(FIRST[name]) + symbol])
}

/// Where the search for a name begins.
const fn start(name: &[u8]) -> usize {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = name.len() as u64;
    let mut rest = name;
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(MULTIPLIER).rotate_left(29);
        rest = after;
    }
    // The last word again, as far as it was not hashed: no loop over single bytes.
    let last = match name.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => short(name),
    };
    hash = (hash ^ last).wrapping_mul(MULTIPLIER);
    (hash >> 32) as usize % PLACES
}

const fn short(name: &[u8]) -> u64 {
    let (mut word, mut i) = (0, 0);
    while i < name.len() {
        word |= (name[i] as u64) << (8 * i);
        i += 1;
    }
    word
}

const fn places() -> [u16; PLACES] {
    assert!(NAMES.len() * 2 < PLACES, "more places are needed");
    let mut places = [NONE; PLACES];
    let mut i = 0;
    while i < NAMES.len() {
        let mut place = start(NAMES[i].name.as_bytes());
        while places[place] != NONE {
            place = (place + 1) % PLACES;
        }
        places[place] = i as u16;
        i += 1;
    }
    places
}

const fn symbol_count() -> usize {
    let (mut count, mut i) = (0, 0);
    while i < NAMES.len() {
        count += NAMES[i].legacy.len() + NAMES[i].per_thread.len();
        i += 1;
    }
    count
}

const fn firsts() -> [u16; NAMES.len()] {
    let mut firsts = [0; NAMES.len()];
    let (mut count, mut i) = (0, 0);
    while i < NAMES.len() {
        firsts[i] = count as u16;
        count += NAMES[i].legacy.len() + NAMES[i].per_thread.len();
        i += 1;
    }
    firsts
}

const fn functions() -> [u16; SYMBOL_COUNT] {
    let mut functions = [0; SYMBOL_COUNT];
    let (mut count, mut i) = (0, 0);
    while i < NAMES.len() {
        let lists = [NAMES[i].legacy, NAMES[i].per_thread];
        let mut list = 0;
        while list < lists.len() {
            let mut symbol = 0;
            while symbol < lists[list].len() {
                functions[count] = index_of(lists[list][symbol].1);
                count += 1;
                symbol += 1;
            }
            list += 1;
        }
        i += 1;
    }
    functions
}

/// As [`index_of`](crate::functions::index_of), for the compiler.
const fn index_of(symbol: &str) -> u16 {
    let (mut low, mut high) = (0, FUNCTIONS.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if is_less(FUNCTIONS[middle].symbol.as_bytes(), symbol.as_bytes()) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    assert!(low < FUNCTIONS.len() && !is_less(symbol.as_bytes(), FUNCTIONS[low].symbol.as_bytes()));
    low as u16
}

const fn is_less(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() {
        if a[i] != b[i] {
            return a[i] < b[i];
        }
        i += 1;
    }
    a.len() < b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_where_it_is() {
        for (i, name) in NAMES.iter().enumerate() {
            assert_eq!(position(name.name.as_bytes()), Some(i), "{}", name.name);
            for (j, (_, symbol)) in name.legacy.iter().chain(name.per_thread).enumerate() {
                assert_eq!(FUNCTIONS[function(i, j)].symbol, *symbol);
            }
        }
    }

    #[test]
    fn no_search_is_long() {
        let longest = PLACE.split(|&place| place == NONE).map(<[u16]>::len).max();
        assert!(longest <= Some(16), "{longest:?} names lie side by side");
    }
}
