//! Memory of a client's other devices, mapped here so that its kernels and copies on this device
//! reach it.
//!
//! The keeper has made that memory and hands it to this executor too ([`FromExecutor::Peer`]), if
//! the client has a session on the other device. It is mapped at the address that it has there:
//! windows and reservations are unique in the server, so the address is free here. Whether one
//! device reaches another is the driver's word. What is still mapped here counts for the client,
//! even when the other session has given it up.

use crate::session::failure::{Failure, INVALID};
use crate::session::session_handle::DeliveredGrant;
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::messages::{FromExecutor, GrantOutcome, PeerMemory};
use link::wire::attach::Window;
use link::wire::peer::{PeerMap, PeerShow, PeerUnmap};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet};

/// Ranges that a session may have mapped here at a time.
const MAX_MAPPINGS: usize = 1 << 16;
/// Ranges that a session may have reserved here at a time.
const MAX_RANGES: usize = 1 << 12;
/// What reserved ranges of clients are multiples of: see `policy::memory::reservations`.
const UNIT_BYTES: u64 = 32 << 20;

#[derive(Clone, Copy, Debug)]
struct Mapping {
    size_bytes: u64,
    device: u32,
    key: u64,
    /// First address of the range that it lies in.
    range: u64,
}

/// What one session has of its client's other devices.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Reserved with the driver: first address to length, and how much is mapped there.
    ranges: BTreeMap<u64, (u64, usize)>,
    mappings: BTreeMap<u64, Mapping>,
    /// Grants and pieces of this session that the client's other sessions may have: they are not
    /// moved out to the host.
    pub(crate) shown: BTreeSet<u64>,
}

impl Peers {
    /// Whether the session has nothing of others, nor they of it.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.mappings.is_empty() && self.shown.is_empty()
    }

    fn is_mapped(&self, at: u64, size_bytes: u64) -> bool {
        let before = self.mappings.range(..at.saturating_add(size_bytes)).next_back();
        before.is_some_and(|(base, mapping)| base + mapping.size_bytes > at)
    }
}

/// The range to be reserved for a mapping: the whole window for a grant, what the client has
/// reserved for other memory. `None` if the mapping does not lie in it, or it does not lie where
/// the other device's addresses are.
fn range_of(wanted: &PeerMap, memory: &PeerMemory) -> Option<Window> {
    let &PeerMap { address, size_bytes, offset_bytes, key, range_base, range_bytes, .. } = wanted;
    let is_grant = memory.window.contains(key, 1);
    let range = if is_grant {
        memory.window
    } else {
        let size_bytes = range_bytes.checked_next_multiple_of(UNIT_BYTES)?;
        let range = Window { base: range_base, size_bytes };
        let fits = range_bytes > 0 && memory.window.contains(range.base, range.size_bytes);
        fits.then_some(range)?
    };
    let end = offset_bytes.checked_add(size_bytes)?;
    let fits = size_bytes > 0 && end <= memory.size_bytes && range.contains(address, size_bytes);
    let whole =
        !is_grant || (address == key && offset_bytes == 0 && size_bytes == memory.size_bytes);
    (fits && whole).then_some(range)
}

impl State {
    /// From now on a grant, or a piece, stays where it is, as another executor is to map it.
    pub(crate) fn peer_show(&mut self, wanted: PeerShow) -> Result<(), Failure> {
        let is_grant = self.memory.grants.contains_key(&wanted.address);
        if !is_grant && self.virtual_memory.piece_of(wanted.address).is_none() {
            return Err(INVALID);
        }
        self.peers.shown.insert(wanted.address);
        Ok(())
    }

    /// Maps what another executor had mapped.
    pub(crate) fn map_peer_again(&mut self, wanted: PeerMap) -> Result<(), Failure> {
        self.peer_map(wanted)?;
        // The keeper has counted it for that executor, and now again.
        let (session, PeerMap { device, key, .. }) = (self.handle.id, wanted);
        self.shared.tell(&FromExecutor::PeerReleased { session, device, key });
        Ok(())
    }

    /// Asks the keeper for memory of the client's on another device.
    fn ask_peer(&mut self, device: u32, key: u64) -> Result<(PeerMemory, OwnedFd), Failure> {
        let session = self.handle.id;
        self.ask(&FromExecutor::Peer { session, device, key });
        let DeliveredGrant { outcome, memory, .. } = self.memory.await_answer()?;
        match (outcome, memory) {
            (GrantOutcome::Peer(found), Some(file)) => Ok((found, file)),
            (GrantOutcome::Refused(code), _) => Err(Failure::Cuda(CUresult(code))),
            _ => Err(Failure::Cuda(CUresult::ERROR_MPS_RPC_FAILURE)),
        }
    }

