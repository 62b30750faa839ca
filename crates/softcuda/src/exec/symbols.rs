//! Module-scope symbols of a program made of one or more PTX texts.

use std::collections::HashMap;

use super::global::{GlobalLinkage, GlobalSpace, GlobalSymbol, Relocation, RelocationTarget};
use super::lower::{ModuleSymbol, Scope, register_params};
use super::window::{CODE_STEP, CODE_WINDOW};
use crate::ptx::{FunctionKind, Init, Linkage, Module, Space, Type, Variable};

/// A name has two definitions, or an external one none.
#[derive(Debug, thiserror::Error)]
#[error("symbol {name}: {problem}")]
pub struct SymbolError {
    /// Symbol name.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
}

/// A function of the program: where its text is.
#[derive(Debug, Clone)]
pub(super) struct FunctionSource {
    pub(super) name: String,
    pub(super) kind: FunctionKind,
    /// Which text.
    pub(super) module: usize,
    /// Bytes of the text and the line where they start.
    pub(super) span: std::ops::Range<usize>,
    pub(super) line: u32,
    /// Types of its parameters, if any of them is a register.
    register_params: Box<[Type]>,
}

/// What a name of one module means.
#[derive(Debug, Clone)]
enum Meaning {
    Global(usize),
    Shared { size: u64, align: u64 },
    DynamicShared,
    Function(usize),
    External,
}

/// The symbols of all modules of a program.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    pub(super) globals: Vec<GlobalSymbol>,
    pub(super) functions: Vec<FunctionSource>,
    /// Names per module; those of other modules are in `shared_names`.
    names: Vec<HashMap<String, Meaning>>,
    /// Visible definitions of all modules.
    shared_names: HashMap<String, Meaning>,
}

fn duplicate(name: &str) -> SymbolError {
    SymbolError { name: name.to_owned(), problem: "it is defined twice".to_owned() }
}

impl Symbols {
    /// Adds the declarations and definitions of a module.
    pub(super) fn add(&mut self, module: &Module<'_>) -> Result<(), SymbolError> {
        let number = self.names.len();
        self.names.push(HashMap::new());
        for variable in &module.variables {
            let meaning = self.variable(variable)?;
            self.define(number, variable.name, variable.linkage, meaning)?;
        }
        for function in &module.functions {
            let meaning = if function.body.is_some() {
                self.functions.push(FunctionSource {
                    name: function.name.to_owned(),
                    kind: function.kind,
                    module: number,
                    span: function.span.clone(),
                    line: function.line,
                    register_params: register_params(&function.params),
                });
                Meaning::Function(self.functions.len() - 1)
            } else {
                Meaning::External
            };
            self.define(number, function.name, function.linkage, meaning)?;
        }
        for &(alias, target) in &module.aliases {
            let Some(meaning) = self.names[number].get(target).cloned() else {
                return Err(SymbolError {
                    name: target.to_owned(),
                    problem: "it is not defined".to_owned(),
                });
            };
            self.names[number].insert(alias.to_owned(), meaning);
        }
        for variable in &module.variables {
            self.initialise(number, variable)?;
        }
        Ok(())
    }

    fn variable(&mut self, variable: &Variable<'_>) -> Result<Meaning, SymbolError> {
        let (size, align) = (variable.size_bytes(), variable.align_bytes());
        let unsized_array = variable.dims.first() == Some(&0);
        Ok(match variable.space {
            Space::Shared if unsized_array => Meaning::DynamicShared,
            Space::Shared => Meaning::Shared { size, align },
            _ if variable.linkage == Linkage::Extern => Meaning::External,
            _ => {
                let space = match (variable.ty, variable.space) {
                    (Type::TexRef, _) => GlobalSpace::TextureReference,
                    (Type::SurfRef, _) => GlobalSpace::SurfaceReference,
                    (Type::SamplerRef, _) => GlobalSpace::SamplerReference,
                    (_, Space::Const) => GlobalSpace::Const,
                    _ => GlobalSpace::Global,
                };
                self.globals.push(GlobalSymbol {
                    name: variable.name.to_owned(),
                    space,
                    linkage: match variable.linkage {
                        Linkage::Visible => GlobalLinkage::Visible,
                        Linkage::Weak | Linkage::Common => GlobalLinkage::Weak,
                        Linkage::Extern => GlobalLinkage::Extern,
                        Linkage::Local => GlobalLinkage::Local,
                    },
                    size_bytes: size,
                    align_bytes: align,
                    managed: variable.managed,
                    initial: Vec::new(),
                    relocations: Vec::new(),
                });
                Meaning::Global(self.globals.len() - 1)
            }
        })
    }

    fn define(
        &mut self,
        module: usize,
        name: &str,
        linkage: Linkage,
        meaning: Meaning,
    ) -> Result<(), SymbolError> {
        let external = matches!(meaning, Meaning::External);
        match self.names[module].get(name) {
            None | Some(Meaning::External) => {
                self.names[module].insert(name.to_owned(), meaning.clone());
            }
            // A repeated declaration.
            Some(_) if external => return Ok(()),
            Some(_) => return Err(duplicate(name)),
        }
        if external
            || linkage == Linkage::Local
            || matches!(meaning, Meaning::Shared { .. } | Meaning::DynamicShared)
        {
            return Ok(());
        }
        match self.shared_names.get(name) {
            None => {
                self.shared_names.insert(name.to_owned(), meaning);
                Ok(())
            }
            // Of several weak definitions the first stays.
            Some(first) if matches!(linkage, Linkage::Weak | Linkage::Common) => {
                let first = first.clone();
                self.names[module].insert(name.to_owned(), first);
                Ok(())
            }
            Some(_) => Err(duplicate(name)),
        }
    }

