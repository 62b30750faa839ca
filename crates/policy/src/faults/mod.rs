//! Faults: whose they were, and what follows.

pub mod blame;
pub mod code_state;
pub mod fault_settings;
pub mod followed_addresses;
pub mod hindrance;
pub mod quiet;
pub mod recovery;
pub mod standby_start;
pub mod storable_addresses;
pub mod suspects;