    pub(crate) fn peer_map(&mut self, wanted: PeerMap) -> Result<(), Failure> {
        let PeerMap { device, key, address, size_bytes, .. } = wanted;
        if self.peers.mappings.len() >= MAX_MAPPINGS || self.peers.ranges.len() >= MAX_RANGES {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        if self.peers.is_mapped(address, size_bytes) {
            return Err(INVALID);
        }
        let (memory, file) = self.ask_peer(device, key)?;
        let session = self.handle.id;
        let mapped = match range_of(&wanted, &memory) {
            Some(range) => self.map_peer(&wanted, range, &file),
            None => Err(INVALID),
        };
        match mapped {
            Ok(range) => {
                self.peers.mappings.insert(address, Mapping { size_bytes, device, key, range });
                Ok(())
            }
            Err(failure) => {
                self.shared.tell(&FromExecutor::PeerReleased { session, device, key });
                Err(failure)
            }
        }
    }

    /// Maps memory; returns the first address of the range that it lies in.
    fn map_peer(
        &mut self,
        wanted: &PeerMap,
        range: Window,
        file: &impl AsFd,
    ) -> Result<u64, Failure> {
        let &PeerMap { address, size_bytes, offset_bytes, .. } = wanted;
        if !self.memory.addressable.insert(address, size_bytes) {
            return Err(INVALID);
        }
        let mapped = self.reserve_peer(range).and_then(|()| {
            let mapped = self.map_imported(file, address, size_bytes, offset_bytes);
            mapped.map_err(Failure::from).inspect_err(|_| self.leave_range(range.base))
        });
        if mapped.is_err() {
            self.memory.addressable.remove(address, size_bytes);
        }
        mapped.map(|()| range.base)
    }

    /// Reserves a range, or counts one more mapping in it.
    fn reserve_peer(&mut self, range: Window) -> Result<(), Failure> {
        if let Some((length, mapped)) = self.peers.ranges.get_mut(&range.base) {
            if *length != range.size_bytes {
                return Err(INVALID);
            }
            *mapped += 1;
            return Ok(());
        }
        let (driver, mut got, length) = (self.driver(), 0, range.size_bytes as usize);
        // SAFETY: the result is written.
        let result = unsafe { driver.cuMemAddressReserve(&mut got, length, 0, range.base, 0) };
        self.check(result)?;
        if got != range.base {
            // SAFETY: just reserved, nothing mapped.
            let _ = unsafe { driver.cuMemAddressFree(got, length) };
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        self.peers.ranges.insert(range.base, (range.size_bytes, 1));
        Ok(())
    }

    /// One mapping fewer in a range; the last one gives it back.
    fn leave_range(&mut self, base: u64) {
        let Some((length, mapped)) = self.peers.ranges.get_mut(&base) else { return };
        *mapped -= 1;
        if *mapped == 0 {
            // SAFETY: reserved by this session, nothing is mapped there.
            let _ =
                unsafe { self.shared.context.driver().cuMemAddressFree(base, *length as usize) };
            self.peers.ranges.remove(&base);
        }
    }

    pub(crate) fn peer_unmap(&mut self, wanted: PeerUnmap) -> Result<(), Failure> {
        let PeerUnmap { address, size_bytes } = wanted;
        let known = self.peers.mappings.get(&address);
        if known.is_none_or(|mapping| mapping.size_bytes != size_bytes) {
            return Err(INVALID);
        }
        self.unmap_peer(address)
    }

    fn unmap_peer(&mut self, address: u64) -> Result<(), Failure> {
        let Some(&mapping) = self.peers.mappings.get(&address) else { return Ok(()) };
        let Mapping { size_bytes, device, key, range } = mapping;
        // SAFETY: mapped by this session; its client has waited for its work.
        self.check(unsafe { self.driver().cuMemUnmap(address, size_bytes as usize) })?;
        self.peers.mappings.remove(&address);
        self.memory.addressable.remove(address, size_bytes);
        self.leave_range(range);
        let session = self.handle.id;
        // Until that is committed the next executor may want it.
        self.give_up(FromExecutor::PeerReleased { session, device, key });
        Ok(())
    }

    /// Takes everything out of the driver; nobody uses it any more.
    pub(crate) fn clear_peers(&mut self) {
        let mapped: Vec<u64> = self.peers.mappings.keys().copied().collect();
        for address in mapped {
            // What cannot be unmapped in a living context is lost to it.
            let _ = self.unmap_peer(address);
        }
        self.tell_given_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const BASE: u64 = 0x1000_0000_0000;

    fn wanted(key: u64, address: u64, size_bytes: u64) -> PeerMap {
        let (offset_bytes, range_base, range_bytes) = (0, 0, 0);
        PeerMap {
            device: 0,
            reserved: 0,
            key,
            address,
            size_bytes,
            offset_bytes,
            range_base,
            range_bytes,
        }
    }

    #[test]
    fn a_grant_is_mapped_whole_and_where_it_is() {
        let window = Window { base: BASE, size_bytes: 64 * MIB };
        let memory = PeerMemory { window, size_bytes: 4 * MIB };
        assert_eq!(range_of(&wanted(BASE, BASE, 4 * MIB), &memory), Some(window));
        for (address, size_bytes) in [(BASE, 2 * MIB), (BASE + 2 * MIB, 4 * MIB), (0, 4 * MIB)] {
            assert_eq!(range_of(&wanted(BASE, address, size_bytes), &memory), None);
        }
    }

    #[test]
    fn other_memory_lies_in_a_range_of_the_devices_share() {
        let window = Window { base: BASE, size_bytes: 1024 * MIB };
        let memory = PeerMemory { window, size_bytes: 4 * MIB };
        let in_range = |range_base, range_bytes, address, offset_bytes| {
            let wanted =
                PeerMap { range_base, range_bytes, offset_bytes, ..wanted(7, address, 2 * MIB) };
            range_of(&wanted, &memory)
        };
        let found = Window { base: BASE, size_bytes: 32 * MIB };
        assert_eq!(in_range(BASE, 4 * MIB, BASE + 2 * MIB, 2 * MIB), Some(found));
        assert_eq!(in_range(BASE, 4 * MIB, BASE, 4 * MIB), None, "beyond the memory");
        assert_eq!(in_range(BASE, 4 * MIB, BASE + 32 * MIB, 0), None, "beyond the range");
        assert_eq!(in_range(BASE, 0, BASE, 0), None);
        assert_eq!(in_range(BASE, u64::MAX, BASE, 0), None);
        assert_eq!(in_range(BASE + 1024 * MIB, 4 * MIB, BASE + 1024 * MIB, 0), None);
    }
}
