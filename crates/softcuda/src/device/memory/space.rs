//! The process's device address space: reservations, mappings, allocations and registered host
//! memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::heap::{Freed, Heap, LARGE_BYTES};
use super::ranges::{Accessible, DeviceSet, Precision, Reach};
use super::{Account, GRANULARITY_BYTES, Physical, os, round_up};
use crate::device::error::{DeviceError, Result};

/// Addresses that the driver places by itself; wanted addresses may lie anywhere else.
const OWN_RANGE: Range<u64> = 0x3_0000_0000..0x100_0000_0000;

/// What an address belongs to, as pointer attributes report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    /// `cuMemAlloc` and its relatives, pools, module globals.
    Device,
    /// A `cuMemMap`ping.
    Mapped,
    /// Pinned host memory of `cuMemHostAlloc`, with its flags.
    Host { flags: u32 },
    /// `cuMemHostRegister`, with its flags.
    Registered { flags: u32 },
    /// `cuMemAllocManaged`.
    Managed,
    /// An allocation node of a graph.
    Graph,
    /// Memory of another process.
    Imported,
}

/// One allocation that a pointer can point into.
#[derive(Debug, Clone)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) size_bytes: u64,
    pub(crate) kind: AllocationKind,
    /// The device it is on; for host memory that of the context that made it.
    pub(crate) device: u32,
    /// The context that made it; 0: none.
    pub(crate) context: u64,
    /// Unique for the process's life.
    pub(crate) buffer_id: u64,
}

impl Allocation {
    pub(crate) fn range(&self) -> Range<u64> {
        self.base..self.base + self.size_bytes
    }
}

#[derive(Debug)]
struct Mapping {
    size_bytes: u64,
    physical: Arc<Physical>,
    /// Devices whose kernels touch it, of a `cuMemMap`ping.
    devices: DeviceSet,
}

#[derive(Debug, Default)]
struct Inner {
    /// Reserved ranges: base to size.
    reservations: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    allocations: BTreeMap<u64, Allocation>,
    heap: Heap,
}

/// The one address space of this process; shared by all devices, as with unified addressing.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    inner: Mutex<Inner>,
    accessible: Accessible,
    next_buffer_id: AtomicU64,
}

impl AddressSpace {
    #[cfg(test)]
    pub(crate) fn new(precision: Precision) -> Self {
        Self::with_devices(precision, 1)
    }

    /// For a number of devices.
    pub(crate) fn with_devices(precision: Precision, devices: usize) -> Self {
        AddressSpace {
            inner: Mutex::default(),
            accessible: Accessible::with_devices(precision, devices),
            next_buffer_id: AtomicU64::new(1),
        }
    }

