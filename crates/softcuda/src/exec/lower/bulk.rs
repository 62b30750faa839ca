//! Lowering of bulk copies: blocks of memory and boxes of tensors, copied or reduced.

use super::opcode::Opcode;
use super::transfer::Side;
use super::{Lower, Result};
use crate::exec::code::Width;
use crate::exec::ir::{Kind, VReg};
use crate::exec::op::async_copy::{BULK_COMPLETES, BULK_MULTICAST, CopyBulk};
use crate::exec::op::atomic::{AtomicOp, AtomicType};
use crate::exec::op::control::Nothing;
use crate::exec::op::tensor_copy::{
    BlockForm, BoxAction, BoxForm, CopyBox, ReduceBlock, is_reduction,
};
use crate::exec::simd::plain;
use crate::exec::tensor_map::DIMENSIONS;
use crate::ptx::{Operand, Type};

impl<'a> Lower<'a, '_> {
    /// `cp.async.bulk`, `cp.reduce.async.bulk` and all that begins with them.
    pub(super) fn copy_bulk(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Result<()> {
        let is_group = opcode.has("commit_group") || opcode.has("wait_group");
        if is_group || opcode.has("prefetch") {
            // Copies are complete at once, and there is no cache to fetch into.
            self.push(plain::<Nothing>(), Kind::Effect, &[], &[], 0, 0);
            return Ok(());
        }
        if opcode.has("cp_mask") {
            return Err("copies of single bytes are not supported".to_owned());
        }
        if opcode.has("tensor") {
            return self.copy_box(opcode, operands);
        }
        let [to, from, size, rest @ ..] = operands else {
            return Err("it needs two addresses and a size".to_owned());
        };
        let spaces: Vec<Side> = opcode
            .modifiers
            .iter()
            .filter(|m| m.starts_with("shared") || **m == "global")
            .map(|m| if *m == "global" { Side::Generic } else { Side::Shared })
            .collect();
        let side = |index: usize| spaces.get(index).copied().unwrap_or(Side::Generic);
        let to = self.whole_address(to, side(0))?;
        let from = self.whole_address(from, side(1))?;
        let size = self.source(size, Width::W32, Type::U32)?;
        let completes = opcode.has("mbarrier");
        let barrier = match rest.first() {
            Some(operand) if completes => self.whole_address(operand, Side::Shared)?,
            _ if completes => return Err("it needs an mbarrier".to_owned()),
            _ => self.constant(Width::W64, 0),
        };
        if opcode.has("reduce") {
            let form = BlockForm { completes, ..reduction(opcode)? };
            let sources = [to, from, size, barrier];
            let run = plain::<ReduceBlock>();
            self.ir.waits = true;
            self.push(run, Kind::Effect, &[], &sources, 0, form.pack());
            return Ok(());
        }
        let (blocks, multicast) = self.blocks(opcode, rest.get(1))?;
        let sources = [to, from, size, barrier, blocks];
        let x = if completes { BULK_COMPLETES } else { 0 };
        let x = x | if multicast { BULK_MULTICAST } else { 0 };
        self.push(plain::<CopyBulk>(), Kind::Effect, &[], &sources, 0, x);
        Ok(())
    }

    /// The mask of blocks of a multicast, and whether it is one.
    fn blocks(&mut self, opcode: &Opcode<'_>, mask: Option<&Operand<'a>>) -> Result<(VReg, bool)> {
        match (opcode.has("multicast"), mask) {
            (true, Some(mask)) => Ok((self.source(mask, Width::W32, Type::U16)?, true)),
            (true, None) => Err("it needs a mask of blocks".to_owned()),
            (false, _) => Ok((self.constant(Width::W32, 0), false)),
        }
    }

    /// `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`.
    fn copy_box(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        if opcode.has("im2col") || opcode.has("im2col_no_offs") {
            return Err("the im2col modes of tensor copies are not supported".to_owned());
        }
        if opcode.modifiers.iter().any(|m| m.starts_with("tile::")) {
            return Err("gathering and scattering tensor copies are not supported".to_owned());
        }
        if opcode.has("cta_group") {
            return Err("it belongs to sm_100a and its relatives, and the device is of another architecture".to_owned());
        }
        let dimensions = ["1d", "2d", "3d", "4d", "5d"];
        let rank = dimensions
            .iter()
            .position(|dimension| opcode.has_exactly(dimension))
            .map(|index| index + 1)
            .ok_or("it needs the number of dimensions")?;
        let is_load = opcode.has("mbarrier");
        let (shared, tensor, rest) = match (is_load, operands) {
            (true, [shared, tensor, rest @ ..]) => (shared, tensor, rest),
            (false, [tensor, shared, rest @ ..]) => (shared, tensor, rest),
            _ => return Err("it needs a tensor and a shared address".to_owned()),
        };
        let (map, coordinates) = self.tensor_operand(tensor, rank)?;
        let shared = self.whole_address(shared, Side::Shared)?;
        let barrier = match rest.first() {
            Some(operand) if is_load => self.whole_address(operand, Side::Shared)?,
            _ if is_load => return Err("it needs an mbarrier".to_owned()),
            _ => self.constant(Width::W64, 0),
        };
        let (blocks, multicast) = self.blocks(opcode, rest.get(1).filter(|_| is_load))?;
        let action = match (is_load, multicast) {
            (true, false) => BoxAction::Load,
            (true, true) => BoxAction::Multicast,
            _ if opcode.has("reduce") => BoxAction::Reduce(operation(opcode)?),
            _ => BoxAction::Store,
        };
        let mut sources = vec![map, shared, barrier, blocks];
        sources.extend(coordinates);
        if matches!(action, BoxAction::Reduce(_)) {
            self.ir.waits = true;
        }
        let form = BoxForm { action, rank };
        self.push(plain::<CopyBox>(), Kind::Effect, &[], &sources, 0, form.pack());
        Ok(())
    }

    /// `[map, {coordinates}]`: the map's address and five coordinates.
    fn tensor_operand(
        &mut self,
        operand: &Operand<'a>,
        rank: usize,
    ) -> Result<(VReg, [VReg; DIMENSIONS])> {
        let Operand::Bracket(range) = *operand else {
            return Err("it needs a tensor map and coordinates in brackets".to_owned());
        };
        let parts = self.range(range);
        let [map, coordinates] = parts.as_slice() else {
            return Err("it needs a tensor map and coordinates in brackets".to_owned());
        };
        let coordinates = self.parts(coordinates);
        if coordinates.len() != rank {
            return Err(format!("{} coordinates where {rank} belong", coordinates.len()));
        }
        let map = self.source(map, Width::W64, Type::U64)?;
        let mut place = [self.constant(Width::W32, 0); DIMENSIONS];
        for (to, from) in place.iter_mut().zip(&coordinates) {
            *to = self.source(from, Width::W32, Type::S32)?;
        }
        Ok((map, place))
    }

    /// An address as one register.
    fn whole_address(&mut self, operand: &Operand<'a>, side: Side) -> Result<VReg> {
        let (reg, imm) = self.generic_address(operand, side)?;
        if imm == 0 {
            return Ok(reg);
        }
        let (sum, imm) = (self.ir.vreg(Width::W64), self.constant(Width::W64, imm as u64));
        self.compute("add", &["s64"], sum, &[reg, imm])?;
        Ok(sum)
    }
}

