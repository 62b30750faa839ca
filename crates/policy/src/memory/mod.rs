//! Device memory and addresses: who gets them.

pub mod exports;
pub mod grants;
pub mod memory_settings;
pub mod ranges;
pub mod reservations;
pub mod residency;
pub mod windows;
