//! Memory without addresses and addresses without memory (`cuMemCreate`, `cuMemAddressReserve`).
//!
//! The server reserves addresses that no other client has, and this process keeps its own memory
//! away from them. What is mapped where is known here, so that questions are answered and mistakes
//! refused without asking.

use crate::client::Client;
use crate::memory::memory_map::{Area, Kind};
use crate::memory::peer;
use crate::memory::virtual_ranges::{
    Mapped, MemoryHandle, Physical, Range, Sharing, locked, range_of,
};
use crate::result::Result;
use cuda_abi::types::CUresult;
use link::shm::Reservation;
use link::wire::attach::Window;
use link::wire::command::Opcode;
use link::wire::peer::{PeerMap, PeerShow, PeerUnmap};
use link::wire::virtual_memory::{
    ACCESS_NONE, ACCESS_READ_WRITE, AddressFree, AddressReply, AddressReserve, MemoryCreate,
    MemoryCreateReply, MemoryMap, MemoryNumber, MemorySetAccess, MemoryUnmap, SHARING_DESCRIPTOR,
    SHARING_NONE,
};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use zerocopy::IntoBytes;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

impl Physical {
    /// Gives it back to the server when nothing holds it any more.
    fn let_go(&self, client: &'static Client) -> Result {
        let mut holders = locked(&self.holders);
        *holders -= 1;
        if *holders > 0 {
            return Ok(());
        }
        let backend = client.device(self.device)?.session(client)?;
        let body = MemoryNumber { memory: self.number, reserved: 0 };
        backend.session.call(0, Opcode::MemoryRelease, &[body.as_bytes()])?;
        backend.memories.give_back(self.number);
        Ok(())
    }
}

/// `cuMemAddressReserve`, on a device: memory of others cannot be mapped there.
pub(crate) fn reserve(
    client: &'static Client,
    device: i32,
    size_bytes: u64,
    alignment_bytes: u64,
) -> Result<u64> {
    let aligned = alignment_bytes == 0 || alignment_bytes.is_power_of_two();
    let (granule, _) = client.device(device)?.info.granularity_bytes;
    if size_bytes == 0 || !size_bytes.is_multiple_of(granule.max(1)) || !aligned {
        return Err(INVALID);
    }
    let backend = client.device(device)?.session(client)?;
    let body = AddressReserve { size_bytes, alignment_bytes };
    let reply: AddressReply =
        backend.session.call_for(0, Opcode::AddressReserve, &[body.as_bytes()])?;
    let base = reply.address;
    let kept = Reservation::new(Window { base, size_bytes })
        .inspect_err(|error| {
            crate::warn!("reserved addresses are also used by the program: {error}")
        })
        .ok();
    let range = Range { size_bytes, device, _kept: kept, mapped: BTreeMap::new() };
    client.virtual_ranges.lock().insert(base, range);
    Ok(base)
}

/// `cuMemAddressFree`.
pub(crate) fn free_range(client: &'static Client, address: u64, size_bytes: u64) -> Result {
    let mut ranges = client.virtual_ranges.lock();
    let range = ranges.get(&address).ok_or(INVALID)?;
    if range.size_bytes != size_bytes || !range.mapped.is_empty() {
        return Err(INVALID);
    }
    let backend = client.device(range.device)?.session(client)?;
    let body = AddressFree { address, size_bytes };
    backend.session.call(0, Opcode::AddressFree, &[body.as_bytes()])?;
    ranges.remove(&address);
    Ok(())
}

