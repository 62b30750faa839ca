//! The C ABI of the software GPU: one file per family of the driver API, thin over `device`.
//!
//! `functions.tsv` lists what is here; `cuda_abi::build` makes the exported functions from it, each
//! calling the function of the same name in this module with panics caught. Everything else is
//! exported as absent.
//!
//! Handles are numbers looked up in tables ([`table`]); nothing that a program passes as a handle
//! is ever dereferenced. What they stand for is in [`objects`], the tables in [`driver`], and what
//! is done with both in a folder per family: each knows those before it.
//!
//! Pointers that C gives for results are checked for NULL and otherwise trusted, as any C library
//! must. Codes follow the driver API's documentation and what was measured of NVIDIA's driver.

/// Declares driver API functions whose bodies use `?` with `CUresult` errors and end in `Ok(())`.
macro_rules! api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> ::cuda_abi::types::CUresult {
                let body = move || -> $crate::api::answer::Answer { $body };
                ::cuda_abi::types::CUresult::from(body())
            }
        )*
    };
}

/// Declares older or per-thread symbols that do what another function of this module does.
macro_rules! alias {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?) = $target:path;)*) => {
        $(
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> ::cuda_abi::types::CUresult {
                // SAFETY: the caller's promises are those of the target.
                unsafe { $target($($arg),*) }
            }
        )*
    };
}

mod answer;
pub(crate) mod code;
mod context;
mod driver;
mod graph;
mod init;
mod logs;
mod memory;
mod objects;
mod out;
mod stream;
mod table;

pub(crate) use crate::api::code::function::*;
pub(crate) use crate::api::code::launch::*;
pub(crate) use crate::api::code::library::*;
pub(crate) use crate::api::code::link::*;
pub(crate) use crate::api::code::module::*;
pub(crate) use crate::api::code::occupancy::*;
pub(crate) use crate::api::code::tensor_map::*;
pub(crate) use crate::api::context::device::*;
pub(crate) use crate::api::context::green::*;
pub(crate) use crate::api::context::old_contexts::*;
pub(crate) use crate::api::memory::array::*;
pub(crate) use crate::api::memory::array_copy::*;
pub(crate) use crate::api::memory::copy::*;
pub(crate) use crate::api::memory::copy_batch::*;
pub(crate) use crate::api::memory::copy_shapes::*;
pub(crate) use crate::api::memory::fill::*;
pub(crate) use crate::api::memory::hints::*;
pub(crate) use crate::api::memory::host_memory::*;
pub(crate) use crate::api::memory::ipc::*;
pub(crate) use crate::api::memory::pointer::*;
pub(crate) use crate::api::memory::pool::*;
pub(crate) use crate::api::memory::pool_sharing::*;
pub(crate) use crate::api::memory::texture::*;
pub(crate) use crate::api::memory::vmm::*;
pub(crate) use crate::api::stream::event::*;
pub(crate) use crate::api::stream::stream_attributes::*;
pub(crate) use crate::api::stream::stream_values::*;
pub(crate) use context::*;
pub(crate) use graph::*;
pub(crate) use init::*;
pub(crate) use logs::*;
pub(crate) use memory::*;
pub(crate) use stream::*;
