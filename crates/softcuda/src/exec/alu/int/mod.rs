//! Integer instructions: arithmetic, bits, shifts, carry chains, packed halves and video.

mod arith;
mod bits;
mod carry;
mod fields;
mod traits;
mod words;

pub use arith::*;
pub use bits::*;
pub use carry::*;
pub use fields::*;
pub use traits::{Int, Widening};
pub use words::*;
