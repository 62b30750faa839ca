//! What copies, allocations and module loads cost, each with the wait for its end.

use std::ffi::c_void;
use std::time::Duration;

use cuda_abi::types::CUmodule;

use crate::driver::{Driver, DriverError, KERNELS, check};
use crate::timer::{CallCost, Timer};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [(&str, usize); 5] = [
    ("4 KiB", 4 * KIB),
    ("64 KiB", 64 * KIB),
    ("1 MiB", MIB),
    ("64 MiB", 64 * MIB),
    ("1 GiB", 1024 * MIB),
];
const ALLOCATIONS: [(&str, usize); 3] =
    [("4 KiB", 4 * KIB), ("2 MiB", 2 * MIB), ("64 MiB", 64 * MIB)];
/// The largest copies are left out where the device has less than so many times their size free.
const ROOM: u64 = 16;
/// How many operations share the time.
const OPERATIONS: u32 = 29;

/// Times everything, within about this time altogether.
///
/// # Errors
/// A call that the driver refuses.
pub(crate) fn measure(driver: &Driver, duration_ms: u64) -> Result<Vec<CallCost>, DriverError> {
    let mut timer = Timer::new(Duration::from_millis(duration_ms) / OPERATIONS, 1);
    let free_bytes = driver.free_bytes()?;
    for (name, size_bytes) in SIZES {
        if size_bytes as u64 <= free_bytes / ROOM {
            copies(driver, &mut timer, name, size_bytes)?;
        }
    }
    for (name, size_bytes) in ALLOCATIONS {
        let mut memory = 0;
        timer.time(&format!("cuMemAlloc, cuMemFree, {name}"), || {
            check!(driver.table, cuMemAlloc_v2(&mut memory, size_bytes))?;
            check!(driver.table, cuMemFree_v2(memory))
        })?;
    }
    let mut module = CUmodule::default();
    timer.time("cuModuleLoadData, cuModuleUnload", || {
        check!(driver.table, cuModuleLoadData(&mut module, KERNELS.as_ptr().cast()))?;
        check!(driver.table, cuModuleUnload(module))
    })?;
    Ok(timer.costs)
}

/// Copies of one size: each way between the host's memory, pageable and pinned, and the device's,
/// and within the latter.
fn copies(
    driver: &Driver,
    timer: &mut Timer,
    name: &str,
    size_bytes: usize,
) -> Result<(), DriverError> {
    let (mut device, mut other) = (0, 0);
    let mut pinned: *mut c_void = std::ptr::null_mut();
    check!(driver.table, cuMemAlloc_v2(&mut device, size_bytes))?;
    check!(driver.table, cuMemAlloc_v2(&mut other, size_bytes))?;
    check!(driver.table, cuMemHostAlloc(&mut pinned, size_bytes, 0))?;
    // Written, so that every page is there.
    let mut pageable = vec![1_u8; size_bytes];
    let pageable = pageable.as_mut_ptr().cast::<c_void>();
    for (kind, host) in [("pageable", pageable), ("pinned", pinned)] {
        timer.time(&format!("to the device, {kind}, {name}"), || {
            check!(driver.table, cuMemcpyHtoD_v2(device, host, size_bytes))
        })?;
        timer.time(&format!("to the host, {kind}, {name}"), || {
            check!(driver.table, cuMemcpyDtoH_v2(host, device, size_bytes))
        })?;
    }
    timer.time(&format!("within the device, {name}"), || {
        check!(driver.table, cuMemcpyDtoDAsync_v2(other, device, size_bytes, driver.stream))?;
        driver.wait()
    })?;
    check!(driver.table, cuMemFreeHost(pinned))?;
    check!(driver.table, cuMemFree_v2(other))?;
    check!(driver.table, cuMemFree_v2(device))
}
