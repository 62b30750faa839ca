//! The C ABI of the software GPU: one file per family of the driver API, thin over `device`.
//!
//! `functions.tsv` lists what is here; `cuda_abi::build` makes the exported functions from it, each
//! calling the function of the same name in this module with panics caught. Everything else is
//! exported as absent.
//!
//! Handles are numbers looked up in tables ([`table`]); nothing that a program passes as a handle
//! is ever dereferenced. Pointers that C gives for results are checked for NULL and otherwise
//! trusted, as any C library must. Codes follow the driver API's documentation and what was
//! measured of NVIDIA's driver.

use cuda_abi::types::CUresult;

/// Declares driver API functions whose bodies use `?` with `CUresult` errors and end in `Ok(())`.
macro_rules! api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> ::cuda_abi::types::CUresult {
                let body = move || -> $crate::api::Answer { $body };
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

/// What a driver function comes to.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

mod array;
mod array_copy;
mod context;
mod context_stack;
mod copy;
mod copy_batch;
mod copy_shapes;
mod device;
mod driver;
mod event;
mod fill;
mod function;
mod graph;
mod green;
mod hints;
mod host_memory;
mod init;
mod ipc;
mod kernel_work;
mod launch;
mod library;
mod link;
mod logs;
mod memory;
mod module;
mod module_image;
mod objects;
mod occupancy;
mod old_contexts;
mod out;
mod pointer;
mod pool;
mod pool_sharing;
mod shared_event;
mod sm_resource;
mod stalls;
mod status;
mod stream;
mod stream_attributes;
mod stream_values;
mod submit;
mod table;
mod tensor_map;
mod texture;
mod vmm;

pub(crate) use array::*;
pub(crate) use array_copy::*;
pub(crate) use context::*;
pub(crate) use copy::*;
pub(crate) use copy_batch::*;
pub(crate) use copy_shapes::*;
pub(crate) use device::*;
pub(crate) use event::*;
pub(crate) use fill::*;
pub(crate) use function::*;
pub(crate) use graph::*;
pub(crate) use green::*;
pub(crate) use hints::*;
pub(crate) use host_memory::*;
pub(crate) use init::*;
pub(crate) use ipc::*;
pub(crate) use launch::*;
pub(crate) use library::*;
pub(crate) use link::*;
pub(crate) use logs::*;
pub(crate) use memory::*;
pub(crate) use module::*;
pub(crate) use occupancy::*;
pub(crate) use old_contexts::*;
pub(crate) use pointer::*;
pub(crate) use pool::*;
pub(crate) use pool_sharing::*;
pub(crate) use stream::*;
pub(crate) use stream_attributes::*;
pub(crate) use stream_values::*;
pub(crate) use tensor_map::*;
pub(crate) use texture::*;
pub(crate) use vmm::*;
