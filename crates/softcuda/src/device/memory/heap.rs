//! Sub-allocation inside chunks of device memory: first fit, aligned.
//!
//! Pure bookkeeping: who maps and unmaps chunks is [`super::space`].

use std::collections::BTreeMap;

use super::{GRANULARITY_BYTES, round_up};

/// Alignment of `cuMemAlloc`'s allocations, in bytes.
pub(crate) const ALIGNMENT_BYTES: u64 = 512;
/// Requests of this size and more get a mapping of their own.
pub(crate) const LARGE_BYTES: u64 = GRANULARITY_BYTES / 2;

/// One mapped chunk and its free pieces (offset to length, in bytes).
#[derive(Debug)]
struct Chunk {
    device: u32,
    size_bytes: u64,
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
}

/// Chunks, by base address.
#[derive(Debug)]
pub(crate) struct Heap {
    align_bytes: u64,
    chunks: BTreeMap<u64, Chunk>,
    /// Live pieces: address to reserved length.
    live: BTreeMap<u64, u64>,
}

/// What a free left behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The piece went back to its chunk.
    Piece,
    /// The chunk that starts here is empty now and has left the heap: unmap it.
    Chunk(u64),
}

impl Heap {
    /// An empty heap whose pieces are aligned to `align_bytes`, a power of two.
    pub(crate) fn new(align_bytes: u64) -> Self {
        Heap { align_bytes, chunks: BTreeMap::new(), live: BTreeMap::new() }
    }

    /// Adds an empty chunk.
    pub(crate) fn add_chunk(&mut self, device: u32, base: u64, size_bytes: u64) {
        let free = BTreeMap::from([(0, size_bytes)]);
        self.chunks.insert(base, Chunk { device, size_bytes, free, free_bytes: size_bytes });
    }

    /// Takes `size_bytes` out of a chunk of `device`; `None`: no chunk has room.
    pub(crate) fn take(&mut self, device: u32, size_bytes: u64) -> Option<u64> {
        let need = round_up(size_bytes.max(1), self.align_bytes)?;
        for (&base, chunk) in &mut self.chunks {
            if chunk.device != device || chunk.free_bytes < need {
                continue;
            }
            let Some((&offset, &length)) = chunk.free.iter().find(|(_, length)| **length >= need)
            else {
                continue;
            };
            chunk.free.remove(&offset);
            if length > need {
                chunk.free.insert(offset + need, length - need);
            }
            chunk.free_bytes -= need;
            self.live.insert(base + offset, need);
            return Some(base + offset);
        }
        None
    }

    /// Gives a piece back; `None`: no live piece starts there.
    pub(crate) fn give(&mut self, address: u64) -> Option<Freed> {
        let length = self.live.remove(&address)?;
        let (&base, chunk) = self.chunks.range_mut(..=address).next_back()?;
        let (mut offset, mut end) = (address - base, address - base + length);
        if let Some((&before, &before_length)) = chunk.free.range(..offset).next_back()
            && before + before_length == offset
        {
            chunk.free.remove(&before);
            offset = before;
        }
        if let Some(after_length) = chunk.free.remove(&end) {
            end += after_length;
        }
        chunk.free.insert(offset, end - offset);
        chunk.free_bytes += length;
        if chunk.free_bytes == chunk.size_bytes {
            self.chunks.remove(&base);
            return Some(Freed::Chunk(base));
        }
        Some(Freed::Piece)
    }
}

impl Default for Heap {
    fn default() -> Self {
        Heap::new(ALIGNMENT_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_coalesce() {
        let mut heap = Heap::new(ALIGNMENT_BYTES);
        heap.add_chunk(0, 0x10_0000, 0x2000);
        let pieces: Vec<u64> = (0..4).map(|_| heap.take(0, 2000).expect("room")).collect();
        assert_eq!(pieces, [0x10_0000, 0x10_0800, 0x10_1000, 0x10_1800]);
        assert_eq!(heap.take(0, 1), None, "full");
        assert_eq!(heap.take(1, 1), None, "another device");
        assert_eq!(heap.give(pieces[1]), Some(Freed::Piece));
        assert_eq!(heap.give(pieces[1]), None, "freed twice");
        assert_eq!(heap.give(pieces[2]), Some(Freed::Piece));
        assert_eq!(heap.take(0, 0x1000), Some(pieces[1]), "neighbours became one");
        for piece in [pieces[0], pieces[1]] {
            assert_eq!(heap.give(piece), Some(Freed::Piece));
        }
        assert_eq!(heap.give(pieces[3]), Some(Freed::Chunk(0x10_0000)));
    }
}
