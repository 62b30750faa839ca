//! The functions of the driver API, one file per family, under their own names; `functions.tsv`
//! lists them with their class.
//!
//! Each takes the caller's arguments as they came, checks them, and turns the `Result` of the code
//! behind it into a `CUresult`. They are unsafe as C functions are: the caller vouches that
//! pointers which are not null point to what the API says.
#![allow(non_snake_case, reason = "the names are those of the CUDA driver API")]
#![allow(clippy::too_many_arguments, reason = "the prototypes are those of the CUDA driver API")]

#[macro_use]
mod arguments;
mod capture;
pub(crate) mod code;
mod context;
mod device;
mod event;
mod graph;
mod graph_exec;
mod graph_node;
mod graph_params;
mod green;
mod init;
mod limits;
mod memory;
mod primary;
mod stream;
mod stream_attributes;
mod stream_info;
mod stream_values;

pub(crate) use crate::entry::code::function::*;
pub(crate) use crate::entry::code::launch::*;
pub(crate) use crate::entry::code::library::*;
pub(crate) use crate::entry::code::link::*;
pub(crate) use crate::entry::code::module::*;
pub(crate) use crate::entry::code::occupancy::*;
pub(crate) use crate::entry::code::tensor_map::*;
pub(crate) use crate::entry::code::texture::*;
pub(crate) use crate::entry::memory::array::*;
pub(crate) use crate::entry::memory::copy::*;
pub(crate) use crate::entry::memory::copy_batch::*;
pub(crate) use crate::entry::memory::copy_shapes::*;
pub(crate) use crate::entry::memory::host_memory::*;
pub(crate) use crate::entry::memory::managed::*;
pub(crate) use crate::entry::memory::memset::*;
pub(crate) use crate::entry::memory::pointer::*;
pub(crate) use crate::entry::memory::pool::*;
pub(crate) use crate::entry::memory::sharing::*;
pub(crate) use crate::entry::memory::virtual_memory::*;
pub(crate) use capture::*;
pub(crate) use context::*;
pub(crate) use device::*;
pub(crate) use event::*;
pub(crate) use graph::*;
pub(crate) use graph_exec::*;
pub(crate) use graph_node::*;
pub(crate) use green::*;
pub(crate) use init::*;
pub(crate) use limits::*;
pub(crate) use memory::*;
pub(crate) use primary::*;
pub(crate) use stream::*;
pub(crate) use stream_attributes::*;
pub(crate) use stream_info::*;
pub(crate) use stream_values::*;
