//! Loading a module's image, and unloading it.
//!
//! An image is copied out of the client's region before the driver sees it: drivers read images
//! without knowing their length, and the client could change them meanwhile.

use super::{Module, Modules, Traits};
use crate::code::jit_options::JitOptions;
use crate::code::spares::{MAX_SPARE_BYTES, Origin};
use crate::code::variables::Variables;
use crate::objects::printing::can_print;
use crate::recovery::recording::in_use;
use crate::session::charges::module_bytes;
use crate::session::failure::{Failure, below};
use crate::session::state::State;
use cuda_abi::image::Image;
use cuda_abi::types::*;
use executor_link::messages::CodeOptions;
use link::wire::command::{
    MAX_IMAGE_BYTES, MAX_MODULES, ModuleLoad, ModuleLoadReply, ModuleUnload,
};
use policy::faults::code_state::may_have_variables;
use policy::faults::storable_addresses::StorableAddresses;
use rustix::fd::{AsFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// Zeros behind an image that the driver gets: PTX is text that ends with NUL, and anything else is
/// no longer than it says, which is checked.
const PADDING_BYTES: usize = 64;
/// Images from this length on are loaded one at a time for each owner, as a load takes several
/// times their length of memory.
const LARGE_IMAGE_BYTES: u64 = 16 << 20;
/// Code of so much is not waited for when it is unloaded; it counts for nobody until it has gone.
const MOST_UNCHARGED_BYTES: u64 = 1 << 20;
/// Between two looks at whether a load has ended.
const TURN_POLL: Duration = Duration::from_millis(2);

impl State {
    pub(crate) fn module_load(&mut self, wanted: ModuleLoad) -> Result<(), Failure> {
        let ModuleLoad { module, address, size_bytes, .. } = wanted;
        if module >= MAX_MODULES || self.modules.modules.contains_key(&module) {
            return Err(Failure::Protocol(format!(
                "module {module} cannot be loaded: in use, or beyond {MAX_MODULES}"
            )));
        }
        let is_large = size_bytes >= LARGE_IMAGE_BYTES;
        let turn = is_large.then(|| self.shared.budgets.loading_turn(self.memory.owner()));
        let _turn = turn.as_deref().map(|turn| self.await_loading_turn(turn)).transpose()?;
        // For the copy that the driver gets; the one in a file is counted when it is made.
        let counted = self.shared.budgets.take_image(self.memory.owner(), size_bytes);
        let _counted = counted.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let image = self.memory.read_region(address, size_bytes, MAX_IMAGE_BYTES)?;
        self.load_image(wanted, image, None)
    }

    /// Waits for the end of another load of the same owner's.
    fn await_loading_turn<'a>(&self, turn: &'a Mutex<()>) -> Result<MutexGuard<'a, ()>, Failure> {
        loop {
            match turn.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(turn)) => return Ok(turn.into_inner()),
                Err(TryLockError::WouldBlock) if self.handle.gives_up() => {
                    return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(TURN_POLL),
            }
        }
    }

    /// Loads an image, which lies in a file already if it was loaded before.
    pub(crate) fn load_image(
        &mut self,
        wanted: ModuleLoad,
        image: Vec<u8>,
        file: Option<OwnedFd>,
    ) -> Result<(), Failure> {
        let ModuleLoad { module, optimization_level, max_registers, log_bytes, .. } = wanted;
        check_image(&image)?;
        let charged_bytes = module_bytes(&image);
        match self.records.replaying {
            // It had them before.
            true => self.handle.allowance.hold(charged_bytes),
            false => self.memory.charge(charged_bytes)?,
        }
        let stored = match file {
            Some(file) => self.shared.images.adopt(&image, file, self.memory.holding()),
            None => self.shared.images.store(&image, self.memory.holding()),
        };
        let stored = stored.inspect_err(|_| self.memory.discharge(charged_bytes))?;
        let traits = Traits {
            prints: can_print(&image),
            uses_heap: uses_heap(&image),
            charged_bytes,
            storable: StorableAddresses::of(&image),
            // In the executor before, perhaps.
            has_run: self.records.replaying,
        };
        self.modules.may_use_heap |= traits.uses_heap;
        let has_variables = may_have_variables(&image);
        let is_plain = self.guard.is_off()
            && image.len() as u64 <= MAX_SPARE_BYTES
            && !traits.prints
            && !traits.uses_heap;
        // By the next executor, which nobody asks for what the driver's compiler says.
        let ahead = CodeOptions { optimization_level, max_registers };
        let ahead = (is_plain && !has_variables).then_some(ahead);
        let may_be_spare = is_plain && log_bytes == 0;
        let mut origin = may_be_spare
            .then(|| Origin::new(image.clone(), optimization_level, max_registers, charged_bytes));
        if let Some((origin, library)) =
            origin.as_ref().and_then(|wanted| self.shared.spares.take(wanted))
        {
            let head = ModuleLoadReply { info_bytes: 0, error_bytes: 0 };
            self.answer(&head)?;
            let variables = match has_variables {
                true => self.find_variables(library, &origin.image),
                false => Variables::None,
            };
            let origin = Some(origin);
            let made = Module::new(library, origin, stored, variables, traits);
            self.add_module(module, made, ahead);
            return Ok(());
        }
        let guarded = self.guarded(&image);
        let mut guarded = guarded.inspect_err(|_| self.memory.discharge(charged_bytes))?;
        let mut code = match &mut guarded {
            Some(guarded) => std::mem::take(&mut guarded.text).into_bytes(),
            None => image,
        };
        let code_bytes = code.len();
        code.resize(code_bytes + PADDING_BYTES, 0);
        let mut options = JitOptions::new(&wanted);
        let loaded = self.load_library(&code, &mut options);
        let [info, errors] = options.logs();
        let head =
            ModuleLoadReply { info_bytes: info.len() as u32, error_bytes: errors.len() as u32 };
        self.answer(&head)?;
        self.reply.extend_from_slice(info);
        self.reply.extend_from_slice(errors);
        let library = loaded.inspect_err(|_| self.memory.discharge(charged_bytes))?;
        if let Some(guarded) = guarded {
            let noted = self.guard_module(module, library, guarded);
            noted.inspect_err(|_| {
                // Nothing names it: the session's end would leave it loaded.
                self.unload_later(library);
                self.memory.discharge(charged_bytes);
            })?;
        }
        let mut variables = Variables::None;
        if has_variables {
            variables = self.find_variables(library, &code[..code_bytes]);
            origin = origin.and_then(|origin| self.with_initial(origin, library));
        }
        let made = Module::new(library, origin, stored, variables, traits);
        self.add_module(module, made, ahead);
        Ok(())
    }

    /// Has the driver load code, which is private, checked and padded.
    fn load_library(
        &mut self,
        padded: &[u8],
        options: &mut JitOptions,
    ) -> Result<CUlibrary, Failure> {
        let linked = self.link(&padded[..padded.len() - PADDING_BYTES], options)?;
        let code = linked.as_deref().unwrap_or(padded);
        let mut library = CUlibrary::NULL;
        // SAFETY: the image is private, checked and padded; the logs outlive the call; `library` is
        // written.
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
        })?;
        // A library is compiled and loaded when it is first needed; its client wants to hear of
        // errors now, and the logs must not be written to once they are gone.
        let mut module = CUmodule::NULL;
        let compiled = self.quiet().and_then(|_quiet| {
            // SAFETY: a live library; the result is written.
            match unsafe { self.driver().cuLibraryGetModule(&mut module, library) } {
                CUresult::ERROR_NOT_SUPPORTED => Ok(()),
                result => self.check(result),
            }
        });
        if compiled.is_err() {
            let _ = self.abandon_code(library);
        }
        compiled.map(|()| library)
    }

    fn add_module(&mut self, number: u32, module: Module, ahead: Option<CodeOptions>) {
        self.keep_code(module.image.as_fd(), ahead);
        self.modules.with_variables += usize::from(module.has_state());
        self.modules.modules.insert(number, module);
    }

    pub(crate) fn module_unload(&mut self, wanted: ModuleUnload) -> Result<(), Failure> {
        let number = wanted.module;
        below("module", number, MAX_MODULES)?;
        let module = self.modules.modules.remove(&number).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        self.memory.discharge(module.charged_bytes);
        self.modules.with_variables -= usize::from(module.has_state());
        self.forget_module_in_chains(number);
        self.forget_traced_functions();
        self.guard.forget(number);
        let Modules { functions, live_functions, .. } = &mut self.modules;
        for function in functions {
            let gone = function.take_if(|function| function.module == number);
            *live_functions -= usize::from(gone.is_some());
        }
        self.modules.asked.retain(|asked| *asked != number);
        self.forget_addresses(&module.asked_for);
        self.unloaded_in_use = in_use(&module.library);
        // What a graph names goes with the last such graph.
        let Some(library) = Arc::into_inner(module.library) else { return Ok(()) };
        let unkept = self.give_up_code(library, module.origin);
        let is_small = module.charged_bytes <= MOST_UNCHARGED_BYTES;
        let unkept = unkept.into_iter().filter(|library| !is_small || !self.leave_code(*library));
        let unkept: Vec<CUlibrary> = unkept.collect();
        if unkept.is_empty() {
            return Ok(());
        }
        let _quiet = self.quiet_here()?;
        unkept.into_iter().try_for_each(|library| self.unload(library))
    }

    /// Unloads code that nothing names any more; in a quiet moment, as the driver waits for its
    /// kernels.
    pub(crate) fn unload(&self, library: CUlibrary) -> Result<(), Failure> {
        // SAFETY: the caller's word.
        self.check(unsafe { self.driver().cuLibraryUnload(library) })
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
