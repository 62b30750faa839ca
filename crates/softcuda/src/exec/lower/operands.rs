//! Operands: names, constants and addresses as registers of the width an instruction wants.

use super::names::{Found, Symbol};
use super::special::{SpecialSource, special_register};
use super::variables::register_width;
use super::{Lower, ModuleSymbol, Result};
use crate::exec::code::{FillValue, Width};
use crate::exec::ir::{Kind, Label, VReg};
use crate::exec::op::moves::{ReadClock, Truncate, ZeroExtend};
use crate::exec::simd::pick;
use crate::exec::window;
use crate::ptx::{Operand, OperandRange, Type};

/// Where an address operand points.
pub(super) enum AddressBase {
    /// Register plus the immediate.
    Reg(VReg),
    /// Known symbol; the immediate is added already.
    Symbol(Symbol),
}

impl<'a> Lower<'a, '_> {
    /// What `name` stands for.
    pub(super) fn symbol(&mut self, name: &'a str) -> Result<Symbol> {
        match self.names.find(name) {
            Found::Symbol(symbol) => return Ok(symbol.clone()),
            Found::RangeMember(scope, ty) => {
                let symbol = self.new_register(ty);
                self.names.define_in(scope, name, symbol.clone());
                return Ok(symbol);
            }
            Found::Nothing => {}
        }
        // `v.x`: a component of a vector register.
        if let Some((vector, component)) = name.split_once('.')
            && let Found::Symbol(Symbol::Vector(regs)) = self.names.find(vector)
        {
            let index = match component {
                "x" | "r" => 0,
                "y" | "g" => 1,
                "z" | "b" => 2,
                _ => 3,
            };
            return regs
                .get(index)
                .map(|&r| Symbol::Reg(r))
                .ok_or_else(|| format!("{name} does not exist"));
        }
        match self.scope.symbol(name) {
            Some(ModuleSymbol::Global(address)) => Ok(Symbol::Global(address)),
            Some(ModuleSymbol::Shared { size, align }) => {
                Ok(Symbol::Shared(self.shared.place(name, size, align)))
            }
            Some(ModuleSymbol::DynamicShared) => Ok(Symbol::DynamicShared),
            Some(ModuleSymbol::Function(index)) => Ok(Symbol::Function(index)),
            Some(ModuleSymbol::External) => Err(format!("{name} is declared but defined nowhere")),
            None => Err(format!("{name} is not defined")),
        }
    }

    /// The register `name`.
    pub(super) fn register(&mut self, name: &'a str) -> Result<VReg> {
        match self.symbol(name)? {
            Symbol::Reg(reg) => Ok(reg),
            _ => Err(format!("{name} is no register")),
        }
    }

    pub(super) fn label(&mut self, name: &'a str) -> Result<Label> {
        match self.symbol(name)? {
            Symbol::Label(label) => Ok(label),
            _ => Err(format!("{name} is no label")),
        }
    }

    /// `reg` as a register of `width`.
    pub(super) fn convert(&mut self, reg: VReg, width: Width) -> Result<VReg> {
        let from = self.width(reg);
        if from == width {
            return Ok(reg);
        }
        if let Some(FillValue::Constant(bits)) = self.ir.vregs[reg as usize].fill
            && from != Width::Pred
            && width != Width::Pred
        {
            return Ok(self.constant(width, bits));
        }
        let to = self.ir.vreg(width);
        match (from, width) {
            (Width::W64, Width::W32) => self.pure::<Truncate>(to, &[reg]),
            (Width::W32, Width::W64) => self.pure::<ZeroExtend>(to, &[reg]),
            _ => return Err("predicate where a value is expected, or the reverse".to_owned()),
        }
        Ok(to)
    }

    /// A symbol's value (address) as a register of `width`.
    fn symbol_value(&mut self, symbol: &Symbol, offset: i64, width: Width) -> Result<VReg> {
        let value = match symbol {
            Symbol::Reg(reg) if offset == 0 => return self.convert(*reg, width),
            Symbol::Global(address) => FillValue::Constant(address.wrapping_add_signed(offset)),
            Symbol::Shared(at) => FillValue::Constant(at.wrapping_add_signed(offset)),
            Symbol::DynamicShared => FillValue::DynamicShared(offset as u64),
            Symbol::Local(at) => FillValue::Local(at.wrapping_add_signed(offset)),
            Symbol::KernelParam { offset: at, .. } => FillValue::Constant(
                (window::PARAM_WINDOW + u64::from(*at)).wrapping_add_signed(offset),
            ),
            Symbol::Words(words) => match words.local {
                Some(at) => FillValue::LocalGeneric(at.wrapping_add_signed(offset)),
                None => return Err("the address of a call parameter is not available".to_owned()),
            },
            Symbol::Function(index) => {
                self.addresses.push(*index);
                FillValue::Constant(window::CODE_WINDOW + *index as u64 * window::CODE_STEP)
            }
            _ => return Err("operand is no value".to_owned()),
        };
        Ok(match value {
            FillValue::Constant(bits) => self.constant(width, bits),
            value => self.fill(width, value),
        })
    }

    /// A source operand as a register of `width`; constants are converted to `ty`.
    pub(super) fn source(&mut self, operand: &Operand<'a>, width: Width, ty: Type) -> Result<VReg> {
        match *operand {
            Operand::Name(name) => {
                if name.starts_with('%')
                    && let Some(special) = special_register(name)
                    && matches!(self.names.find(name), Found::Nothing)
                {
                    return self.special_value(special, width);
                }
                let symbol = self.symbol(name)?;
                self.symbol_value(&symbol, 0, width)
            }
            Operand::Offset(name, offset) => {
                let symbol = self.symbol(name)?;
                self.symbol_value(&symbol, offset, width)
            }
            Operand::Not(name) => {
                let reg = self.register(name)?;
                let reg = self.convert(reg, Width::Pred)?;
                let not = self.ir.vreg(Width::Pred);
                self.pure::<crate::exec::op::moves::PredicateNot>(not, &[reg]);
                Ok(not)
            }
            Operand::Int(value) if width == Width::Pred => {
                Ok(self.constant(width, if value != 0 { u64::from(u32::MAX) } else { 0 }))
            }
            Operand::Int(value) => Ok(self.constant(width, integer_bits(value, ty))),
            Operand::Float32(bits) => {
                let bits = match ty {
                    Type::F64 => f64::from(f32::from_bits(bits)).to_bits(),
                    _ => u64::from(bits),
                };
                Ok(self.constant(width, bits))
            }
            Operand::Float64(bits) => {
                let bits = match ty {
                    _ if width == Width::W64 => bits,
                    _ => u64::from((f64::from_bits(bits) as f32).to_bits()),
                };
                Ok(self.constant(width, bits))
            }
            _ => Err("operand is no value".to_owned()),
        }
    }

    /// A source operand that is its own type: width by `ty`.
    pub(super) fn source_of(&mut self, operand: &Operand<'a>, ty: Type) -> Result<VReg> {
        let Some(width) = register_width(ty) else { return Err("128-bit operand".to_owned()) };
        self.source(operand, width, ty)
    }

    pub(super) fn special_value(&mut self, special: SpecialSource, width: Width) -> Result<VReg> {
        match special {
            SpecialSource::Fill(special) => Ok(self.fill(width, FillValue::Special(special))),
            SpecialSource::Counter(counter, natural) => {
                let reg = self.ir.vreg(natural);
                let run = match natural {
                    Width::W64 => pick::<ReadClock<u64>>(self.level),
                    _ => pick::<ReadClock<u32>>(self.level),
                };
                self.push(run, Kind::Effect, &[reg], &[], 0, counter as u32);
                self.convert(reg, width)
            }
        }
    }

    /// The register that a result of `width` goes to. A wider register gets it widened after the
    /// instruction.
    pub(super) fn destination(
        &mut self,
        operand: &Operand<'a>,
        width: Width,
        signed: bool,
    ) -> Result<VReg> {
        let name = match *operand {
            Operand::Name("_") => return Ok(self.ir.vreg(width)),
            Operand::Name(name) => name,
            _ => return Err("destination is no register".to_owned()),
        };
        let reg = self.register(name)?;
        match (self.width(reg), width) {
            (from, to) if from == to => Ok(reg),
            (Width::W64, Width::W32) => {
                let temporary = self.ir.vreg(Width::W32);
                self.after.push((reg, temporary, signed));
                Ok(temporary)
            }
            _ => Err(format!("{name} is too narrow for the result")),
        }
    }

    /// The parts of a vector operand, or the operand itself.
    pub(super) fn parts(&self, operand: &Operand<'a>) -> Vec<Operand<'a>> {
        match *operand {
            Operand::Vector(range) => self.body.operands(range).to_vec(),
            other => vec![other],
        }
    }

    pub(super) fn range(&self, range: OperandRange) -> Vec<Operand<'a>> {
        self.body.operands(range).to_vec()
    }

    /// An address operand: its base and the offset to add.
    pub(super) fn address(&mut self, operand: &Operand<'a>) -> Result<(AddressBase, i64)> {
        match *operand {
            Operand::Address(name, offset) => match self.symbol(name)? {
                Symbol::Reg(reg) => Ok((AddressBase::Reg(reg), offset)),
                symbol => Ok((AddressBase::Symbol(symbol), offset)),
            },
            Operand::AbsoluteAddress(address) => {
                Ok((AddressBase::Reg(self.constant(Width::W64, address as u64)), 0))
            }
            _ => Err("operand is no address".to_owned()),
        }
    }

    /// An address as a register of `width` and an immediate.
    pub(super) fn address_register(
        &mut self,
        operand: &Operand<'a>,
        width: Width,
    ) -> Result<(VReg, i64)> {
        match self.address(operand)? {
            (AddressBase::Reg(reg), offset) => Ok((self.convert(reg, width)?, offset)),
            (AddressBase::Symbol(symbol), offset) => {
                Ok((self.symbol_value(&symbol, offset, width)?, 0))
            }
        }
    }
}

/// An integer constant as the bits of a value of type `ty` (floating types take it by value).
fn integer_bits(value: i64, ty: Type) -> u64 {
    match ty {
        Type::F32 => u64::from((value as f32).to_bits()),
        Type::F64 => (value as f64).to_bits(),
        _ if ty.size_bytes() == 2 => value as u64 & 0xffff,
        _ if ty.size_bytes() == 1 => value as u64 & 0xff,
        _ => value as u64,
    }
}
