//! Lowering of calls: arguments and results travel as 32-bit words.

use super::names::Symbol;
use super::opcode::Opcode;
use super::variables::register_width;
use super::{Lower, ModuleSymbol, Result};
use crate::exec::code::Width;
use crate::exec::ir::{Kind, VReg};
use crate::exec::op::control::{Call, CallIndirect};
use crate::exec::op::moves::{Join, PredicateFromWord, WordFromPredicate};
use crate::exec::op::runtime::runtime_call;
use crate::exec::simd::plain;
use crate::ptx::{Operand, Type};

impl<'a> Lower<'a, '_> {
    pub(super) fn lower_call(&mut self, _: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let (returns, rest) = match operands {
            [Operand::Group(returns), rest @ ..] => (self.range(*returns), rest),
            rest => (Vec::new(), rest),
        };
        let (Some(target), args) = (rest.first(), rest.get(1)) else {
            return Err("it needs a function".to_owned());
        };
        let args = match args {
            Some(Operand::Group(args)) => self.range(*args),
            _ => Vec::new(),
        };
        let Operand::Name(name) = *target else { return Err("callee is no name".to_owned()) };
        let callee = self.callee(name)?;
        let types = match (&callee, rest.last()) {
            (Callee::Function(index), _) => self.scope.register_params(*index).to_vec(),
            (_, Some(Operand::Name(prototype))) => match self.symbol(prototype) {
                Ok(Symbol::Prototype(types)) => types.to_vec(),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        let mut words = Vec::new();
        for (index, arg) in args.iter().enumerate() {
            let ty = types.get(index).copied().unwrap_or(Type::B32);
            words.extend(self.argument(arg, ty)?);
        }
        let mut results = Vec::new();
        let mut joins = Vec::new();
        for ret in &returns {
            self.result(ret, &mut results, &mut joins)?;
        }
        // The operand list holds results, then the callee's register if any, then arguments; it
        // must exist.
        let mut sources: Vec<VReg> = Vec::new();
        if let Callee::Pointer(reg) = callee {
            sources.push(reg);
        }
        sources.extend(&words);
        while results.len() + sources.len() < 5 {
            let filler = self.constant(Width::W32, 0);
            sources.push(filler);
        }
        let counts = results.len() as u32 | (words.len() as u32) << 16;
        match callee {
            Callee::Function(index) => {
                self.calls.push(index);
                self.push(
                    plain::<Call>(),
                    Kind::CrossLane,
                    &results,
                    &sources,
                    index as i64,
                    counts,
                );
            }
            Callee::Pointer(_) => {
                self.indirect = true;
                self.push(plain::<CallIndirect>(), Kind::CrossLane, &results, &sources, 0, counts);
            }
            Callee::Runtime(run) => {
                self.push(run, Kind::CrossLane, &results, &sources, 0, counts);
            }
        }
        for (d, low, high) in joins {
            match high {
                Some(high) => self.pure::<Join>(d, &[low, high]),
                None => self.pure::<PredicateFromWord>(d, &[low]),
            }
        }
        Ok(())
    }

    fn callee(&mut self, name: &'a str) -> Result<Callee> {
        if matches!(self.scope.symbol(name), Some(ModuleSymbol::External) | None)
            && let Some(run) = runtime_call(name)
        {
            return Ok(Callee::Runtime(run));
        }
        match self.symbol(name)? {
            Symbol::Function(index) => Ok(Callee::Function(index)),
            Symbol::Reg(reg) => Ok(Callee::Pointer(self.convert(reg, Width::W64)?)),
            _ => Err(format!("{name} is no function")),
        }
    }

    /// The words of an argument for a parameter of type `ty`. A `.param` variable is as wide as it
    /// is; what else is passed becomes as wide as the parameter.
    fn argument(&mut self, arg: &Operand<'a>, ty: Type) -> Result<Vec<VReg>> {
        if let Operand::Name(name) = *arg
            && let Symbol::Words(words) = self.symbol(name)?
        {
            return Ok(words.words);
        }
        let wide = register_width(ty) == Some(Width::W64);
        let reg = match *arg {
            Operand::Name(name) => {
                let reg = self.register(name)?;
                match (wide, self.width(reg)) {
                    (true, Width::W32) => self.convert(reg, Width::W64)?,
                    _ => reg,
                }
            }
            _ if ty == Type::Pred => self.source(arg, Width::Pred, ty)?,
            _ if wide => self.source(arg, Width::W64, ty)?,
            _ => self.source(arg, Width::W32, ty)?,
        };
        if self.width(reg) == Width::Pred {
            let word = self.ir.vreg(Width::W32);
            self.pure::<WordFromPredicate>(word, &[reg]);
            return Ok(vec![word]);
        }
        Ok(self.words_of(reg))
    }

    fn result(
        &mut self,
        ret: &Operand<'a>,
        results: &mut Vec<VReg>,
        joins: &mut Vec<(VReg, VReg, Option<VReg>)>,
    ) -> Result<()> {
        let Operand::Name(name) = *ret else { return Err("result is no name".to_owned()) };
        if name == "_" {
            results.push(self.ir.vreg(Width::W32));
            return Ok(());
        }
        match self.symbol(name)? {
            Symbol::Words(words) => results.extend(words.words),
            Symbol::Reg(reg) if self.width(reg) == Width::W32 => results.push(reg),
            Symbol::Reg(reg) => {
                let low = self.ir.vreg(Width::W32);
                results.push(low);
                let high = (self.width(reg) == Width::W64).then(|| self.ir.vreg(Width::W32));
                results.extend(high);
                joins.push((reg, low, high));
            }
            _ => return Err(format!("{name} cannot take a result")),
        }
        Ok(())
    }
}

enum Callee {
    Function(usize),
    Pointer(VReg),
    Runtime(crate::exec::code::OpFn),
}
