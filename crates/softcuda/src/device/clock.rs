//! The device's clocks. Work-conserving mode: they follow the host's monotonic clock.

use std::sync::OnceLock;
use std::time::Instant;

/// SM clock in kHz, as `CU_DEVICE_ATTRIBUTE_CLOCK_RATE` reports it.
pub(crate) const SM_CLOCK_KHZ: u64 = 1_500_000;

/// Nanoseconds since the first call in this process.
pub(crate) fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// SM cycles since the first call in this process.
pub(crate) fn now_cycles() -> u64 {
    (u128::from(now_ns()) * u128::from(SM_CLOCK_KHZ) / 1_000_000) as u64
}
