//! Libraries and their kernels.

use super::module::{loading_mode, read_file};
use crate::client::{Client, run};
use crate::code::function::Function;
use crate::code::image::{JitOptions, code_at, code_in, target_of};
use crate::code::libraries;
use crate::code::library::Kernel;
use crate::context::device::Device;
use crate::entry::arguments::{c_name, not_null};
use crate::result::Result;
use crate::thread::current;
use core::ffi::{c_char, c_void};
use cuda_abi::image::{Code, Target};
use cuda_abi::types::*;
use link::wire::command::CACHE_CONFIG;
use std::sync::Arc;

/// The code for each device, chosen once per kind of device.
fn for_each_device(
    devices: &[Device],
    choose: impl Fn(Target) -> Result<Code<'static>>,
) -> Result<Vec<Arc<Code<'static>>>> {
    let mut chosen: Vec<(Target, Arc<Code<'static>>)> = Vec::new();
    let mut codes = Vec::new();
    for device in devices {
        let target = target_of(device);
        let code = match chosen.iter().find(|(known, _)| *known == target) {
            Some((_, code)) => Arc::clone(code),
            None => {
                let code = Arc::new(choose(target)?);
                chosen.push((target, Arc::clone(&code)));
                code
            }
        };
        codes.push(code);
    }
    Ok(codes)
}

fn make(
    client: &Client,
    codes: Vec<Arc<Code<'static>>>,
    options: &JitOptions,
) -> Result<CUlibrary> {
    let made = libraries::create(client, codes, options)?;
    if loading_mode() == CUmoduleLoadingMode::EAGER_LOADING
        && let Ok(context) = current::owner()
    {
        made.module(client, &context)?;
    }
    Ok(CUlibrary(made.token))
}

