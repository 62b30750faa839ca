//! Memory of graph allocation nodes: addresses are reserved with the node, memory is mapped there
//! in stream order.

use std::sync::Arc;

use super::super::Physical;
use super::{AddressSpace, Allocation, AllocationKind, Mapping};
use crate::device::error::{DeviceError, Result};
use crate::device::memory::os;
use crate::device::memory::ranges::{Precision, Reach};

impl AddressSpace {
    /// Maps all of `physical` at reserved addresses as an allocation of `size_bytes`, accessible at
    /// once.
    pub(crate) fn map_graph(
        &self,
        base: u64,
        size_bytes: u64,
        physical: Arc<Physical>,
        context: u64,
    ) -> Result<()> {
        let mut inner = self.lock();
        let mapped_bytes = physical.size_bytes();
        let is_reserved = inner.reservations.get(&base).is_some_and(|size| *size >= mapped_bytes);
        if !is_reserved || inner.mappings.contains_key(&base) {
            return Err(DeviceError::WrongState);
        }
        os::map_at(base, mapped_bytes, &*physical, 0)?;
        let device = physical.device().unwrap_or(0);
        let mapping = Mapping { size_bytes: mapped_bytes, physical, devices: 0 };
        inner.mappings.insert(base, mapping);
        let exact = self.accessible.precision() == Precision::Exact;
        let range = base..base + if exact { size_bytes } else { mapped_bytes };
        self.accessible.add_for(range, Reach::Of(device, 0));
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
