//! Attributes and parameters of functions and kernels.

use std::ffi::c_char;
use std::sync::Arc;

use cuda_abi::types::{
    CUdevice, CUfunc_cache, CUfunction, CUfunction_attribute as Attribute, CUfunctionLoadingState,
    CUkernel, CUmodule, CUresult, CUsharedconfig,
};

use super::loading::resolve;
use crate::api::answer::Answer;
use crate::api::driver::{Driver, current, driver};
use crate::api::objects::{Function, FunctionSettings, Setting, max_threads};
use crate::api::out;
use crate::device::properties::limits;
use crate::exec;

api! {
    fn cuFuncGetAttribute(pi: *mut i32, attrib: Attribute, hfunc: CUfunction) {
        let (driver, function) = asked(hfunc)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pi, get(driver, &function.kernel, &function.settings, attrib)?) }
    }

    fn cuFuncSetAttribute(hfunc: CUfunction, attrib: Attribute, value: i32) {
        let (_, function) = asked(hfunc)?;
        set(&function.kernel, &function.settings, attrib, value)
    }

    fn cuFuncSetCacheConfig(hfunc: CUfunction, config: CUfunc_cache) {
        asked(hfunc)?;
        // A preference without effect here.
        if config.0 > 3 { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    fn cuFuncSetSharedMemConfig(hfunc: CUfunction, config: CUsharedconfig) {
        asked(hfunc)?;
        if config.0 > 2 { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    fn cuFuncGetModule(hmod: *mut CUmodule, hfunc: CUfunction) {
        // SAFETY: the caller's pointer.
        unsafe { out::write(hmod, asked(hfunc)?.1.module) }
    }

    fn cuFuncGetName(name: *mut *const c_char, hfunc: CUfunction) {
        let (_, function) = asked(hfunc)?;
        // SAFETY: the caller's pointer; the text lives as long as its module.
        unsafe { out::write(name, function.name.as_ptr()) }
    }

    fn cuFuncGetParamInfo(func: CUfunction, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) {
        let (_, function) = asked(func)?;
        // SAFETY: the caller's pointers.
        unsafe { parameter(&function.kernel, paramIndex, paramOffset, paramSize) }
    }

    fn cuFuncIsLoaded(state: *mut CUfunctionLoadingState, function: CUfunction) {
        asked(function)?;
        // SAFETY: the caller's pointer. What has a handle is lowered.
        unsafe { out::write(state, CUfunctionLoadingState(1)) }
    }

    fn cuFuncLoad(function: CUfunction) {
        asked(function).map(drop)
    }

    fn cuKernelGetAttribute(pi: *mut i32, attrib: Attribute, kernel: CUkernel, dev: CUdevice) {
        let driver = driver()?;
        driver.device(dev)?;
        let found = driver.kernels.get(kernel.0)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pi, get(driver, executable(driver, kernel)?.as_ref(), &found.settings, attrib)?) }
    }

    fn cuKernelSetAttribute(attrib: Attribute, val: i32, kernel: CUkernel, dev: CUdevice) {
        let driver = driver()?;
        driver.device(dev)?;
        set(executable(driver, kernel)?.as_ref(), &driver.kernels.get(kernel.0)?.settings, attrib, val)
    }

    fn cuKernelSetCacheConfig(kernel: CUkernel, config: CUfunc_cache, dev: CUdevice) {
        let driver = driver()?;
        driver.device(dev)?;
        driver.kernels.get(kernel.0)?;
        if config.0 > 3 { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    fn cuKernelGetParamInfo(kernel: CUkernel, paramIndex: usize, paramOffset: *mut usize, paramSize: *mut usize) {
        let driver = driver()?;
        // SAFETY: the caller's pointers.
        unsafe { parameter(executable(driver, kernel)?.as_ref(), paramIndex, paramOffset, paramSize) }
    }
}

/// What a question names: a function, on whatever thread, or a kernel's in the current context.
fn asked(handle: CUfunction) -> Answer<(&'static Driver, Arc<Function>)> {
    let driver = driver()?;
    if let Some(function) = driver.functions.find(handle.0) {
        return Ok((driver, function));
    }
    let (driver, context) = current()?;
    Ok((driver, resolve(driver, &context, handle)?))
}

/// The kernel's layout and limits, which no context is needed for.
fn executable(driver: &Driver, kernel: CUkernel) -> Answer<Arc<exec::Kernel>> {
    let kernel = driver.kernels.get(kernel.0)?;
    driver.libraries.get(kernel.library)?.probe_kernel(driver, kernel.name())
}

/// # Safety
/// As for [`out::write`].
unsafe fn parameter(
    kernel: &exec::Kernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Answer {
    let found = kernel.params.get(index).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    // SAFETY: by the caller's promise; the size may be NULL.
    unsafe {
        out::write(offset, found.offset_bytes as usize)?;
        out::write_optional(size, found.size_bytes as usize);
    }
    Ok(())
}

fn get(
    driver: &Driver,
    kernel: &exec::Kernel,
    settings: &FunctionSettings,
    attribute: Attribute,
) -> Answer<i32> {
    let (major, minor) = driver.config.compute_capability;
    let value = match attribute {
        Attribute::MAX_THREADS_PER_BLOCK => max_threads(kernel),
        Attribute::SHARED_SIZE_BYTES => kernel.static_shared_bytes,
        Attribute::CONST_SIZE_BYTES => kernel.const_bytes,
        Attribute::LOCAL_SIZE_BYTES => kernel.local_bytes,
        Attribute::NUM_REGS => kernel.registers,
        Attribute::PTX_VERSION => kernel.target,
        Attribute::BINARY_VERSION => major * 10 + minor,
        Attribute::CACHE_MODE_CA => 0,
        Attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => settings.max_dynamic_shared_bytes(kernel),
        Attribute::CLUSTER_SIZE_MUST_BE_SET => 0,
        Attribute::PREFERRED_SHARED_MEMORY_CARVEOUT => return Ok(settings.get(Setting::Carveout)),
        Attribute(11..=13) => {
            let axis = attribute.0 as usize - 11;
            let set = settings.get(Setting::Cluster(axis));
            return Ok(kernel.required_cluster.map_or(set, |cluster| cluster[axis] as i32));
        }
        Attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
            return Ok(settings.get(Setting::NonportableCluster));
        }
        Attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
            return Ok(settings.get(Setting::ClusterPolicy));
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    Ok(value as i32)
}

fn set(
    kernel: &exec::Kernel,
    settings: &FunctionSettings,
    attribute: Attribute,
    value: i32,
) -> Answer {
    let setting = match attribute {
        Attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
            let limit = limits::SHARED_PER_BLOCK_OPTIN.saturating_sub(kernel.static_shared_bytes);
            if u32::try_from(value).is_ok_and(|bytes| bytes <= limit) {
                Setting::MaxDynamicShared
            } else {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
        }
        Attribute::PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {
            Setting::Carveout
        }
        Attribute(11..=13) if value >= 0 => Setting::Cluster(attribute.0 as usize - 11),
        Attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => Setting::NonportableCluster,
        Attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE => Setting::ClusterPolicy,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    settings.set(setting, value);
    Ok(())
}
