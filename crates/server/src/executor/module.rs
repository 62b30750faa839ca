//! A session's modules: images, functions, globals.
//!
//! An image is copied out of the client's region before the driver sees it: drivers read images without knowing their length, and
//! the client could change them meanwhile.

use super::charges::module_bytes;
use super::failure::{Failure, below};
use super::images::StoredImage;
use super::printing::can_print;
use super::recording::in_use;
use super::spares::{MAX_SPARE_BYTES, Origin};
use super::state::State;
use super::variables::{Values, Variables};
use crate::executor_link::CodeOptions;
use crate::policy::code_state::may_have_variables;
use crate::standing::Saved;
use cuda_abi::image::Image;
use cuda_abi::types::*;
use link::wire::command::{
    CACHE_CONFIG, FunctionAttribute, FunctionAttributes, FunctionAttributesReply, FunctionGet,
    FunctionGetReply, FunctionSetAttribute, GlobalGet, GlobalGetReply, MAX_FUNCTIONS,
    MAX_IMAGE_BYTES, MAX_MODULES, ModuleKernels, ModuleLoad, ModuleLoadReply, ModuleUnload,
    NamesReply, Parameter,
};
use link::wire::layout::CALL_REPLY_BYTES;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Parameters that a kernel can have at most: 32,764 bytes of single bytes would be more, but no answer could hold them.
const MAX_PARAMETERS: usize = 512;

/// Code that lives until neither a module nor a graph has it.
pub(super) type SharedLibrary = Arc<CUlibrary>;

/// One loaded module.
#[derive(Debug)]
struct Module {
    library: SharedLibrary,
    prints: bool,
    charged_bytes: u64,
    /// Ranges of its globals that the client has asked for.
    globals: Vec<(u64, u64)>,
    values: Values,
    /// For the next to load the same; `None` if that must not get this one.
    origin: Option<Origin>,
    /// What it was loaded from: others that load the same have the same file.
    image: Arc<StoredImage>,
}

impl Module {
    fn new(
        library: CUlibrary,
        origin: Option<Origin>,
        image: Arc<StoredImage>,
        variables: Variables,
        (prints, charged_bytes): (bool, u64),
    ) -> Self {
        let (library, values) = (Arc::new(library), Values::new(variables));
        Self { library, prints, charged_bytes, globals: Vec::new(), values, origin, image }
    }
}

/// A function that the client has asked for.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(super) handle: CUfunction,
    /// The same, for nodes of graphs that run in a partition.
    pub(super) kernel: CUkernel,
    pub(super) parameter_bytes: u32,
    /// Local memory per thread.
    pub(super) frame_bytes: u32,
    pub(super) name: Arc<str>,
    /// Its module uses device `printf`.
    pub(super) prints: bool,
    /// Its client has said that it may be run again.
    pub(super) repeatable: bool,
    pub(super) module: u32,
}

/// The modules and functions of one session.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    modules: HashMap<u32, Module>,
    functions: Vec<Option<Function>>,
    /// How many have variables.
    with_variables: usize,
    /// Code that was unloaded while kernels ran that may write to its variables.
    pub(super) leaving: Vec<(CUlibrary, Origin)>,
}

impl Modules {
    /// Whether some code has variables.
    pub(super) fn have_variables(&self) -> bool {
        self.with_variables > 0
    }

    /// A module's variables.
    pub(super) fn values(&mut self, number: u32) -> Option<&mut Values> {
        Some(&mut self.modules.get_mut(&number)?.values)
    }

    /// Modules whose variables may have changed.
    pub(super) fn changed(&self) -> Vec<u32> {
        let changed = self.modules.iter().filter(|(_, module)| module.values.changed);
        changed.map(|(&number, _)| number).collect()
    }

