//! Memory, events and pools of other processes.

use crate::client::{Client, run};
use crate::entry::arguments::not_null;
use crate::memory::memory_map::Kind;
use crate::memory::pool::{Pool, Sharing};
use crate::memory::sharing;
use crate::memory::sharing::{Handle, Thing};
use crate::result::Result;
use crate::stream::events;
use core::ffi::{c_char, c_void};
use cuda_abi::types::*;
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::Arc;

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: required.
const LAZY_PEER_ACCESS: u32 = 1;

fn signed(bytes: [u8; 64]) -> [c_char; 64] {
    bytes.map(|byte| byte as c_char)
}

fn unsigned(bytes: [c_char; 64]) -> [u8; 64] {
    bytes.map(|byte| byte as u8)
}

pub(crate) unsafe fn cuIpcGetMemHandle(
    pHandle: *mut CUipcMemHandle,
    dptr: CUdeviceptr,
) -> CUresult {
    run(|client| {
        not_null(pHandle)?;
        let is_plain =
            client.memory.find(dptr).is_some_and(|area| matches!(area.kind, Kind::Device));
        if !is_plain {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let reserved = signed(sharing::share(client, dptr)?.to_bytes());
        put!(pHandle, CUipcMemHandle { reserved });
        Ok(())
    })
}

pub(crate) unsafe fn cuIpcOpenMemHandle_v2(
    pdptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    Flags: u32,
) -> CUresult {
    run(|client| {
        not_null(pdptr)?;
        if Flags != LAZY_PEER_ACCESS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let handle = Handle::from_bytes(unsigned(handle.reserved), Thing::Memory)?;
        put!(pdptr, sharing::open(client, handle)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuIpcOpenMemHandle(
    pdptr: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    Flags: u32,
) -> CUresult {
    // SAFETY: the same function by its newer name.
    unsafe { cuIpcOpenMemHandle_v2(pdptr, handle, Flags) }
}

pub(crate) unsafe fn cuIpcCloseMemHandle(dptr: CUdeviceptr) -> CUresult {
    run(|client| sharing::close(client, dptr))
}

pub(crate) unsafe fn cuIpcGetEventHandle(
    pHandle: *mut CUipcEventHandle,
    event: CUevent,
) -> CUresult {
    run(|client| {
        not_null(pHandle)?;
        let reserved = signed(events::get(client, event)?.share(client)?.to_bytes());
        put!(pHandle, CUipcEventHandle { reserved });
        Ok(())
    })
}

pub(crate) unsafe fn cuIpcOpenEventHandle(
    phEvent: *mut CUevent,
    handle: CUipcEventHandle,
) -> CUresult {
    run(|client| {
        not_null(phEvent)?;
        let handle = Handle::from_bytes(unsigned(handle.reserved), Thing::Event)?;
        put!(phEvent, CUevent(events::open(client, handle)?.token));
        Ok(())
    })
}

/// An exported pool is a file that says on which device it is; its memory travels pointer by
/// pointer.
pub(crate) unsafe fn cuMemPoolExportToShareableHandle(
    handle_out: *mut c_void,
    pool: CUmemoryPool,
    handleType: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    run(|client| {
        not_null(handle_out)?;
        let pool = client.pools.get(pool.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let asked = handleType == CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR && flags == 0;
        if !asked || pool.sharing != Sharing::Exportable {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let handle = Handle::new(client, Thing::Memory, client.device(pool.device)?.index, [0; 2]);
        let failed = |_| CUresult::ERROR_OPERATING_SYSTEM;
        let file = rustix::fs::memfd_create("openmps-pool", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(failed)?;
        rustix::io::pwrite(&file, &handle.to_bytes(), 0).map_err(failed)?;
        // The caller owns the descriptor from here on.
        put!(handle_out.cast::<RawFd>(), file.into_raw_fd());
        Ok(())
    })
}

pub(crate) unsafe fn cuMemPoolImportFromShareableHandle(
    pool_out: *mut CUmemoryPool,
    handle: *mut c_void,
    handleType: CUmemAllocationHandleType,
    flags: u64,
) -> CUresult {
    run(|client| {
        not_null(pool_out)?;
        let invalid = CUresult::ERROR_INVALID_VALUE;
        if flags != 0 || handleType != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR {
            return Err(invalid);
        }
        let file = RawFd::try_from(handle.addr()).map_err(|_| invalid)?;
        // SAFETY: only passed to the kernel, which refuses what is not open; never -1, as it came
        // out of a usize.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let mut bytes = [0; 64];
        let read = rustix::io::pread(file, &mut bytes, 0).map_err(|_| invalid)?;
        if read != bytes.len() {
            return Err(invalid);
        }
        let wanted = Handle::from_bytes(bytes, Thing::Memory)?.device;
        let device = client.devices.iter().find(|device| device.index == wanted);
        let ordinal = device.ok_or(CUresult::ERROR_INVALID_DEVICE)?.ordinal;
        let made = client.pools.insert_with(|token| Pool::new(token, ordinal, Sharing::Imported));
        put!(pool_out, CUmemoryPool(made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuMemPoolExportPointer(
    shareData_out: *mut CUmemPoolPtrExportData,
    ptr: CUdeviceptr,
) -> CUresult {
    run(|client| {
        not_null(shareData_out)?;
        if exporting_pool(client, ptr)?.sharing != Sharing::Exportable {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let reserved = sharing::share(client, ptr)?.to_bytes();
        put!(shareData_out, CUmemPoolPtrExportData { reserved });
        Ok(())
    })
}

fn exporting_pool(client: &Client, address: u64) -> Result<Arc<Pool>> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    match client.memory.find(address).ok_or(invalid)?.kind {
        Kind::Pool { pool } => client.pools.get(pool).ok_or(invalid),
        _ => Err(invalid),
    }
}

pub(crate) unsafe fn cuMemPoolImportPointer(
    ptr_out: *mut CUdeviceptr,
    pool: CUmemoryPool,
    shareData: *mut CUmemPoolPtrExportData,
) -> CUresult {
    run(|client| {
        not_null(ptr_out)?;
        not_null(shareData)?;
        let pool = client.pools.get(pool.0).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if pool.sharing != Sharing::Imported {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: not null; the caller's structure.
        let data = unsafe { shareData.read() };
        let handle = Handle::from_bytes(data.reserved, Thing::Memory)?;
        put!(ptr_out, sharing::open(client, handle)?);
        Ok(())
    })
}
