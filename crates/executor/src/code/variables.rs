//! Variables of a session's code (`__device__`, `__constant__`): they lie in the driver's memory,
//! which goes with the context. So their values are saved to the session's journal once its work
//! has ended, and the next executor writes them back.
//!
//! Only the variables of code that has run since are read. What cannot be saved (managed variables,
//! references to textures, more than [`MOST_BYTES`], images of which the names cannot be told)
//! leaves the session marked as having something that a fault would cost it.

mod saving;

use cuda_abi::types::*;

/// Marks entries of the journal that are values and no command: the module's number, then the bytes
/// of its variables.
pub(crate) const VALUES: u16 = u16::MAX;

/// A module's variables.
#[derive(Debug)]
pub(crate) enum Variables {
    /// It has none.
    None,
    /// Where they are.
    Known(Vec<(CUdeviceptr, usize)>),
    /// It may have some.
    Unknown,
}

/// A module's variables and their values.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) variables: Variables,
    /// Work may have changed them since they were read.
    pub(crate) changed: bool,
    /// As the journal has them.
    saved: Vec<u8>,
}

impl Values {
    pub(crate) fn new(variables: Variables) -> Self {
        Self { variables, changed: false, saved: Vec::new() }
    }

    pub(crate) fn are_any(&self) -> bool {
        !matches!(self.variables, Variables::None)
    }
}
