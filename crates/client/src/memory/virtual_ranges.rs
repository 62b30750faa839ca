//! Reserved addresses, and the memory that is mapped there.

use crate::result::Result;
use cuda_abi::types::CUresult;
use link::shm::Reservation;
use link::wire::attach::Window;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that the server made or took over for us, or is about to give back.
#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: i32,
    pub(super) number: u32,
    /// The server's name of it for other devices; 0 for imported memory, which has none.
    pub(super) key: u64,
    /// 0 for imported memory, whose length the driver knows.
    pub(super) size_bytes: u64,
    pub(crate) sharing: Sharing,
    /// Handles and mappings that hold it. Once it is 0 the number may be another's.
    pub(super) holders: Mutex<u32>,
}

/// Whether other processes can be given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    None,
    Descriptor,
}

/// `CUmemGenericAllocationHandle`.
#[derive(Debug)]
pub(crate) struct MemoryHandle {
    pub(crate) token: usize,
    pub(crate) physical: Arc<Physical>,
    /// Made or retained so often, less releases.
    pub(super) references: Mutex<u32>,
}

/// Memory that is mapped somewhere.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) size_bytes: u64,
    pub(super) offset_bytes: u64,
    pub(super) physical: Arc<Physical>,
    pub(super) access: u32,
    /// Other devices that reach it.
    pub(super) viewers: BTreeSet<i32>,
}

/// Reserved addresses, and what is mapped there.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) size_bytes: u64,
    pub(super) device: i32,
    /// Keeps host memory away, unless the program has something there already.
    pub(super) _kept: Option<Reservation>,
    pub(super) mapped: BTreeMap<u64, Mapped>,
}

/// All reserved ranges, by first address.
#[derive(Debug, Default)]
pub(crate) struct VirtualRanges(Mutex<BTreeMap<u64, Range>>);

impl VirtualRanges {
    /// The ranges, locked.
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Range>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The range that holds all of `[address, address + size_bytes)`.
pub(super) fn range_of(
    ranges: &mut BTreeMap<u64, Range>,
    address: u64,
    size_bytes: u64,
) -> Option<&mut Range> {
    let (&base, range) = ranges.range_mut(..=address).next_back()?;
    let window = Window { base, size_bytes: range.size_bytes };
    (size_bytes > 0 && window.contains(address, size_bytes)).then_some(range)
}

impl Range {
    /// The mappings that make up a range exactly.
    pub(super) fn mappings_of(&self, address: u64, size_bytes: u64) -> Option<Vec<u64>> {
        let end = address.checked_add(size_bytes)?;
        let (mut next, mut found) = (address, Vec::new());
        while next < end {
            let mapped = self.mapped.get(&next)?;
            found.push(next);
            next += mapped.size_bytes;
        }
        (next == end).then_some(found)
    }

    /// Whether anything of it is mapped.
    pub(super) fn is_mapped(&self, address: u64, size_bytes: u64) -> bool {
        let before = self.mapped.range(..address + size_bytes).next_back();
        before.is_some_and(|(base, mapped)| base + mapped.size_bytes > address)
    }
}

/// A count, locked.
pub(super) fn locked(count: &Mutex<u32>) -> MutexGuard<'_, u32> {
    count.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Physical {
    /// New memory, with its first holder.
    pub(super) fn new(
        device: i32,
        (number, key): (u32, u64),
        size_bytes: u64,
        sharing: Sharing,
    ) -> Arc<Self> {
        Arc::new(Self { device, number, key, size_bytes, sharing, holders: Mutex::new(1) })
    }

    /// Adds a holder; CUDA_ERROR_INVALID_VALUE when another thread has just let it go.
    pub(super) fn hold(&self) -> Result {
        let mut holders = locked(&self.holders);
        if *holders == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        *holders += 1;
        Ok(())
    }
}
