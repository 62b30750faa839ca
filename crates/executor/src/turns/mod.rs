//! When a session's work may go to the device: credit, turns, and what work costs.

pub(crate) mod costs;
pub(crate) mod flight;
pub(crate) mod gate;
pub(crate) mod marks;
pub(crate) mod meter;
pub(crate) mod pace;
pub(crate) mod pacing;
