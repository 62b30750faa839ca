//! Contexts, streams, modules, launches.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::ptr;
use std::rc::Rc;

use crate::Error;
use crate::api::{Api, Handle};
use crate::memory::Parameter;

/// More than any kernel here has.
pub(crate) const MAX_PARAMETERS: usize = 16;

/// What a context has done, for the programs' reports.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) kernels: Cell<u64>,
    pub(crate) copied_bytes: Cell<u64>,
}

impl Counters {
    pub(crate) fn add_copied(&self, size_bytes: usize) {
        self.copied_bytes.set(self.copied_bytes.get() + size_bytes as u64);
    }
}

/// The primary context of a device, current on the thread that made it; released with its last
/// child.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    api: Api,
    device: i32,
    counters: Counters,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the context was retained once, and its children hold this value: none is left.
        unsafe { (self.api.primary_context_release)(self.device) };
    }
}

impl Context {
    /// Initialises the driver and makes the primary context of a device current.
    ///
    /// # Errors
    /// The driver's, from whichever call refused.
    pub fn new(device_index: i32) -> Result<Self, Error> {
        let api = Api::load()?;
        // SAFETY: every pointer is valid for its call; the device number comes from the driver.
        unsafe {
            api.check("cuInit", (api.init)(0))?;
            let mut device = 0;
            api.check("cuDeviceGet", (api.device_get)(&raw mut device, device_index))?;
            let mut handle = ptr::null_mut();
            api.check(
                "cuDevicePrimaryCtxRetain",
                (api.primary_context_retain)(&raw mut handle, device),
            )?;
            let inner = Rc::new(Inner { api, device, counters: Counters::default() });
            api.check("cuCtxSetCurrent", (api.context_set_current)(handle))?;
            Ok(Self { inner })
        }
    }

    /// The functions, for calls that have no safe form here.
    pub fn api(&self) -> &Api {
        &self.inner.api
    }

    /// The device's name.
    ///
    /// # Errors
    /// The driver's.
    pub fn device_name(&self) -> Result<String, Error> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the buffer is as long as the call is told, and the driver ends it with NUL.
        unsafe {
            let code = (self.api().device_get_name)(name.as_mut_ptr(), 256, self.inner.device);
            self.api().check("cuDeviceGetName", code)?;
            Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
        }
    }

    /// The device's memory in bytes, as `cuDeviceTotalMem` has it.
    ///
    /// # Errors
    /// The driver's.
    pub fn device_memory_bytes(&self) -> Result<usize, Error> {
        let mut total = 0;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (self.api().device_total_mem)(&raw mut total, self.inner.device) };
        self.api().check("cuDeviceTotalMem", code)?;
        Ok(total)
    }

    /// Device memory in bytes: (free, total).
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_info_bytes(&self) -> Result<(usize, usize), Error> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        let code = unsafe { (self.api().memory_get_info)(&raw mut free, &raw mut total) };
        self.api().check("cuMemGetInfo", code)?;
        Ok((free, total))
    }

    /// Waits for all work of the context.
    ///
    /// # Errors
    /// The driver's; an error of earlier work comes to light here.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the context is current on this thread, which `Rc` keeps us on.
        let code = unsafe { (self.api().context_synchronize)() };
        self.api().check("cuCtxSynchronize", code)
    }

    /// Loads PTX text.
    ///
    /// # Errors
    /// The driver's.
    pub fn load_ptx(&self, text: &str) -> Result<Module, Error> {
        let text = CString::new(text)?;
        let mut handle = ptr::null_mut();
        // SAFETY: the text ends with NUL, which is how the driver finds its length.
        let code = unsafe {
            (self.api().module_load_data)(&raw mut handle, text.as_ptr().cast::<c_void>())
        };
        self.api().check("cuModuleLoadData", code)?;
        Ok(Module { context: self.clone(), handle })
    }

    /// Makes a stream that does not wait for the default stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream(&self) -> Result<Stream, Error> {
        const NON_BLOCKING: c_uint = 1;
        self.stream_of(NON_BLOCKING)
    }

    /// Makes a stream that the default stream waits for, and that waits for it.
    ///
    /// # Errors
    /// The driver's.
    pub fn blocking_stream(&self) -> Result<Stream, Error> {
        self.stream_of(0)
    }

    fn stream_of(&self, flags: c_uint) -> Result<Stream, Error> {
        let mut handle = ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { (self.api().stream_create)(&raw mut handle, flags) };
        self.api().check("cuStreamCreate", code)?;
        Ok(Stream { context: self.clone(), handle })
    }

    /// Kernels that were launched so far.
    pub fn kernels(&self) -> u64 {
        self.inner.counters.kernels.get()
    }

    /// Bytes that were copied so far, either way.
    pub fn copied_bytes(&self) -> u64 {
        self.inner.counters.copied_bytes.get()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.inner.counters
    }
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    context: Context,
    handle: Handle,
}

