//! Libraries: code that is loaded into a context when it is first needed there.
//!
//! A kernel of a library stands for one function in every context; launches accept it like a
//! function.

use crate::code::function::Function;
use crate::code::module::Module;
use crate::code::names::Names;
use crate::context::Context;
use cuda_abi::image::Code;
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// See the module's description.
pub(crate) struct Library {
    pub(crate) token: usize,
    /// The code for each device, by ordinal.
    pub(super) codes: Vec<Arc<Code<'static>>>,
    pub(super) options: Options,
    pub(super) modules: Mutex<Vec<Loaded>>,
    pub(super) kernels: Names<Arc<Kernel>>,
}

/// What of a library's JIT options matters later; its logs are for the first load, which comes
/// after the call that brought them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) optimization_level: u32,
    pub(super) max_registers: u32,
}

/// Its module in a context.
pub(super) struct Loaded {
    pub(super) context: usize,
    pub(super) wire_id: u32,
    pub(super) module: Arc<Module>,
}

/// A kernel of a library.
pub(crate) struct Kernel {
    pub(crate) token: usize,
    /// Handle of its library.
    pub(crate) library: usize,
    pub(crate) name: CString,
    /// In the context where it was first needed; mostly there is no other.
    pub(super) first: OnceLock<InContext>,
    /// In others.
    pub(super) functions: RwLock<Vec<InContext>>,
}

/// A kernel's function in a context.
pub(super) struct InContext {
    pub(super) context: usize,
    pub(super) wire_id: u32,
    pub(super) function: Arc<Function>,
}

impl InContext {
    /// Whether it is this one, in its present life.
    pub(super) fn is(&self, context: &Context) -> bool {
        self.context == context.token && self.wire_id == context.wire_id()
    }
}
