//! Regions: host memory of the client that is mapped in this process, pinned or not, at the same address.

use super::{FILE_TIMEOUT, Memory, REGISTER_FLAGS, address};
use crate::executor::failure::Failure;
use crate::executor::state::State;
use cuda_abi::types::*;
use link::shm::{self, Access};
use link::wire::attach::RegionFile;
use link::wire::command::{MAX_REGIONS, REGION_PINNED, REGION_PLAIN, RegionMap, RegionUnmap};
use rustix::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

/// Pinned regions from this length on are mapped page by page before they are registered; that of shorter ones takes no time.
const POPULATED_BYTES: u64 = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionKind {
    Plain,
    Pinned,
}

impl Memory {
    /// Copies bytes out of a region, `limit_bytes` at most; the client may be writing there.
    pub(in crate::executor) fn read_region(
        &self,
        at: u64,
        size_bytes: u64,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, Failure> {
        if size_bytes == 0 || size_bytes > limit_bytes || !self.readable.contain(at, size_bytes) {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        }
        let length = size_bytes as usize;
        let mut bytes = Vec::new();
        // Room for a NUL after PTX text, and for readers that look a little further.
        bytes.try_reserve_exact(length + 64).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        let mut from = at;
        while !from.is_multiple_of(8) && bytes.len() < length {
            // SAFETY: inside a mapped region; atomic, as another process may write.
            bytes.push(
                unsafe { &*ptr::with_exposed_provenance::<AtomicU8>(from as usize) }
                    .load(Ordering::Relaxed),
            );
            from += 1;
        }
        while length - bytes.len() >= 8 {
            // SAFETY: as above, and aligned.
            let word = unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(from as usize) }
                .load(Ordering::Relaxed);
            bytes.extend_from_slice(&word.to_ne_bytes());
            from += 8;
        }
        while bytes.len() < length {
            // SAFETY: as for the first bytes.
            bytes.push(
                unsafe { &*ptr::with_exposed_provenance::<AtomicU8>(from as usize) }
                    .load(Ordering::Relaxed),
            );
            from += 1;
        }
        Ok(bytes)
    }
}

impl State {
    pub(in crate::executor) fn region_map(&mut self, wanted: RegionMap) -> Result<(), Failure> {
        let at = wanted.address;
        // It is taken when the command is committed: if this executor ends before, the next one does the command again and finds it.
        let received = self.memory.socket.peek::<RegionFile>(FILE_TIMEOUT);
        let received = received
            .map_err(|error| Failure::Protocol(format!("no file came for a region: {error}")))?;
        let is_it = received.message.address == at;
        let Some(file) = received.descriptors.into_iter().next().filter(|_| is_it) else {
            return Err(Failure::Protocol(format!(
                "the file that came is not that of the region at {at:#x}"
            )));
        };
        self.memory.has_region_file = true;
        self.map_region(wanted, file)
    }

    /// The command that has mapped a region is committed: its file has been of use.
    pub(in crate::executor) fn take_region_file(&mut self) {
        if std::mem::take(&mut self.memory.has_region_file) {
            let _ = self.memory.socket.try_receive::<RegionFile>();
        }
    }

    /// Before the first command of a session that another executor has served: a file of a region that is there has been of use to that one. Its client sends
    /// none of the same address before it has given the region back.
    pub(in crate::executor) fn drop_stale_region_file(&mut self) {
        let Ok(waiting) = self.memory.socket.peek::<RegionFile>(Duration::ZERO) else { return };
        if self.memory.regions.contains_key(&waiting.message.address) {
            let _ = self.memory.socket.try_receive::<RegionFile>();
        }
    }

    /// Maps a file of the client at the same address as there.
    pub(in crate::executor) fn map_region(
        &mut self,
        wanted: RegionMap,
        file: OwnedFd,
    ) -> Result<(), Failure> {
        let RegionMap { address: at, size_bytes, kind, .. } = wanted;
        let kind = match kind {
            REGION_PLAIN => RegionKind::Plain,
            REGION_PINNED => RegionKind::Pinned,
            other => return Err(Failure::Protocol(format!("region kind {other} does not exist"))),
        };
        let wrong = |error: shm::ShmError| Failure::Protocol(error.to_string());
        shm::check(file.as_fd(), size_bytes).map_err(wrong)?;
        if self.memory.regions.len() >= MAX_REGIONS || !self.memory.readable.insert(at, size_bytes)
        {
            return Err(Failure::Protocol(format!(
                "a region at {at:#x} overlaps another, or there are too many"
            )));
        }
        let mapped = self.memory.host.map(file.as_fd(), at, size_bytes, Access::ReadWrite);
        if kind == RegionKind::Pinned && size_bytes >= POPULATED_BYTES {
            // Not while the driver holds up others' work.
            self.memory.host.populate(at, size_bytes);
        }
        let registered = mapped.map_err(wrong).and_then(|()| match kind {
            RegionKind::Plain => Ok(()),
            // SAFETY: mapped just now, until it is unregistered.
            RegionKind::Pinned => self.check(unsafe {
                self.driver().cuMemHostRegister_v2(address(at), size_bytes as usize, REGISTER_FLAGS)
            }),
        });
        if let Err(failure) = registered {
            self.memory.readable.remove(at, size_bytes);
            let _ = self.memory.host.unmap(at, size_bytes);
            return Err(failure);
        }
        if kind == RegionKind::Pinned {
            let _ = self.memory.addressable.insert(at, size_bytes);
        }
        self.memory.regions.insert(at, (size_bytes, kind));
        self.keep_file(file.as_fd());
        Ok(())
    }

    pub(in crate::executor) fn region_unmap(&mut self, wanted: RegionUnmap) -> Result<(), Failure> {
        let RegionUnmap { address: at, size_bytes } = wanted;
        let Some(&(length, kind)) =
            self.memory.regions.get(&at).filter(|(length, _)| *length == size_bytes)
        else {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        };
        if kind == RegionKind::Pinned {
            let quiet = self.quiet()?;
            // SAFETY: registered by this session; its client has waited for its work.
            self.check(unsafe { self.driver().cuMemHostUnregister(address(at)) })?;
            drop(quiet);
            self.memory.addressable.remove(at, length);
        }
        self.memory.regions.remove(&at);
        self.memory.readable.remove(at, length);
        self.memory.host.unmap(at, length).map_err(|error| Failure::Protocol(error.to_string()))
    }
}
