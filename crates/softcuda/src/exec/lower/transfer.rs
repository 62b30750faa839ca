//! Lowering of asynchronous copies (bulk ones: `bulk`), `mbarrier` objects, matrix loads and
//! cluster addresses.

use super::opcode::Opcode;
use super::{Lower, Result};
use crate::exec::code::Width;
use crate::exec::ir::{Kind, VReg};
use crate::exec::op::async_copy::CopyAsync;
use crate::exec::op::control::Nothing;
use crate::exec::op::matrix::{LoadMatrix, MoveMatrix, StoreMatrix, TRANSPOSED};
use crate::exec::op::mbarrier::{BarrierObject, BarrierObjectOp, PendingCount, WITH_RESULT};
use crate::exec::simd::plain;
use crate::exec::window::{CLUSTER_RANK_SHIFT, SHARED_WINDOW};
use crate::ptx::{Operand, Type};

/// Where an address of these instructions lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Shared,
    Generic,
}

impl<'a> Lower<'a, '_> {
    /// Instructions of this module; `None` for others.
    pub(super) fn lower_transfer(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Option<Result<()>> {
        Some(match opcode.name {
            "cp" if opcode.has("bulk") => self.copy_bulk(opcode, operands),
            "cp" => self.copy_async(opcode, operands),
            "mbarrier" => self.barrier_object(opcode, operands),
            "ldmatrix" => self.load_matrix(opcode, operands),
            "stmatrix" => self.store_matrix(opcode, operands),
            "movmatrix" => self.move_matrix(operands),
            "mapa" => self.map_address(opcode, operands),
            "getctarank" => self.rank_of_address(opcode, operands),
            _ => return None,
        })
    }

    /// An address as a generic one: register and immediate.
    pub(super) fn generic_address(
        &mut self,
        operand: &Operand<'a>,
        side: Side,
    ) -> Result<(VReg, i64)> {
        let (reg, imm) = self.address_register(operand, Width::W64)?;
        if side == Side::Generic {
            return Ok((reg, imm));
        }
        let (low, window) = (
            self.constant(Width::W64, u64::from(u32::MAX)),
            self.constant(Width::W64, SHARED_WINDOW),
        );
        let (offset, address) = (self.ir.vreg(Width::W64), self.ir.vreg(Width::W64));
        self.compute("and", &["b64"], offset, &[reg, low])?;
        self.compute("or", &["b64"], address, &[offset, window])?;
        Ok((address, imm))
    }

    /// The address of a matrix: shared or generic.
    pub(super) fn matrix_address(
        &mut self,
        opcode: &Opcode<'_>,
        operand: &Operand<'a>,
    ) -> Result<(VReg, i64)> {
        self.generic_address(operand, Self::side(opcode))
    }

    fn side(opcode: &Opcode<'_>) -> Side {
        if opcode.has("shared") { Side::Shared } else { Side::Generic }
    }

    fn nothing(&mut self) {
        self.push(plain::<Nothing>(), Kind::Effect, &[], &[], 0, 0);
    }

    fn copy_async(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        if opcode.has("mbarrier") {
            // Copies are complete already: the arrival takes effect at once, and without `.noinc`
            // cancels out.
            let [address, ..] = operands else { return Err("it needs an address".to_owned()) };
            if opcode.has("noinc") {
                let (address, imm) = self.generic_address(address, Self::side(opcode))?;
                let one = self.constant(Width::W32, 1);
                let x = BarrierObjectOp::Arrive as u32;
                self.push(plain::<BarrierObject>(), Kind::Effect, &[], &[address, one], imm, x);
            }
            return Ok(());
        }
        if !opcode.has("shared") {
            self.nothing();
            return Ok(());
        }
        let [to, from, Operand::Int(size), rest @ ..] = operands else {
            return Err("it needs two addresses and a size".to_owned());
        };
        if ![4, 8, 16].contains(size) {
            return Err(format!("size {size} is not 4, 8 or 16"));
        }
        let (to, to_imm) = self.generic_address(to, Side::Shared)?;
        let (from, from_imm) = self.generic_address(from, Side::Generic)?;
        let count = match rest.first() {
            Some(Operand::Name(name)) if self.width_of(name)? == Some(Width::Pred) => {
                return Err("the ignore-src operand is not supported".to_owned());
            }
            // A cache policy is 64 bits wide and says nothing about the size.
            Some(operand) if !(opcode.has("L2") && rest.len() == 1) => {
                self.source(operand, Width::W32, Type::U32)?
            }
            _ => self.constant(Width::W32, *size as u64),
        };
        let imm = to_imm & 0xffff_ffff | from_imm << 32;
        self.push(plain::<CopyAsync>(), Kind::Effect, &[], &[to, from, count], imm, *size as u32);
        Ok(())
    }

    /// The width of a register operand, `None` for other names.
    fn width_of(&mut self, name: &'a str) -> Result<Option<Width>> {
        Ok(match self.symbol(name)? {
            super::names::Symbol::Reg(reg) => Some(self.width(reg)),
            _ => None,
        })
    }

    fn barrier_object(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        use BarrierObjectOp as Op;
        if opcode.has("pending_count") {
            let [d, state] = operands else { return Err("it needs two operands".to_owned()) };
            let state = self.source(state, Width::W64, Type::B64)?;
            let d = self.destination(d, Width::W32, false)?;
            self.push(plain::<PendingCount>(), Kind::Effect, &[d], &[state], 0, 0);
            return Ok(());
        }
        let waits = opcode.has("test_wait") || opcode.has("try_wait");
        let op = match opcode.modifiers.first().copied().unwrap_or("") {
            "init" => Op::Init,
            "inval" => Op::Invalidate,
            "arrive" if opcode.has("expect_tx") => Op::ArriveExpectTx,
            "arrive" => Op::Arrive,
            "arrive_drop" if !opcode.has("expect_tx") => Op::ArriveDrop,
            "expect_tx" => Op::ExpectTx,
            "complete_tx" => Op::CompleteTx,
            _ if waits && opcode.has("parity") => Op::TestParity,
            _ if waits => Op::TestState,
            other => return Err(format!("operation {other} is not supported")),
        };
        let is_address =
            |o: &Operand<'_>| matches!(o, Operand::Address(..) | Operand::AbsoluteAddress(_));
        let (d, rest) = match operands.split_first() {
            Some((d, rest)) if !is_address(d) => (Some(d), rest),
            _ => (None, operands),
        };
        let [address, rest @ ..] = rest else { return Err("it needs an address".to_owned()) };
        let (address, imm) = self.generic_address(address, Self::side(opcode))?;
        let value = match rest.first() {
            Some(value) if op == Op::TestState => self.source(value, Width::W64, Type::B64)?,
            Some(value) => self.source(value, Width::W32, Type::U32)?,
            None => self.constant(Width::W32, 1),
        };
        let mut dsts = Vec::new();
        match d {
            Some(Operand::Name("_")) | None => {}
            Some(d) => dsts.push(self.destination(
                d,
                if waits { Width::Pred } else { Width::W64 },
                false,
            )?),
        }
        self.ir.waits = true;
        let x = op as u32 | if dsts.is_empty() { 0 } else { WITH_RESULT };
        self.push(plain::<BarrierObject>(), Kind::Effect, &dsts, &[address, value], imm, x);
        Ok(())
    }

    fn matrices(opcode: &Opcode<'_>) -> Result<u32> {
        if !opcode.has("m8n8") || !opcode.has("b16") {
            return Err("only matrices of 8 by 8 16-bit elements are supported".to_owned());
        }
        let count = match opcode.one_of(&["x1", "x2", "x4"]) {
            Some("x4") => 4,
            Some("x2") => 2,
            _ => 1,
        };
        Ok(count | if opcode.has("trans") { TRANSPOSED } else { 0 })
    }

    fn load_matrix(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, address] = operands else { return Err("it needs two operands".to_owned()) };
        let x = Self::matrices(opcode)?;
        let mut dsts = Vec::new();
        let (address, imm) = self.generic_address(address, Self::side(opcode))?;
        for part in &self.parts(d) {
            dsts.push(self.destination(part, Width::W32, false)?);
        }
        if dsts.len() != (x & 0xff) as usize {
            return Err("the number of matrices and destinations differ".to_owned());
        }
        if dsts.len() == 1 {
            // The operand list is needed.
            dsts.push(self.ir.vreg(Width::W32));
        }
        self.gather_warp();
        self.push(plain::<LoadMatrix>(), Kind::CrossLane, &dsts, &[address], imm, x);
        Ok(())
    }

    fn store_matrix(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [address, values] = operands else { return Err("it needs two operands".to_owned()) };
        let x = Self::matrices(opcode)?;
        let (address, imm) = self.generic_address(address, Self::side(opcode))?;
        let mut sources = vec![address];
        for part in &self.parts(values) {
            sources.push(self.source(part, Width::W32, Type::B32)?);
        }
        if sources.len() != 1 + (x & 0xff) as usize {
            return Err("the number of matrices and sources differ".to_owned());
        }
        while sources.len() < 4 {
            sources.push(sources[1]);
        }
        self.gather_warp();
        self.push(plain::<StoreMatrix>(), Kind::CrossLane, &[], &sources, imm, x);
        Ok(())
    }

    fn move_matrix(&mut self, operands: &[Operand<'a>]) -> Result<()> {
        let [d, a] = operands else { return Err("it needs two operands".to_owned()) };
        let a = self.source(a, Width::W32, Type::B32)?;
        let d = self.destination(d, Width::W32, false)?;
        self.gather_warp();
        self.push(plain::<MoveMatrix>(), Kind::CrossLane, &[d], &[a], 0, 0);
        Ok(())
    }

    /// `mapa`: the address of the same shared variable in another block of the cluster.
    fn map_address(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, a, rank] = operands else { return Err("it needs three operands".to_owned()) };
        let (a, rank) =
            (self.source(a, Width::W64, Type::U64)?, self.source(rank, Width::W64, Type::U64)?);
        let mut value = [0; 3].map(|_: u32| self.ir.vreg(Width::W64));
        let one = self.constant(Width::W64, 1);
        let shift = self.constant(Width::W32, u64::from(CLUSTER_RANK_SHIFT));
        // Whatever rank the address had is replaced.
        let keep = !(0xff << CLUSTER_RANK_SHIFT);
        let keep = self.constant(Width::W64, keep);
        let cleared = self.ir.vreg(Width::W64);
        self.compute("add", &["s64"], value[0], &[rank, one])?;
        self.compute("shl", &["b64"], value[1], &[value[0], shift])?;
        self.compute("and", &["b64"], cleared, &[a, keep])?;
        self.compute("or", &["b64"], value[2], &[value[1], cleared])?;
        let result = std::mem::take(&mut value[2]);
        let wide = opcode.ty() == Some(Type::U64);
        let result = self.convert(result, if wide { Width::W64 } else { Width::W32 })?;
        let d = self.destination(d, if wide { Width::W64 } else { Width::W32 }, false)?;
        self.copy(d, result);
        Ok(())
    }

    /// `getctarank`: the rank that a shared address belongs to.
    fn rank_of_address(&mut self, _: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, a] = operands else { return Err("it needs two operands".to_owned()) };
        let a = self.source(a, Width::W32, Type::U32)?;
        let (shift, one) = (
            self.constant(Width::W32, u64::from(CLUSTER_RANK_SHIFT)),
            self.constant(Width::W32, 1),
        );
        let own = self.special(crate::exec::code::Special::ClusterCtarank);
        let (field, rank, foreign) =
            (self.ir.vreg(Width::W32), self.ir.vreg(Width::W32), self.ir.vreg(Width::Pred));
        let zero = self.constant(Width::W32, 0);
        self.compute("shr", &["u32"], field, &[a, shift])?;
        self.compute("sub", &["s32"], rank, &[field, one])?;
        self.compute("setp", &["ne", "u32"], foreign, &[field, zero])?;
        let d = self.destination(d, Width::W32, false)?;
        self.compute("selp", &["b32"], d, &[rank, own, foreign])?;
        Ok(())
    }
}
