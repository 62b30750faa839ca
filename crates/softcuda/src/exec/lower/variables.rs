//! Declarations: registers, local, shared and `.param` variables, formal parameters.

use super::names::{Symbol, Words};
use super::{Lower, Result};
use crate::exec::code::{FillValue, Width};
use crate::exec::op::load_store::{Store, W32};
use crate::exec::simd::pick;
use crate::exec::{ir::Kind, op::address::Local};
use crate::ptx::{self, Operand, Space, Statement, Type, Variable};

/// Largest `.param` variable of a call, bytes.
const PARAM_LIMIT: u64 = 1 << 16;
/// Most local memory of one function, and of a kernel with all that it calls, bytes.
pub(in crate::exec) const LOCAL_LIMIT: u64 = 512 << 10;

/// The register width of a type; `None` for 128 bits.
pub(super) fn register_width(ty: Type) -> Option<Width> {
    match ty {
        Type::Pred => Some(Width::Pred),
        Type::B128 => None,
        _ if ty.size_bytes() == 8 => Some(Width::W64),
        _ => Some(Width::W32),
    }
}

impl<'a> Lower<'a, '_> {
    /// A new register of type `ty` as a symbol.
    pub(super) fn new_register(&mut self, ty: Type) -> Symbol {
        match register_width(ty) {
            Some(width) => Symbol::Reg(self.ir.vreg(width)),
            None => {
                let low = self.ir.vreg(Width::W64);
                Symbol::Reg128(low, self.ir.vreg(Width::W64))
            }
        }
    }

    pub(super) fn declare(&mut self, variable: &'a Variable<'a>) -> Result<()> {
        let symbol = match variable.space {
            Space::Reg => match variable.count {
                Some(count) => {
                    self.names.define_range(variable.name, count, variable.ty);
                    return Ok(());
                }
                None if variable.vector > 1 => {
                    let Some(width) = register_width(variable.ty) else {
                        return Err("vectors of 128-bit registers do not exist".to_owned());
                    };
                    Symbol::Vector((0..variable.vector).map(|_| self.ir.vreg(width)).collect())
                }
                None => self.new_register(variable.ty),
            },
            Space::Local => {
                Symbol::Local(self.place_local(variable.size_bytes(), variable.align_bytes())?)
            }
            Space::Shared if variable.dims.first() == Some(&0) => Symbol::DynamicShared,
            Space::Shared => {
                // Variables of one name in different scopes of a function are different ones.
                let key = format!("{}\u{0}{}\u{0}{}", self.function, variable.name, variable.line);
                Symbol::Shared(self.shared.place(
                    &key,
                    variable.size_bytes(),
                    variable.align_bytes(),
                ))
            }
            Space::Param => Symbol::Words(self.words(variable)?),
            Space::Global | Space::Const => {
                return Err(format!(
                    "variable {} in global memory inside a function",
                    variable.name
                ));
            }
        };
        self.names.define(variable.name, symbol);
        Ok(())
    }

    fn place_local(&mut self, size: u64, align: u64) -> Result<u64> {
        let offset = u64::from(self.ir.local_bytes).next_multiple_of(align.clamp(1, 1 << 16));
        let end = offset.saturating_add(size);
        if end > LOCAL_LIMIT {
            return Err(format!("more than {LOCAL_LIMIT} bytes of local memory per thread"));
        }
        self.ir.local_bytes = end.next_multiple_of(16) as u32;
        Ok(offset)
    }

    fn words(&mut self, variable: &Variable<'_>) -> Result<Words> {
        let size = variable.size_bytes();
        if size > PARAM_LIMIT {
            return Err(format!("parameter {} is larger than {PARAM_LIMIT} bytes", variable.name));
        }
        let words = (0..size.div_ceil(4)).map(|_| self.ir.vreg(Width::W32)).collect();
        Ok(Words { words, size: size as u32, local: None })
    }

    pub(super) fn declare_parameters(&mut self, function: &ptx::Function<'a>) -> Result<()> {
        if self.entry {
            let mut offset = 0u32;
            for param in &function.params {
                let (at, size) = kernel_parameter(param, offset)?;
                self.names.define(param.name, Symbol::KernelParam { offset: at, size });
                offset = at + size;
            }
            return Ok(());
        }
        for ret in &function.returns {
            let registers = self.return_registers(ret)?;
            self.returns.extend_from_slice(&registers);
        }
        for param in &function.params {
            self.formal(param)?;
        }
        Ok(())
    }

    fn return_registers(&mut self, ret: &Variable<'a>) -> Result<Vec<u32>> {
        if ret.space == Space::Param {
            let words = self.words(ret)?;
            let list = words.words.clone();
            self.names.define(ret.name, Symbol::Words(words));
            return Ok(list);
        }
        // A `.reg` return value: read from its register at `ret`.
        let symbol = self.new_register(ret.ty);
        self.names.define(ret.name, symbol.clone());
        match symbol {
            Symbol::Reg(reg) => Ok(vec![reg]),
            _ => Err(format!("return value {} is no register", ret.name)),
        }
    }

    /// The return values as words, at a `ret`.
    pub(super) fn return_words(&mut self) -> Vec<u32> {
        let mut words = Vec::new();
        for reg in self.returns.clone() {
            if self.width(reg) == Width::Pred {
                let word = self.ir.vreg(Width::W32);
                self.pure::<crate::exec::op::moves::WordFromPredicate>(word, &[reg]);
                words.push(word);
            } else {
                words.extend(self.words_of(reg));
            }
        }
        words
    }

    fn formal(&mut self, param: &Variable<'a>) -> Result<()> {
        let mut words = self.words(param)?;
        self.ir.formals.extend_from_slice(&words.words);
        if param.space == Space::Reg {
            let symbol = self.new_register(param.ty);
            if let Symbol::Reg(reg) = symbol {
                match self.width(reg) {
                    Width::W32 => self.copy(reg, words.words[0]),
                    Width::W64 => self.pure::<crate::exec::op::moves::Join>(reg, &words.words[..2]),
                    Width::Pred => self
                        .pure::<crate::exec::op::moves::PredicateFromWord>(reg, &words.words[..1]),
                }
            }
            self.names.define(param.name, symbol);
            return Ok(());
        }
        if self.address_taken(param.name) {
            let offset = self
                .place_local(param.size_bytes().next_multiple_of(4), param.align_bytes().max(4))?;
            for (index, &word) in words.words.clone().iter().enumerate() {
                let base = self.fill(Width::W32, FillValue::Local(offset + index as u64 * 4));
                self.push(
                    pick::<Store<Local<u32>, W32, 1>>(self.level),
                    Kind::Effect,
                    &[],
                    &[base, word],
                    0,
                    0,
                );
            }
            words.local = Some(offset);
        }
        self.names.define(param.name, Symbol::Words(words));
        Ok(())
    }

    /// Whether the body uses a parameter's address rather than its bytes.
    fn address_taken(&self, name: &str) -> bool {
        self.body.statements.iter().any(|statement| {
            let Statement::Instruction(instruction) = statement else { return false };
            let plain =
                instruction.opcode.starts_with("mov") || instruction.opcode.starts_with("cvta");
            plain
                && self.body.operands(instruction.operands).iter().any(|operand| match operand {
                    Operand::Name(n) | Operand::Offset(n, _) => *n == name,
                    _ => false,
                })
        })
    }
}

/// Offset and size of a kernel parameter that follows `offset` bytes of others.
pub(in crate::exec) fn kernel_parameter(param: &Variable<'_>, offset: u32) -> Result<(u32, u32)> {
    let (size, align) = (param.size_bytes(), param.align_bytes());
    let at = u64::from(offset).next_multiple_of(align);
    match u32::try_from(at + size) {
        Ok(end) if end <= 1 << 16 => Ok((at as u32, size as u32)),
        _ => Err(format!("parameter {} lies beyond 65536 bytes", param.name)),
    }
}
