//! Memory of idle sessions that is moved out to the host and back.

pub(crate) mod moving;
pub(crate) mod moving_pieces;
