//! Instruction handlers.

// Lanes of several registers are walked in step; zipped iterators would hide that.
#![allow(clippy::needless_range_loop)]

pub(super) mod address;
pub(super) mod alu;
pub(super) mod async_copy;
pub(super) mod atomic;
pub(super) mod collective;
pub(super) mod control;
pub(super) mod format;
pub(super) mod half_bits;
pub(super) mod load_store;
pub(super) mod matrix;
pub(super) mod mbarrier;
pub(super) mod moves;
pub(super) mod runtime;
pub(super) mod tensor;
pub(super) mod tensor_copy;
pub(super) mod texture;
pub(super) mod video;
