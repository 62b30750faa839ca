//! `cvt`: conversions between all types.

mod float;
mod int;
mod narrow;

pub use float::*;
pub use int::*;
pub use narrow::*;
