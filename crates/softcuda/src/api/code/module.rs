//! Modules: images loaded into the current context.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};

use cuda_abi::types::{CUdeviceptr, CUfunction, CUjit_option, CUmodule, CUresult};

use super::image::{PtxTexts, Refusal};
use crate::api::answer::Answer;
use crate::api::driver::{current, driver};
use crate::api::objects::Module;
use crate::api::out;

api! {
    fn cuModuleLoad(module: *mut CUmodule, fname: *const c_char) {
        let (driver, context) = current()?;
        // SAFETY: the caller's string.
        let path = unsafe { out::string(fname)? };
        let bytes = std::fs::read(path).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
        let texts = PtxTexts::from_bytes(&driver.config, &bytes).map_err(|refusal| refusal.code)?;
        let loaded = Module::load(driver, &context, &texts, &HashMap::new()).map_err(|refusal| refusal.code)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(module, loaded.handle) }
    }

    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) {
        // SAFETY: the caller's pointers.
        unsafe { load(module, image, &JitLog::default()) }
    }

    fn cuModuleLoadFatBinary(module: *mut CUmodule, fatCubin: *const c_void) {
        // SAFETY: the caller's pointers.
        unsafe { load(module, fatCubin, &JitLog::default()) }
    }

    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        numOptions: u32,
        options: *mut CUjit_option,
        optionValues: *mut *mut c_void,
    ) {
        // SAFETY: the caller's arrays and pointers.
        unsafe {
            let log = JitLog::read(numOptions, options, optionValues)?;
            load(module, image, &log)
        }
    }

    fn cuModuleUnload(hmod: CUmodule) {
        let driver = driver()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        let module = driver.modules.remove(hmod.0)?;
        let _ = driver.engine.synchronize_context(module.context_id);
        module.unload(driver);
        Ok(())
    }

    fn cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char) {
        let driver = driver()?;
        // SAFETY: the caller's string.
        let name = unsafe { out::string(name)? };
        let function = driver.modules.get(hmod.0)?.function(driver, name, None)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(hfunc, function.handle) }
    }

    fn cuModuleGetFunctionCount(count: *mut u32, mod_: CUmodule) {
        let driver = driver()?;
        let names = driver.modules.get(mod_.0)?.kernel_names();
        // SAFETY: the caller's pointer.
        unsafe { out::write(count, names.len() as u32) }
    }

    fn cuModuleEnumerateFunctions(functions: *mut CUfunction, numFunctions: u32, mod_: CUmodule) {
        let driver = driver()?;
        if functions.is_null() || numFunctions == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let module = driver.modules.get(mod_.0)?;
        for (index, name) in module.kernel_names().iter().take(numFunctions as usize).enumerate() {
            let function = module.function(driver, name, None)?;
            // SAFETY: the caller's array of `numFunctions`.
            unsafe { out::write(functions.add(index), function.handle)? };
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char) {
        let driver = driver()?;
        // SAFETY: the caller's string.
        let global = driver.modules.get(hmod.0)?.global(unsafe { out::string(name)? })?;
        // SAFETY: the caller's pointers; either may be NULL.
        unsafe {
            out::write_optional(dptr, global.address);
            out::write_optional(bytes, global.size_bytes as usize);
        }
        Ok(())
    }
}

/// Loads an image at an address into the current context.
///
/// # Safety
/// `image` points to an image as for `cuModuleLoadData`.
pub(crate) unsafe fn load_image(image: *const c_void) -> Result<CUmodule, Refusal> {
    let (driver, context) = current().map_err(|code| Refusal { code, log: String::new() })?;
    // SAFETY: by the caller's promise.
    let texts = unsafe { PtxTexts::from_pointer(&driver.config, image)? };
    Module::load(driver, &context, &texts, &HashMap::new()).map(|module| module.handle)
}

/// # Safety
/// As for [`out::write`] and [`load_image`].
unsafe fn load(module: *mut CUmodule, image: *const c_void, log: &JitLog) -> Answer {
    if module.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: by the caller's promise.
    unsafe {
        match load_image(image) {
            Ok(handle) => {
                log.write("");
                out::write(module, handle)
            }
            Err(refusal) => {
                log.write(&refusal.log);
                Err(refusal.code)
            }
        }
    }
}

/// The error log buffer among JIT options.
#[derive(Debug, Default)]
pub(crate) struct JitLog {
    /// Buffers (information, error) and their sizes in bytes.
    error: Option<(*mut c_char, usize)>,
    information: Option<(*mut c_char, usize)>,
}

impl JitLog {
    /// Finds the log buffers; other options do not matter to an interpreter.
    ///
    /// # Safety
    /// The arrays have `count` elements, the buffers the sizes given for them.
    pub(crate) unsafe fn read(
        count: u32,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) -> Answer<Self> {
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: by the caller's promise.
        let (options, values) = unsafe {
            (out::read_array(options, count as usize)?, out::read_array(values, count as usize)?)
        };
        let value =
            |option| options.iter().position(|found| *found == option).map(|index| values[index]);
        let buffer = |buffer, size| {
            Some((value(buffer)?.cast::<c_char>(), value(size)? as usize & 0xffff_ffff))
        };
        Ok(JitLog {
            error: buffer(
                CUjit_option::ERROR_LOG_BUFFER,
                CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES,
            ),
            information: buffer(
                CUjit_option::INFO_LOG_BUFFER,
                CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES,
            ),
        })
    }

    /// Writes the error text; the information log is always empty.
    ///
    /// # Safety
    /// The buffers are still valid.
    pub(crate) unsafe fn write(&self, error: &str) {
        for (buffer, text) in [(self.error, error), (self.information, "")] {
            if let Some((pointer, size)) = buffer {
                // SAFETY: by the caller's promise. A NULL or empty buffer gets nothing.
                let _ = unsafe {
                    out::write_text(pointer, i32::try_from(size).unwrap_or(i32::MAX), text)
                };
            }
        }
    }
}