    fn meaning(&self, module: usize, name: &str) -> Option<&Meaning> {
        match self.names.get(module)?.get(name) {
            Some(Meaning::External) => {
                Some(self.shared_names.get(name).unwrap_or(&Meaning::External))
            }
            other => other,
        }
    }

    fn initialise(&mut self, module: usize, variable: &Variable<'_>) -> Result<(), SymbolError> {
        let (Some(init), Some(Meaning::Global(index))) =
            (&variable.init, self.names[module].get(variable.name))
        else {
            return Ok(());
        };
        let index = *index;
        let mut writer = Writer {
            symbols: self,
            module,
            element: variable.ty.size_bytes() as usize,
            float: variable.ty.is_float(),
            limit: variable.size_bytes(),
            bytes: Vec::new(),
            relocations: Vec::new(),
        };
        let mut row = u64::from(variable.ty.size_bytes());
        let mut strides = vec![row];
        for &dim in variable.dims.iter().rev() {
            row = row.saturating_mul(dim);
            strides.push(row);
        }
        strides.reverse();
        writer
            .write(init, 0, &strides)
            .map_err(|problem| SymbolError { name: variable.name.to_owned(), problem })?;
        let (bytes, relocations) = (writer.bytes, writer.relocations);
        self.globals[index].initial = bytes;
        self.globals[index].relocations = relocations;
        Ok(())
    }

    /// The symbols as module `module` sees them, with the globals at `addresses`.
    pub(super) fn scope<'a>(&'a self, module: usize, addresses: &'a [u64]) -> ModuleScope<'a> {
        ModuleScope { symbols: self, module, addresses }
    }
}

struct Writer<'a> {
    symbols: &'a Symbols,
    module: usize,
    element: usize,
    float: bool,
    limit: u64,
    bytes: Vec<u8>,
    relocations: Vec<Relocation>,
}

impl Writer<'_> {
    /// Writes `init` at `offset`; `strides` are the sizes of the whole, its rows, .., one element.
    fn write(&mut self, init: &Init<'_>, offset: u64, strides: &[u64]) -> Result<(), String> {
        match init {
            Init::List(items) => {
                let inner = if strides.len() > 1 { &strides[1..] } else { strides };
                let step = inner.first().copied().unwrap_or(1);
                for (index, item) in items.iter().enumerate() {
                    // A flat list fills rows in order.
                    let (inner, step) = if matches!(item, Init::List(_)) {
                        (inner, step)
                    } else {
                        (inner, self.element as u64)
                    };
                    self.write(item, offset + index as u64 * step, inner)?;
                }
                Ok(())
            }
            Init::Int(value) => {
                let bits = match (self.float, self.element) {
                    (true, 4) => u64::from((*value as f32).to_bits()),
                    (true, 8) => (*value as f64).to_bits(),
                    _ => *value as u64,
                };
                self.put(offset, bits)
            }
            Init::Float32(bits) if self.element == 8 => {
                self.put(offset, f64::from(f32::from_bits(*bits)).to_bits())
            }
            Init::Float32(bits) => self.put(offset, u64::from(*bits)),
            Init::Float64(bits) if self.element == 4 => {
                self.put(offset, u64::from((f64::from_bits(*bits) as f32).to_bits()))
            }
            Init::Float64(bits) => self.put(offset, *bits),
            Init::Symbol { name, addend, mask } => {
                let target = match self.symbols.meaning(self.module, name) {
                    Some(Meaning::Global(index)) => RelocationTarget::Global(*index),
                    Some(Meaning::Function(index)) => {
                        RelocationTarget::Function(CODE_WINDOW + *index as u64 * CODE_STEP)
                    }
                    _ => {
                        return Err(format!(
                            "its initialiser refers to {name}, which has no address"
                        ));
                    }
                };
                self.put(offset, 0)?;
                self.relocations.push(Relocation {
                    offset_bytes: offset,
                    width_bytes: self.element as u8,
                    shift_bits: if *mask == 0 { 0 } else { mask.trailing_zeros() as u8 },
                    target,
                    addend: *addend,
                });
                Ok(())
            }
        }
    }

    fn put(&mut self, offset: u64, bits: u64) -> Result<(), String> {
        let end = offset + self.element as u64;
        if end > self.limit {
            return Err("its initialiser is longer than the variable".to_owned());
        }
        if self.bytes.len() < end as usize {
            self.bytes.resize(end as usize, 0);
        }
        let bytes = bits.to_le_bytes();
        let count = self.element.min(8);
        self.bytes[offset as usize..offset as usize + count].copy_from_slice(&bytes[..count]);
        Ok(())
    }
}

/// What functions of one module see.
pub(super) struct ModuleScope<'a> {
    symbols: &'a Symbols,
    module: usize,
    addresses: &'a [u64],
}

impl Scope for ModuleScope<'_> {
    fn symbol(&self, name: &str) -> Option<ModuleSymbol> {
        Some(match self.symbols.meaning(self.module, name)? {
            Meaning::Global(index) => ModuleSymbol::Global(self.addresses.get(*index).copied()?),
            Meaning::Shared { size, align } => ModuleSymbol::Shared { size: *size, align: *align },
            Meaning::DynamicShared => ModuleSymbol::DynamicShared,
            Meaning::Function(index) => ModuleSymbol::Function(*index),
            Meaning::External => ModuleSymbol::External,
        })
    }

    fn register_params(&self, function: usize) -> &[Type] {
        self.symbols.functions.get(function).map_or(&[], |source| &source.register_params)
    }

    fn constants(&self) -> Vec<(u64, u64)> {
        let placed = self.symbols.globals.iter().zip(self.addresses);
        placed
            .filter(|(global, _)| global.space == GlobalSpace::Const)
            .map(|(global, &address)| (address, global.size_bytes))
            .collect()
    }
}
