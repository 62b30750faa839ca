//! Libraries: code that is loaded into a context when it is first needed there.
//!
//! A kernel of a library stands for one function in every context; launches accept it like a function.

use crate::client::Client;
use crate::context::Context;
use crate::current;
use crate::handles::Kind;
use crate::image::JitOptions;
use crate::module::{self, Function, Module};
use crate::session::Result;
use cuda_abi::image::Code;
use cuda_abi::types::CUresult;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, RwLock};

/// See the module's description.
pub(crate) struct Library {
    pub(crate) token: usize,
    /// The code for each device, by ordinal.
    codes: Vec<Arc<Code<'static>>>,
    options: Options,
    modules: Mutex<Vec<Loaded>>,
    kernels: Mutex<HashMap<CString, Arc<Kernel>>>,
}

/// What of a library's JIT options matters later; its logs are for the first load, which comes after the call that brought them.
#[derive(Clone, Copy, Debug)]
struct Options {
    optimization_level: u32,
    max_registers: u32,
}

struct Loaded {
    context: usize,
    wire_id: u32,
    module: Arc<Module>,
}

/// A kernel of a library.
pub(crate) struct Kernel {
    pub(crate) token: usize,
    /// Handle of its library.
    pub(crate) library: usize,
    pub(crate) name: CString,
    /// By context.
    functions: RwLock<Vec<(usize, u32, Arc<Function>)>>,
}

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
        kernels: Mutex::default(),
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
    for (_, kernel) in library.kernels.lock().unwrap_or_else(|e| e.into_inner()).drain() {
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
        let module = unsafe { module::load(client, context, code.bytes(), &options) }?;
        modules.retain(|loaded| loaded.context != context.token);
        modules.push(Loaded { context: context.token, wire_id, module: Arc::clone(&module) });
        Ok(module)
    }

    /// A kernel by name: CUDA_ERROR_NOT_FOUND if there is none. Asked of the current context; without one the name is believed until
    /// it is used.
    pub(crate) fn kernel(&self, client: &Client, name: &CStr) -> Result<Arc<Kernel>> {
        if let Some(kernel) = self.kernels.lock().unwrap_or_else(|e| e.into_inner()).get(name) {
            return Ok(Arc::clone(kernel));
        }
        let first = match current::owner() {
            Ok(context) => {
                let function = self.module(client, &context)?.function(client, name)?;
                Some((context.token, function.wire_id, function))
            }
            Err(_) => None,
        };
        let mut kernels = self.kernels.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(kernel) = kernels.get(name) {
            return Ok(Arc::clone(kernel));
        }
        let made = client.kernels.insert_with(|token| {
            if let Some((_, _, function)) = &first {
                function.kernel.get_or_init(|| token);
            }
            let functions = RwLock::new(first.into_iter().collect());
            Kernel { token, library: self.token, name: name.to_owned(), functions }
        });
        let kernel = made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        kernels.insert(name.to_owned(), Arc::clone(&kernel));
        Ok(kernel)
    }
}

impl Kernel {
    /// The kernel's function in a context.
    pub(crate) fn function(
        &self,
        client: &Client,
        context: &Arc<Context>,
    ) -> Result<Arc<Function>> {
        let wire_id = context.wire_id();
        let known = self.functions.read().unwrap_or_else(|e| e.into_inner());
        if let Some((_, _, function)) =
            known.iter().find(|(c, w, _)| *c == context.token && *w == wire_id)
        {
            return Ok(Arc::clone(function));
        }
        drop(known);
        let module = get(client, self.library)?.module(client, context)?;
        let function = module.function(client, &self.name)?;
        function.kernel.get_or_init(|| self.token);
        let mut known = self.functions.write().unwrap_or_else(|e| e.into_inner());
        known.retain(|(c, _, _)| *c != context.token);
        known.push((context.token, wire_id, Arc::clone(&function)));
        Ok(function)
    }
}

/// What a launch names: a function, or a kernel of a library, which means its function in `context`.
pub(crate) fn function_of(
    client: &Client,
    handle: usize,
    context: &Arc<Context>,
) -> Result<Arc<Function>> {
    let invalid = CUresult::ERROR_INVALID_HANDLE;
    if Kind::Kernel.is(handle) {
        return client.kernels.get(handle).ok_or(invalid)?.function(client, context);
    }
    client.functions.get(handle).ok_or(invalid)
}
