//! Libraries: images without a context, and their kernels.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use cuda_abi::types::{
    CUdeviceptr, CUfunction, CUjit_option, CUkernel, CUlibrary, CUlibraryOption, CUmodule, CUresult,
};

use super::image::{PtxTexts, Refusal};
use super::module::JitLog;
use crate::api::answer::Answer;
use crate::api::driver::{current, driver};
use crate::api::objects::Library;
use crate::api::out;
use crate::api::table::fresh_handle;

api! {
    fn cuLibraryLoadData(
        library: *mut CUlibrary,
        code: *const c_void,
        jitOptions: *mut CUjit_option,
        jitOptionsValues: *mut *mut c_void,
        numJitOptions: u32,
        libraryOptions: *mut CUlibraryOption,
        libraryOptionValues: *mut *mut c_void,
        numLibraryOptions: u32,
    ) {
        // Options say how long the image stays; it is copied in any case.
        let _ = (libraryOptions, libraryOptionValues, numLibraryOptions);
        let driver = driver()?;
        // SAFETY: the caller's image, arrays and pointers.
        unsafe {
            let log = JitLog::read(numJitOptions, jitOptions, jitOptionsValues)?;
            finish(library, &log, PtxTexts::from_pointer(&driver.config, code))
        }
    }

    fn cuLibraryLoadFromFile(
        library: *mut CUlibrary,
        fileName: *const c_char,
        jitOptions: *mut CUjit_option,
        jitOptionsValues: *mut *mut c_void,
        numJitOptions: u32,
        libraryOptions: *mut CUlibraryOption,
        libraryOptionValues: *mut *mut c_void,
        numLibraryOptions: u32,
    ) {
        let _ = (libraryOptions, libraryOptionValues, numLibraryOptions);
        let driver = driver()?;
        // SAFETY: the caller's string, arrays and pointers.
        unsafe {
            let log = JitLog::read(numJitOptions, jitOptions, jitOptionsValues)?;
            let bytes = std::fs::read(out::string(fileName)?).map_err(|_| CUresult::ERROR_FILE_NOT_FOUND)?;
            finish(library, &log, PtxTexts::from_bytes(&driver.config, &bytes))
        }
    }

    fn cuLibraryUnload(library: CUlibrary) {
        let driver = driver()?;
        let found = driver.libraries.remove(library.0)?;
        let context = current().ok().map(|(_, context)| context.id);
        let _stall = context.map(|context| driver.wait_for_work(context));
        found.unload(driver);
        Ok(())
    }

    fn cuLibraryGetKernel(pKernel: *mut CUkernel, library: CUlibrary, name: *const c_char) {
        let driver = driver()?;
        // SAFETY: the caller's string.
        let name = unsafe { out::string(name)? };
        let kernel = driver.libraries.get(library.0)?.kernel(driver, library.0, name)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pKernel, kernel.handle) }
    }

    fn cuLibraryGetKernelCount(count: *mut u32, lib: CUlibrary) {
        let driver = driver()?;
        let library = driver.libraries.get(lib.0)?;
        let names = library.probe(driver).map_err(|refusal| refusal.code)?.kernel_names();
        // SAFETY: the caller's pointer.
        unsafe { out::write(count, names.len() as u32) }
    }

    fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, numKernels: u32, lib: CUlibrary) {
        let driver = driver()?;
        let library = driver.libraries.get(lib.0)?;
        let names = library.probe(driver).map_err(|refusal| refusal.code)?.kernel_names();
        if kernels.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        for (index, name) in names.iter().take(numKernels as usize).enumerate() {
            let kernel = library.kernel(driver, lib.0, name)?;
            // SAFETY: the caller's array of `numKernels`.
            unsafe { out::write(kernels.add(index), kernel.handle)? };
        }
        Ok(())
    }

    fn cuLibraryGetModule(pMod: *mut CUmodule, library: CUlibrary) {
        let (driver, context) = current()?;
        let module = driver.libraries.get(library.0)?.module(driver, &context)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pMod, module.handle) }
    }

    fn cuLibraryGetGlobal(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) {
        let (driver, context) = current()?;
        // SAFETY: the caller's string.
        let name = unsafe { out::string(name)? };
        let global = driver.libraries.get(library.0)?.module(driver, &context)?.global(name)?;
        // SAFETY: the caller's pointers; either may be NULL.
        unsafe {
            out::write_optional(dptr, global.address);
            out::write_optional(bytes, global.size_bytes as usize);
        }
        Ok(())
    }

    fn cuLibraryGetManaged(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) {
        let driver = driver()?;
        // SAFETY: the caller's string.
        let name = unsafe { out::string(name)? };
        let library = driver.libraries.get(library.0)?;
        let global = library.managed(driver)?.get(name).copied().ok_or(CUresult::ERROR_NOT_FOUND)?;
        // SAFETY: the caller's pointers; either may be NULL.
        unsafe {
            out::write_optional(dptr, global.address);
            out::write_optional(bytes, global.size_bytes as usize);
        }
        Ok(())
    }

    fn cuKernelGetFunction(pFunc: *mut CUfunction, kernel: CUkernel) {
        let (driver, context) = current()?;
        let function = driver.kernels.get(kernel.0)?.function(driver, &context)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pFunc, function.handle) }
    }

    fn cuKernelGetLibrary(pLib: *mut CUlibrary, kernel: CUkernel) {
        let library = driver()?.kernels.get(kernel.0)?.library;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pLib, CUlibrary(library)) }
    }

    fn cuKernelGetName(name: *mut *const c_char, hfunc: CUkernel) {
        let kernel = driver()?.kernels.get(hfunc.0)?;
        // SAFETY: the caller's pointer; the text lives as long as its library.
        unsafe { out::write(name, kernel.name.as_ptr()) }
    }
}

/// # Safety
/// As for [`out::write`]; the log's buffers are valid.
unsafe fn finish(
    library: *mut CUlibrary,
    log: &JitLog,
    texts: Result<PtxTexts, Refusal>,
) -> Answer {
    let driver = driver()?;
    let loaded = texts.and_then(|texts| {
        let loaded = Library::new(texts);
        loaded.probe(driver)?;
        Ok(loaded)
    });
    // SAFETY: by the caller's promise.
    unsafe {
        match loaded {
            Ok(loaded) => {
                log.write("");
                let handle = fresh_handle();
                out::write(library, CUlibrary(handle))?;
                driver.libraries.insert(handle, Arc::new(loaded));
                Ok(())
            }
            Err(refusal) => {
                log.write(&refusal.log);
                Err(refusal.code)
            }
        }
    }
}