    /// Which addresses may be touched now.
    pub(crate) fn accessible(&self) -> &Accessible {
        &self.accessible
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn buffer_id(&self) -> u64 {
        // Relaxed: only uniqueness matters.
        self.next_buffer_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Reserves addresses. A `wanted` address is taken exactly or not at all (then another one is
    /// chosen).
    pub(crate) fn reserve(&self, size_bytes: u64, align_bytes: u64, wanted: u64) -> Result<u64> {
        let align = align_bytes.max(GRANULARITY_BYTES);
        if size_bytes == 0
            || !size_bytes.is_multiple_of(GRANULARITY_BYTES)
            || !align.is_power_of_two()
        {
            return Err(DeviceError::InvalidValue(
                "size must be a multiple of 2 MiB, alignment a power of two",
            ));
        }
        let mut inner = self.lock();
        if wanted != 0 && wanted.is_multiple_of(align) && os::reserve_at(wanted, size_bytes).is_ok()
        {
            inner.reservations.insert(wanted, size_bytes);
            return Ok(wanted);
        }
        reserve_own(&mut inner, size_bytes, align)
    }

    /// Frees a reservation in which nothing is mapped.
    pub(crate) fn unreserve(&self, base: u64, size_bytes: u64) -> Result<()> {
        let mut inner = self.lock();
        if inner.reservations.get(&base) != Some(&size_bytes) {
            return Err(DeviceError::InvalidValue("no reservation of this address and size"));
        }
        if inner.mappings.range(base..base + size_bytes).next().is_some() {
            return Err(DeviceError::InvalidValue("memory is still mapped in the reservation"));
        }
        inner.reservations.remove(&base);
        os::release(base, size_bytes)
    }

    /// Maps an allocation into a reservation; it stays inaccessible until [`Self::set_access`].
    pub(crate) fn map(
        &self,
        base: u64,
        size_bytes: u64,
        physical: Arc<Physical>,
        offset: u64,
    ) -> Result<()> {
        let fits = offset.checked_add(size_bytes).is_some_and(|end| end <= physical.size_bytes());
        if size_bytes == 0
            || !fits
            || !(base | size_bytes | offset).is_multiple_of(GRANULARITY_BYTES)
        {
            return Err(DeviceError::InvalidValue(
                "mapping exceeds the allocation or is not a multiple of 2 MiB",
            ));
        }
        let mut inner = self.lock();
        let end = base
            .checked_add(size_bytes)
            .ok_or(DeviceError::InvalidValue("address range wraps around"))?;
        let reserved = inner.reservations.range(..=base).next_back();
        if reserved.is_none_or(|(start, size)| end > start + size) {
            return Err(DeviceError::InvalidValue("address range is not reserved"));
        }
        let before = inner.mappings.range(..end).next_back();
        if before.is_some_and(|(start, mapping)| start + mapping.size_bytes > base) {
            return Err(DeviceError::WrongState);
        }
        os::map_at(base, size_bytes, &*physical, offset)?;
        let device = physical.device().unwrap_or(0);
        inner.mappings.insert(base, Mapping { size_bytes, physical, devices: 0 });
        let buffer_id = self.buffer_id();
        let kind = AllocationKind::Mapped;
        inner
            .allocations
            .insert(base, Allocation { base, size_bytes, kind, device, context: 0, buffer_id });
        Ok(())
    }

    /// Gives or takes some devices' kernels' access to whole mappings that together fill the range.
    pub(crate) fn set_access(
        &self,
        base: u64,
        size_bytes: u64,
        devices: DeviceSet,
        allow: Access,
    ) -> Result<()> {
        let mut inner = self.lock();
        let starts = whole_mappings(&inner, base, size_bytes)?;
        let (mut removed, mut narrowed) = (Vec::new(), Vec::new());
        for start in starts {
            let Some(mapping) = inner.mappings.get_mut(&start) else { continue };
            let range = start..start + mapping.size_bytes;
            let before = mapping.devices;
            match allow {
                Access::ReadWrite => mapping.devices |= devices,
                Access::None => mapping.devices &= !devices,
            }
            match (before, mapping.devices) {
                (before, after) if before == after => {}
                (_, 0) => removed.push(range),
                (_, after) if allow == Access::None => narrowed.push((start, after)),
                (_, after) => self.accessible.add_for(range, Reach::Only(after)),
            }
        }
        drop(inner);
        for (start, after) in narrowed {
            self.accessible.change(start, |_| Reach::Only(after));
        }
        if !removed.is_empty() {
            self.accessible.remove(&removed);
        }
        Ok(())
    }

    /// The access that a device's kernels have to the mapping at `address`.
    pub(crate) fn access_at(&self, address: u64, device: u32) -> Result<Access> {
        let inner = self.lock();
        let found = inner
            .mappings
            .range(..=address)
            .next_back()
            .filter(|(s, m)| address < *s + m.size_bytes);
        let (_, mapping) = found.ok_or(DeviceError::InvalidValue("nothing is mapped there"))?;
        let is_reached = mapping.devices & 1 << device != 0;
        Ok(if is_reached { Access::ReadWrite } else { Access::None })
    }

    /// The physical allocation mapped at `address`.
    pub(crate) fn physical_at(&self, address: u64) -> Result<Arc<Physical>> {
        let inner = self.lock();
        let found = inner
            .mappings
            .range(..=address)
            .next_back()
            .filter(|(s, m)| address < *s + m.size_bytes);
        found
            .map(|(_, m)| m.physical.clone())
            .ok_or(DeviceError::InvalidValue("nothing is mapped there"))
    }

    /// Unmaps the whole mappings in a reserved range, once no kernel slice or copy uses them. Where
    /// nothing is mapped, nothing happens.
    pub(crate) fn unmap(&self, base: u64, size_bytes: u64) -> Result<()> {
        let mut inner = self.lock();
        let starts = mappings_inside(&inner, base, size_bytes)?;
        if starts
            .iter()
            .any(|s| inner.allocations.get(s).is_none_or(|a| a.kind != AllocationKind::Mapped))
        {
            return Err(DeviceError::InvalidValue("range was not mapped by cuMemMap"));
        }
        for start in &starts {
            inner.allocations.remove(start);
        }
        drop(inner);
        self.drop_mappings(&starts)
    }

    /// Waits until nobody uses the mappings any more, then clears their addresses. Not called with
    /// the lock held: a kernel that is waited for may need it. The entries stay until then, so that
    /// nothing is mapped over them.
    fn drop_mappings(&self, starts: &[u64]) -> Result<()> {
        let ranges: Vec<Range<u64>> = {
            let inner = self.lock();
            let mapped =
                starts.iter().filter_map(|start| Some((*start, inner.mappings.get(start)?)));
            mapped.map(|(start, mapping)| start..start + mapping.size_bytes).collect()
        };
        self.accessible.remove(&ranges);
        let mut inner = self.lock();
        for range in ranges {
            inner.mappings.remove(&range.start);
            os::clear(range.start, range.end - range.start)?;
        }
        Ok(())
    }

    /// Allocates device memory that is accessible at once.
    pub(crate) fn allocate(
        &self,
        device: u32,
        account: &Arc<Account>,
        context: u64,
        size_bytes: u64,
    ) -> Result<u64> {
        if size_bytes == 0 {
            return Err(DeviceError::InvalidValue("size is 0"));
        }
        let mut inner = self.lock();
        // An exact check wants a gap that belongs to nobody behind every allocation.
        let gap = if self.accessible.precision() == Precision::Exact { 256 } else { 0 };
        let need = size_bytes.checked_add(gap).ok_or(DeviceError::OutOfMemory)?;
        let base = if need >= LARGE_BYTES {
            self.map_fresh(&mut inner, Physical::on_device(device, account, need)?)?
        } else {
            match inner.heap.take(device, need) {
                Some(base) => base,
                None => {
                    let chunk = Physical::on_device(device, account, GRANULARITY_BYTES)?;
                    let base = self.map_fresh(&mut inner, chunk)?;
                    inner.heap.add_chunk(device, base, GRANULARITY_BYTES);
                    inner.heap.take(device, need).ok_or(DeviceError::OutOfMemory)?
                }
            }
        };
        let allocation = Allocation {
            base,
            size_bytes,
            kind: AllocationKind::Device,
            device,
            context,
            buffer_id: self.buffer_id(),
        };
        if self.accessible.precision() == Precision::Exact {
            self.accessible.add_for(allocation.range(), Reach::Of(device, 0));
        }
        inner.allocations.insert(base, allocation);
        Ok(base)
    }

    /// Reserves addresses of the driver's own range and maps `physical` there.
    fn map_fresh(&self, inner: &mut Inner, physical: Physical) -> Result<u64> {
        let size_bytes =
            round_up(physical.size_bytes(), GRANULARITY_BYTES).ok_or(DeviceError::OutOfMemory)?;
        let base = reserve_own(inner, size_bytes, GRANULARITY_BYTES)?;
        let mapped_bytes = physical.size_bytes();
        if let Err(error) = os::map_at(base, mapped_bytes, &physical, 0) {
            inner.reservations.remove(&base);
            os::release(base, size_bytes)?;
            return Err(error);
        }
        let is_device = physical.device().is_some();
        let reach = physical.device().map_or(Reach::All, |device| Reach::Of(device, 0));
        let mapping =
            Mapping { size_bytes: mapped_bytes, physical: Arc::new(physical), devices: 0 };
        inner.mappings.insert(base, mapping);
        if self.accessible.precision() == Precision::Mapping || !is_device {
            self.accessible.add_for(base..base + mapped_bytes, reach);
        }
        Ok(base)
    }

    /// Frees an allocation of [`Self::allocate`], [`Self::allocate_host`] or one of managed memory.
    pub(crate) fn free(
        &self,
        base: u64,
        accepts: fn(AllocationKind) -> bool,
    ) -> Result<Allocation> {
        let mut inner = self.lock();
        let allocation = inner
            .allocations
            .get(&base)
            .filter(|found| accepts(found.kind))
            .cloned()
            .ok_or(DeviceError::InvalidValue("no allocation starts at this address"))?;
        inner.allocations.remove(&base);
        drop(inner);
        if self.accessible.precision() == Precision::Exact {
            self.accessible.remove(&[allocation.range()]);
        }
        let whole = match self.lock().heap.give(base) {
            Some(Freed::Piece) => return Ok(allocation),
            Some(Freed::Chunk(chunk)) => chunk,
            None => base,
        };
        self.drop_mappings(&[whole])?;
        let size_bytes = self.lock().reservations.remove(&whole);
        if let Some(size_bytes) = size_bytes {
            os::release(whole, size_bytes)?;
        }
        Ok(allocation)
    }

    /// Allocates host-resident memory that kernels reach at the same address.
    pub(crate) fn allocate_host(
        &self,
        size_bytes: u64,
        kind: AllocationKind,
        device: u32,
        context: u64,
    ) -> Result<u64> {
        if size_bytes == 0 {
            return Err(DeviceError::InvalidValue("size is 0"));
        }
        let mut inner = self.lock();
        let base = self.map_fresh(&mut inner, Physical::on_host(size_bytes)?)?;
        let buffer_id = self.buffer_id();
        inner
            .allocations
            .insert(base, Allocation { base, size_bytes, kind, device, context, buffer_id });
        Ok(base)
    }

    /// Lets kernels touch host memory of the process, until [`Self::unregister`].
    pub(crate) fn register(
        &self,
        base: u64,
        size_bytes: u64,
        flags: u32,
        device: u32,
        context: u64,
    ) -> Result<()> {
        let end = base.checked_add(size_bytes).filter(|_| base != 0 && size_bytes != 0);
        let end = end.ok_or(DeviceError::InvalidValue("host range is empty or wraps around"))?;
        let mut inner = self.lock();
        let before = inner.allocations.range(..end).next_back();
        if before.is_some_and(|(_, allocation)| allocation.range().end > base) {
            return Err(DeviceError::AlreadyRegistered);
        }
        let kind = AllocationKind::Registered { flags };
        let buffer_id = self.buffer_id();
        inner
            .allocations
            .insert(base, Allocation { base, size_bytes, kind, device, context, buffer_id });
        self.accessible.add(base..end);
        Ok(())
    }

    /// Ends a registration, once no kernel slice or copy uses it.
    pub(crate) fn unregister(&self, base: u64) -> Result<()> {
        let mut inner = self.lock();
        let registered = matches!(
            inner.allocations.get(&base),
            Some(Allocation { kind: AllocationKind::Registered { .. }, .. })
        );
        if !registered {
            return Err(DeviceError::NotRegistered);
        }
        let range = inner.allocations.remove(&base).map(|allocation| allocation.range());
        drop(inner);
        self.accessible.remove(range.as_slice());
        Ok(())
    }

    /// The allocation that `address` lies in.
    pub(crate) fn allocation_at(&self, address: u64) -> Option<Allocation> {
        let inner = self.lock();
        let (_, found) = inner.allocations.range(..=address).next_back()?;
        (address < found.base + found.size_bytes).then(|| found.clone())
    }

    /// Every allocation that `context` made; what its destruction frees.
    pub(crate) fn allocations_of(&self, context: u64) -> Vec<Allocation> {
        self.lock().allocations.values().filter(|a| a.context == context).cloned().collect()
    }
}

/// Kernels' access to a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    None,
    ReadWrite,
}

/// The starts of mappings that fill the range exactly, without a hole.
fn whole_mappings(inner: &Inner, base: u64, size_bytes: u64) -> Result<Vec<u64>> {
    const NOT_WHOLE: DeviceError =
        DeviceError::InvalidValue("range does not consist of whole mappings");
    let end = base.checked_add(size_bytes).filter(|_| size_bytes != 0).ok_or(NOT_WHOLE)?;
    let mut at = base;
    let mut starts = Vec::new();
    for (&start, mapping) in inner.mappings.range(base..end) {
        if start != at {
            return Err(NOT_WHOLE);
        }
        starts.push(start);
        at = start + mapping.size_bytes;
    }
    if at == end { Ok(starts) } else { Err(NOT_WHOLE) }
}

/// The starts of the mappings in a reserved range; an error if one reaches out of it.
fn mappings_inside(inner: &Inner, base: u64, size_bytes: u64) -> Result<Vec<u64>> {
    const NOT_WHOLE: DeviceError =
        DeviceError::InvalidValue("range is not reserved, or a mapping is partly outside");
    let end = base.checked_add(size_bytes).filter(|_| size_bytes != 0).ok_or(NOT_WHOLE)?;
    let reserved = inner.reservations.range(..=base).next_back();
    let last = inner.mappings.range(..end).next_back();
    let first = inner.mappings.range(..base).next_back();
    let is_whole = reserved.is_some_and(|(start, size)| end <= start + size)
        && last.is_none_or(|(start, mapping)| start + mapping.size_bytes <= end)
        && first.is_none_or(|(start, mapping)| start + mapping.size_bytes <= base);
    if !is_whole {
        return Err(NOT_WHOLE);
    }
    Ok(inner.mappings.range(base..end).map(|(start, _)| *start).collect())
}

/// Finds and reserves free addresses in the driver's own range: first gap that fits.
fn reserve_own(inner: &mut Inner, size_bytes: u64, align: u64) -> Result<u64> {
    let mut at = OWN_RANGE.start;
    loop {
        at = round_up(at, align).ok_or(DeviceError::OutOfMemory)?;
        let end = at
            .checked_add(size_bytes)
            .filter(|&end| end <= OWN_RANGE.end)
            .ok_or(DeviceError::OutOfMemory)?;
        if let Some((&start, &size)) = inner.reservations.range(..end).next_back()
            && start + size > at
        {
            at = start + size;
            continue;
        }
        match os::reserve_at(at, size_bytes) {
            Ok(()) => {
                inner.reservations.insert(at, size_bytes);
                return Ok(at);
            }
            // Something else of the process lies there: look further.
            Err(DeviceError::OutOfMemory) => return Err(DeviceError::OutOfMemory),
            Err(_) => at += GRANULARITY_BYTES,
        }
    }
}

mod graph;
mod imported;
#[cfg(test)]
mod tests;
