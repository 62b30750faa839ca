//! Modules, libraries, functions, launches.

pub(crate) mod function;
pub(crate) mod image;
pub(crate) mod kernel_work;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod link;
pub(crate) mod loading;
pub(crate) mod module;
pub(crate) mod occupancy;
pub(crate) mod tensor_map;
