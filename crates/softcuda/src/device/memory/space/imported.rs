//! Memory of other processes, mapped where the driver likes.

use std::sync::Arc;

use super::super::Physical;
use super::{AddressSpace, Allocation, AllocationKind};
use crate::device::error::{DeviceError, Result};
use crate::device::memory::ranges::{Precision, Reach};

impl AddressSpace {
    /// Maps all of an allocation at addresses of the driver's own choice, accessible at once;
    /// [`Self::free`] ends it.
    pub(crate) fn map_imported(&self, physical: Physical) -> Result<u64> {
        let mut inner = self.lock();
        let size_bytes = physical.size_bytes();
        let is_device = physical.device().is_some();
        let device = physical.device().unwrap_or(0);
        let base = self.map_fresh(&mut inner, physical)?;
        if self.accessible.precision() == Precision::Exact && is_device {
            // What of it the other process has allocated is not known here.
            self.accessible.add_for(base..base + size_bytes, Reach::Of(device, 0));
        }
        let (kind, buffer_id) = (AllocationKind::Imported, self.buffer_id());
        inner
            .allocations
            .insert(base, Allocation { base, size_bytes, kind, device, context: 0, buffer_id });
        Ok(base)
    }

    /// The physical allocation behind an address and where its mapping begins.
    pub(crate) fn mapping_at(&self, address: u64) -> Result<(Arc<Physical>, u64)> {
        let inner = self.lock();
        let before = inner.mappings.range(..=address).next_back();
        before
            .filter(|(start, mapping)| address < *start + mapping.size_bytes)
            .map(|(start, mapping)| (mapping.physical.clone(), *start))
            .ok_or(DeviceError::InvalidValue("nothing is mapped there"))
    }
}
