//! A loaded PTX program: its globals, to be placed by the device, and its kernels, lowered when
//! looked up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::global::{GlobalSymbol, RelocationTarget};
use super::kernel::{Kernel, KernelError};
use super::prepare::{Source, prepare};
use super::simd::SimdLevel;
use super::symbols::{FunctionSource, SymbolError, Symbols};
use crate::ptx::{FunctionKind, Module};

/// What loading needs to know about the device.
#[derive(Clone, Debug)]
pub struct LoadEnv {
    /// Compute capability (major, minor) of the device, e.g. (12, 0); a `.target` above it is
    /// refused.
    pub compute_capability: (u32, u32),
    /// The best instruction set to use; a lower one for tests.
    pub simd: SimdLevel,
}

impl Default for LoadEnv {
    fn default() -> Self {
        Self { compute_capability: (12, 0), simd: SimdLevel::detect() }
    }
}

/// Why a program cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The text is no valid PTX.
    #[error("invalid ptx: {0}")]
    Parse(#[from] crate::ptx::ParseError),
    /// `.target` asks for more than the device has.
    #[error("ptx target sm_{target} is newer than the device (sm_{device})")]
    Target {
        /// `.target` number, e.g. 90.
        target: u32,
        /// The device's number, e.g. 86.
        device: u32,
    },
    /// `.address_size 32`
    #[error("ptx has {0}-bit addresses; only 64-bit ones are supported")]
    AddressSize(u32),
    /// A name has two definitions, or an external one none.
    #[error(transparent)]
    Symbol(#[from] SymbolError),
}

/// A loaded program.
#[derive(Debug)]
pub struct Program {
    texts: Vec<String>,
    versions: Vec<(u32, u32)>,
    symbols: Symbols,
    addresses: Option<Vec<u64>>,
    level: SimdLevel,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

impl Program {
    /// Parses and checks one PTX text (trailing NULs allowed). Kernels are lowered when they are
    /// looked up.
    ///
    /// # Errors
    /// The text is no PTX, is for a newer device, or has inconsistent symbols.
    pub fn load(text: &str, env: &LoadEnv) -> Result<Self, LoadError> {
        Self::link(&[text], env)
    }

    /// Loads several PTX texts as one program: `.extern` symbols of one are found in the others.
    ///
    /// # Errors
    /// As [`load`](Self::load), and a symbol defined by two of them.
    pub fn link(texts: &[&str], env: &LoadEnv) -> Result<Self, LoadError> {
        let mut symbols = Symbols::default();
        let mut versions = Vec::new();
        for text in texts {
            let module = Module::parse_outline(text)?;
            let (major, minor) = env.compute_capability;
            let device = major.saturating_mul(10).saturating_add(minor);
            if module.target > device {
                return Err(LoadError::Target { target: module.target, device });
            }
            if module.address_size != 64 {
                return Err(LoadError::AddressSize(module.address_size));
            }
            let version = module.version.0.saturating_mul(10).saturating_add(module.version.1);
            versions.push((version, module.target));
            symbols.add(&module)?;
        }
        Ok(Self {
            texts: texts.iter().map(|&text| text.to_owned()).collect(),
            versions,
            symbols,
            addresses: None,
            level: env.simd.min_available(),
            kernels: Mutex::default(),
        })
    }

    /// Module-scope variables, in a fixed order.
    pub fn globals(&self) -> &[GlobalSymbol] {
        &self.symbols.globals
    }

    /// Gives every global (same order as [`globals`](Self::globals)) its device address. Once,
    /// before the first [`kernel`](Self::kernel). A list of the wrong length is refused as `false`.
    pub fn bind(&mut self, addresses: &[u64]) -> bool {
        if addresses.len() != self.symbols.globals.len() {
            return false;
        }
        self.addresses = Some(addresses.to_vec());
        true
    }

    /// Initial bytes of global `index` with addresses filled in (after [`bind`](Self::bind));
    /// exactly `size_bytes` long. `None` for a wrong index or a size that does not fit memory.
    pub fn initial_bytes(&self, index: usize) -> Option<Vec<u8>> {
        let global = self.symbols.globals.get(index)?;
        let mut bytes = global.initial.clone();
        bytes.resize(usize::try_from(global.size_bytes).ok()?, 0);
        for relocation in &global.relocations {
            let address = match relocation.target {
                RelocationTarget::Global(target) => {
                    self.addresses.as_ref()?.get(target).copied()?
                }
                RelocationTarget::Function(address) => address,
            };
            let value = address.wrapping_add_signed(relocation.addend) >> relocation.shift_bits;
            let width = usize::from(relocation.width_bytes.min(8));
            let at = relocation.offset_bytes as usize;
            bytes.get_mut(at..at + width)?.copy_from_slice(&value.to_le_bytes()[..width]);
        }
        Some(bytes)
    }

    /// Names of all entries, in the text's order.
    pub fn kernel_names(&self) -> Vec<String> {
        let entries = self.symbols.functions.iter().filter(|f| f.kind == FunctionKind::Entry);
        entries.map(|f| f.name.clone()).collect()
    }

    /// The kernel `name`, lowered on first use and kept. Thread-safe.
    ///
    /// # Errors
    /// There is no such entry, it cannot be executed, or the globals have no addresses yet.
    pub fn kernel(&self, name: &str) -> Result<Arc<Kernel>, KernelError> {
        if let Some(kernel) = self.lock().get(name) {
            return Ok(Arc::clone(kernel));
        }
        let entry = |f: &FunctionSource| f.kind == FunctionKind::Entry && f.name == name;
        let Some(number) = self.symbols.functions.iter().position(entry) else {
            return Err(KernelError::NotFound(name.to_owned()));
        };
        let addresses = match &self.addresses {
            Some(addresses) => addresses.as_slice(),
            None if self.symbols.globals.is_empty() => &[],
            None => return Err(KernelError::Unbound(name.to_owned())),
        };
        let source = Source {
            texts: &self.texts,
            symbols: &self.symbols,
            addresses,
            level: self.level,
            versions: &self.versions,
        };
        let kernel = Arc::new(prepare(&source, number)?);
        Ok(Arc::clone(self.lock().entry(name.to_owned()).or_insert(kernel)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Kernel>>> {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
