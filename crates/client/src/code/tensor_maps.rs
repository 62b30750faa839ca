//! Tensor maps that the driver has written, and what they say of others.
//!
//! Programs make maps at every launch, of tensors that differ in their address alone: activations
//! lie elsewhere in each layer. A driver that writes the address into a word of its own, and into
//! nothing else, is known by two of its maps that agree in all the rest; the third one is then made
//! here. What a driver writes otherwise is asked for each address.

use link::wire::query::TensorMapEncode;
use std::collections::HashMap;
use zerocopy::IntoBytes;

/// A `CUtensorMap`.
pub(crate) type Words = [u64; 16];

/// Questions that are known, addresses apart.
const MOST_QUESTIONS: usize = 512;
/// Addresses that are known of a question whose maps do not show theirs.
const MOST_ADDRESSES: usize = 64;
/// No program has memory from here on.
const ADDRESS_LIMIT: u64 = 1 << 47;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct TensorMaps(HashMap<Box<[u8]>, Known>);

#[derive(Debug, Default)]
struct Known {
    /// Addresses and their maps.
    maps: Vec<(u64, Words)>,
    /// The word that holds the address, once two maps have shown it.
    place: Option<usize>,
}

/// What is asked but for the address.
fn shape(question: &TensorMapEncode) -> TensorMapEncode {
    TensorMapEncode { address: 0, ..*question }
}

impl TensorMaps {
    /// The map that the driver would write, if that is known.
    pub(crate) fn find(&self, question: &TensorMapEncode) -> Option<Words> {
        self.0.get(shape(question).as_bytes())?.find(question.address)
    }

    /// The driver has written this map.
    pub(crate) fn note(&mut self, question: &TensorMapEncode, map: Words) {
        if self.0.len() >= MOST_QUESTIONS {
            self.0.clear();
        }
        self.0.entry(shape(question).as_bytes().into()).or_default().note(question.address, map);
    }
}

impl Known {
    fn find(&self, address: u64) -> Option<Words> {
        if let Some((_, map)) = self.maps.iter().rev().find(|(known, _)| *known == address) {
            return Some(*map);
        }
        let place = self.place?;
        // Drivers refuse what is not aligned as the tensor's layout wants it.
        let least = self.maps.iter().map(|(known, _)| known.trailing_zeros()).min()?;
        let is_like_them = address.trailing_zeros() >= least && is_an_address(address);
        let (_, mut map) = is_like_them.then(|| self.maps.first().copied()).flatten()?;
        *map.get_mut(place)? = address;
        Some(map)
    }

    fn note(&mut self, address: u64, map: Words) {
        if self.place.is_none() {
            let mut places = self.maps.iter().map(|&former| place(former, (address, map)));
            self.place = places.next().flatten();
        }
        if self.maps.len() >= MOST_ADDRESSES {
            self.maps.remove(0);
        }
        self.maps.push((address, map));
    }
}

fn is_an_address(number: u64) -> bool {
    (1..ADDRESS_LIMIT).contains(&number)
}

/// The word where two maps have their addresses, if that is all in which they differ.
fn place(one: (u64, Words), other: (u64, Words)) -> Option<usize> {
    let mut differing = (0..one.1.len()).filter(|&at| one.1[at] != other.1[at]);
    let at = differing.next()?;
    let has_address = |(address, map): (u64, Words)| is_an_address(address) && map[at] == address;
    (differing.next().is_none() && has_address(one) && has_address(other)).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(address: u64, rank: u32) -> TensorMapEncode {
        TensorMapEncode { address, rank, ..Default::default() }
    }

    fn map(word: u64, rank: u32) -> Words {
        let mut words = [0; 16];
        (words[1], words[2]) = (word, rank.into());
        words
    }

    #[test]
    fn the_third_map_is_made_of_two() {
        let mut maps = TensorMaps::default();
        assert_eq!(maps.find(&question(0x1000, 2)), None);
        maps.note(&question(0x1000, 2), map(0x1000, 2));
        assert_eq!(maps.find(&question(0x1000, 2)), Some(map(0x1000, 2)));
        assert_eq!(maps.find(&question(0x2000, 2)), None, "one map shows nothing");
        maps.note(&question(0x2040, 2), map(0x2040, 2));
        assert_eq!(maps.find(&question(0x7fc0, 2)), Some(map(0x7fc0, 2)));
        for other in [0x7fe0, 0, 1 << 47, u64::MAX << 12] {
            assert_eq!(maps.find(&question(other, 2)), None, "{other:#x} is not like them");
        }
        assert_eq!(maps.find(&question(0x1000, 3)), None);
    }

    #[test]
    fn maps_that_hide_their_address_are_known_one_by_one() {
        let mut maps = TensorMaps::default();
        for address in [0x1000, 0x2000, 0x3000] {
            assert_eq!(maps.find(&question(address, 2)), None);
            maps.note(&question(address, 2), map(address >> 4, 2));
        }
        assert_eq!(maps.find(&question(0x2000, 2)), Some(map(0x200, 2)));
        let mut with_sum = |address: u64| {
            let mut words = map(address, 3);
            words[15] = address * 3;
            maps.note(&question(address, 3), words);
        };
        with_sum(0x1000);
        with_sum(0x2000);
        assert_eq!(maps.find(&question(0x4000, 3)), None, "the address is in two words");
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut maps = TensorMaps::default();
        for rank in 0..2 * MOST_QUESTIONS as u32 {
            maps.note(&question(0x1000, rank), map(0x1000, rank));
        }
        assert!(maps.0.len() <= MOST_QUESTIONS);
        for address in 1..2 * MOST_ADDRESSES as u64 {
            maps.note(&question(address << 4, 9), map(0, 9));
        }
        assert!(maps.0.values().all(|known| known.maps.len() <= MOST_ADDRESSES));
    }
}
