//! Device memory at addresses of this process: what sessions do with theirs, and an executor that
//! stands by with that of others.

use crate::context::Context;
use cuda_abi::types::*;
use link::wire::attach::Window;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;

/// Takes memory over that a descriptor stands for.
pub(crate) fn import(
    context: &Context,
    file: BorrowedFd<'_>,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let mut memory = CUmemGenericAllocationHandle::default();
    let descriptor = ptr::without_provenance_mut::<c_void>(file.as_raw_fd() as usize);
    let kind = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;
    // SAFETY: the descriptor is open; `memory` is written.
    context.check(unsafe {
        context.driver().cuMemImportFromShareableHandle(&mut memory, descriptor, kind)
    })?;
    Ok(memory)
}

/// Maps memory that a descriptor stands for, from a byte of it on, to which nobody has access
/// before [`open_access`]. The range lies in a reservation of the caller's and is free.
pub(crate) fn bind(
    context: &Context,
    file: &impl AsFd,
    at: u64,
    size_bytes: u64,
    offset_bytes: u64,
) -> Result<(), CUresult> {
    let driver = context.driver();
    let memory = import(context, file.as_fd())?;
    // SAFETY: the handle is live; the driver refuses a range that is not as the caller says. The
    // mapping keeps the memory, so the handle can go.
    unsafe {
        let mapped = driver.cuMemMap(at, size_bytes as usize, offset_bytes as usize, memory, 0);
        let _ = driver.cuMemRelease(memory);
        context.check(mapped)
    }
}

/// Says whether the device may reach a mapping, or several that adjoin.
///
/// # Safety
/// No work on the device uses what access is taken from.
pub(crate) unsafe fn allow(
    context: &Context,
    at: u64,
    size_bytes: u64,
    flags: CUmemAccess_flags,
) -> Result<(), CUresult> {
    let location = CUmemLocation { type_: CUmemLocationType::DEVICE, id: context.device() };
    let descriptor = CUmemAccessDesc { location, flags };
    // SAFETY: as the caller says; the descriptor is read.
    context
        .check(unsafe { context.driver().cuMemSetAccess(at, size_bytes as usize, &descriptor, 1) })
}

/// Gives the device access to a mapping, or to several that adjoin.
pub(crate) fn open_access(context: &Context, at: u64, size_bytes: u64) -> Result<(), CUresult> {
    // SAFETY: takes access from nothing.
    unsafe { allow(context, at, size_bytes, CUmemAccess_flags::READWRITE) }
}

/// Gives the device access to what is mapped there, by as few calls as the driver allows.
pub(crate) fn open_access_to_all(
    context: &Context,
    mapped: &BTreeMap<u64, u64>,
) -> Result<(), CUresult> {
    for (at, size_bytes) in runs(mapped) {
        if open_access(context, at, size_bytes).is_err() {
            // A driver may want them one by one.
            for (&at, &size_bytes) in mapped.range(at..at + size_bytes) {
                open_access(context, at, size_bytes)?;
            }
        }
    }
    Ok(())
}

/// What adjoins, of ranges by their first address that do not overlap.
fn runs(ranges: &BTreeMap<u64, u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (&at, &size_bytes) in ranges {
        match runs.last_mut() {
            Some((base, length)) if *base + *length == at => *length += size_bytes,
            _ => runs.push((at, size_bytes)),
        }
    }
    runs
}

/// A session's window of device memory in this process: its addresses are reserved, and some have
/// memory. When it is dropped all of it goes.
pub(crate) struct DeviceWindow {
    driver: executor_link::driver::Driver,
    window: Window,
    /// First address and length of what is mapped.
    mapped: BTreeMap<u64, u64>,
}

impl DeviceWindow {
    /// Reserves the addresses.
    pub(crate) fn reserve(context: &Context, window: Window) -> Result<Self, (CUresult, String)> {
        let driver = context.driver();
        let Window { base, size_bytes } = window;
        let mut reserved = 0;
        // SAFETY: `reserved` is written.
        let result =
            unsafe { driver.cuMemAddressReserve(&mut reserved, size_bytes as usize, 0, base, 0) };
        context.check(result).map_err(|result| {
            (result, format!("reserving the device window of a new session failed: {result}"))
        })?;
        if reserved != base {
            // SAFETY: just reserved, nothing mapped.
            let _ = unsafe { driver.cuMemAddressFree(reserved, size_bytes as usize) };
            let message = format!(
                "the driver reserved {reserved:#x} instead of {base:#x}: the addresses are taken"
            );
            return Err((CUresult::ERROR_OUT_OF_MEMORY, message));
        }
        Ok(Self { driver, window, mapped: BTreeMap::new() })
    }

    /// Which addresses.
    pub(crate) fn window(&self) -> Window {
        self.window
    }

    /// Whether any memory is mapped there.
    pub(crate) fn is_empty(&self) -> bool {
        self.mapped.is_empty()
    }

    /// Maps memory, by first address, length and descriptor; nothing is mapped twice. Returns the
    /// first addresses of what could not be mapped.
    pub(crate) fn map(
        &mut self,
        context: &Context,
        grants: impl IntoIterator<Item = (u64, u64, impl AsFd)>,
    ) -> Vec<u64> {
        let (mut bound, mut failed) = (BTreeMap::new(), Vec::new());
        for (at, size_bytes, file) in grants {
            let is_inside = self.window.contains(at, size_bytes);
            match is_inside && bind(context, &file, at, size_bytes, 0).is_ok() {
                true => drop(bound.insert(at, size_bytes)),
                false => failed.push(at),
            }
        }
        let is_open = open_access_to_all(context, &bound).is_ok();
        for (at, size_bytes) in bound {
            self.mapped.insert(at, size_bytes);
            if !is_open {
                self.unmap(at);
                failed.push(at);
            }
        }
        failed
    }

    /// Unmaps what begins at an address. Nobody uses it.
    pub(crate) fn unmap(&mut self, at: u64) {
        if let Some(size_bytes) = self.mapped.remove(&at) {
            // SAFETY: mapped by this value; nobody uses it.
            let _ = unsafe { self.driver.cuMemUnmap(at, size_bytes as usize) };
        }
    }

    /// Unmaps so many mappings at most.
    pub(crate) fn unmap_some(&mut self, most: usize) {
        let some: Vec<u64> = self.mapped.keys().take(most).copied().collect();
        some.into_iter().for_each(|at| self.unmap(at));
    }

    /// Whether exactly this is mapped; if so, its mapping is the caller's from now on.
    pub(crate) fn take(&mut self, at: u64, size_bytes: u64) -> bool {
        let is_there = self.mapped.get(&at) == Some(&size_bytes);
        if is_there {
            self.mapped.remove(&at);
        }
        is_there
    }

    /// Unmaps all that nobody has taken. Returns the first addresses.
    pub(crate) fn unmap_all(&mut self) -> Vec<u64> {
        let all: Vec<u64> = self.mapped.keys().copied().collect();
        all.iter().for_each(|&at| self.unmap(at));
        all
    }
}

impl Drop for DeviceWindow {
    fn drop(&mut self) {
        self.unmap_all();
        let Window { base, size_bytes } = self.window;
        // SAFETY: reserved by `reserve`; what was taken is unmapped by who has taken it, before.
        let _ = unsafe { self.driver.cuMemAddressFree(base, size_bytes as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_adjoins_is_one_run() {
        let ranges = [(0, 2), (2, 3), (6, 1), (7, 1)].into();
        assert_eq!(runs(&ranges), [(0, 5), (6, 2)]);
        assert_eq!(runs(&BTreeMap::new()), []);
    }
}
