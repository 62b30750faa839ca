//! Functions: attributes, names, parameters.

use crate::client::{Client, run};
use crate::code::function::Function;
use crate::code::libraries::{current_function, look_at_function};
use crate::code::modules;
use crate::entry::arguments::not_null;
use crate::result::Result;
use core::ffi::c_char;
use cuda_abi::types::*;
use link::wire::command::CACHE_CONFIG;
use std::sync::Arc;

/// A function, or a kernel's function in the current context.
fn function(client: &Client, handle: CUfunction) -> Result<Arc<Function>> {
    current_function(client, handle.0)
}

pub(crate) unsafe fn cuFuncGetAttribute(
    pi: *mut i32,
    attrib: CUfunction_attribute,
    hfunc: CUfunction,
) -> CUresult {
    run(|client| {
        not_null(pi)?;
        put!(pi, look_at_function(client, hfunc.0, |known| known.attribute(attrib))?);
        Ok(())
    })
}

/// Sets an attribute, or what the wire numbers like one.
fn set(hfunc: CUfunction, attribute: i32, value: i32) -> CUresult {
    run(|client| {
        look_at_function(client, hfunc.0, |known| {
            known.set_attribute(client.device(known.context.device)?, attribute, value)
        })
    })
}

pub(crate) unsafe fn cuFuncSetAttribute(
    hfunc: CUfunction,
    attrib: CUfunction_attribute,
    value: i32,
) -> CUresult {
    set(hfunc, attrib.0.cast_signed(), value)
}

pub(crate) unsafe fn cuFuncSetCacheConfig(hfunc: CUfunction, config: CUfunc_cache) -> CUresult {
    set(hfunc, CACHE_CONFIG, config.0.cast_signed())
}

/// Banks have one size on devices of today.
pub(crate) unsafe fn cuFuncSetSharedMemConfig(
    hfunc: CUfunction,
    _config: CUsharedconfig,
) -> CUresult {
    run(|client| look_at_function(client, hfunc.0, |_| Ok(())))
}

pub(crate) unsafe fn cuFuncGetModule(hmod: *mut CUmodule, hfunc: CUfunction) -> CUresult {
    run(|client| {
        not_null(hmod)?;
        put!(hmod, CUmodule(modules::get(client, function(client, hfunc)?.module)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuFuncGetName(name: *mut *const c_char, hfunc: CUfunction) -> CUresult {
    run(|client| {
        // The function lives in its module's table until that is unloaded, as CUDA promises of the
        // name.
        put!(name, function(client, hfunc)?.name.as_ptr());
        Ok(())
    })
}

/// Where a parameter lies in the packed buffer.
pub(in crate::entry) fn parameter_info(
    function: &Function,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Result {
    let parameter = function.parameters.get(index).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    put!(offset, parameter.offset as usize);
    put_optional!(size, parameter.size_bytes as usize);
    Ok(())
}

pub(crate) unsafe fn cuFuncGetParamInfo(
    func: CUfunction,
    paramIndex: usize,
    paramOffset: *mut usize,
    paramSize: *mut usize,
) -> CUresult {
    run(|client| parameter_info(&*function(client, func)?, paramIndex, paramOffset, paramSize))
}

pub(crate) unsafe fn cuFuncIsLoaded(
    state: *mut CUfunctionLoadingState,
    handle: CUfunction,
) -> CUresult {
    run(|client| {
        function(client, handle)?;
        // Loaded.
        put!(state, CUfunctionLoadingState(1));
        Ok(())
    })
}

pub(crate) unsafe fn cuFuncLoad(handle: CUfunction) -> CUresult {
    run(|client| function(client, handle).map(drop))
}
