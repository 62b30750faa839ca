//! Memory and events of one process in another.
//!
//! A handle names a descriptor of the exporting process, as `/proc/<pid>/fd/<number>`, with the
//! inode that must be found there and the start time of the process, so that a number used again
//! for something else is noticed. It is good while the exporter lives and holds the memory;
//! processes of one user in one PID namespace can open it. Where the address is used, importing
//! maps the memory itself, so that it stays when the exporter frees it or dies.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::types::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUresult};

use crate::api::answer::Answer;
use crate::api::driver::{Driver, current};
use crate::api::objects::Event;
use crate::api::objects::shared_event::SharedEvent;
use crate::api::out;
use crate::api::table::fresh_handle;
use crate::device::memory::{AllocationKind, Physical};

/// The only flag of opening memory, and it is required: peers get access when they need it.
const LAZY_PEER_ACCESS: u32 = 1;
/// Marks handles of this driver.
const MAGIC: [u8; 8] = *b"softcIPC";

/// What a handle's 64 bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reference {
    process: u32,
    descriptor: i32,
    /// Of the process, in clock ticks since boot.
    start_time: u64,
    inode: u64,
    offset_bytes: u64,
    size_bytes: u64,
}

/// Memory of another process that is mapped here.
#[derive(Debug)]
pub(crate) struct Opened {
    reference: Reference,
    /// Where the allocation begins.
    address: u64,
    /// Where the mapping begins.
    base: u64,
    /// Opened more often than closed by this much.
    uses: AtomicU64,
}

/// Serialises opening, so that memory that is opened twice is mapped once.
static OPENING: Mutex<()> = Mutex::new(());

api! {
    fn cuIpcGetMemHandle(pHandle: *mut CUipcMemHandle, dptr: CUdeviceptr) {
        let (driver, _) = current()?;
        let reference = Reference::of_memory(driver, dptr)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pHandle, CUipcMemHandle { reserved: reference.to_bytes().map(|byte| byte as _) }) }
    }

    fn cuIpcOpenMemHandle_v2(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, Flags: u32) {
        let (driver, _) = current()?;
        let reference = Reference::from_bytes(handle.reserved.map(|byte| byte as u8))?;
        if pdptr.is_null() || Flags != LAZY_PEER_ACCESS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if reference.process == std::process::id() {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        let address = open_memory(driver, reference)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pdptr, address) }
    }

    fn cuIpcCloseMemHandle(dptr: CUdeviceptr) {
        let (driver, context) = current()?;
        let _ = driver.engine.synchronize_context(context.id);
        close_memory(driver, dptr)
    }

    fn cuIpcGetEventHandle(pHandle: *mut CUipcEventHandle, event: CUevent) {
        let (driver, _) = current()?;
        let event = driver.events.get(event.0)?;
        let shared = event.shared().ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let physical = driver.space.physical_at(shared.address())?;
        let reference = Reference::of(&physical, 0, physical.size_bytes())?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pHandle, CUipcEventHandle { reserved: reference.to_bytes().map(|byte| byte as _) }) }
    }

    fn cuIpcOpenEventHandle(phEvent: *mut CUevent, handle: CUipcEventHandle) {
        let (driver, context) = current()?;
        let reference = Reference::from_bytes(handle.reserved.map(|byte| byte as u8))?;
        if phEvent.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if reference.process == std::process::id() {
            return Err(CUresult::ERROR_MAP_FAILED);
        }
        let shared = SharedEvent::import(&driver.space, reference.open(driver)?)?;
        let handle = fresh_handle();
        driver.events.insert(handle, Arc::new(Event::new_shared(&context, shared)));
        // SAFETY: the caller's pointer.
        unsafe { out::write(phEvent, CUevent(handle)) }
    }
}

alias! {
    cuIpcOpenMemHandle(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, Flags: u32) = cuIpcOpenMemHandle_v2;
}

/// Maps what a reference names, or finds it mapped, and returns the allocation's address here.
pub(crate) fn open_memory(driver: &Driver, reference: Reference) -> Answer<u64> {
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(opened) = driver.opened.find_by(|opened| opened.reference == reference) {
        // Relaxed: under the lock.
        opened.uses.fetch_add(1, Ordering::Relaxed);
        return Ok(opened.address);
    }
    let physical = reference.open(driver)?;
    let end = reference.offset_bytes.checked_add(reference.size_bytes);
    if end.is_none_or(|end| end > physical.size_bytes()) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let base = driver.space.map_imported(physical)?;
    let address = base + reference.offset_bytes;
    let opened = Opened { reference, address, base, uses: AtomicU64::new(1) };
    driver.opened.insert(address as usize, Arc::new(opened));
    Ok(address)
}

/// Undoes one [`open_memory`]; the last one unmaps. What uses the memory must be done.
pub(crate) fn close_memory(driver: &Driver, address: u64) -> Answer {
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = driver.opened.find(address as usize).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    // Relaxed: under the lock.
    if opened.uses.fetch_sub(1, Ordering::Relaxed) == 1 {
        let _ = driver.opened.remove(address as usize);
        driver.space.free(opened.base, |kind| kind == AllocationKind::Imported)?;
    }
    Ok(())
}

impl Reference {
    /// The device allocation that an address lies in; CUDA_ERROR_INVALID_VALUE for other memory.
    pub(crate) fn of_memory(driver: &Driver, address: u64) -> Answer<Self> {
        let found = driver.space.allocation_at(address);
        let found = found.filter(|found| found.kind == AllocationKind::Device);
        let found = found.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let (physical, start) = driver.space.mapping_at(found.base)?;
        Self::of(&physical, found.base - start, found.size_bytes)
    }

    fn of(physical: &Physical, offset_bytes: u64, size_bytes: u64) -> Answer<Self> {
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
    fn open(&self, driver: &Driver) -> Answer<Physical> {
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
        let account = |device: u32| driver.devices.get(device as usize).map(|found| &found.account);
        Physical::import(file.as_fd(), account).map_err(|_| GONE)
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
