//! `cvt`: conversions between all types.

mod float;
mod int;

pub use float::*;
pub use int::*;
