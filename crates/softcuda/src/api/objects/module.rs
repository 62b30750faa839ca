//! Modules and libraries: what their handles stand for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use cuda_abi::types::{CUmodule, CUresult};

use super::function::{Function, Kernel};
use crate::api::answer::Answer;
use crate::api::code::image::PtxTexts;
use crate::exec::Program;

/// A module-scope variable in a context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Global {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
}

/// A program loaded into a context.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) handle: CUmodule,
    pub(crate) context_id: u64,
    pub(crate) program: Program,
    pub(crate) globals: HashMap<String, Global>,
    /// Allocations that unloading frees.
    pub(crate) owned: Vec<u64>,
    pub(crate) functions: Mutex<HashMap<String, Arc<Function>>>,
}

/// A library: an image that is loaded into contexts as they need it.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) texts: PtxTexts,
    /// By the engine's context number.
    pub(crate) modules: Mutex<HashMap<u64, Arc<Module>>>,
    pub(crate) kernels: Mutex<HashMap<String, Arc<Kernel>>>,
    /// For questions that no context is needed for; its globals have no addresses.
    pub(crate) probe: OnceLock<Program>,
    /// `.managed` variables, which all contexts share; placed on first use.
    pub(crate) managed: OnceLock<HashMap<String, Global>>,
}

impl Module {
    pub(crate) fn kernel_names(&self) -> Vec<String> {
        self.program.kernel_names()
    }

    /// The variable of a name, or 500.
    pub(crate) fn global(&self, name: &str) -> Answer<Global> {
        self.globals.get(name).copied().ok_or(CUresult::ERROR_NOT_FOUND)
    }
}

impl Library {
    /// A library that is in no context yet.
    pub(crate) fn new(texts: PtxTexts) -> Self {
        Library {
            texts,
            modules: Mutex::default(),
            kernels: Mutex::default(),
            probe: OnceLock::new(),
            managed: OnceLock::new(),
        }
    }
}
