//! Regions: host memory of the client that is mapped in this process, pinned or not, at the same
//! address.

use super::{FILE_TIMEOUT, Memory, REGISTER_FLAGS, address};
use crate::session::descriptors::{Kept, OF_REGION, Room};
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::*;
use link::shm::{self, Access};
use link::wire::attach::RegionFile;
use link::wire::command::{MAX_REGIONS, REGION_PINNED, REGION_PLAIN, RegionMap, RegionUnmap};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::time::Duration;

/// Pinned regions from this length on are mapped page by page before they are registered; that of
/// shorter ones takes no time.
const POPULATED_BYTES: u64 = 8 << 20;
/// So much at the end of what a client has written may be pages that it never touched: the NUL
/// behind a text.
const UNTOUCHED_BYTES: u64 = 64 << 10;
/// What the kernel counts a file's pages in.
const BLOCK_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionKind {
    Plain,
    Pinned,
}

/// One of them, by its first address.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) size_bytes: u64,
    pub(super) kind: RegionKind,
    file: Kept,
}

impl Region {
    fn pinned_bytes(&self) -> u64 {
        pinned_bytes(self.kind, self.size_bytes)
    }
}

/// What counts as the host's memory: a plain region's pages are its client's, and are only read.
fn pinned_bytes(kind: RegionKind, size_bytes: u64) -> u64 {
    match kind {
        RegionKind::Plain => 0,
        RegionKind::Pinned => size_bytes,
    }
}

/// Whether somebody has written so much of a file: one without pages costs its client nothing, and
/// whoever copies it out all of its length.
fn is_written(file: &Kept, size_bytes: u64) -> bool {
    let blocks = rustix::fs::fstat(file).map_or(0, |stat| stat.st_blocks.cast_unsigned());
    blocks.saturating_mul(BLOCK_BYTES).saturating_add(UNTOUCHED_BYTES) >= size_bytes
}

impl Memory {
    /// The region at an address, and how much of it lies there.
    fn region_at(&self, at: u64) -> Option<(&Region, u64, u64)> {
        let (base, region) = self.regions.range(..=at).next_back()?;
        let offset = at - base;
        Some((region, offset, region.size_bytes.checked_sub(offset).filter(|rest| *rest > 0)?))
    }

    /// Copies bytes out of regions, `limit_bytes` at most; the client may be writing there.
    pub(crate) fn read_region(
        &self,
        at: u64,
        size_bytes: u64,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, Failure> {
        if size_bytes == 0 || size_bytes > limit_bytes || !self.readable.contain(at, size_bytes) {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        }
        let (mut at_piece, end) = (at, at + size_bytes);
        while at_piece < end {
            let (region, _, rest) =
                self.region_at(at_piece).ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let piece = rest.min(end - at_piece);
            if !is_written(&region.file, piece) {
                return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
            }
            at_piece += piece;
        }
        let length = size_bytes as usize;
        let mut bytes = Vec::new();
        // Room for a NUL after PTX text, and for readers that look a little further.
        bytes.try_reserve_exact(length + 64).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        bytes.resize(length, 0);
        let mut done = 0;
        // Out of the files: the kernel says so when there is something wrong with them.
        while done < length {
            let found = self.region_at(at + done as u64);
            let (region, offset, rest) = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
            let piece = rest.min((length - done) as u64) as usize;
            match rustix::io::pread(&region.file, &mut bytes[done..done + piece], offset) {
                Ok(0) => return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE)),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(Failure::Protocol(format!("a region cannot be read: {error}")));
                }
            }
        }
        Ok(bytes)
    }
}

impl State {
    pub(crate) fn region_map(&mut self, wanted: RegionMap) -> Result<(), Failure> {
        let at = wanted.address;
        // It is taken when the command is committed: if this executor ends before, the next one
        // does the command again and finds it.
        let (message, file) = self.look_at_file::<RegionFile>("a region", FILE_TIMEOUT)?;
        if message.address != at {
            self.discard(file);
            return Err(Failure::Protocol(format!(
                "the file that came is not that of the region at {at:#x}"
            )));
        }
        self.memory.has_region_file = true;
        self.map_region(wanted, file)
    }

