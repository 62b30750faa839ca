//! Memory pools: what their handles stand for. A pool keeps its attributes and counts.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use cuda_abi::pool_usage::PoolUsage;

use crate::device::memory::AddressSpace;
use crate::device::memory::ranges::Reach;

/// A pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    device: u32,
    pub(crate) attributes: Mutex<HashMap<u32, u64>>,
    pub(crate) usage: PoolUsage,
    origin: Origin,
    /// What other devices were granted.
    access: Mutex<HashMap<u32, u32>>,
    /// Addresses of what was allocated from it and not freed.
    pub(crate) allocated: Mutex<BTreeSet<u64>>,
}

/// Whose pool it is, and whether others may have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Origin {
    #[default]
    Private,
    Exportable,
    Imported,
}

impl Pool {
    /// An empty pool on a device.
    pub(crate) fn on(device: u32) -> Self {
        Pool { device, ..Pool::default() }
    }

    /// A pool that other processes can be given.
    pub(crate) fn exportable(device: u32) -> Self {
        Pool { origin: Origin::Exportable, ..Pool::on(device) }
    }

    /// A pool of another process.
    pub(crate) fn imported(device: u32) -> Self {
        Pool { origin: Origin::Imported, ..Pool::on(device) }
    }

    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    pub(crate) fn is_exportable(&self) -> bool {
        self.origin == Origin::Exportable
    }

    pub(crate) fn is_imported(&self) -> bool {
        self.origin == Origin::Imported
    }

    /// What a device was granted.
    pub(crate) fn access(&self, device: u32) -> u32 {
        let access = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        access.get(&device).copied().unwrap_or(0)
    }

    pub(crate) fn set_access(&self, space: &AddressSpace, device: u32, flags: u32) {
        self.access.lock().unwrap_or_else(PoisonError::into_inner).insert(device, flags);
        for &address in &*self.allocated.lock().unwrap_or_else(PoisonError::into_inner) {
            self.show(space, address);
        }
    }

    /// Takes out an allocation that is being freed; says whether it was of this pool.
    pub(crate) fn forget(&self, address: u64) -> bool {
        self.allocated.lock().unwrap_or_else(PoisonError::into_inner).remove(&address)
    }

    /// Gives devices the access to an allocation that they have to the pool.
    pub(crate) fn show(&self, space: &AddressSpace, address: u64) {
        let access = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        let granted = access.iter().filter(|(_, flags)| **flags != 0);
        let devices = granted.fold(0, |set, (device, _)| set | 1 << device);
        if !access.is_empty() {
            space.accessible().change(address, |_| Reach::Of(self.device, devices));
        }
    }
}
