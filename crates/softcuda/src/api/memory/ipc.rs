//! Memory and events of one process in another.
//!
//! A handle names a descriptor of the exporting process, as `/proc/<pid>/fd/<number>`, with the
//! inode that must be found there and the start time of the process, so that a number used again
//! for something else is noticed. It is good while the exporter lives and holds the memory;
//! processes of one user in one PID namespace can open it. Where the address is used, importing
//! maps the memory itself, so that it stays when the exporter frees it or dies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::types::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUresult};

use crate::api::answer::Answer;
use crate::api::driver::{Driver, current};
use crate::api::objects::{Event, Opened, Reference, SharedEvent};
use crate::api::out;
use crate::api::table::fresh_handle;
use crate::device::memory::AllocationKind;

/// The only flag of opening memory, and it is required: peers get access when they need it.
const LAZY_PEER_ACCESS: u32 = 1;
/// Serialises opening, so that memory that is opened twice is mapped once.
static OPENING: Mutex<()> = Mutex::new(());

api! {
    fn cuIpcGetMemHandle(pHandle: *mut CUipcMemHandle, dptr: CUdeviceptr) {
        let (driver, _) = current()?;
        let reference = Reference::of_memory(&driver.space, dptr)?;
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
        let shared = SharedEvent::import(&driver.space, reference.open(|device| driver.account(device))?)?;
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
    let physical = reference.open(|device| driver.account(device))?;
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
