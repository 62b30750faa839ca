//! Memory of graph allocation nodes: addresses are reserved with the node, memory is mapped there
//! in stream order.

use std::ops::Range;
use std::sync::Arc;

use super::super::{GRANULARITY_BYTES, Physical, round_up};
use super::{AddressSpace, Allocation, AllocationKind, Mapping};
use crate::device::error::{DeviceError, Result};
use crate::device::memory::os;
use crate::device::memory::ranges::{Precision, Reach};

impl AddressSpace {
    /// Maps a part of `physical`, from an offset on, at reserved addresses as an allocation that is
    /// accessible at once. No other mapping may be in its pages of the device.
    pub(crate) fn map_graph(
        &self,
        range: Range<u64>,
        physical: Arc<Physical>,
        offset: u64,
        context: u64,
    ) -> Result<()> {
        let (base, size_bytes) = (range.start, range.end - range.start);
        let mapped_bytes =
            round_up(size_bytes, GRANULARITY_BYTES).ok_or(DeviceError::WrongState)?;
        let end = base + mapped_bytes;
        let mut inner = self.lock();
        let reserved = inner.reservations.range(..=base).next_back();
        let is_reserved = reserved.is_some_and(|(start, size)| end <= start + size);
        let before = inner.mappings.range(..end).next_back();
        let is_mapped = before.is_some_and(|(start, mapping)| start + mapping.size_bytes > base);
        if !is_reserved || is_mapped || offset + mapped_bytes > physical.size_bytes() {
            return Err(DeviceError::WrongState);
        }
        os::map_at(base, mapped_bytes, &*physical, offset)?;
        let device = physical.device().unwrap_or(0);
        let mapping = Mapping { size_bytes: mapped_bytes, physical, devices: 0 };
        inner.mappings.insert(base, mapping);
        let exact = self.accessible.precision() == Precision::Exact;
        let touched = if exact { range } else { base..end };
        self.accessible.add_for(touched, Reach::Of(device, 0));
        let (kind, buffer_id) = (AllocationKind::Graph, self.buffer_id());
        inner
            .allocations
            .insert(base, Allocation { base, size_bytes, kind, device, context, buffer_id });
        Ok(())
    }

    /// Unmaps what [`Self::map_graph`] mapped, once nothing uses it; the addresses stay reserved.
    pub(crate) fn unmap_graph(&self, base: u64) -> Result<()> {
        let found = {
            let mut inner = self.lock();
            match inner.allocations.get(&base) {
                Some(found) if found.kind == AllocationKind::Graph => {
                    inner.allocations.remove(&base)
                }
                _ => None,
            }
        };
        let found = found.ok_or(DeviceError::InvalidValue("nothing of a graph is mapped there"))?;
        if self.accessible.precision() == Precision::Exact {
            self.accessible.remove(&[found.range()]);
        }
        self.drop_mappings(&[base])
    }
}
