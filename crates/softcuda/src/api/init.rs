//! Initialisation, versions, error texts, function lookup, export tables.

use std::ffi::{CStr, c_char, c_void};

use cuda_abi::context_storage::ContextStorage;
use cuda_abi::export_tables::{Driver as ExportDriver, Tables};
use cuda_abi::handshake::DeviceIdentity;
use cuda_abi::lookup::{self, Answer as Found};
use cuda_abi::types::{
    CUcontext, CUdevice, CUdriverProcAddressQueryResult, CUfunction, CUmodule, CUmoduleLoadingMode,
    CUresult, CUstream, CUuuid, cuuint64_t,
};

use super::answer::Answer;
use super::driver::{self, VERSION, driver};
use super::out;
use crate::api::context::storage::STORAGE;
use crate::device::properties;

api! {
    fn cuInit(Flags: u32) {
        if Flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        driver::initialise()
    }

    fn cuDriverGetVersion(driverVersion: *mut i32) {
        // SAFETY: the caller's pointer.
        unsafe { out::write(driverVersion, VERSION) }
    }

    fn cuGetErrorName(error: CUresult, pStr: *mut *const c_char) {
        // SAFETY: the caller's pointer.
        unsafe { text(pStr, error.name()) }
    }

    fn cuGetErrorString(error: CUresult, pStr: *mut *const c_char) {
        // SAFETY: the caller's pointer.
        unsafe { text(pStr, error.description()) }
    }

    fn cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, cudaVersion: i32, flags: cuuint64_t) {
        // SAFETY: the caller's pointers.
        let (found, address) = unsafe { find(symbol, cudaVersion, flags)? };
        match found {
            // SAFETY: the caller's pointer.
            Found::Symbol(_) => unsafe { out::write(pfn, address) },
            _ => Err(CUresult::ERROR_NOT_FOUND),
        }
    }

    fn cuGetProcAddress_v2(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        cudaVersion: i32,
        flags: cuuint64_t,
        symbolStatus: *mut CUdriverProcAddressQueryResult,
    ) {
        // SAFETY: the caller's pointers.
        unsafe {
            let (found, address) = find(symbol, cudaVersion, flags)?;
            out::write(pfn, address)?;
            out::write_optional(symbolStatus, found.status());
        }
        Ok(())
    }

    fn cuGetExportTable(ppExportTable: *mut *const c_void, pExportTableId: *const CUuuid) {
        // SAFETY: the caller's pointers.
        unsafe { TABLES.get(ppExportTable, pExportTableId) }.ok()
    }

    fn cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode) {
        let is_eager = std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER");
        let value = if is_eager { CUmoduleLoadingMode::EAGER_LOADING } else { CUmoduleLoadingMode::LAZY_LOADING };
        // SAFETY: the caller's pointer.
        unsafe { out::write(mode, value) }
    }

    fn cuProfilerStart() {
        driver().map(|_| ())
    }

    fn cuProfilerStop() {
        driver().map(|_| ())
    }
}

/// # Safety
/// As for [`out::write`].
unsafe fn text(pointer: *mut *const c_char, text: Option<&'static CStr>) -> Answer {
    let found = text.ok_or(CUresult::ERROR_INVALID_VALUE);
    // SAFETY: by the caller's promise.
    unsafe { out::write(pointer, found.map_or(std::ptr::null(), CStr::as_ptr))? };
    found.map(|_| ())
}

/// # Safety
/// `symbol` is NULL or a C string.
unsafe fn find(symbol: *const c_char, version: i32, flags: u64) -> Answer<(Found, *mut c_void)> {
    if symbol.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: by the caller's promise.
    let name = unsafe { CStr::from_ptr(symbol) };
    let found = lookup::lookup(name.to_bytes(), version, flags, VERSION as u32);
    let address = match found {
        Found::Symbol(symbol) => cuda_abi::functions::index_of(symbol).map(crate::exports::address),
        _ => None,
    };
    Ok((found, address.unwrap_or(std::ptr::null()).cast_mut()))
}

static TABLES: Tables = Tables::new::<Softcuda>();

/// softcuda as the export tables see it.
struct Softcuda;

impl ExportDriver for Softcuda {
    fn tables() -> &'static Tables {
        &TABLES
    }

    fn context_storage() -> &'static ContextStorage {
        &STORAGE
    }

    fn initialized() -> bool {
        driver().is_ok()
    }

    fn driver_version() -> u32 {
        VERSION as u32
    }

    fn device_identities() -> Result<Vec<DeviceIdentity>, CUresult> {
        let identity = |device: &driver::Device| {
            let (domain, bus, number) = properties::pci(device.physical);
            DeviceIdentity {
                uuid: properties::uuid(device.physical),
                pci_domain: domain as i32,
                pci_bus: bus as i32,
                pci_device: number as i32,
            }
        };
        Ok(driver()?.devices.iter().map(identity).collect())
    }

    fn primary_context(device: CUdevice) -> Result<CUcontext, CUresult> {
        Ok(driver()?.device(device)?.primary_handle)
    }

    fn current_context() -> CUcontext {
        crate::api::context::context_stack::current_handle()
    }

    fn context_id(context: CUcontext) -> Result<u64, CUresult> {
        Ok(driver()?.context(context)?.id)
    }

    fn stream_id(stream: CUstream) -> Result<u64, CUresult> {
        // Only the default streams are a context's, so that others need none.
        if stream.0 > CUstream::PER_THREAD.0 {
            return Ok(driver()?.streams.get(stream.0)?.id);
        }
        let (driver, context) = driver::current()?;
        Ok(driver.stream(&context, stream)?.id)
    }

    unsafe fn load_module(image: *const c_void) -> Result<CUmodule, CUresult> {
        // SAFETY: by the caller's promise.
        unsafe { crate::api::code::module::load_image(image) }.map_err(|refusal| refusal.code)
    }

    fn module_functions(module: CUmodule) -> Result<Vec<CUfunction>, CUresult> {
        let driver = driver()?;
        let module = driver.modules.get(module.0)?;
        // Kernels that cannot be executed have no function.
        let functions = module.kernel_names().into_iter();
        Ok(functions
            .filter_map(|name| module.function(driver, &name, None).ok())
            .map(|f| f.handle)
            .collect())
    }
}
