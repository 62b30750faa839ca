//! Who may submit next, and what waits for what.

pub mod fairness;
pub mod holds;
pub mod priorities;
pub mod questions;
pub mod repeatable;