/// The image is copied, so whether the caller preserves it does not matter.
pub(crate) unsafe fn cuLibraryLoadData(
    library: *mut CUlibrary,
    code: *const c_void,
    jitOptions: *mut CUjit_option,
    jitOptionsValues: *mut *mut c_void,
    numJitOptions: u32,
    _libraryOptions: *mut CUlibraryOption,
    _libraryOptionValues: *mut *mut c_void,
    _numLibraryOptions: u32,
) -> CUresult {
    run(|client| {
        not_null(library)?;
        // SAFETY: the caller's arrays and buffers.
        let options = unsafe { JitOptions::read(numJitOptions, jitOptions, jitOptionsValues) }?;
        // SAFETY: the caller's image.
        let codes = for_each_device(&client.devices, |target| unsafe { code_at(code, target) })?;
        put!(library, make(client, codes, &options)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuLibraryLoadFromFile(
    library: *mut CUlibrary,
    fileName: *const c_char,
    jitOptions: *mut CUjit_option,
    jitOptionsValues: *mut *mut c_void,
    numJitOptions: u32,
    _libraryOptions: *mut CUlibraryOption,
    _libraryOptionValues: *mut *mut c_void,
    _numLibraryOptions: u32,
) -> CUresult {
    run(|client| {
        not_null(library)?;
        // SAFETY: the caller's arrays, buffers and string.
        let options = unsafe { JitOptions::read(numJitOptions, jitOptions, jitOptionsValues) }?;
        // SAFETY: the caller's string.
        let bytes = read_file(unsafe { c_name(fileName) }?)?;
        let codes = for_each_device(&client.devices, |target| code_in(&bytes, target))?;
        put!(library, make(client, codes, &options)?);
        Ok(())
    })
}

pub(crate) unsafe fn cuLibraryUnload(library: CUlibrary) -> CUresult {
    run(|client| libraries::unload(client, library.0))
}

pub(crate) unsafe fn cuLibraryGetKernel(
    pKernel: *mut CUkernel,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    run(|client| {
        not_null(pKernel)?;
        // SAFETY: the caller's string.
        let name = unsafe { c_name(name) }?;
        let token = client
            .libraries
            .look(library.0, |library| library.kernel(client, name).map(|found| found.token));
        put!(pKernel, CUkernel(token.unwrap_or(Err(CUresult::ERROR_INVALID_HANDLE))?));
        Ok(())
    })
}

pub(crate) unsafe fn cuLibraryGetModule(pMod: *mut CUmodule, library: CUlibrary) -> CUresult {
    run(|client| {
        not_null(pMod)?;
        let library = libraries::get(client, library.0)?;
        put!(pMod, CUmodule(library.module(client, &current::owner()?)?.token));
        Ok(())
    })
}

pub(crate) unsafe fn cuLibraryGetGlobal(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    run(|client| {
        // SAFETY: the caller's string.
        let name = unsafe { c_name(name) }?;
        let library = libraries::get(client, library.0)?;
        let (address, size_bytes) =
            library.module(client, &current::owner()?)?.global(client, name)?;
        put_optional!(dptr, address);
        put_optional!(bytes, size_bytes as usize);
        Ok(())
    })
}

pub(crate) unsafe fn cuLibraryGetKernelCount(count: *mut u32, lib: CUlibrary) -> CUresult {
    run(|client| {
        let library = libraries::get(client, lib.0)?;
        put!(count, library.kernel_names(client)?.len() as u32);
        Ok(())
    })
}

pub(crate) unsafe fn cuLibraryEnumerateKernels(
    kernels: *mut CUkernel,
    numKernels: u32,
    lib: CUlibrary,
) -> CUresult {
    run(|client| {
        not_null(kernels)?;
        let library = libraries::get(client, lib.0)?;
        let names = library.kernel_names(client)?;
        for (i, name) in names.iter().take(numKernels as usize).enumerate() {
            put!(kernels.wrapping_add(i), CUkernel(library.kernel(client, name)?.token));
        }
        Ok(())
    })
}

fn kernel(client: &Client, handle: CUkernel) -> Result<Arc<Kernel>> {
    client.kernels.get(handle.0).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

pub(crate) unsafe fn cuKernelGetFunction(pFunc: *mut CUfunction, handle: CUkernel) -> CUresult {
    run(|client| {
        not_null(pFunc)?;
        let token = client.kernels.look(handle.0, |kernel| {
            current::look_owner(|context| {
                kernel.with_function(client, context, |function| Ok(function.token))
            })
        });
        put!(pFunc, CUfunction(token.unwrap_or(Err(CUresult::ERROR_INVALID_HANDLE))?));
        Ok(())
    })
}

pub(crate) unsafe fn cuKernelGetLibrary(pLib: *mut CUlibrary, handle: CUkernel) -> CUresult {
    run(|client| {
        put!(pLib, CUlibrary(kernel(client, handle)?.library));
        Ok(())
    })
}

pub(crate) unsafe fn cuKernelGetName(name: *mut *const c_char, handle: CUkernel) -> CUresult {
    run(|client| {
        // The kernel lives in its library's table until that is unloaded, as CUDA promises of the
        // name.
        put!(name, kernel(client, handle)?.name.as_ptr());
        Ok(())
    })
}

/// What `see` finds of the function of a kernel on a device: in the current context if that is the
/// device's, else in its primary context.
fn look_on_device<T>(
    client: &Client,
    handle: CUkernel,
    dev: CUdevice,
    see: impl FnOnce(&Function) -> Result<T>,
) -> Result<T> {
    let device = client.device(dev)?;
    let seen = client.kernels.look(handle.0, |kernel| {
        let current = current::owner().ok().filter(|context| context.device == dev);
        let context = current.as_ref().unwrap_or(&device.primary);
        kernel.with_function(client, context, |function| see(function))
    });
    seen.unwrap_or(Err(CUresult::ERROR_INVALID_HANDLE))
}

pub(crate) unsafe fn cuKernelGetAttribute(
    pi: *mut i32,
    attrib: CUfunction_attribute,
    handle: CUkernel,
    dev: CUdevice,
) -> CUresult {
    run(|client| {
        not_null(pi)?;
        put!(pi, look_on_device(client, handle, dev, |known| known.attribute(attrib))?);
        Ok(())
    })
}

/// Sets an attribute, or what the wire numbers like one.
fn set(handle: CUkernel, dev: CUdevice, attribute: i32, value: i32) -> CUresult {
    run(|client| {
        let device = client.device(dev)?;
        look_on_device(client, handle, dev, |known| known.set_attribute(device, attribute, value))
    })
}

pub(crate) unsafe fn cuKernelSetAttribute(
    attrib: CUfunction_attribute,
    val: i32,
    handle: CUkernel,
    dev: CUdevice,
) -> CUresult {
    set(handle, dev, attrib.0.cast_signed(), val)
}

pub(crate) unsafe fn cuKernelSetCacheConfig(
    handle: CUkernel,
    config: CUfunc_cache,
    dev: CUdevice,
) -> CUresult {
    set(handle, dev, CACHE_CONFIG, config.0.cast_signed())
}

pub(crate) unsafe fn cuKernelGetParamInfo(
    handle: CUkernel,
    paramIndex: usize,
    paramOffset: *mut usize,
    paramSize: *mut usize,
) -> CUresult {
    run(|client| {
        let function = kernel(client, handle)?.function(client, &current::owner()?)?;
        super::function::parameter_info(&function, paramIndex, paramOffset, paramSize)
    })
}

/// A `__managed__` variable, which is mirrored from now on.
pub(crate) unsafe fn cuLibraryGetManaged(
    dptr: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    run(|client| {
        // SAFETY: the caller's string.
        let name = unsafe { c_name(name) }?;
        let library = libraries::get(client, library.0)?;
        // The runtime asks before it has made a context.
        let context = match current::owner() {
            Ok(context) => context,
            Err(_) => {
                let primary = &client.device(0)?.primary;
                if !primary.is_alive() {
                    primary.open(client)?;
                }
                Arc::clone(primary)
            }
        };
        let (address, size_bytes) = library.module(client, &context)?.global(client, name)?;
        let is_managed = client.memory.find(address).is_some_and(|area| {
            matches!(area.kind, crate::memory::memory_map::Kind::ManagedGlobal)
        });
        if !is_managed {
            return Err(CUresult::ERROR_NOT_FOUND);
        }
        put_optional!(dptr, address);
        put_optional!(bytes, size_bytes as usize);
        Ok(())
    })
}
