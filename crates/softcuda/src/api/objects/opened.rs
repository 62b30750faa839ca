//! Memory of other processes, and what names memory across processes.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cuda_abi::types::CUresult;

use crate::api::answer::Answer;
use crate::device::memory::{Account, AddressSpace, AllocationKind, Physical};

/// Marks handles of this driver.
const MAGIC: [u8; 8] = *b"softcIPC";

/// What a handle's 64 bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) process: u32,
    descriptor: i32,
    /// Of the process, in clock ticks since boot.
    start_time: u64,
    inode: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) size_bytes: u64,
}

/// Memory of another process that is mapped here.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) reference: Reference,
    /// Where the allocation begins.
    pub(crate) address: u64,
    /// Where the mapping begins.
    pub(crate) base: u64,
    /// Opened more often than closed by this much.
    pub(crate) uses: AtomicU64,
}

impl Reference {
    /// The device allocation that an address lies in; CUDA_ERROR_INVALID_VALUE for other memory.
    pub(crate) fn of_memory(space: &AddressSpace, address: u64) -> Answer<Self> {
        let found = space.allocation_at(address);
        let found = found.filter(|found| found.kind == AllocationKind::Device);
        let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let (physical, start) = space.mapping_at(found.base)?;
        Self::of(&physical, found.base - start, found.size_bytes)
    }

    /// A part of physical memory of this process.
    pub(crate) fn of(physical: &Physical, offset_bytes: u64, size_bytes: u64) -> Answer<Self> {
        let process = std::process::id();
        let descriptor = physical.as_fd();
        let inode = rustix::fs::fstat(descriptor).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        Ok(Reference {
            process,
            descriptor: descriptor.as_raw_fd(),
            start_time: start_time(process).ok_or(CUresult::ERROR_OPERATING_SYSTEM)?,
            inode: inode.st_ino,
            offset_bytes,
            size_bytes,
        })
    }

    /// Opens what it names: CUDA_ERROR_MAP_FAILED when the process or its descriptor is not what it
    /// was, or is out of reach.
    pub(crate) fn open<'a>(
        &self,
        account_of: impl FnOnce(u32) -> Option<&'a Arc<Account>>,
    ) -> Answer<Physical> {
        const GONE: CUresult = CUresult::ERROR_MAP_FAILED;
        if start_time(self.process) != Some(self.start_time) {
            return Err(GONE);
        }
        let path = format!("/proc/{}/fd/{}", self.process, self.descriptor);
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|_| GONE)?;
        let inode = rustix::fs::fstat(&file).map_err(|_| GONE)?.st_ino;
        if inode != self.inode {
            return Err(GONE);
        }
        Physical::import(file.as_fd(), account_of).map_err(|_| GONE)
    }

    /// The handle's bytes.
    pub(crate) fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.process.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.descriptor.to_le_bytes());
        let words = [self.start_time, self.inode, self.offset_bytes, self.size_bytes];
        for (chunk, word) in bytes[16..48].chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a handle; CUDA_ERROR_INVALID_VALUE for one of another driver.
    pub(crate) fn from_bytes(bytes: [u8; 64]) -> Answer<Self> {
        if bytes[..8] != MAGIC {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let word = |place: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[place..place + 8]);
            u64::from_le_bytes(word)
        };
        let pair = word(8);
        Ok(Reference {
            process: pair as u32,
            descriptor: (pair >> 32) as i32,
            start_time: word(16),
            inode: word(24),
            offset_bytes: word(32),
            size_bytes: word(40),
        })
    }
}

/// When a process started, in clock ticks since boot; `None` when there is none.
fn start_time(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is a name in parentheses, which may hold anything; the start time is the
    // 20th after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_survives_its_bytes_and_knows_its_own() {
        let reference = Reference {
            process: 77,
            descriptor: -3,
            start_time: 1 << 40,
            inode: 5,
            offset_bytes: 512,
            size_bytes: 4096,
        };
        assert_eq!(Reference::from_bytes(reference.to_bytes()), Ok(reference));
        assert_eq!(Reference::from_bytes([0; 64]), Err(CUresult::ERROR_INVALID_VALUE));
    }

    #[test]
    fn every_process_has_a_start_time() {
        assert!(start_time(std::process::id()).is_some());
        assert_eq!(start_time(u32::MAX), None);
    }
}
