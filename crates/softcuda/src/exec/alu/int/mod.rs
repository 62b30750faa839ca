//! Integer instructions: arithmetic, bits, shifts, carry chains, packed halves and video.

mod arith;
mod bits;
mod traits;

pub use arith::*;
pub use bits::*;
pub use traits::{Int, Widening};
