//! Memory pools: attributes that are kept and read back, over the session's common heap.
//!
//! Stream-ordered allocation needs no pool of its own here: the heap frees in work order anyway.
//! What a pool holds on to (its release threshold, set by PyTorch, TensorFlow and RMM so that
//! freeing costs nothing) the heap does not give back.

use crate::result::Result;
use cuda_abi::pool_usage::PoolUsage;
use cuda_abi::types::{CUmemPool_attribute, CUresult};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// See the module's description.
pub(crate) struct Pool {
    pub(crate) token: usize,
    pub(crate) device: i32,
    pub(crate) sharing: Sharing,
    set: Mutex<HashMap<u32, u64>>,
    /// Other devices that reach its memory.
    viewers: Mutex<BTreeSet<i32>>,
    usage: PoolUsage,
    /// What it may hold on to: the most that was used since it was trimmed.
    most_held_bytes: AtomicU64,
}

/// Whether other processes have to do with a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Private,
    Exportable,
    /// Another process's: it only stands for pointers that are imported one by one.
    Imported,
}

/// How wide an attribute's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Int,
    Wide,
}

impl Pool {
    pub(crate) fn new(token: usize, device: i32, sharing: Sharing) -> Self {
        Self {
            token,
            device,
            sharing,
            set: Mutex::new(HashMap::new()),
            viewers: Mutex::default(),
            usage: PoolUsage::default(),
            most_held_bytes: AtomicU64::new(0),
        }
    }

    /// The width of an attribute's value; CUDA_ERROR_INVALID_VALUE for what is none.
    pub(crate) fn width(attribute: CUmemPool_attribute) -> Result<Width> {
        match attribute.0 {
            1..=3 => Ok(Width::Int),
            4..=8 => Ok(Width::Wide),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// The value of an attribute.
    pub(crate) fn get(&self, attribute: CUmemPool_attribute) -> u64 {
        self.usage.get(attribute).unwrap_or_else(|| match attribute {
            CUmemPool_attribute::RELEASE_THRESHOLD => self.kept(attribute).unwrap_or(0),
            // Reuse of memory across streams is allowed until forbidden.
            _ => self.kept(attribute).unwrap_or(1),
        })
    }

    fn kept(&self, attribute: CUmemPool_attribute) -> Option<u64> {
        self.set.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&attribute.0).copied()
    }

    /// Sets an attribute; high-water marks can only be reset.
    pub(crate) fn set(&self, attribute: CUmemPool_attribute, value: u64) -> Result {
        self.usage.set(attribute, value).unwrap_or_else(|| {
            let mut set = self.set.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            set.insert(attribute.0, value);
            Ok(())
        })
    }

    fn locked_viewers(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.viewers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Other devices that reach its memory.
    pub(crate) fn viewers(&self) -> BTreeSet<i32> {
        self.locked_viewers().clone()
    }

    /// Whether another device reaches its memory.
    pub(crate) fn admits(&self, device: i32) -> bool {
        self.locked_viewers().contains(&device)
    }

    /// Lets another device reach its memory.
    pub(crate) fn admit(&self, device: i32) {
        self.locked_viewers().insert(device);
    }

    /// New memory of it is no longer reached by a device.
    pub(crate) fn dismiss(&self, device: i32) {
        self.locked_viewers().remove(&device);
    }

    /// Counts an allocation.
    pub(crate) fn took(&self, size_bytes: u64) {
        self.usage.take(size_bytes);
        // Relaxed: see `spare_bytes`.
        self.most_held_bytes.fetch_max(self.usage.used_bytes(), Ordering::Relaxed);
    }

    /// Bytes that are free and not to be given back: up to the release threshold, and never more
    /// than were once used.
    pub(crate) fn spare_bytes(&self) -> u64 {
        // Relaxed: a wrong figure of a moment keeps or gives back too much once.
        let threshold = self.get(CUmemPool_attribute::RELEASE_THRESHOLD);
        let held = self.most_held_bytes.load(Ordering::Relaxed).min(threshold);
        held.saturating_sub(self.usage.used_bytes())
    }

    /// Holds on to no more than so many bytes, used ones included.
    pub(crate) fn trim_to(&self, size_bytes: u64) {
        // Relaxed: see `spare_bytes`.
        self.most_held_bytes.fetch_min(size_bytes, Ordering::Relaxed);
        self.usage.trim_to(size_bytes);
    }

    /// Counts a free.
    pub(crate) fn freed(&self, size_bytes: u64) {
        self.usage.give(size_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_read_back() {
        let pool = Pool::new(1, 0, Sharing::Private);
        assert_eq!(pool.get(CUmemPool_attribute::RELEASE_THRESHOLD), 0);
        pool.set(CUmemPool_attribute::RELEASE_THRESHOLD, u64::MAX).unwrap();
        assert_eq!(pool.get(CUmemPool_attribute::RELEASE_THRESHOLD), u64::MAX);
        pool.took(512);
        pool.took(512);
        pool.freed(512);
        assert_eq!(pool.get(CUmemPool_attribute::USED_MEM_CURRENT), 512);
        assert_eq!(pool.get(CUmemPool_attribute::USED_MEM_HIGH), 1024);
        assert!(pool.set(CUmemPool_attribute::USED_MEM_HIGH, 1).is_err());
        pool.set(CUmemPool_attribute::USED_MEM_HIGH, 0).unwrap();
        assert_eq!(pool.get(CUmemPool_attribute::USED_MEM_HIGH), 512);
        assert!(Pool::width(CUmemPool_attribute(77)).is_err());
    }

    #[test]
    fn a_pool_holds_on_to_what_its_threshold_and_its_past_allow() {
        let pool = Pool::new(1, 0, Sharing::Private);
        pool.took(1000);
        pool.freed(900);
        assert_eq!(pool.spare_bytes(), 0, "nothing, unless it is told to");
        pool.set(CUmemPool_attribute::RELEASE_THRESHOLD, u64::MAX).unwrap();
        assert_eq!(pool.spare_bytes(), 900);
        pool.set(CUmemPool_attribute::RELEASE_THRESHOLD, 300).unwrap();
        assert_eq!(pool.spare_bytes(), 200);
        pool.trim_to(150);
        assert_eq!(pool.spare_bytes(), 50);
        pool.trim_to(0);
        assert_eq!(pool.spare_bytes(), 0);
        pool.took(400);
        assert_eq!(pool.spare_bytes(), 0);
        pool.freed(500);
        assert_eq!(pool.spare_bytes(), 300);
    }
}
