//! Lowering of moves, predicate logic and the computational instructions.

use super::names::Symbol;
use super::opcode::Opcode;
use super::variables::register_width;
use super::{Lower, Result};
use crate::exec::alu::forms::{CarryOut, Order};
use crate::exec::code::Width;
use crate::exec::ir::{Kind, VReg};
use crate::exec::op::alu::computation;
use crate::exec::op::moves::{
    ExtractBits, HighWord, InsertBits, Join, PredicateAnd, PredicateNot, PredicateOr, PredicateXor,
    Truncate,
};
use crate::exec::simd::{pick, plain};
use crate::ptx::{Operand, Type};

impl<'a> Lower<'a, '_> {
    pub(super) fn lower_mov(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Result<()> {
        let [d, a] = operands else { return Err("it needs two operands".to_owned()) };
        let ty = opcode.ty().ok_or("it needs a type")?;
        let is_empty = |operand: &Operand<'a>| matches!(operand, Operand::Vector(parts) if self.range(*parts).is_empty());
        if is_empty(d) || is_empty(a) {
            return Err("there is nothing between the braces".to_owned());
        }
        match (d, a) {
            (Operand::Vector(d), Operand::Vector(a)) => {
                for (d, a) in self.range(*d).iter().zip(&self.range(*a)) {
                    self.move_value(d, a, ty)?;
                }
                Ok(())
            }
            (Operand::Vector(_), _) => self.unpack(&self.parts(d), a, ty),
            (_, Operand::Vector(_)) => self.pack(d, &self.parts(a), ty),
            _ if opcode.vector() > 1 => self.move_vector(d, a),
            _ => self.move_value(d, a, ty),
        }
    }

    /// `mov.v4 a, b` of vector registers.
    fn move_vector(&mut self, d: &Operand<'a>, a: &Operand<'a>) -> Result<()> {
        let (Operand::Name(d), Operand::Name(a)) = (*d, *a) else {
            return Err("vector registers expected".to_owned());
        };
        let (Symbol::Vector(d), Symbol::Vector(a)) = (self.symbol(d)?, self.symbol(a)?) else {
            return Err("vector registers expected".to_owned());
        };
        for (&d, &a) in d.iter().zip(&a) {
            if self.width(d) != self.width(a) {
                return Err("vectors of different widths".to_owned());
            }
            self.copy(d, a);
        }
        Ok(())
    }

    fn move_value(&mut self, d: &Operand<'a>, a: &Operand<'a>, ty: Type) -> Result<()> {
        let Some(width) = register_width(ty) else {
            let (d, a) = (self.halves_of(&[*d])?, self.halves_of(&[*a])?);
            self.copy(d[0], a[0]);
            self.copy(d[1], a[1]);
            return Ok(());
        };
        let a = self.source(a, width, ty)?;
        let d = self.destination(d, width, ty.is_signed())?;
        self.copy(d, a);
        Ok(())
    }

    /// `mov.b64 {a, b}, c` and its like.
    fn unpack(&mut self, parts: &[Operand<'a>], a: &Operand<'a>, ty: Type) -> Result<()> {
        if ty == Type::B128 {
            let halves = self.halves_of(&[*a])?;
            let per_half = parts.len() / 2;
            for (half, parts) in halves.into_iter().zip(parts.chunks(per_half.max(1))) {
                self.unpack_register(parts, half, 64)?;
            }
            return Ok(());
        }
        let reg = self.source_of(a, ty)?;
        self.unpack_register(parts, reg, ty.size_bytes() * 8)
    }

    fn unpack_register(&mut self, parts: &[Operand<'a>], reg: VReg, bits: u32) -> Result<()> {
        let Some(first) = parts.first() else {
            return Err("there is nothing between the braces".to_owned());
        };
        let each = bits / parts.len() as u32;
        if each == 64 {
            let d = self.destination(first, Width::W64, false)?;
            self.copy(d, reg);
            return Ok(());
        }
        // Destinations may be halves of the source itself, so words are read before the first is
        // written.
        let words = self.words_of(reg);
        let mut results = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let bit = index as u32 * each;
            let word = words[(bit / 32) as usize];
            if matches!(part, Operand::Name("_")) {
                continue;
            }
            let value = if each == 32 {
                word
            } else {
                let value = self.ir.vreg(Width::W32);
                self.push(
                    pick::<ExtractBits>(self.level),
                    Kind::Pure,
                    &[value],
                    &[word],
                    0,
                    (bit % 32) | (each << 8),
                );
                value
            };
            results.push((*part, value));
        }
        for (part, value) in results {
            let d = self.destination(&part, Width::W32, false)?;
            self.copy(d, value);
        }
        Ok(())
    }

    /// The 32-bit words of a value register.
    pub(super) fn words_of(&mut self, reg: VReg) -> Vec<VReg> {
        if self.width(reg) != Width::W64 {
            return vec![reg];
        }
        let (low, high) = (self.ir.vreg(Width::W32), self.ir.vreg(Width::W32));
        self.pure::<Truncate>(low, &[reg]);
        self.pure::<HighWord>(high, &[reg]);
        vec![low, high]
    }

    /// `mov.b64 d, {a, b}` and its like.
    fn pack(&mut self, d: &Operand<'a>, parts: &[Operand<'a>], ty: Type) -> Result<()> {
        if ty == Type::B128 {
            let halves = self.halves_of(&[*d])?;
            let per_half = (parts.len() / 2).max(1);
            let mut values = Vec::new();
            for parts in parts.chunks(per_half) {
                values.push(self.packed(parts, 64)?);
            }
            for (half, value) in halves.into_iter().zip(values) {
                self.copy(half, value);
            }
            return Ok(());
        }
        let bits = ty.size_bytes() * 8;
        let value = self.packed(parts, bits)?;
        let width = if bits == 64 { Width::W64 } else { Width::W32 };
        let d = self.destination(d, width, false)?;
        self.copy(d, value);
        Ok(())
    }

    fn packed(&mut self, parts: &[Operand<'a>], bits: u32) -> Result<VReg> {
        let Some(first) = parts.first() else {
            return Err("there is nothing between the braces".to_owned());
        };
        let each = bits / parts.len() as u32;
        if each == 64 {
            return self.source(first, Width::W64, Type::B64);
        }
        let ty = match each {
            32 => Type::B32,
            16 => Type::B16,
            _ => Type::B8,
        };
        let mut words = Vec::new();
        for parts in parts.chunks((32 / each.max(8)).max(1) as usize) {
            let mut word = self.source(&parts[0], Width::W32, ty)?;
            for (index, part) in parts.iter().enumerate().skip(1) {
                let value = self.source(part, Width::W32, ty)?;
                let joined = self.ir.vreg(Width::W32);
                let x = (index as u32 * each) | (each << 8);
                self.push(
                    pick::<InsertBits>(self.level),
                    Kind::Pure,
                    &[joined],
                    &[word, value],
                    0,
                    x,
                );
                word = joined;
            }
            words.push(word);
        }
        match words.as_slice() {
            [word] => Ok(*word),
            [low, high] => {
                let joined = self.ir.vreg(Width::W64);
                self.pure::<Join>(joined, &[*low, *high]);
                Ok(joined)
            }
            _ => Err("too many vector elements".to_owned()),
        }
    }

    /// Appends the computational instruction `name` over registers.
    pub(super) fn compute(
        &mut self,
        name: &str,
        modifiers: &[&str],
        d: VReg,
        sources: &[VReg],
    ) -> Result<()> {
        let computation = computation(name, modifiers, self.level).map_err(|e| e.to_string())?;
        let mut sources = sources.to_vec();
        if computation.order == Order::Exchanged {
            sources.swap(0, 1);
        }
        self.push(computation.run, Kind::Pure, &[d], &sources, computation.imm, computation.x);
        Ok(())
    }

    pub(super) fn lower_computation(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Result<()> {
        if opcode.ty() == Some(Type::Pred) {
            return self.predicate_logic(opcode, operands);
        }
        // Of three sources they are computations of their own.
        let name = match (opcode.name, operands.len()) {
            ("min", 4) => "min3",
            ("max", 4) => "max3",
            (name, _) => name,
        };
        let computation =
            computation(name, &opcode.modifiers, self.level).map_err(|e| e.to_string())?;
        let Some((d, rest)) = operands.split_first() else {
            return Err("it needs operands".to_owned());
        };
        let types = opcode.types();
        let mut sources = Vec::with_capacity(4);
        for (index, &width) in computation.sources.iter().enumerate() {
            let Some(operand) = rest.get(index) else {
                // The joined predicate of `setp` may be absent.
                if width == Width::Pred {
                    break;
                }
                return Err("operand missing".to_owned());
            };
            let ty = source_type(opcode, &types, index, width);
            sources.push(self.source(operand, width, ty)?);
        }
        if rest.len() > computation.sources.len() {
            return Err("too many operands".to_owned());
        }
        let signed = types.first().is_some_and(|ty| ty.is_signed());
        let mut dsts = Vec::with_capacity(2);
        match *d {
            Operand::Pair(pair) => {
                for part in &self.range(pair) {
                    dsts.push(self.destination(part, computation.d, signed)?);
                }
            }
            _ => dsts.push(self.destination(d, computation.d, signed)?),
        }
        let run = match (dsts.len(), computation.run_pair) {
            (1, _) => computation.run,
            (2, Some(run)) => run,
            _ => return Err("too many destinations".to_owned()),
        };
        if let Some(out) = computation.carry {
            let carry = self.carry_flag();
            while sources.len() < 3 {
                sources.push(sources[0]);
            }
            sources.push(carry);
            if out == CarryOut::Write {
                dsts.push(carry);
            }
        }
        if computation.order == Order::Exchanged {
            sources.swap(0, 1);
        }
        self.push(run, Kind::Pure, &dsts, &sources, computation.imm, computation.x);
        Ok(())
    }

    /// The condition code's carry bit.
    fn carry_flag(&mut self) -> VReg {
        match self.carry {
            Some(reg) => reg,
            None => {
                let reg = self.ir.vreg(Width::Pred);
                self.carry = Some(reg);
                reg
            }
        }
    }

    fn predicate_logic(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let Some((d, rest)) = operands.split_first() else {
            return Err("it needs operands".to_owned());
        };
        let mut sources = Vec::new();
        for operand in rest {
            sources.push(self.source(operand, Width::Pred, Type::Pred)?);
        }
        let d = self.destination(d, Width::Pred, false)?;
        let run = match (opcode.name, sources.len()) {
            ("and", 2) => plain::<PredicateAnd>(),
            ("or", 2) => plain::<PredicateOr>(),
            ("xor", 2) => plain::<PredicateXor>(),
            ("not", 1) => plain::<PredicateNot>(),
            _ => return Err("no such operation on predicates".to_owned()),
        };
        self.push(run, Kind::Pure, &[d], &sources, 0, 0);
        Ok(())
    }
}

/// The type by which constants of a source are read: the last type, except that shift counts and
/// the like are 32 bits wide, and what a wide product is added to is as wide as the product, and
/// `slct` chooses between values of its first type.
fn source_type(opcode: &Opcode<'_>, types: &[Type], index: usize, width: Width) -> Type {
    let ty = types.last().copied().unwrap_or(Type::B32);
    let fits = register_width(ty) == Some(width);
    match (opcode.name, fits) {
        ("shl" | "shr" | "bfe" | "bfi", _) if width == Width::W32 => Type::B32,
        ("mad", true) if index == 2 && opcode.has("wide") => Type::B32,
        ("slct", _) if index < 2 => types.first().copied().unwrap_or(ty),
        (_, true) => ty,
        _ if width == Width::W64 => Type::B64,
        _ => Type::B32,
    }
}
