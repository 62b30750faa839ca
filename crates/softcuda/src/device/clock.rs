//! The device's clocks.
//!
//! By default they follow the host's monotonic clock. In virtual mode
//! (`OPENMPS_SOFT_CLOCK=virtual`) an SM executes one warp instruction per cycle and time is what
//! has been executed: the device is as far as the SM that has done most. What events measure then
//! depends on neither the host's speed nor its load, and a kernel on a quarter of the SMs takes
//! four times as long as on all of them, alone or in company. Copies and fills take no time there,
//! and nothing passes while nothing is executed.

use rustix::time::{ClockId, clock_gettime};

/// SM clock in kHz, as `CU_DEVICE_ATTRIBUTE_CLOCK_RATE` reports it.
pub(crate) const SM_CLOCK_KHZ: u64 = 1_500_000;

/// What the clocks follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ClockMode {
    #[default]
    Host,
    Virtual,
}

/// Nanoseconds by the host's clock, which all processes share as those on one GPU do.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// SM cycles by the same clock.
pub(crate) fn now_cycles() -> u64 {
    (u128::from(now_ns()) * u128::from(SM_CLOCK_KHZ) / 1_000_000) as u64
}

/// How long cycles take, in nanoseconds.
pub(crate) fn cycles_to_ns(cycles: u64) -> u64 {
    (u128::from(cycles) * 1_000_000 / u128::from(SM_CLOCK_KHZ)) as u64
}
