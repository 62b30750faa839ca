//! Modules, libraries and kernels: PTX made executable in a context.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::types::{CUfunction, CUkernel, CUmodule, CUresult};

use super::image::{PtxTexts, Refusal};
use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::api::objects::{Context, Function, FunctionSettings, Global, Kernel, Library, Module};
use crate::api::table::fresh_handle;
use crate::device::memory::{AllocationKind, touch};
use crate::exec::{self, GlobalSpace, KernelError, Program};

impl Module {
    /// Loads a program into a context and registers the module's handle. Variables in `shared` are
    /// placed already.
    pub(crate) fn load(
        driver: &Driver,
        context: &Context,
        texts: &PtxTexts,
        shared: &HashMap<String, Global>,
    ) -> Result<Arc<Self>, Refusal> {
        let mut program = texts.load(&driver.config)?;
        let _stall = driver.wait_if_stalling(context.id);
        let mut owned = Vec::new();
        let placed = place_globals(driver, context, &mut program, shared, &mut owned);
        let module = placed.map(|globals| Module {
            handle: CUmodule(fresh_handle()),
            context_id: context.id,
            program,
            globals,
            owned: owned.clone(),
            functions: Mutex::default(),
        });
        match module {
            Ok(module) => {
                let module = Arc::new(module);
                driver.modules.insert(module.handle.0, module.clone());
                Ok(module)
            }
            Err(code) => {
                free_all(driver, &owned);
                Err(Refusal::new(code, "the module's variables do not fit into device memory"))
            }
        }
    }

    /// Frees the module's memory and handles.
    pub(crate) fn unload(&self, driver: &Driver) {
        for function in self.functions.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let _ = driver.functions.remove(function.handle.0);
        }
        free_all(driver, &self.owned);
    }

    /// The function of a name: 500 when there is none, 801 with a log line when it cannot be
    /// executed.
    pub(crate) fn function(
        &self,
        driver: &Driver,
        name: &str,
        settings: Option<Arc<FunctionSettings>>,
    ) -> Answer<Arc<Function>> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(name) {
            return Ok(function.clone());
        }
        let _stall = driver.wait_if_stalling(self.context_id);
        let kernel = self.program.kernel(name).map_err(|error| kernel_code(driver, &error))?;
        let function = Arc::new(Function {
            handle: CUfunction(fresh_handle()),
            module: self.handle,
            context_id: self.context_id,
            name: CString::new(name).map_err(|_| CUresult::ERROR_INVALID_VALUE)?,
            kernel,
            settings: settings.unwrap_or_default(),
        });
        functions.insert(name.to_owned(), function.clone());
        driver.functions.insert(function.handle.0, function.clone());
        Ok(function)
    }
}

impl Library {
    /// The library's module in a context, loaded on first use.
    pub(crate) fn module(&self, driver: &Driver, context: &Context) -> Answer<Arc<Module>> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(&context.id) {
            return Ok(module.clone());
        }
        let module = Module::load(driver, context, &self.texts, self.managed(driver)?)
            .map_err(|refusal| refusal.code)?;
        modules.insert(context.id, module.clone());
        Ok(module)
    }

    /// Checks the PTX now, as loading does, and keeps it for questions without a context.
    pub(crate) fn probe(&self, driver: &Driver) -> Result<&Program, Refusal> {
        if self.probe.get().is_none() {
            let mut program = self.texts.load(&driver.config)?;
            let addresses = vec![0; program.globals().len()];
            program.bind(&addresses);
            let _ = self.probe.set(program);
        }
        self.probe.get().ok_or_else(|| Refusal::new(CUresult::ERROR_UNKNOWN, "program vanished"))
    }

    /// The library's `.managed` variables by name. They need no context and are the same in all.
    pub(crate) fn managed(&self, driver: &Driver) -> Answer<&HashMap<String, Global>> {
        // One thread places them; the lock also keeps modules from loading meanwhile.
        let program = self.probe(driver).map_err(|refusal| refusal.code)?;
        let _placing = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(placed) = self.managed.get() {
            return Ok(placed);
        }
        let mut placed = HashMap::new();
        for (index, global) in
            program.globals().iter().enumerate().filter(|(_, global)| global.managed)
        {
            let size = global.size_bytes.max(1);
            let address = driver.space.allocate_host(size, AllocationKind::Managed, 0, 0)?;
            initialise(
                address,
                global.size_bytes,
                &program.initial_bytes(index).unwrap_or_default(),
            );
            let found = Global { address, size_bytes: global.size_bytes };
            placed.insert(global.name.clone(), found);
        }
        Ok(self.managed.get_or_init(|| placed))
    }

    /// The kernel of a name.
    pub(crate) fn kernel(&self, driver: &Driver, handle: usize, name: &str) -> Answer<Arc<Kernel>> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(name) {
            return Ok(kernel.clone());
        }
        let program = self.probe(driver).map_err(|refusal| refusal.code)?;
        if !program.kernel_names().iter().any(|known| known == name) {
            return Err(CUresult::ERROR_NOT_FOUND);
        }
        let kernel = Arc::new(Kernel {
            handle: CUkernel(fresh_handle()),
            library: handle,
            name: CString::new(name).map_err(|_| CUresult::ERROR_INVALID_VALUE)?,
            settings: Arc::default(),
        });
        kernels.insert(name.to_owned(), kernel.clone());
        driver.kernels.insert(kernel.handle.0, kernel.clone());
        Ok(kernel)
    }

    /// The executable kernel of a name, for questions without a context.
    pub(crate) fn probe_kernel(&self, driver: &Driver, name: &str) -> Answer<Arc<exec::Kernel>> {
        let program = self.probe(driver).map_err(|refusal| refusal.code)?;
        program.kernel(name).map_err(|error| kernel_code(driver, &error))
    }

    /// Unloads the library from every context.
    pub(crate) fn unload(&self, driver: &Driver) {
        for module in self.modules.lock().unwrap_or_else(PoisonError::into_inner).values() {
            if driver.modules.remove(module.handle.0).is_ok() {
                module.unload(driver);
            }
        }
        for kernel in self.kernels.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let _ = driver.kernels.remove(kernel.handle.0);
        }
        for global in self.managed.get().into_iter().flat_map(HashMap::values) {
            let _ = driver.space.free(global.address, |kind| kind == AllocationKind::Managed);
        }
    }
}

