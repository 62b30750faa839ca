//! Decisions, as plain code: no I/O, no clock, no driver.

pub mod budgets;
pub mod contexts;
pub mod destinations;
pub mod devices;
pub mod domains;
pub mod faults;
pub mod limits;
pub mod memory;
pub mod orders;
pub mod refusals;
pub mod sms;
pub mod turns;

/// Contexts that one device can be allowed to serve at a time; the next is refused with
/// CUDA_ERROR_MPS_MAX_CLIENTS_REACHED.
pub const MOST_CONTEXTS_PER_DEVICE: usize = settings::MOST_CONTEXTS_PER_DEVICE as usize;