/// A handle of memory that is held for it.
fn register(client: &'static Client, physical: Arc<Physical>) -> Result<Arc<MemoryHandle>> {
    let made = client.memories.insert_with(|token| MemoryHandle {
        token,
        physical: Arc::clone(&physical),
        references: Mutex::new(1),
    });
    made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// `cuMemCreate`.
pub(crate) fn create(
    client: &'static Client,
    device: i32,
    size_bytes: u64,
    sharing: Sharing,
) -> Result<Arc<MemoryHandle>> {
    let (granule, _) = client.device(device)?.info.granularity_bytes;
    if size_bytes == 0 || !size_bytes.is_multiple_of(granule.max(1)) {
        return Err(INVALID);
    }
    let backend = client.device(device)?.session(client)?;
    let number = backend.memories.take()?;
    let asked = match sharing {
        Sharing::None => SHARING_NONE,
        Sharing::Descriptor => SHARING_DESCRIPTOR,
    };
    let body = MemoryCreate { size_bytes, memory: number, sharing: asked };
    let made = backend.session.call_for(0, Opcode::MemoryCreate, &[body.as_bytes()]);
    let made: MemoryCreateReply = made.inspect_err(|_| backend.memories.give_back(number))?;
    register(client, Physical::new(device, (number, made.key), size_bytes, sharing))
}

/// `cuMemImportFromShareableHandle` of a descriptor.
pub(crate) fn import(
    client: &'static Client,
    device: i32,
    file: BorrowedFd<'_>,
) -> Result<Arc<MemoryHandle>> {
    let backend = client.device(device)?.session(client)?;
    let number = backend.memories.take()?;
    let made = backend.session.import_memory(file, number);
    made.inspect_err(|_| backend.memories.give_back(number))?;
    register(client, Physical::new(device, (number, 0), 0, Sharing::Descriptor))
}

/// A handle's memory: CUDA_ERROR_INVALID_VALUE for what is none.
pub(crate) fn get(client: &Client, handle: u64) -> Result<Arc<MemoryHandle>> {
    client.memories.get(handle as usize).ok_or(INVALID)
}

/// `cuMemRelease`.
pub(crate) fn release(client: &'static Client, handle: u64) -> Result {
    let found = get(client, handle)?;
    let mut references = locked(&found.references);
    *references = references.checked_sub(1).ok_or(INVALID)?;
    if *references > 0 {
        return Ok(());
    }
    client.memories.remove(found.token);
    found.physical.let_go(client)
}

/// `cuMemRetainAllocationHandle`: the handle once more, or a new one if it was released.
pub(crate) fn retain(client: &'static Client, address: u64) -> Result<u64> {
    let physical = {
        let mut ranges = client.virtual_ranges.lock();
        let range = range_of(&mut ranges, address, 1).ok_or(INVALID)?;
        let found = range.mapped.range(..=address).next_back();
        let found = found.filter(|(base, mapped)| address - *base < mapped.size_bytes);
        Arc::clone(&found.ok_or(INVALID)?.1.physical)
    };
    for handle in client.memories.select(|handle| Arc::ptr_eq(&handle.physical, &physical)) {
        let mut references = locked(&handle.references);
        if *references > 0 {
            *references += 1;
            return Ok(handle.token as u64);
        }
    }
    physical.hold()?;
    Ok(register(client, physical)?.token as u64)
}

/// `cuMemExportToShareableHandle` as a descriptor.
pub(crate) fn export(client: &'static Client, handle: u64) -> Result<OwnedFd> {
    let physical = Arc::clone(&get(client, handle)?.physical);
    if physical.sharing == Sharing::None {
        return Err(INVALID);
    }
    client.device(physical.device)?.session(client)?.session.export_memory(physical.number)
}

/// `cuMemMap`.
pub(crate) fn map(
    client: &'static Client,
    address: u64,
    size_bytes: u64,
    offset_bytes: u64,
    handle: u64,
) -> Result {
    let physical = Arc::clone(&get(client, handle)?.physical);
    let (granule, _) = client.device(physical.device)?.info.granularity_bytes;
    let whole = |bytes: u64| bytes.is_multiple_of(granule.max(1));
    let end = offset_bytes.checked_add(size_bytes).ok_or(INVALID)?;
    let fits = physical.size_bytes == 0 || end <= physical.size_bytes;
    if !whole(address) || !whole(size_bytes) || !whole(offset_bytes) || !fits {
        return Err(INVALID);
    }
    let mut ranges = client.virtual_ranges.lock();
    let range = range_of(&mut ranges, address, size_bytes).ok_or(INVALID)?;
    if range.is_mapped(address, size_bytes) {
        return Err(INVALID);
    }
    if range.device != physical.device {
        crate::error!(
            "memory of device {} cannot be mapped at addresses reserved on device {}",
            physical.device,
            range.device
        );
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let backend = client.device(range.device)?.session(client)?;
    let body =
        MemoryMap { address, size_bytes, offset_bytes, memory: physical.number, reserved: 0 };
    // Before the call: another thread may release the handle meanwhile.
    physical.hold()?;
    if let Err(error) = backend.session.call(0, Opcode::MemoryMap, &[body.as_bytes()]) {
        physical.let_go(client)?;
        return Err(error);
    }
    let (access, viewers) = (ACCESS_NONE, BTreeSet::new());
    range.mapped.insert(address, Mapped { size_bytes, offset_bytes, physical, access, viewers });
    Ok(())
}

/// `cuMemUnmap`: whole mappings, once all work that could use them is done.
pub(crate) fn unmap(client: &'static Client, address: u64, size_bytes: u64) -> Result {
    let (device, viewers) = {
        let mut ranges = client.virtual_ranges.lock();
        let range = range_of(&mut ranges, address, size_bytes).ok_or(INVALID)?;
        let found = range.mappings_of(address, size_bytes).ok_or(INVALID)?;
        let mapped = found.iter().filter_map(|at| range.mapped.get(at));
        let viewers = mapped.flat_map(|mapped| mapped.viewers.iter().copied());
        (range.device, viewers.collect::<BTreeSet<i32>>())
    };
    let backend = client.device(device)?.session(client)?;
    // Without the lock: what is waited for may wait for another thread that needs it.
    backend.session.wait_all(0)?;
    for viewer in viewers {
        set_access(client, address, size_bytes, viewer, Access::None)?;
    }
    let mut ranges = client.virtual_ranges.lock();
    let range = range_of(&mut ranges, address, size_bytes).ok_or(INVALID)?;
    let found = range.mappings_of(address, size_bytes).ok_or(INVALID)?;
    let body = MemoryUnmap { address, size_bytes };
    backend.session.call(0, Opcode::MemoryUnmap, &[body.as_bytes()])?;
    for at in found {
        client.memory.remove(at, |area| matches!(area.kind, Kind::Mapped { .. }));
        if let Some(mapped) = range.mapped.remove(&at) {
            mapped.physical.let_go(client)?;
        }
    }
    Ok(())
}

/// Who may access what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    None,
    ReadWrite,
}

/// `cuMemSetAccess` for one device: whole mappings.
pub(crate) fn set_access(
    client: &'static Client,
    address: u64,
    size_bytes: u64,
    device: i32,
    access: Access,
) -> Result {
    let owner = {
        let mut ranges = client.virtual_ranges.lock();
        let range = range_of(&mut ranges, address, size_bytes).ok_or(INVALID)?;
        range.mappings_of(address, size_bytes).ok_or(INVALID)?;
        range.device
    };
    if device != owner {
        return set_peer_access(client, address, size_bytes, device, access);
    }
    let mut ranges = client.virtual_ranges.lock();
    let range = range_of(&mut ranges, address, size_bytes).ok_or(INVALID)?;
    let found = range.mappings_of(address, size_bytes).ok_or(INVALID)?;
    let backend = client.device(range.device)?.session(client)?;
    let asked = match access {
        Access::None => ACCESS_NONE,
        Access::ReadWrite => ACCESS_READ_WRITE,
    };
    let body = MemorySetAccess { address, size_bytes, access: asked, reserved: 0 };
    backend.session.call(0, Opcode::MemorySetAccess, &[body.as_bytes()])?;
    for at in found {
        let Some(mapped) = range.mapped.get_mut(&at) else { continue };
        if mapped.access == asked {
            continue;
        }
        mapped.access = asked;
        if access == Access::None && mapped.viewers.is_empty() {
            client.memory.remove(at, |area| matches!(area.kind, Kind::Mapped { .. }));
            continue;
        }
        note_area(client, at, mapped);
    }
    Ok(())
}

/// What is mapped and reached has a meaning to the API.
fn note_area(client: &Client, at: u64, mapped: &Mapped) {
    if client.memory.find(at).is_none() {
        let shareable = mapped.physical.sharing == Sharing::Descriptor;
        let kind = Kind::Mapped { shareable };
        client.memory.insert(Area::new(at, mapped.size_bytes, kind, 0, mapped.physical.device));
    }
}

/// The same for a device that the memory is not on.
fn set_peer_access(
    client: &'static Client,
    address: u64,
    size_bytes: u64,
    device: i32,
    access: Access,
) -> Result {
    let viewer = match (access, client.device(device)?.opened()) {
        (Access::None, None) => return Ok(()),
        (Access::None, Some(viewer)) => {
            viewer.session.wait_all(0)?;
            viewer
        }
        (Access::ReadWrite, _) => client.device(device)?.session(client)?,
    };
    let mut ranges = client.virtual_ranges.lock();
    let (&range_base, _) = ranges.range(..=address).next_back().ok_or(INVALID)?;
    let range = range_of(&mut ranges, address, size_bytes).ok_or(INVALID)?;
    let found = range.mappings_of(address, size_bytes).ok_or(INVALID)?;
    if access == Access::ReadWrite && !peer::info(client, device, range.device)?.can_access {
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    let (owner, range_bytes) = (client.device(range.device)?.index, range.size_bytes);
    let of = client.device(range.device)?.opened().ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    for at in found {
        let Some(mapped) = range.mapped.get_mut(&at) else { continue };
        match access {
            Access::None if mapped.viewers.contains(&device) => {
                let body = PeerUnmap { address: at, size_bytes: mapped.size_bytes };
                viewer.session.call(0, Opcode::PeerUnmap, &[body.as_bytes()])?;
                mapped.viewers.remove(&device);
                if mapped.access == ACCESS_NONE && mapped.viewers.is_empty() {
                    client.memory.remove(at, |area| matches!(area.kind, Kind::Mapped { .. }));
                }
            }
            Access::ReadWrite if !mapped.viewers.contains(&device) => {
                if mapped.physical.key == 0 {
                    // Imported memory is the driver's; only its own device's executor has it.
                    return Err(CUresult::ERROR_NOT_SUPPORTED);
                }
                let key = mapped.physical.key;
                let show = PeerShow { address: key };
                of.session.call(0, Opcode::PeerShow, &[show.as_bytes()])?;
                let body = PeerMap {
                    device: owner,
                    reserved: 0,
                    key,
                    address: at,
                    size_bytes: mapped.size_bytes,
                    offset_bytes: mapped.offset_bytes,
                    range_base,
                    range_bytes,
                };
                viewer.session.call(0, Opcode::PeerMap, &[body.as_bytes()])?;
                mapped.viewers.insert(device);
                note_area(client, at, mapped);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether another device reaches a range.
pub(crate) fn is_shown(client: &Client, address: u64, size_bytes: u64, device: i32) -> bool {
    let mut ranges = client.virtual_ranges.lock();
    let Some(range) = range_of(&mut ranges, address, size_bytes) else { return false };
    let Some(end) = address.checked_add(size_bytes) else { return false };
    let mut next = address;
    while next < end {
        let found = range.mapped.range(..=next).next_back();
        let found = found.filter(|(at, mapped)| {
            next - **at < mapped.size_bytes && mapped.viewers.contains(&device)
        });
        let Some((&at, mapped)) = found else { return false };
        next = at + mapped.size_bytes;
    }
    true
}

/// `cuMemGetAccess`.
pub(crate) fn access(client: &Client, address: u64, device: i32) -> Result<u64> {
    let mut ranges = client.virtual_ranges.lock();
    let range = range_of(&mut ranges, address, 1).ok_or(INVALID)?;
    let found = range.mapped.range(..=address).next_back();
    let (_, mapped) =
        found.filter(|(base, mapped)| address - *base < mapped.size_bytes).ok_or(INVALID)?;
    Ok(match range.device == device {
        true => mapped.access.into(),
        false if mapped.viewers.contains(&device) => ACCESS_READ_WRITE.into(),
        false => ACCESS_NONE.into(),
    })
}
