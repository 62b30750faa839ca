//! What a memory pool says of its memory: how much is used, and how much it has reserved.
//!
//! NVIDIA's driver reserves in chunks of 32 MiB, and gives chunks back when it is told to
//! (`cuMemPoolTrimTo`). Programs count on what is reserved staying the same while they allocate and
//! free inside it (CuPy's `MemoryAsyncPool`).

use crate::types::{CUmemPool_attribute as Attribute, CUresult};
use core::sync::atomic::{AtomicU64, Ordering};

/// What a driver reserves at a time.
pub const CHUNK_BYTES: u64 = 32 << 20;

/// Counts of one pool. They are statistics: every access is relaxed.
#[derive(Debug, Default)]
pub struct PoolUsage {
    used: AtomicU64,
    most_used: AtomicU64,
    reserved: AtomicU64,
    most_reserved: AtomicU64,
}

fn chunks(size_bytes: u64) -> u64 {
    size_bytes.checked_next_multiple_of(CHUNK_BYTES).unwrap_or(u64::MAX)
}

impl PoolUsage {
    /// Bytes that are allocated.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts an allocation.
    pub fn take(&self, size_bytes: u64) {
        let used = self.used.fetch_add(size_bytes, Ordering::Relaxed) + size_bytes;
        self.most_used.fetch_max(used, Ordering::Relaxed);
        self.reserved.fetch_max(chunks(used), Ordering::Relaxed);
        self.most_reserved.fetch_max(chunks(used), Ordering::Relaxed);
    }

    /// Counts a free; what was not counted before, as memory that is no pool's, changes nothing
    /// below 0.
    pub fn give(&self, size_bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(size_bytes));
        let _ = self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Gives back what is not used, down to so many bytes.
    pub fn trim_to(&self, keep_bytes: u64) {
        let keep = chunks(self.used_bytes()).max(keep_bytes - keep_bytes % CHUNK_BYTES);
        self.reserved.fetch_min(keep, Ordering::Relaxed);
    }

    /// The value of an attribute, if it is one of these.
    pub fn get(&self, attribute: Attribute) -> Option<u64> {
        let count = match attribute {
            Attribute::USED_MEM_CURRENT => &self.used,
            Attribute::USED_MEM_HIGH => &self.most_used,
            Attribute::RESERVED_MEM_CURRENT => &self.reserved,
            Attribute::RESERVED_MEM_HIGH => &self.most_reserved,
            _ => return None,
        };
        Some(count.load(Ordering::Relaxed))
    }

    /// Sets such an attribute: a high-water mark can be set to 0, and is then what there is.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for all else.
    pub fn set(&self, attribute: Attribute, value: u64) -> Option<Result<(), CUresult>> {
        let (mark, now) = match attribute {
            Attribute::USED_MEM_HIGH => (&self.most_used, &self.used),
            Attribute::RESERVED_MEM_HIGH => (&self.most_reserved, &self.reserved),
            Attribute::USED_MEM_CURRENT | Attribute::RESERVED_MEM_CURRENT => {
                return Some(Err(CUresult::ERROR_INVALID_VALUE));
            }
            _ => return None,
        };
        if value != 0 {
            return Some(Err(CUresult::ERROR_INVALID_VALUE));
        }
        mark.store(now.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: [Attribute; 2] = [Attribute::USED_MEM_CURRENT, Attribute::USED_MEM_HIGH];
    const RESERVED: [Attribute; 2] =
        [Attribute::RESERVED_MEM_CURRENT, Attribute::RESERVED_MEM_HIGH];

    #[test]
    fn what_is_reserved_grows_and_goes_by_chunks() {
        let pool = PoolUsage::default();
        let get = |attributes: [Attribute; 2]| attributes.map(|it| pool.get(it).unwrap());
        pool.take(CHUNK_BYTES / 2);
        pool.take(CHUNK_BYTES);
        assert_eq!(get(USED), [3 * CHUNK_BYTES / 2; 2]);
        assert_eq!(get(RESERVED), [2 * CHUNK_BYTES; 2]);
        pool.give(CHUNK_BYTES);
        assert_eq!(get(USED), [CHUNK_BYTES / 2, 3 * CHUNK_BYTES / 2]);
        assert_eq!(get(RESERVED), [2 * CHUNK_BYTES; 2], "it is the pool's still");
        pool.trim_to(u64::MAX);
        assert_eq!(get(RESERVED), [2 * CHUNK_BYTES; 2]);
        pool.trim_to(0);
        assert_eq!(get(RESERVED), [CHUNK_BYTES, 2 * CHUNK_BYTES], "some of it is used");
        for mark in [Attribute::USED_MEM_HIGH, Attribute::RESERVED_MEM_HIGH] {
            assert_eq!(pool.set(mark, 1), Some(Err(CUresult::ERROR_INVALID_VALUE)));
            assert_eq!(pool.set(mark, 0), Some(Ok(())));
        }
        assert_eq!((get(USED), get(RESERVED)), ([CHUNK_BYTES / 2; 2], [CHUNK_BYTES; 2]));
        assert_eq!(pool.set(USED[0], 0), Some(Err(CUresult::ERROR_INVALID_VALUE)));
        pool.give(CHUNK_BYTES);
        assert_eq!(get(USED)[0], 0);
        assert_eq!((pool.get(Attribute(4)), pool.set(Attribute(4), 0)), (None, None));
    }
}
