//! Lowering of what several threads do together: collectives, barriers, fences, atomics.

use super::access::{Target, for_target};
use super::opcode::Opcode;
use super::{Lower, Result};
use crate::exec::code::{OpFn, Width};
use crate::exec::ir::{Kind, VReg};
use crate::exec::op::address::{Generic, Global, Local, Shared};
use crate::exec::op::atomic::{Atomic, AtomicOp, AtomicType, encode};
use crate::exec::op::collective::{
    Elect, MATCH_ALL, MATCH_WIDE, Match, Reduce, ReduceOp, Shuffle, ShuffleMode, Vote, VoteMode,
    WITH_PREDICATE, WarpSync,
};
use crate::exec::op::control::{Barrier, Fence};
use crate::exec::op::moves::{Counter, ReadClock};
use crate::exec::simd::{pick, plain};
use crate::exec::sync::barrier::{BarrierCall, BarrierOp};
use crate::ptx::{Operand, Type};

impl<'a> Lower<'a, '_> {
    /// Instructions of this module; `None` for others.
    pub(super) fn lower_warp(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Option<Result<()>> {
        Some(match opcode.name {
            "shfl" => self.shuffle(opcode, operands),
            "vote" => self.vote(opcode, operands),
            "match" => self.match_lanes(opcode, operands),
            "redux" => self.reduce(opcode, operands),
            "elect" => self.elect(operands),
            "activemask" => self.active_mask(operands),
            "bar" | "barrier" => self.barrier(opcode, operands),
            "membar" | "fence" => {
                self.push(plain::<Fence>(), Kind::Effect, &[], &[], 0, 0);
                Ok(())
            }
            "atom" | "red" => self.atomic(opcode, operands),
            _ => return None,
        })
    }

    /// The member mask operand, or the active lanes for instructions without `.sync`.
    fn members(&mut self, operand: Option<&Operand<'a>>) -> Result<VReg> {
        match operand {
            Some(operand) => self.source(operand, Width::W32, Type::B32),
            None => {
                let mask = self.ir.vreg(Width::W32);
                let run = pick::<ReadClock<u32>>(self.level);
                self.push(run, Kind::Effect, &[mask], &[], 0, Counter::ActiveMask as u32);
                Ok(mask)
            }
        }
    }

    /// Destinations `d` or `d|p`: the registers and whether there is a predicate.
    fn with_predicate(&mut self, d: &Operand<'a>, width: Width) -> Result<(Vec<VReg>, u32)> {
        match *d {
            Operand::Pair(pair) => {
                let pair = self.range(pair);
                let d = self.destination(&pair[0], width, false)?;
                let p = self.destination(&pair[1], Width::Pred, false)?;
                Ok((vec![d, p], WITH_PREDICATE))
            }
            _ => Ok((vec![self.destination(d, width, false)?], 0)),
        }
    }

    fn shuffle(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, a, b, c, rest @ ..] = operands else {
            return Err("it needs four operands".to_owned());
        };
        let mode = match opcode.one_of(&["up", "down", "bfly", "idx"]) {
            Some("up") => ShuffleMode::Up,
            Some("down") => ShuffleMode::Down,
            Some("bfly") => ShuffleMode::Butterfly,
            Some(_) => ShuffleMode::Index,
            None => return Err("it needs a mode".to_owned()),
        };
        let members = self.members(rest.first())?;
        let mut sources = vec![members];
        for operand in [a, b, c] {
            sources.push(self.source(operand, Width::W32, Type::B32)?);
        }
        let (dsts, flag) = self.with_predicate(d, Width::W32)?;
        self.push(
            pick::<Shuffle>(self.level),
            Kind::CrossLane,
            &dsts,
            &sources,
            0,
            mode as u32 | flag,
        );
        Ok(())
    }

    fn vote(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, a, rest @ ..] = operands else { return Err("it needs two operands".to_owned()) };
        let (mode, width) = match opcode.one_of(&["all", "any", "uni", "ballot"]) {
            Some("all") => (VoteMode::All, Width::Pred),
            Some("any") => (VoteMode::Any, Width::Pred),
            Some("uni") => (VoteMode::Uniform, Width::Pred),
            Some(_) => (VoteMode::Ballot, Width::W32),
            None => return Err("it needs a mode".to_owned()),
        };
        let members = self.members(rest.first())?;
        let a = self.source(a, Width::Pred, Type::Pred)?;
        let d = self.destination(d, width, false)?;
        self.push(pick::<Vote>(self.level), Kind::CrossLane, &[d], &[members, a], 0, mode as u32);
        Ok(())
    }

    fn match_lanes(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, a, rest @ ..] = operands else { return Err("it needs two operands".to_owned()) };
        let ty = opcode.ty().ok_or("it needs a type")?;
        let wide = ty.size_bytes() == 8;
        let members = self.members(rest.first())?;
        let a = self.source_of(a, ty)?;
        let (dsts, mut flags) = self.with_predicate(d, Width::W32)?;
        flags |= if opcode.has("all") { MATCH_ALL } else { 0 } | if wide { MATCH_WIDE } else { 0 };
        self.push(plain::<Match>(), Kind::CrossLane, &dsts, &[members, a], 0, flags);
        Ok(())
    }

    fn reduce(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, a, rest @ ..] = operands else { return Err("it needs two operands".to_owned()) };
        if opcode.has("NaN") || opcode.has("abs") {
            return Err("this modifier is not supported".to_owned());
        }
        let op = match (opcode.one_of(&["add", "min", "max", "and", "or", "xor"]), opcode.ty()) {
            (Some("add"), _) => ReduceOp::Add,
            (Some("min"), Some(Type::S32)) => ReduceOp::MinSigned,
            (Some("max"), Some(Type::S32)) => ReduceOp::MaxSigned,
            (Some("min"), Some(Type::F32)) => ReduceOp::MinFloat,
            (Some("max"), Some(Type::F32)) => ReduceOp::MaxFloat,
            (Some("min"), _) => ReduceOp::MinUnsigned,
            (Some("max"), _) => ReduceOp::MaxUnsigned,
            (Some("and"), _) => ReduceOp::And,
            (Some("or"), _) => ReduceOp::Or,
            (Some("xor"), _) => ReduceOp::Xor,
            _ => return Err("it needs an operation".to_owned()),
        };
        let members = self.members(rest.first())?;
        let a = self.source(a, Width::W32, Type::B32)?;
        let d = self.destination(d, Width::W32, false)?;
        self.push(plain::<Reduce>(), Kind::CrossLane, &[d], &[members, a], 0, op as u32);
        Ok(())
    }

    fn elect(&mut self, operands: &[Operand<'a>]) -> Result<()> {
        let [d @ Operand::Pair(_), members] = operands else {
            return Err("it needs d|p and a mask".to_owned());
        };
        let members = self.members(Some(members))?;
        let (dsts, _) = self.with_predicate(d, Width::W32)?;
        self.push(plain::<Elect>(), Kind::CrossLane, &dsts, &[members], 0, 0);
        Ok(())
    }

    fn active_mask(&mut self, operands: &[Operand<'a>]) -> Result<()> {
        let [d] = operands else { return Err("it needs one operand".to_owned()) };
        let d = self.destination(d, Width::W32, false)?;
        let run = pick::<ReadClock<u32>>(self.level);
        self.push(run, Kind::Effect, &[d], &[], 0, Counter::ActiveMask as u32);
        Ok(())
    }

    fn barrier(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        if opcode.has("warp") {
            let members = self.members(operands.first())?;
            self.push(plain::<WarpSync>(), Kind::Effect, &[], &[members], 0, 0);
            return Ok(());
        }
        if opcode.has("cluster") {
            let op = if opcode.has("arrive") {
                BarrierOp::ClusterArrive
            } else {
                BarrierOp::ClusterWait
            };
            let call = BarrierCall { op, counted: false };
            self.push(plain::<Barrier>(), Kind::Effect, &[], &[], 0, call.encode());
            return Ok(());
        }
        let reduction = opcode.has("red");
        let (d, rest) = match operands.split_first() {
            Some((d, rest)) if reduction => (Some(d), rest),
            _ => (None, operands),
        };
        let (op, width) = match (
            opcode.one_of(&["sync", "arrive", "red"]),
            opcode.one_of(&["popc", "and", "or"]),
        ) {
            (Some("arrive"), _) => (BarrierOp::Arrive, Width::W32),
            (Some("red"), Some("popc")) => (BarrierOp::Popc, Width::W32),
            (Some("red"), Some("and")) => (BarrierOp::And, Width::Pred),
            (Some("red"), Some("or")) => (BarrierOp::Or, Width::Pred),
            (Some("sync"), _) => (BarrierOp::Sync, Width::W32),
            _ => return Err("unknown barrier operation".to_owned()),
        };
        let (values, predicate) = match rest.split_last() {
            Some((predicate, values)) if reduction => (values, Some(predicate)),
            _ => (rest, None),
        };
        let id = match values.first() {
            Some(id) => self.source(id, Width::W32, Type::U32)?,
            None => self.constant(Width::W32, 0),
        };
        let count = match values.get(1) {
            Some(count) => self.source(count, Width::W32, Type::U32)?,
            None => self.constant(Width::W32, 0),
        };
        let mut sources = vec![id, count];
        if let Some(predicate) = predicate {
            sources.push(self.source(predicate, Width::Pred, Type::Pred)?);
        }
        let mut dsts = Vec::new();
        if let Some(d) = d {
            dsts.push(self.destination(d, width, false)?);
        }
        let call = BarrierCall { op, counted: values.len() > 1 };
        self.push(plain::<Barrier>(), Kind::CrossLane, &dsts, &sources, 0, call.encode());
        Ok(())
    }

    fn atomic(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let red = opcode.name == "red";
        if opcode.vector() > 1 {
            return Err("vectors of atomics are not supported".to_owned());
        }
        let op = match opcode
            .one_of(&["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"])
            .ok_or("it needs an operation")?
        {
            "add" => AtomicOp::Add,
            "min" => AtomicOp::Min,
            "max" => AtomicOp::Max,
            "and" => AtomicOp::And,
            "or" => AtomicOp::Or,
            "xor" => AtomicOp::Xor,
            "exch" => AtomicOp::Exchange,
            "cas" => AtomicOp::CompareExchange,
            "inc" => AtomicOp::Increment,
            _ => AtomicOp::Decrement,
        };
        let ty = opcode.ty().ok_or("it needs a type")?;
        let cell_type = match ty {
            Type::S32 | Type::S64 => AtomicType::Signed,
            Type::F32 | Type::F64 => AtomicType::Float,
            Type::F16 => AtomicType::Half,
            Type::F16x2 => AtomicType::HalfPair,
            Type::Bf16 => AtomicType::Brain,
            Type::Bf16x2 => AtomicType::BrainPair,
            _ => AtomicType::Bits,
        };
        let (d, rest) = match operands.split_first() {
            Some((d, rest)) if !red => (Some(d), rest),
            _ => (None, operands),
        };
        let [address, b, rest @ ..] = rest else {
            return Err("it needs an address and a value".to_owned());
        };
        let (target, base, imm) = self.target(opcode, address)?;
        let run = atomic_handler(target, ty).ok_or("unsupported type")?;
        let mut sources = vec![base, self.source_of(b, ty)?];
        if op == AtomicOp::CompareExchange {
            let Some(c) = rest.first() else { return Err("it needs two values".to_owned()) };
            sources.push(self.source_of(c, ty)?);
        }
        let width = if ty.size_bytes() == 8 { Width::W64 } else { Width::W32 };
        let mut dsts = Vec::new();
        match d {
            Some(Operand::Name("_")) | None => {}
            Some(d) => dsts.push(self.destination(d, width, ty.is_signed())?),
        }
        let slot = self.memory_slot();
        self.ir.waits = true;
        self.push(
            run,
            Kind::Effect,
            &dsts,
            &sources,
            imm,
            encode(slot, op, cell_type, !dsts.is_empty()),
        );
        Ok(())
    }
}

fn atomic_handler(target: Target, ty: Type) -> Option<OpFn> {
    Some(for_target!(target, S => match ty.size_bytes() {
        2 => plain::<Atomic<S, u16>>(),
        4 => plain::<Atomic<S, u32>>(),
        8 => plain::<Atomic<S, u64>>(),
        _ => return None,
    }))
}