impl Kernel {
    /// The kernel's function in a context.
    pub(crate) fn function(&self, driver: &Driver, context: &Context) -> Answer<Arc<Function>> {
        let library = driver.libraries.get(self.library)?;
        library.module(driver, context)?.function(driver, self.name(), Some(self.settings.clone()))
    }
}

/// The function that a launch or question names: a `CUfunction`, or a `CUkernel` in the current
/// context.
pub(crate) fn resolve(
    driver: &Driver,
    context: &Context,
    handle: CUfunction,
) -> Answer<Arc<Function>> {
    if let Some(function) = driver.functions.find(handle.0) {
        return Ok(function);
    }
    driver.kernels.get(handle.0)?.function(driver, context)
}

fn kernel_code(driver: &Driver, error: &KernelError) -> CUresult {
    match error {
        KernelError::NotFound(_) => CUresult::ERROR_NOT_FOUND,
        KernelError::Unsupported { .. } | KernelError::Unbound(_) => {
            if driver.config.log >= crate::device::config::LogLevel::Error {
                crate::device::fault::write_line(&format!("softcuda: {error}"));
            }
            CUresult::ERROR_NOT_SUPPORTED
        }
    }
}

fn free_all(driver: &Driver, addresses: &[u64]) {
    for &address in addresses {
        let _ = driver.space.free(address, |_| true);
    }
}

/// Gives every variable an address and its initial contents. What it allocates goes into `owned`.
fn place_globals(
    driver: &Driver,
    context: &Context,
    program: &mut Program,
    shared: &HashMap<String, Global>,
    owned: &mut Vec<u64>,
) -> Answer<HashMap<String, Global>> {
    let mut placed = Vec::new();
    let mut total = 0u64;
    for global in program.globals() {
        let align = global.align_bytes.clamp(1, 512);
        let offset = total.next_multiple_of(align.max(8));
        if let Some(found) = shared.get(&global.name).filter(|_| global.managed) {
            placed.push(found.address);
        } else if global.managed {
            let size = global.size_bytes.max(1);
            let address = driver.space.allocate_host(
                size,
                AllocationKind::Managed,
                context.device,
                context.id,
            )?;
            owned.push(address);
            placed.push(address);
        } else {
            placed.push(offset);
            total = offset
                .checked_add(global.size_bytes.max(1))
                .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        }
    }
    if total > 0 {
        let account = &driver.device(context.device as i32)?.account;
        let base = driver.space.allocate(context.device, account, context.id, total)?;
        owned.push(base);
        for (address, global) in placed.iter_mut().zip(program.globals()) {
            if !global.managed {
                *address += base;
            }
        }
    }
    if !program.bind(&placed) {
        return Err(CUresult::ERROR_UNKNOWN);
    }
    let mut globals = HashMap::new();
    for (index, (global, &address)) in program.globals().iter().zip(&placed).enumerate() {
        if !(global.managed && shared.contains_key(&global.name)) {
            initialise(
                address,
                global.size_bytes,
                &program.initial_bytes(index).unwrap_or_default(),
            );
        }
        if matches!(global.space, GlobalSpace::Global | GlobalSpace::Const) {
            let found = Global { address, size_bytes: global.size_bytes };
            globals.insert(global.name.clone(), found);
        }
    }
    Ok(globals)
}

/// Fills a variable that was just placed: `bytes`, then zeros.
fn initialise(address: u64, size_bytes: u64, bytes: &[u8]) {
    let length = bytes.len().min(size_bytes as usize);
    // SAFETY: the variable's memory was allocated by the caller and nothing else uses it yet.
    unsafe {
        touch::fill(address, 0, 1, size_bytes as usize);
        touch::copy(bytes.as_ptr() as u64, address, length);
    }
}