fn operation(opcode: &Opcode<'_>) -> Result<AtomicOp> {
    let names = ["add", "min", "max", "inc", "dec", "and", "or", "xor"];
    Ok(match opcode.one_of(&names).ok_or("it needs an operation")? {
        "add" => AtomicOp::Add,
        "min" => AtomicOp::Min,
        "max" => AtomicOp::Max,
        "inc" => AtomicOp::Increment,
        "dec" => AtomicOp::Decrement,
        "and" => AtomicOp::And,
        "or" => AtomicOp::Or,
        _ => AtomicOp::Xor,
    })
}

/// The reduction of a block, without its completion.
fn reduction(opcode: &Opcode<'_>) -> Result<BlockForm> {
    let op = operation(opcode)?;
    let ty = opcode.ty().ok_or("it needs a type")?;
    let size_bytes = ty.size_bytes() as usize;
    let kind = match ty {
        Type::S32 | Type::S64 => AtomicType::Signed,
        Type::F32 | Type::F64 => AtomicType::Float,
        Type::F16 => AtomicType::Half,
        Type::Bf16 => AtomicType::Brain,
        Type::B32 | Type::B64 | Type::U32 | Type::U64 => AtomicType::Bits,
        _ => return Err("there is no reduction of this type".to_owned()),
    };
    if !is_reduction(op, kind, size_bytes) {
        return Err("there is no such reduction of this type".to_owned());
    }
    Ok(BlockForm { op, ty: kind, size_bytes, completes: false })
}
