//! Modules.

use crate::client::run;
use crate::code::image::{JitOptions, code_in, target_of};
use crate::code::modules;
use crate::entry::arguments::{c_name, not_null};
use crate::result::Result;
use crate::thread::current;
use core::ffi::{CStr, c_char, c_void};
use cuda_abi::types::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub(crate) unsafe fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    run(|client| {
        not_null(module)?;
        // SAFETY: the caller's image.
        put!(module, unsafe { modules::load_current(client, image) }?);
        Ok(())
    })
}

pub(crate) unsafe fn cuModuleLoadFatBinary(
    module: *mut CUmodule,
    fatCubin: *const c_void,
) -> CUresult {
    // SAFETY: a fat binary is one kind of image.
    unsafe { cuModuleLoadData(module, fatCubin) }
}

pub(crate) unsafe fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    numOptions: u32,
    options: *mut CUjit_option,
    optionValues: *mut *mut c_void,
) -> CUresult {
    run(|client| {
        not_null(module)?;
        // SAFETY: the caller's arrays and buffers.
        let options = unsafe { JitOptions::read(numOptions, options, optionValues) }?;
        // SAFETY: the caller's image and buffers.
        put!(module, unsafe { modules::load_with(client, image, &options) }?);
        Ok(())
    })
}

/// The contents of a file that the caller named.
pub(in crate::entry) fn read_file(name: &CStr) -> Result<Vec<u8>> {
    std::fs::read(OsStr::from_bytes(name.to_bytes())).map_err(|error| {
        crate::warn!("image file {}: {error}", name.to_string_lossy());
        CUresult::ERROR_FILE_NOT_FOUND
    })
}

pub(crate) unsafe fn cuModuleLoad(module: *mut CUmodule, fname: *const c_char) -> CUresult {
    run(|client| {
        not_null(module)?;
        // SAFETY: the caller's string.
        let bytes = read_file(unsafe { c_name(fname) }?)?;
        let context = current::owner()?;
        let code = code_in(&bytes, target_of(client.device(context.device)?))?;
        // SAFETY: without options there are no log buffers.
        let loaded =
            unsafe { modules::load(client, &context, code.bytes(), &JitOptions::default()) }?;
        put!(module, CUmodule(loaded.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuModuleUnload(hmod: CUmodule) -> CUresult {
    run(|client| {
        client.graphs.registry.captures.refuse_unsafe_call()?;
        modules::get(client, hmod.0)?.unload(client)
    })
}

pub(crate) unsafe fn cuModuleGetFunction(
    hfunc: *mut CUfunction,
    hmod: CUmodule,
    name: *const c_char,
) -> CUresult {
    run(|client| {
        not_null(hfunc)?;
        // SAFETY: the caller's string.
        let name = unsafe { c_name(name) }?;
        let token = client
            .modules
            .look(hmod.0, |module| module.function(client, name).map(|found| found.token));
        put!(hfunc, CUfunction(token.unwrap_or(Err(CUresult::ERROR_INVALID_HANDLE))?));
        Ok(())
    })
}

pub(crate) unsafe fn cuModuleGetGlobal_v2(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    hmod: CUmodule,
    name: *const c_char,
) -> CUresult {
    run(|client| {
        // SAFETY: the caller's string.
        let name = unsafe { c_name(name) }?;
        let (address, size_bytes) = modules::get(client, hmod.0)?.global(client, name)?;
        put_optional!(dptr, address);
        put_optional!(bytes, size_bytes as usize);
        Ok(())
    })
}

pub(crate) unsafe fn cuModuleGetFunctionCount(count: *mut u32, mod_: CUmodule) -> CUresult {
    run(|client| {
        put!(count, modules::get(client, mod_.0)?.kernel_names()?.len() as u32);
        Ok(())
    })
}

pub(crate) unsafe fn cuModuleEnumerateFunctions(
    functions: *mut CUfunction,
    numFunctions: u32,
    mod_: CUmodule,
) -> CUresult {
    run(|client| {
        not_null(functions)?;
        let module = modules::get(client, mod_.0)?;
        for (i, name) in module.kernel_names()?.iter().take(numFunctions as usize).enumerate() {
            let function = module.function(client, name)?;
            put!(functions.wrapping_add(i), CUfunction(function.token));
        }
        Ok(())
    })
}

/// Lazy, unless `CUDA_MODULE_LOADING=EAGER`.
pub(crate) unsafe fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode) -> CUresult {
    run(|_| {
        put!(mode, loading_mode());
        Ok(())
    })
}

pub(in crate::entry) fn loading_mode() -> CUmoduleLoadingMode {
    match std::env::var("CUDA_MODULE_LOADING").as_deref() {
        Ok("EAGER") => CUmoduleLoadingMode::EAGER_LOADING,
        _ => CUmoduleLoadingMode::LAZY_LOADING,
    }
}