    /// The function of that number.
    pub(crate) fn function(&self, number: u32) -> Result<&Function, Failure> {
        below("function", number, MAX_FUNCTIONS)?;
        let function = self.functions.get(number as usize).and_then(Option::as_ref);
        function.ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    fn library(&self, number: u32) -> Result<CUlibrary, Failure> {
        below("module", number, MAX_MODULES)?;
        let module = self.modules.get(&number);
        module.map(|module| *module.library).ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    /// The code of a function, to be kept alive.
    pub(super) fn library_of(&self, function: &Function) -> Result<SharedLibrary, Failure> {
        let module = self.modules.get(&function.module);
        module
            .map(|module| Arc::clone(&module.library))
            .ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    /// What code was loaded from that its next owner may get.
    pub(super) fn origin_of(&mut self, number: u32) -> Option<&mut Origin> {
        self.modules.get_mut(&number)?.origin.as_mut()
    }

    /// Nobody else may get this code.
    pub(super) fn forget_origin(&mut self, number: u32) {
        if let Some(module) = self.modules.get_mut(&number) {
            module.origin = None;
        }
    }

    /// All libraries, which are forgotten here.
    pub(super) fn take_libraries(&mut self) -> Vec<(CUlibrary, Option<Origin>)> {
        self.functions.clear();
        self.modules.drain().map(|(_, module)| (*module.library, module.origin)).collect()
    }
}

/// What work may change variables.
#[derive(Clone, Copy, Debug)]
pub(super) enum Touch {
    /// A kernel: those of its own module.
    Function(u32),
    /// A copy: those whose addresses the client has.
    Known,
    /// A graph: all.
    All,
}

impl State {
    /// Before work that may change variables, or arrays through surfaces.
    pub(super) fn touch_variables(&mut self, touch: Touch) {
        if !matches!(touch, Touch::Known) {
            self.touch_surfaces();
        }
        if !self.modules.have_variables() {
            return;
        }
        let of = match touch {
            Touch::Function(number) => self.modules.function(number).ok().map(|it| it.module),
            Touch::Known | Touch::All => None,
        };
        let mut is_any = false;
        let mut mark = |module: &mut Module| {
            let are_any = module.values.are_any();
            module.values.changed |= are_any;
            is_any |= are_any;
        };
        let modules = &mut self.modules.modules;
        match (touch, of) {
            (Touch::Function(_), of) => {
                of.and_then(|of| modules.get_mut(&of)).into_iter().for_each(mark)
            }
            (Touch::Known, _) => {
                modules.values_mut().filter(|module| !module.globals.is_empty()).for_each(mark);
            }
            (Touch::All, _) => modules.values_mut().for_each(&mut mark),
        }
        if is_any {
            self.standing.note_variables(Saved::InPart);
        }
    }

    pub(super) fn module_load(&mut self, wanted: ModuleLoad) -> Result<(), Failure> {
        let ModuleLoad { module, address, size_bytes, .. } = wanted;
        if module >= MAX_MODULES || self.modules.modules.contains_key(&module) {
            return Err(Failure::Protocol(format!(
                "module {module} cannot be loaded: in use, or beyond {MAX_MODULES}"
            )));
        }
        let image = self.memory.read_region(address, size_bytes, MAX_IMAGE_BYTES)?;
        self.load_image(wanted, image, None)
    }

    /// Loads an image, which lies in a file already if it was loaded before.
    pub(super) fn load_image(
        &mut self,
        wanted: ModuleLoad,
        mut image: Vec<u8>,
        file: Option<OwnedFd>,
    ) -> Result<(), Failure> {
        let ModuleLoad { module, optimization_level, max_registers, log_bytes, .. } = wanted;
        let size_bytes = image.len() as u64;
        // PTX is text that ends with NUL; anything else is not longer than it says, which the check below sees to.
        image.resize(image.len() + 64, 0);
        check_image(&image[..size_bytes as usize])?;
        let charged_bytes = module_bytes(&image[..size_bytes as usize]);
        match self.records.replaying {
            // It had them before.
            true => self.handle.allowance.hold(charged_bytes),
            false => self.memory.charge(charged_bytes)?,
        }
        let exact = &image[..size_bytes as usize];
        let stored = match file {
            Some(file) => self.shared.images.adopt(exact, file),
            None => self.shared.images.store(exact),
        };
        let stored = stored.inspect_err(|_| self.memory.discharge(charged_bytes))?;
        let prints = can_print(&image[..size_bytes as usize]);
        let has_variables = may_have_variables(&image[..size_bytes as usize]);
        let is_plain = self.guard.is_off()
            && size_bytes <= MAX_SPARE_BYTES
            && !prints
            && !uses_heap(&image[..size_bytes as usize]);
        // By the next executor, which nobody asks for what the driver's compiler says.
        let ahead = CodeOptions { optimization_level, max_registers };
        let ahead = (is_plain && !has_variables).then_some(ahead);
        let may_be_spare = is_plain && log_bytes == 0;
        let mut origin = may_be_spare.then(|| {
            let exact = image[..size_bytes as usize].to_vec();
            Origin::new(exact, optimization_level, max_registers, charged_bytes)
        });
        if let Some((origin, library)) =
            origin.as_ref().and_then(|wanted| self.shared.spares.take(wanted))
        {
            let head = ModuleLoadReply { info_bytes: 0, error_bytes: 0 };
            self.reply.extend_from_slice(head.as_bytes());
            let variables = match has_variables {
                true => self.find_variables(library, &origin.image),
                false => Variables::None,
            };
            let origin = Some(origin);
            let made = Module::new(library, origin, stored, variables, (prints, charged_bytes));
            self.add_module(module, made, ahead);
            return Ok(());
        }
        let room =
            log_bytes.min((CALL_REPLY_BYTES - size_of::<ModuleLoadReply>()) as u32 / 2) as usize;
        let (mut info, mut errors) = (vec![0u8; room], vec![0u8; room]);
        let mut options = JitOptions::default();
        if room > 0 {
            options.push(CUjit_option::INFO_LOG_BUFFER, info.as_mut_ptr().cast());
            options
                .push(CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES, ptr::without_provenance_mut(room));
            options.push(CUjit_option::ERROR_LOG_BUFFER, errors.as_mut_ptr().cast());
            options
                .push(CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES, ptr::without_provenance_mut(room));
        }
        if optimization_level != u32::MAX {
            options.push(
                CUjit_option::OPTIMIZATION_LEVEL,
                ptr::without_provenance_mut(optimization_level as usize),
            );
        }
        if max_registers != 0 {
            options.push(
                CUjit_option::MAX_REGISTERS,
                ptr::without_provenance_mut(max_registers as usize),
            );
        }
        let mut library = CUlibrary::NULL;
        let guarded = self.guarded(&image[..size_bytes as usize]);
        let guarded = guarded.inspect_err(|_| self.memory.discharge(charged_bytes))?;
        if let Some(guarded) = &guarded {
            image = guarded.text.clone().into_bytes();
            image.resize(image.len() + 64, 0);
        }
        let code_bytes = image.len() - 64;
        let linked = self.link(&image[..code_bytes], &mut options);
        let loaded = linked.and_then(|linked| {
            let code = linked.as_deref().unwrap_or(&image);
            // SAFETY: the image is private, checked and padded; the logs outlive the call; `library` is written.
            self.check(unsafe {
                self.driver().cuLibraryLoadData(
                    &mut library,
                    code.as_ptr().cast(),
                    options.names.as_mut_ptr(),
                    options.values.as_mut_ptr(),
                    options.names.len() as u32,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    0,
                )
            })
        });
        // A library is compiled and loaded when it is first needed; its client wants to hear of errors now, and the logs
        // must not be written to once they are gone.
        let mut module_handle = CUmodule::NULL;
        let loaded = loaded.and_then(|()| {
            let compiled = self.quiet().and_then(|_quiet| {
                // SAFETY: a live library; the result is written.
                match unsafe { self.driver().cuLibraryGetModule(&mut module_handle, library) } {
                    CUresult::ERROR_NOT_SUPPORTED => Ok(()),
                    result => self.check(result),
                }
            });
            if compiled.is_err() {
                // SAFETY: a live library that nothing names.
                let _ = unsafe { self.driver().cuLibraryUnload(library) };
            }
            compiled
        });
        let (info, errors) = (until_nul(&info), until_nul(&errors));
        let head =
            ModuleLoadReply { info_bytes: info.len() as u32, error_bytes: errors.len() as u32 };
        self.reply.extend_from_slice(head.as_bytes());
        self.reply.extend_from_slice(info);
        self.reply.extend_from_slice(errors);
        loaded.inspect_err(|_| self.memory.discharge(charged_bytes))?;
        if let Some(guarded) = guarded {
            self.guard_module(module, library, guarded)?;
        }
        let mut variables = Variables::None;
        if has_variables {
            variables = self.find_variables(library, &image[..code_bytes]);
            origin = origin.and_then(|origin| self.with_initial(origin, library));
        }
        let made = Module::new(library, origin, stored, variables, (prints, charged_bytes));
        self.add_module(module, made, ahead);
        Ok(())
    }

    fn add_module(&mut self, number: u32, module: Module, ahead: Option<CodeOptions>) {
        self.keep_code(module.image.as_fd(), ahead);
        self.modules.with_variables += usize::from(module.values.are_any());
        self.modules.modules.insert(number, module);
    }

    pub(super) fn module_unload(&mut self, wanted: ModuleUnload) -> Result<(), Failure> {
        let number = wanted.module;
        below("module", number, MAX_MODULES)?;
        let module = self.modules.modules.remove(&number).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        self.memory.discharge(module.charged_bytes);
        self.modules.with_variables -= usize::from(module.values.are_any());
        self.forget_module_in_chains(number);
        self.forget_traced_functions();
        self.guard.forget(number);
        for function in &mut self.modules.functions {
            function.take_if(|function| function.module == number);
        }
        for (at, size_bytes) in module.globals {
            self.memory.addressable.remove(at, size_bytes);
        }
        self.unloaded_in_use = in_use(&module.library);
        // What a graph names goes with the last such graph.
        let Some(library) = Arc::into_inner(module.library) else { return Ok(()) };
        let unkept = self.give_up_code(library, module.origin);
        if unkept.is_empty() {
            return Ok(());
        }
        let _quiet = self.quiet()?;
        unkept.into_iter().try_for_each(|library| self.unload(library))
    }

    /// Unloads code that nothing names any more; in a quiet moment, as the driver waits for its kernels.
    pub(super) fn unload(&self, library: CUlibrary) -> Result<(), Failure> {
        // SAFETY: the caller's word.
        self.check(unsafe { self.driver().cuLibraryUnload(library) })
    }

    pub(super) fn function_get(&mut self, wanted: FunctionGet, rest: &[u8]) -> Result<(), Failure> {
        let FunctionGet { module, function, name_bytes, .. } = wanted;
        let name = name_in(rest, name_bytes)?;
        let library = self.modules.library(module)?;
        let prints = self.modules.modules.get(&module).is_some_and(|module| module.prints);
        let index = function as usize;
        if function >= MAX_FUNCTIONS
            || self.modules.functions.get(index).is_some_and(Option::is_some)
        {
            return Err(Failure::Protocol(format!(
                "function {function} is in use, or beyond {MAX_FUNCTIONS}"
            )));
        }
        let driver = self.driver();
        let origin = self.modules.modules.get(&module).and_then(|module| module.origin.as_ref());
        let known = origin.and_then(|origin| origin.function(&name));
        let (mut kernel, mut handle) = known.unwrap_or((CUkernel::NULL, CUfunction::NULL));
        if known.is_none() {
            // SAFETY: a live library; both results are written. Asking for the function loads it now rather than at its first launch.
            unsafe {
                self.check(driver.cuLibraryGetKernel(&mut kernel, library, name.as_ptr()))?;
                let _quiet = self.quiet()?;
                self.check(driver.cuKernelGetFunction(&mut handle, kernel))?;
            }
            let module = self.modules.modules.get_mut(&module);
            if let Some(origin) = module.and_then(|module| module.origin.as_mut()) {
                origin.note(name.clone(), kernel, handle);
            }
        }
        let parameters = self.parameters(kernel);
        let attributes = self.attributes(handle);
        self.charge_local(frame_bytes(&attributes).into())?;
        let parameter_bytes =
            parameters.iter().map(|parameter| parameter.offset + parameter.size_bytes).max();
        let head = FunctionGetReply {
            parameters: parameters.len() as u32,
            attributes: attributes.len() as u32,
            prints: u32::from(prints),
            reserved: 0,
        };
        self.reply.extend_from_slice(head.as_bytes());
        self.reply.extend_from_slice(parameters.as_bytes());
        self.reply.extend_from_slice(attributes.as_bytes());
        if self.modules.functions.len() <= index {
            self.modules.functions.resize(index + 1, None);
        }
        let name: Arc<str> = name.to_string_lossy().into();
        let repeatable = self.repeating.has(&name);
        let known = Function {
            handle,
            kernel,
            parameter_bytes: parameter_bytes.unwrap_or(0),
            frame_bytes: frame_bytes(&attributes),
            name,
            prints,
            repeatable,
            module,
        };
        self.modules.functions[index] = Some(known);
        Ok(())
    }

    fn parameters(&self, kernel: CUkernel) -> Vec<Parameter> {
        let mut parameters = Vec::new();
        while parameters.len() < MAX_PARAMETERS {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: a live kernel; both results are written.
            let result = unsafe {
                self.driver().cuKernelGetParamInfo(kernel, parameters.len(), &mut offset, &mut size)
            };
            if !result.is_success() {
                break;
            }
            parameters.push(Parameter { offset: offset as u32, size_bytes: size as u32 });
        }
        parameters
    }

    fn attributes(&self, function: CUfunction) -> Vec<FunctionAttribute> {
        let mut attributes = Vec::new();
        for number in 0..CUfunction_attribute::MAX.0 {
            let mut value = 0;
            // SAFETY: a live function; the result is written.
            let result = unsafe {
                self.driver().cuFuncGetAttribute(&mut value, CUfunction_attribute(number), function)
            };
            if result.is_success() {
                attributes.push(FunctionAttribute { attribute: number as i32, value });
            }
        }
        attributes
    }

    pub(super) fn function_attributes(
        &mut self,
        wanted: FunctionAttributes,
    ) -> Result<(), Failure> {
        let handle = self.modules.function(wanted.function)?.handle;
        let attributes = self.attributes(handle);
        let head = FunctionAttributesReply { attributes: attributes.len() as u32, reserved: 0 };
        self.reply.extend_from_slice(head.as_bytes());
        self.reply.extend_from_slice(attributes.as_bytes());
        Ok(())
    }

    pub(super) fn function_set_attribute(
        &mut self,
        wanted: FunctionSetAttribute,
    ) -> Result<(), Failure> {
        let FunctionSetAttribute { function, attribute, value, .. } = wanted;
        let Function { handle, kernel, .. } = *self.modules.function(function)?;
        self.note_setting(function, attribute);
        let (driver, device) = (self.driver(), self.context().device());
        if let Ok(attribute) = u32::try_from(attribute) {
            let attribute = CUfunction_attribute(attribute);
            // For nodes that run in a partition; what is wrong with it the function says, too.
            // SAFETY: a live kernel of this session.
            let _ = unsafe { driver.cuKernelSetAttribute(attribute, value, kernel, device) };
        }
        // SAFETY: a live function of this session.
        self.check(unsafe {
            match attribute {
                CACHE_CONFIG => driver.cuFuncSetCacheConfig(handle, CUfunc_cache(value as u32)),
                _ => {
                    driver.cuFuncSetAttribute(handle, CUfunction_attribute(attribute as u32), value)
                }
            }
        })
    }

    pub(super) fn global_get(&mut self, wanted: GlobalGet, rest: &[u8]) -> Result<(), Failure> {
        let name = name_in(rest, wanted.name_bytes)?;
        let library = self.modules.library(wanted.module)?;
        let (mut at, mut size) = (0, 0);
        let driver = self.driver();
        // SAFETY: a live library; both results are written.
        let managed =
            unsafe { driver.cuLibraryGetManaged(&mut at, &mut size, library, name.as_ptr()) };
        if !managed.is_success() {
            // SAFETY: as above.
            self.check(unsafe {
                driver.cuLibraryGetGlobal(&mut at, &mut size, library, name.as_ptr())
            })?;
        }
        let range = (at, size as u64);
        if let Some(module) = self.modules.modules.get_mut(&wanted.module)
            && !module.globals.contains(&range)
            && self.memory.addressable.insert(range.0, range.1)
        {
            module.globals.push(range);
        }
        let reply = GlobalGetReply {
            address: at,
            size_bytes: size as u64,
            managed: managed.is_success().into(),
            reserved: 0,
        };
        self.reply.extend_from_slice(reply.as_bytes());
        Ok(())
    }

    pub(super) fn module_kernels(&mut self, wanted: ModuleKernels) -> Result<(), Failure> {
        let library = self.modules.library(wanted.module)?;
        let driver = self.driver();
        let mut count = 0;
        // SAFETY: a live library; the result is written.
        self.check(unsafe { driver.cuLibraryGetKernelCount(&mut count, library) })?;
        let mut kernels = vec![CUkernel::NULL; count as usize];
        // SAFETY: room for as many as are asked for.
        self.check(unsafe {
            driver.cuLibraryEnumerateKernels(kernels.as_mut_ptr(), count, library)
        })?;
        let mut names = Vec::new();
        for kernel in kernels {
            let mut name = ptr::null();
            // SAFETY: a live kernel; the result is written, and lives as long as the library.
            self.check(unsafe { driver.cuKernelGetName(&mut name, kernel) })?;
            if name.is_null() {
                return Err(Failure::Cuda(CUresult::ERROR_UNKNOWN));
            }
            // SAFETY: a NUL-terminated string, by the driver's word.
            names.extend_from_slice(unsafe { CStr::from_ptr(name) }.to_bytes_with_nul());
        }
        if names.len() + size_of::<NamesReply>() > CALL_REPLY_BYTES {
            return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED));
        }
        self.reply.extend_from_slice(
            NamesReply { names: count, size_bytes: names.len() as u32 }.as_bytes(),
        );
        self.reply.extend_from_slice(&names);
        Ok(())
    }
}

/// Local memory per thread, as a function's attributes say.
fn frame_bytes(attributes: &[FunctionAttribute]) -> u32 {
    let local = CUfunction_attribute::LOCAL_SIZE_BYTES.0 as i32;
    let found = attributes.iter().find(|known| known.attribute == local);
    found.map_or(0, |known| known.value.max(0).cast_unsigned())
}

#[derive(Default)]
pub(super) struct JitOptions {
    pub(super) names: Vec<CUjit_option>,
    pub(super) values: Vec<*mut c_void>,
}

impl JitOptions {
    fn push(&mut self, name: CUjit_option, value: *mut c_void) {
        self.names.push(name);
        self.values.push(value);
    }
}

/// Whether kernels of this code can allocate memory: what they leave behind is the context's.
fn uses_heap(image: &[u8]) -> bool {
    const ALLOCATE: &[u8] = b"malloc";
    image.windows(ALLOCATE.len()).any(|window| window == ALLOCATE)
}

/// Refuses images that say they are longer than what was sent: drivers believe what an image says.
fn check_image(image: &[u8]) -> Result<(), Failure> {
    Image::parse(image).map(drop).map_err(|error| Failure::Cuda(error.result()))
}

fn until_nul(log: &[u8]) -> &[u8] {
    log.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn name_in(rest: &[u8], name_bytes: u32) -> Result<CString, Failure> {
    let name = rest.get(..name_bytes as usize);
    let name = name
        .ok_or_else(|| Failure::Protocol(format!("a name of {name_bytes} bytes is not there")))?;
    CString::new(name).map_err(|_| Failure::Cuda(CUresult::ERROR_INVALID_VALUE))
}
