//! Modules, libraries, functions, launches, and what kernels are given.

pub(crate) mod function;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod link;
pub(crate) mod module;
pub(crate) mod occupancy;
pub(crate) mod tensor_map;
pub(crate) mod texture;
