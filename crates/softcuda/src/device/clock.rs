//! The device's clocks.
//!
//! By default they follow the host's monotonic clock. In virtual mode
//! (`OPENMPS_SOFT_CLOCK=virtual`) an SM executes one warp instruction per cycle and time is what
//! has been executed: the device is as far as the SM that has done most. What events measure then
//! depends on neither the host's speed nor its load, and a kernel on a quarter of the SMs takes
//! four times as long as on all of them, alone or in company. Copies and fills take no time there,
//! and nothing passes while nothing is executed.

use std::sync::OnceLock;
use std::time::Instant;

/// SM clock in kHz, as `CU_DEVICE_ATTRIBUTE_CLOCK_RATE` reports it.
pub(crate) const SM_CLOCK_KHZ: u64 = 1_500_000;

/// What the clocks follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ClockMode {
    #[default]
    Host,
    Virtual,
}

/// Nanoseconds since the first call in this process, by the host's clock.
pub(crate) fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// SM cycles since the first call in this process, by the host's clock.
pub(crate) fn now_cycles() -> u64 {
    (u128::from(now_ns()) * u128::from(SM_CLOCK_KHZ) / 1_000_000) as u64
}

/// How long cycles take, in nanoseconds.
pub(crate) fn cycles_to_ns(cycles: u64) -> u64 {
    (u128::from(cycles) * 1_000_000 / u128::from(SM_CLOCK_KHZ)) as u64
}
