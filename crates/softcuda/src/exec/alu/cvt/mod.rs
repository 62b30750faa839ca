//! `cvt`: conversions between all types.

mod float;
mod narrow;
mod int;

pub use float::*;
pub use int::*;
pub use narrow::*;
