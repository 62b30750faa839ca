//! Decisions, as plain code: no I/O, no clock, no driver.

pub mod blame;
pub mod budgets;
pub mod code_state;
pub mod contexts;
pub mod devices;
pub mod domains;
pub mod exports;
pub mod fairness;
pub mod fault_settings;
pub mod grants;
pub(crate) mod hindrance;
pub mod holds;
pub mod limits;
pub mod memory_settings;
pub mod orders;
pub mod partitions;
pub mod priorities;
pub mod questions;
pub mod quiet;
pub mod ranges;
pub mod recovery;
pub mod refusals;
pub mod repeatable;
pub mod reservations;
pub mod residency;
pub mod sm_sets;
pub mod standby_start;
pub mod suspects;
pub mod windows;

/// Contexts that one device serves at a time unless set otherwise, as the original; the next is
/// refused with CUDA_ERROR_MPS_MAX_CLIENTS_REACHED.
pub const DEFAULT_CONTEXTS_PER_DEVICE: usize = 48;
/// As many can be allowed.
pub const MOST_CONTEXTS_PER_DEVICE: usize = 1000;
