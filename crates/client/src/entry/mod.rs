//! The functions of the driver API, one file per family, under their own names; `functions.tsv`
//! lists them with their class.
//!
//! Each takes the caller's arguments as they came, checks them, and turns the `Result` of the code
//! behind it into a `CUresult`. They are unsafe as C functions are: the caller vouches that
//! pointers which are not null point to what the API says.
#![allow(non_snake_case, reason = "the names are those of the CUDA driver API")]
#![allow(clippy::too_many_arguments, reason = "the prototypes are those of the CUDA driver API")]

use crate::session::Result;
use core::ffi::{CStr, c_char};
use cuda_abi::types::CUresult;

/// Writes a result through a pointer of the caller's; null is CUDA_ERROR_INVALID_VALUE, returned
/// from the enclosing closure.
macro_rules! put {
    ($pointer:expr, $value:expr) => {{
        let pointer = $pointer;
        $crate::entry::not_null(pointer)?;
        let value = $value;
        // SAFETY: not null; an API function's caller vouches for its pointers.
        unsafe { pointer.write(value) };
    }};
}

/// Writes a result through a pointer of the caller's that may be null.
macro_rules! put_optional {
    ($pointer:expr, $value:expr) => {{
        let pointer = $pointer;
        if !pointer.is_null() {
            // SAFETY: not null; an API function's caller vouches for its pointers.
            unsafe { pointer.write($value) };
        }
    }};
}

mod array;
mod capture;
mod context;
mod copy;
mod copy_batch;
mod copy_shapes;
mod device;
mod event;
mod function;
mod graph;
mod graph_exec;
mod graph_node;
mod green;
mod host_memory;
mod init;
mod launch;
mod library;
mod limits;
mod link;
mod managed;
mod memory;
mod memset;
mod module;
mod occupancy;
mod pointer;
mod pool;
mod primary;
mod sharing;
mod stream;
mod stream_attributes;
mod stream_info;
mod stream_values;
mod tensor_map;
mod texture;
mod virtual_memory;

pub(crate) use array::*;
pub(crate) use capture::*;
pub(crate) use context::*;
pub(crate) use copy::*;
pub(crate) use copy_batch::*;
pub(crate) use copy_shapes::*;
pub(crate) use device::*;
pub(crate) use event::*;
pub(crate) use function::*;
pub(crate) use graph::*;
pub(crate) use graph_exec::*;
pub(crate) use graph_node::*;
pub(crate) use green::*;
pub(crate) use host_memory::*;
pub(crate) use init::*;
pub(crate) use launch::*;
pub(crate) use library::*;
pub(crate) use limits::*;
pub(crate) use link::*;
pub(crate) use managed::*;
pub(crate) use memory::*;
pub(crate) use memset::*;
pub(crate) use module::*;
pub(crate) use occupancy::*;
pub(crate) use pointer::*;
pub(crate) use pool::*;
pub(crate) use primary::*;
pub(crate) use sharing::*;
pub(crate) use stream::*;
pub(crate) use stream_attributes::*;
pub(crate) use stream_info::*;
pub(crate) use stream_values::*;
pub(crate) use tensor_map::*;
pub(crate) use texture::*;
pub(crate) use virtual_memory::*;

fn not_null<T>(pointer: *const T) -> Result {
    if pointer.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// A name that the caller passed.
///
/// # Safety
/// `name` is null or NUL-terminated, and outlives `'a`.
unsafe fn c_name<'a>(name: *const c_char) -> Result<&'a CStr> {
    not_null(name)?;
    // SAFETY: not null; the caller's promise.
    Ok(unsafe { CStr::from_ptr(name) })
}