    /// The command that has mapped a region is committed: its file has been of use.
    pub(crate) fn take_region_file(&mut self) {
        if std::mem::take(&mut self.memory.has_region_file) {
            let _ = self.memory.socket.try_receive::<RegionFile>();
        }
    }

    /// Before the first command of a session that another executor has served: a file of a region
    /// that is there has been of use to that one. Its client sends none of the same address before
    /// it has given the region back.
    pub(crate) fn drop_stale_region_file(&mut self) {
        let waiting = self.look_at_file::<RegionFile>("a region", Duration::ZERO);
        let Ok((message, file)) = waiting else { return };
        let length = self.memory.regions.get(&message.address).map(|region| region.size_bytes);
        if length.is_some_and(|length| shm::check(file.as_fd(), length).is_ok()) {
            let _ = self.memory.socket.try_receive::<RegionFile>();
        }
        self.discard(file);
    }

    /// Maps a file of the client at the same address as there.
    pub(crate) fn map_region(&mut self, wanted: RegionMap, file: OwnedFd) -> Result<(), Failure> {
        let RegionMap { address: at, size_bytes, kind, .. } = wanted;
        let kind = match kind {
            REGION_PLAIN => RegionKind::Plain,
            REGION_PINNED => RegionKind::Pinned,
            other => return Err(Failure::Protocol(format!("region kind {other} does not exist"))),
        };
        let wrong = |error: shm::ShmError| Failure::Protocol(error.to_string());
        if let Err(error) = shm::check(file.as_fd(), size_bytes) {
            self.discard(file);
            return Err(wrong(error));
        }
        let pinned_bytes = pinned_bytes(kind, size_bytes);
        let room = self.room_for_region(pinned_bytes)?;
        if self.memory.regions.len() >= MAX_REGIONS || !self.memory.readable.insert(at, size_bytes)
        {
            self.memory.holding.give_back(pinned_bytes);
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
            RegionKind::Pinned => self.check(self.context().gate.between(|| unsafe {
                self.driver().cuMemHostRegister_v2(address(at), size_bytes as usize, REGISTER_FLAGS)
            })),
        });
        if let Err(failure) = registered {
            self.memory.readable.remove(at, size_bytes);
            let _ = self.memory.host.unmap(at, size_bytes);
            self.memory.holding.give_back(pinned_bytes);
            return Err(failure);
        }
        if kind == RegionKind::Pinned {
            let _ = self.memory.addressable.insert(at, size_bytes);
        }
        self.keep_file(file.as_fd());
        self.memory.regions.insert(at, Region { size_bytes, kind, file: room.keep(file) });
        Ok(())
    }

    /// Counts a region; what was there in another executor is not refused, though others may have
    /// come first in this one.
    fn room_for_region(&mut self, pinned_bytes: u64) -> Result<Room, Failure> {
        let (descriptors, holding) = (&self.shared.descriptors, &mut self.memory.holding);
        if self.records.replaying {
            holding.keep(pinned_bytes);
            return Ok(descriptors.take_again(holding.owner(), OF_REGION));
        }
        let room = descriptors.take(holding.owner(), OF_REGION);
        room.filter(|_| holding.take(&self.handle.label, pinned_bytes))
            .ok_or(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY))
    }

    pub(crate) fn region_unmap(&mut self, wanted: RegionUnmap) -> Result<(), Failure> {
        let RegionUnmap { address: at, size_bytes } = wanted;
        let region = self.memory.regions.get(&at).filter(|region| region.size_bytes == size_bytes);
        let Some(region) = region else {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        };
        let (length, kind, pinned_bytes) = (size_bytes, region.kind, region.pinned_bytes());
        if kind == RegionKind::Pinned {
            let quiet = self.quiet()?;
            // SAFETY: registered by this session; its client has waited for its work.
            self.check(unsafe { self.driver().cuMemHostUnregister(address(at)) })?;
            drop(quiet);
            self.memory.addressable.remove(at, length);
        }
        self.memory.regions.remove(&at);
        self.memory.holding.give_back(pinned_bytes);
        self.memory.readable.remove(at, length);
        self.memory.host.unmap(at, length).map_err(|error| Failure::Protocol(error.to_string()))
    }
}
