//! What it takes a client to hand work over: the time until a call returns, not until the work is
//! done.
//!
//! Calls are made in rows, with a wait behind each row that is not timed: a row is short enough for
//! every peer to take without waiting for the device. The cost is the median row's, divided by its
//! length.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use cuda_abi::types::CUevent;

use crate::driver::{Driver, DriverError, Kernel, check};
use crate::report::median;
use crate::timer::CallCost;

/// Calls of a row.
const ROW: u32 = 64;
const COPY_BYTES: usize = 4 << 10;
/// How many kinds of rows share the time.
const KINDS: u32 = 5;
/// A kind is timed at least so often.
const LEAST_ROWS: usize = 5;

/// Times everything, within about this time altogether.
///
/// # Errors
/// A call that the driver refuses.
pub(crate) fn measure(driver: &Driver, duration_ms: u64) -> Result<Vec<CallCost>, DriverError> {
    let budget = Duration::from_millis(duration_ms) / KINDS;
    let mut costs = Vec::new();
    let mut time = |call: &str, row: u32, body: &dyn Fn() -> Result<(), DriverError>| {
        let start = Instant::now();
        let mut rows_ns = Vec::new();
        while rows_ns.len() < LEAST_ROWS || start.elapsed() < budget {
            let began = Instant::now();
            for _ in 0..row {
                body()?;
            }
            rows_ns.push(began.elapsed().as_secs_f64() * 1e9 / f64::from(row));
            driver.wait()?;
        }
        costs.push(CallCost { call: call.to_owned(), time_ns: median(rows_ns.into_iter()) });
        Ok::<(), DriverError>(())
    };
    let launch = || driver.launch(1, 32, Kernel::Work { steps: 1 });
    time("cuLaunchKernel, one of 64", ROW, &launch)?;
    time("cuLaunchKernel, then a wait", 1, &launch)?;

    let (mut device, mut pinned) = (0, std::ptr::null_mut::<c_void>());
    let mut event = CUevent::default();
    check!(driver.table, cuMemAlloc_v2(&mut device, COPY_BYTES))?;
    check!(driver.table, cuMemHostAlloc(&mut pinned, COPY_BYTES, 0))?;
    check!(driver.table, cuEventCreate(&mut event, 0))?;
    time("cuMemcpyHtoDAsync, pinned, 4 KiB, one of 64", ROW, &|| {
        check!(driver.table, cuMemcpyHtoDAsync_v2(device, pinned, COPY_BYTES, driver.stream))
    })?;
    time("cuMemsetD8Async, 4 KiB, one of 64", ROW, &|| {
        check!(driver.table, cuMemsetD8Async(device, 1, COPY_BYTES, driver.stream))
    })?;
    time("cuEventRecord, one of 64", ROW, &|| {
        check!(driver.table, cuEventRecord(event, driver.stream))
    })?;
    check!(driver.table, cuEventDestroy_v2(event))?;
    check!(driver.table, cuMemFreeHost(pinned))?;
    check!(driver.table, cuMemFree_v2(device))?;
    Ok(costs)
}
