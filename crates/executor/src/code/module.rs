//! A session's modules and functions, and what the client asks of modules.

mod asking;
mod commands;
mod functions;
mod keeping;
mod loading;

pub(crate) use asking::GIVEN;

use asking::AskedFor;

use super::images::StoredImage;
use super::spares::Origin;
use super::variables::{Values, Variables};
use crate::session::failure::{Failure, below};
use cuda_abi::types::*;
use link::wire::command::{MAX_FUNCTIONS, MAX_MODULES};
use policy::faults::storable_addresses::StorableAddresses;
use std::collections::HashMap;
use std::sync::Arc;

/// Code that lives until neither a module nor a graph has it.
pub(crate) type SharedLibrary = Arc<CUlibrary>;

/// One loaded module.
#[derive(Debug)]
struct Module {
    library: SharedLibrary,
    prints: bool,
    charged_bytes: u64,
    /// Variables of which the client has the addresses.
    asked_for: Vec<AskedFor>,
    values: Values,
    /// What its kernels could store in memory.
    storable: StorableAddresses,
    /// Kernels of it were launched, or may have been.
    has_run: bool,
    /// For the next to load the same; `None` if that must not get this one.
    origin: Option<Origin>,
    /// What it was loaded from: others that load the same have the same file.
    image: Arc<StoredImage>,
}

/// What is known of code by its image.
#[derive(Debug)]
struct Traits {
    prints: bool,
    uses_heap: bool,
    charged_bytes: u64,
    storable: StorableAddresses,
    has_run: bool,
}

impl Module {
    fn new(
        library: CUlibrary,
        origin: Option<Origin>,
        image: Arc<StoredImage>,
        variables: Variables,
        Traits { prints, charged_bytes, storable, has_run, .. }: Traits,
    ) -> Self {
        Self {
            library: Arc::new(library),
            prints,
            charged_bytes,
            asked_for: Vec::new(),
            values: Values::new(variables),
            storable,
            has_run,
            origin,
            image,
        }
    }

    /// Whether something is to be done about variables when its kernels run.
    fn has_state(&self) -> bool {
        self.values.are_any() || self.storable.are_any()
    }
}

/// A function that the client has asked for.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) handle: CUfunction,
    /// The same, for nodes of graphs that run in a partition.
    pub(crate) kernel: CUkernel,
    pub(crate) parameter_bytes: u32,
    /// Local memory per thread.
    pub(crate) frame_bytes: u32,
    pub(crate) name: Arc<str>,
    /// Its module uses device `printf`.
    pub(crate) prints: bool,
    /// Its client has said that it may be run again.
    pub(crate) repeatable: bool,
    /// What its client set as the most dynamic shared memory; the driver may allow more.
    pub(crate) allowed_shared_bytes: Option<i32>,
    pub(crate) module: u32,
}

/// The modules and functions of one session.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    modules: HashMap<u32, Module>,
    functions: Vec<Option<Function>>,
    /// How many of them there are.
    live_functions: usize,
    /// How many have variables, or addresses that kernels could store.
    with_variables: usize,
    /// Those of which the client has variables' addresses.
    asked: Vec<u32>,
    /// Some code could allocate memory of the device's heap, whether it is still there or not.
    pub(crate) may_use_heap: bool,
    /// Where the client was told that the variable is which is to be found again next.
    pub(crate) told_before: Option<u64>,
    /// Code that was unloaded while kernels ran that may write to its variables.
    pub(crate) leaving: Vec<(CUlibrary, Origin)>,
}

impl Modules {
    /// Whether some code has variables, or addresses that kernels could store.
    pub(crate) fn have_variables(&self) -> bool {
        self.with_variables > 0
    }

    /// A module's variables.
    pub(crate) fn values(&mut self, number: u32) -> Option<&mut Values> {
        Some(&mut self.modules.get_mut(&number)?.values)
    }

    /// Modules whose variables may have changed.
    pub(crate) fn changed(&self) -> Vec<u32> {
        let changed = self.modules.iter().filter(|(_, module)| module.values.changed);
        changed.map(|(&number, _)| number).collect()
    }

    /// The function of that number.
    pub(crate) fn function(&self, number: u32) -> Result<&Function, Failure> {
        below("function", number, MAX_FUNCTIONS)?;
        let function = self.functions.get(number as usize).and_then(Option::as_ref);
        function.ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    /// The client has set how much dynamic shared memory a function's blocks may have.
    fn allow_shared(&mut self, number: u32, size_bytes: i32) -> Result<(), Failure> {
        let function = self.functions.get_mut(number as usize).and_then(Option::as_mut);
        let function = function.ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))?;
        function.allowed_shared_bytes = Some(size_bytes);
        Ok(())
    }

    fn library(&self, number: u32) -> Result<CUlibrary, Failure> {
        below("module", number, MAX_MODULES)?;
        let module = self.modules.get(&number);
        module.map(|module| *module.library).ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    /// The code of a function, to be kept alive.
    pub(crate) fn library_of(&self, function: &Function) -> Result<SharedLibrary, Failure> {
        let module = self.modules.get(&function.module);
        module
            .map(|module| Arc::clone(&module.library))
            .ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    /// What a module was loaded from.
    pub(crate) fn image(&self, number: u32) -> Option<&StoredImage> {
        Some(&self.modules.get(&number)?.image)
    }

    /// All functions, by their modules and names.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (u32, &str)> {
        self.functions.iter().flatten().map(|function| (function.module, &*function.name))
    }

    /// What code was loaded from that its next owner may get.
    pub(crate) fn origin_of(&mut self, number: u32) -> Option<&mut Origin> {
        self.modules.get_mut(&number)?.origin.as_mut()
    }

    /// Nobody else may get this code.
    pub(crate) fn forget_origin(&mut self, number: u32) {
        if let Some(module) = self.modules.get_mut(&number) {
            module.origin = None;
        }
    }

    /// All libraries, which are forgotten here.
    pub(crate) fn take_libraries(&mut self) -> Vec<(CUlibrary, Option<Origin>)> {
        self.functions.clear();
        self.live_functions = 0;
        self.asked.clear();
        self.modules.drain().map(|(_, module)| (*module.library, module.origin)).collect()
    }
}

/// What kernels may change variables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Touch {
    /// One: those of its own module, and those whose addresses the client has.
    Function(u32),
    /// Those of a graph: all.
    All,
}