impl Stream {
    /// The driver's handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Waits for the stream's work.
    ///
    /// # Errors
    /// The driver's; an error of earlier work comes to light here.
    pub fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: the stream lives until it is dropped.
        let code = unsafe { (self.context.api().stream_synchronize)(self.handle) };
        self.context.api().check("cuStreamSynchronize", code)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by cuStreamCreate and destroyed only here.
        unsafe { (self.context.api().stream_destroy)(self.handle) };
    }
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    context: Context,
    handle: Handle,
}

impl Module {
    /// Looks a kernel up.
    ///
    /// # Errors
    /// The driver's.
    pub fn function(&self, name: &str) -> Result<Function<'_>, Error> {
        let name = CString::new(name)?;
        let mut handle = ptr::null_mut();
        // SAFETY: the module is loaded and the name ends with NUL.
        let code = unsafe {
            (self.context.api().module_get_function)(&raw mut handle, self.handle, name.as_ptr())
        };
        self.context.api().check("cuModuleGetFunction", code)?;
        Ok(Function { module: self, handle })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: made by cuModuleLoadData and unloaded only here; functions borrow the module.
        unsafe { (self.context.api().module_unload)(self.handle) };
    }
}

/// Blocks and threads of a launch.
#[derive(Clone, Copy, Debug)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory per block.
    pub shared_bytes: u32,
}

impl LaunchShape {
    /// A one-dimensional launch without dynamic shared memory.
    pub fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }
}

/// A kernel.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    module: &'a Module,
    handle: Handle,
}

impl Function<'_> {
    /// The driver's handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Launches the kernel into a stream; `None` is the legacy default stream.
    ///
    /// # Safety
    /// `parameters` have the types that the kernel declares, in order, and what the kernel does
    /// with them stays inside of memory that lives until it has run.
    ///
    /// # Errors
    /// [`Error::TooManyParameters`], or the driver's.
    pub unsafe fn launch(
        &self,
        shape: LaunchShape,
        stream: Option<&Stream>,
        parameters: &[&dyn Parameter],
    ) -> Result<(), Error> {
        let context = &self.module.context;
        let mut pointers = [ptr::null_mut(); MAX_PARAMETERS];
        if parameters.len() > MAX_PARAMETERS {
            return Err(Error::TooManyParameters { given: parameters.len() });
        }
        for (pointer, parameter) in pointers.iter_mut().zip(parameters) {
            *pointer = parameter.location().cast_mut();
        }
        let stream = stream.map_or(ptr::null_mut(), Stream::handle);
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        // SAFETY: the caller answers for the parameters, which the driver only reads; the handles
        // live.
        let code = unsafe {
            (context.api().launch_kernel)(
                self.handle,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shape.shared_bytes,
                stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        context.api().check("cuLaunchKernel", code)?;
        context.counters().kernels.set(context.kernels() + 1);
        Ok(())
    }
}
