//! Maps by numbers that this process gave out or has bounded: they need no hash that withstands an
//! attacker, and are looked into at every launch.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by a number.
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// One multiplication; the upper bits, which depend on all others, come to where the map looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

/// The golden ratio's fraction, in 64 bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(FACTOR);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn neighbours_and_aligned_addresses_are_spread() {
        for step in [1_u64, 64, 4096, 1 << 21] {
            let places: HashSet<u64> = (0..128)
                .map(|number| {
                    let mut hasher = NumberHasher::default();
                    hasher.write_u64(number * step);
                    hasher.finish() & 255
                })
                .collect();
            assert!(places.len() > 64, "{} places, {step} apart", places.len());
        }
    }
}
