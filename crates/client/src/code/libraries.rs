//! Making and unloading libraries, and finding the functions that their kernels stand for.

use crate::client::Client;
use crate::code::function::Function;
use crate::code::image::JitOptions;
use crate::code::library::{InContext, Kernel, Library, Loaded, Options};
use crate::code::module::Module;
use crate::code::modules;
use crate::code::names::Names;
use crate::context::Context;
use crate::handles::Kind;
use crate::result::Result;
use crate::thread::current;
use cuda_abi::image::Code;
use cuda_abi::types::CUresult;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// Makes a library of code for each device; nothing is loaded yet.
pub(crate) fn create(
    client: &Client,
    codes: Vec<Arc<Code<'static>>>,
    options: &JitOptions,
) -> Result<Arc<Library>> {
    let options = Options {
        optimization_level: options.optimization_level,
        max_registers: options.max_registers,
    };
    let made = client.libraries.insert_with(|token| Library {
        token,
        codes,
        options,
        modules: Mutex::default(),
        kernels: Names::default(),
    });
    made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// A library by handle.
pub(crate) fn get(client: &Client, token: usize) -> Result<Arc<Library>> {
    client.libraries.get(token).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Unloads a library from all contexts.
pub(crate) fn unload(client: &Client, token: usize) -> Result {
    let library = client.libraries.remove(token).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    for kernel in library.kernels.adding().values() {
        client.kernels.remove(kernel.token);
    }
    for loaded in library.modules.lock().unwrap_or_else(|e| e.into_inner()).drain(..) {
        // A context that has ended took its modules along.
        let _ = loaded.module.unload(client);
    }
    Ok(())
}

impl Library {
    /// The library's module in a context, loaded now if it was not.
    pub(crate) fn module(&self, client: &Client, context: &Arc<Context>) -> Result<Arc<Module>> {
        let (_, wire_id) = context.backend()?;
        let mut modules = self.modules.lock().unwrap_or_else(|e| e.into_inner());
        let of_context =
            |loaded: &&Loaded| loaded.context == context.token && loaded.wire_id == wire_id;
        if let Some(loaded) = modules.iter().find(of_context) {
            return Ok(Arc::clone(&loaded.module));
        }
        let ordinal = usize::try_from(context.device).unwrap_or(usize::MAX);
        let code = self.codes.get(ordinal).ok_or(CUresult::ERROR_NO_BINARY_FOR_GPU)?;
        let Options { optimization_level, max_registers } = self.options;
        let options = JitOptions::without_logs(optimization_level, max_registers);
        // SAFETY: these options have no log buffers.
        let module = unsafe { modules::load(client, context, code.bytes(), &options) }?;
        modules.retain(|loaded| loaded.context != context.token);
        modules.push(Loaded { context: context.token, wire_id, module: Arc::clone(&module) });
        Ok(module)
    }

    /// Its kernels' names: of its module in the current context, or else in a primary context that
    /// is alive.
    pub(crate) fn kernel_names(&self, client: &Client) -> Result<Vec<CString>> {
        let context = current::owner().or_else(|error| {
            let mut primaries = client.devices.iter().map(|device| &device.primary);
            primaries.find(|primary| primary.is_alive()).cloned().ok_or(error)
        })?;
        self.module(client, &context)?.kernel_names()
    }

    /// A kernel by name: CUDA_ERROR_NOT_FOUND if there is none. Asked of the current context;
    /// without one the name is believed until it is used.
    pub(crate) fn kernel(&self, client: &Client, name: &CStr) -> Result<&Arc<Kernel>> {
        if let Some(kernel) = self.kernels.get(name) {
            return Ok(kernel);
        }
        let first = match current::owner() {
            Ok(context) => {
                let module = self.module(client, &context)?;
                let function = Arc::clone(module.function(client, name)?);
                Some(InContext { context: context.token, wire_id: function.wire_id, function })
            }
            Err(_) => None,
        };
        let mut kernels = self.kernels.adding();
        if let Some(kernel) = self.kernels.get(name) {
            return Ok(kernel);
        }
        let made = client.kernels.insert_with(|token| {
            if let Some(first) = &first {
                first.function.kernel.get_or_init(|| token);
            }
            let first = first.map_or_else(OnceLock::new, OnceLock::from);
            let (library, name) = (self.token, name.to_owned());
            Kernel { token, library, name, first, functions: RwLock::default() }
        });
        kernels.insert(name.to_owned(), made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?);
        self.kernels.get(name).ok_or(CUresult::ERROR_NOT_FOUND)
    }
}

impl Kernel {
    /// What `see` finds of the kernel's function in a context; it may not ask this kernel again.
    pub(crate) fn with_function<T>(
        &self,
        client: &Client,
        context: &Arc<Context>,
        see: impl FnOnce(&Arc<Function>) -> Result<T>,
    ) -> Result<T> {
        if let Some(first) = self.first.get().filter(|first| first.is(context)) {
            return see(&first.function);
        }
        let known = self.functions.read().unwrap_or_else(|e| e.into_inner());
        if let Some(found) = known.iter().find(|known| known.is(context)) {
            return see(&found.function);
        }
        drop(known);
        let wire_id = context.wire_id();
        let module = get(client, self.library)?.module(client, context)?;
        let function = Arc::clone(module.function(client, &self.name)?);
        function.kernel.get_or_init(|| self.token);
        let found = InContext { context: context.token, wire_id, function: Arc::clone(&function) };
        if let Err(found) = self.first.set(found) {
            let mut known = self.functions.write().unwrap_or_else(|e| e.into_inner());
            known.retain(|known| known.context != context.token);
            known.push(found);
        }
        see(&function)
    }

    /// The kernel's function in a context.
    pub(crate) fn function(
        &self,
        client: &Client,
        context: &Arc<Context>,
    ) -> Result<Arc<Function>> {
        self.with_function(client, context, |function| Ok(Arc::clone(function)))
    }
}

/// What `see` finds of what a launch names: a function, or a kernel of a library, which means its
/// function in `context`.
pub(crate) fn look_at_function_of<T>(
    client: &Client,
    handle: usize,
    context: &Arc<Context>,
    see: impl FnOnce(&Function) -> Result<T>,
) -> Result<T> {
    let seen = if Kind::Kernel.is(handle) {
        client
            .kernels
            .look(handle, |kernel| kernel.with_function(client, context, |function| see(function)))
    } else {
        client.functions.look(handle, see)
    };
    seen.unwrap_or(Err(CUresult::ERROR_INVALID_HANDLE))
}

/// The same, to be kept.
pub(crate) fn function_of(
    client: &Client,
    handle: usize,
    context: &Arc<Context>,
) -> Result<Arc<Function>> {
    let invalid = Err(CUresult::ERROR_INVALID_HANDLE);
    if Kind::Kernel.is(handle) {
        let found = client.kernels.look(handle, |kernel| kernel.function(client, context));
        return found.unwrap_or(invalid);
    }
    client.functions.get(handle).map_or(invalid, Ok)
}

/// What `see` finds of the function that a question names: a function, on whatever thread, or a
/// kernel's in the current context.
pub(crate) fn look_at_function<T>(
    client: &Client,
    handle: usize,
    see: impl FnOnce(&Function) -> Result<T>,
) -> Result<T> {
    let seen = if Kind::Kernel.is(handle) {
        client.kernels.look(handle, |kernel| {
            current::look_owner(|context| {
                kernel.with_function(client, context, |function| see(function))
            })
        })
    } else {
        client.functions.look(handle, see)
    };
    seen.unwrap_or(Err(CUresult::ERROR_INVALID_HANDLE))
}

/// The same, to be kept.
pub(crate) fn current_function(client: &Client, handle: usize) -> Result<Arc<Function>> {
    if Kind::Kernel.is(handle) {
        return function_of(client, handle, &current::owner()?);
    }
    client.functions.get(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)
}
