//! What a program asks before and while a driver is initialised: version, lookup, error names,
//! export tables.
//!
//! Answered in every state. In a native process these are reached only until the choice is made.

use crate::attach::NEWEST_VERSION;
use crate::attach::choice;
use crate::attach::choice::Choice;
use crate::export::TABLES;
use crate::exports;
use core::ffi::{CStr, c_char, c_int, c_void};
use cuda_abi::lookup::{self, Found};
use cuda_abi::types::*;

pub(crate) unsafe fn cuInit(Flags: u32) -> CUresult {
    match choice::choose() {
        // SAFETY: the native driver's own cuInit, with the caller's argument.
        Choice::Native(table) => unsafe { table.cuInit(Flags) },
        Choice::Attached(client) if Flags != 0 || client.is_forked() => {
            if Flags != 0 {
                CUresult::ERROR_INVALID_VALUE
            } else {
                CUresult::ERROR_NOT_INITIALIZED
            }
        }
        Choice::Attached(client) => {
            client.initialise();
            CUresult::SUCCESS
        }
        Choice::None(code) => *code,
    }
}

pub(crate) unsafe fn cuDriverGetVersion(driverVersion: *mut c_int) -> CUresult {
    if driverVersion.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    let version = match choice::choose() {
        // SAFETY: the native driver's own function, with the caller's pointer.
        Choice::Native(table) => return unsafe { table.cuDriverGetVersion(driverVersion) },
        Choice::Attached(client) => client.driver_version,
        // The reason comes from cuInit, which programs call next.
        Choice::None(_) => NEWEST_VERSION,
    };
    // SAFETY: not null, and the caller vouches for an int there.
    unsafe { driverVersion.write(version) };
    CUresult::SUCCESS
}

/// The version up to which names exist for this process.
fn lookup_version() -> u32 {
    match choice::made() {
        Some(Choice::Attached(client)) => client.driver_version.unsigned_abs(),
        _ => NEWEST_VERSION.unsigned_abs(),
    }
}

/// # Safety
/// `symbol` is a NUL-terminated string.
unsafe fn find(symbol: *const c_char, version: c_int, flags: u64) -> Found {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(symbol) };
    lookup::find(name.to_bytes(), version, flags, lookup_version())
}

pub(crate) unsafe fn cuGetProcAddress_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: c_int,
    flags: cuuint64_t,
    symbolStatus: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    if symbol.is_null() || pfn.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, and the caller vouches for a C string.
    let found = unsafe { find(symbol, cudaVersion, flags) };
    let address = match found {
        Found::Function(index) => exports::address(index).cast_mut(),
        _ => core::ptr::null_mut(),
    };
    // SAFETY: `pfn` is not null; the status pointer is optional. The caller vouches for what they
    // point to.
    unsafe {
        pfn.write(address);
        if !symbolStatus.is_null() {
            symbolStatus.write(found.status());
        }
    }
    CUresult::SUCCESS
}

pub(crate) unsafe fn cuGetProcAddress(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: c_int,
    flags: cuuint64_t,
) -> CUresult {
    if symbol.is_null() || pfn.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, and the caller vouches for a C string.
    match unsafe { find(symbol, cudaVersion, flags) } {
        Found::Function(index) => {
            // SAFETY: not null, and the caller vouches for a pointer there.
            unsafe { pfn.write(exports::address(index).cast_mut()) };
            CUresult::SUCCESS
        }
        _ => CUresult::ERROR_NOT_FOUND,
    }
}

/// # Safety
/// `out` is null or points to a pointer.
unsafe fn answer_text(out: *mut *const c_char, text: Option<&'static CStr>) -> CUresult {
    if out.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // SAFETY: not null; the caller's promise.
    unsafe { out.write(text.map_or(core::ptr::null(), CStr::as_ptr)) };
    if text.is_some() { CUresult::SUCCESS } else { CUresult::ERROR_INVALID_VALUE }
}

pub(crate) unsafe fn cuGetErrorName(error: CUresult, pStr: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's own pointer.
    unsafe { answer_text(pStr, error.name()) }
}

pub(crate) unsafe fn cuGetErrorString(error: CUresult, pStr: *mut *const c_char) -> CUresult {
    // SAFETY: the caller's own pointer.
    unsafe { answer_text(pStr, error.description()) }
}

pub(crate) unsafe fn cuGetExportTable(
    ppExportTable: *mut *const c_void,
    pExportTableId: *const CUuuid,
) -> CUresult {
    if ppExportTable.is_null() || pExportTableId.is_null() {
        return CUresult::ERROR_INVALID_VALUE;
    }
    // A table's address must never change, so the first request for one makes the choice. The
    // native driver has more tables than we: tools ask for theirs before anything else.
    if let Choice::Native(table) = choice::choose() {
        // SAFETY: the native driver's own function, with the caller's pointers.
        return unsafe { table.cuGetExportTable(ppExportTable, pExportTableId) };
    }
    // SAFETY: the caller's pointers.
    unsafe { TABLES.get(ppExportTable, pExportTableId) }
}
