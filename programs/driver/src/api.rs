//! The functions of the driver that the programs here use, as C declares them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::Library;

use crate::Error;

/// `CUdeviceptr`.
pub type DevicePointer = u64;
/// `CUcontext`, `CUmodule`, `CUfunction`, `CUstream`: opaque pointers.
pub type Handle = *mut c_void;

macro_rules! driver_functions {
    ($($field:ident = $symbol:literal ( $($argument:ty),* );)*) => {
        /// Addresses of the functions; they stay valid because the library is never closed.
        #[derive(Clone, Copy, Debug)]
        pub struct Api {
            $(#[doc = concat!("`", $symbol, "`")] pub $field: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Api {
            /// Opens `libcuda.so.1`, by the dynamic loader's rules, and looks every function up.
            ///
            /// # Errors
            /// [`Error::Library`] when it or a function is missing.
            pub fn load() -> Result<Self, Error> {
                // SAFETY: a CUDA driver's initialisers have no preconditions, and whoever sets the
                // library path answers for what lies there.
                let library = unsafe { Library::new("libcuda.so.1") }?;
                let api = Self {
                    // SAFETY: the signature is the one that cuda.h declares for this symbol.
                    $($field: *unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> u32>($symbol.as_bytes()) }?,)*
                };
                // The driver runs threads and exit handlers of its own: it must never be unmapped.
                std::mem::forget(library);
                Ok(api)
            }
        }
    };
}

driver_functions! {
    init = "cuInit"(c_uint);
    driver_get_version = "cuDriverGetVersion"(*mut c_int);
    get_error_name = "cuGetErrorName"(u32, *mut *const c_char);
    device_get_count = "cuDeviceGetCount"(*mut c_int);
    device_get = "cuDeviceGet"(*mut c_int, c_int);
    device_total_mem = "cuDeviceTotalMem_v2"(*mut usize, c_int);
    device_get_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    primary_context_retain = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    primary_context_release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    context_create = "cuCtxCreate_v2"(*mut Handle, c_uint, c_int);
    context_destroy = "cuCtxDestroy_v2"(Handle);
    context_set_current = "cuCtxSetCurrent"(Handle);
    context_synchronize = "cuCtxSynchronize"();
    module_load_data = "cuModuleLoadData"(*mut Handle, *const c_void);
    module_unload = "cuModuleUnload"(Handle);
    module_get_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    memory_get_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    memory_alloc = "cuMemAlloc_v2"(*mut DevicePointer, usize);
    memory_free = "cuMemFree_v2"(DevicePointer);
    memory_host_alloc = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    memory_free_host = "cuMemFreeHost"(*mut c_void);
    copy_to_device = "cuMemcpyHtoD_v2"(DevicePointer, *const c_void, usize);
    copy_to_host = "cuMemcpyDtoH_v2"(*mut c_void, DevicePointer, usize);
    copy_to_device_async = "cuMemcpyHtoDAsync_v2"(DevicePointer, *const c_void, usize, Handle);
    copy_to_host_async = "cuMemcpyDtoHAsync_v2"(*mut c_void, DevicePointer, usize, Handle);
    set_bytes = "cuMemsetD8_v2"(DevicePointer, u8, usize);
    stream_create = "cuStreamCreate"(*mut Handle, c_uint);
    stream_synchronize = "cuStreamSynchronize"(Handle);
    stream_destroy = "cuStreamDestroy_v2"(Handle);
    launch_kernel = "cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

impl Api {
    /// Turns a `CUresult` into a [`Result`].
    ///
    /// # Errors
    /// [`Error::Call`] for everything but 0.
    pub fn check(&self, call: &'static str, code: u32) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        Err(Error::Call { call, code, name: self.error_name(code) })
    }

    fn error_name(&self, code: u32) -> String {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the pointer is valid for the call to write to.
        let result = unsafe { (self.get_error_name)(code, &raw mut name) };
        if result != 0 || name.is_null() {
            return "an unknown error".to_owned();
        }
        // SAFETY: the driver returned a static NUL-terminated string.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}
