//! Clients that keep to no rule: mutated commands, damaged images, garbage on sockets. What they do
//! is theirs to bear.
//!
//! [`commands`] and [`images`] make the inputs from random numbers, [`messages`] sends those for
//! sockets; [`raw_session`] is a client that writes its ring by hand. The server's fuzz target for
//! the ring and the attackers of [`chaos`](crate::chaos) use the same.

pub mod commands;
pub mod images;
pub mod messages;
pub mod raw_session;

/// Numbers that a seed determines (splitmix64).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// One of a list that is not empty.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// Changes a few bytes or numbers, or cuts the end off, or appends some.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] = random.bits() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            3 => {
                let more = random.below(200);
                bytes.resize(bytes.len() + more, random.bits() as u8);
            }
            _ => {
                let width = random.pick(&[2usize, 4, 8]);
                let at = at / width * width;
                let value = random.pick(&[
                    0,
                    1,
                    u64::MAX,
                    u64::MAX - 7,
                    0x8000_0000,
                    0x7fff_ffff,
                    1 << 63,
                    1 << 20,
                    0x1_0000_0000,
                ]);
                if let Some(field) = bytes.get_mut(at..at + width) {
                    field.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
        }
    }
}
