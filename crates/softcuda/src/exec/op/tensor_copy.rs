//! `cp.async.bulk.tensor` and `cp.reduce.async.bulk`: boxes of tensors and reductions of blocks,
//! done at once like all asynchronous copies here.
//!
//! Maps, coordinates and addresses are the kernel's, so nothing of them is believed: a map is
//! copied out and checked, the box is measured against shared memory before the first row, and
//! every row and piece is looked up as a load or store would be.

use super::address::{Generic, Global, Space};
use super::atomic::{AtomicOp, AtomicType, Cell};
use super::mbarrier::complete_bytes;
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::{Access, FaultKind};
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;
use crate::exec::tensor_map::{DIMENSIONS, MAP_WORDS, ROW_BYTES, Row, TensorElement, TensorMap};
use crate::exec::window::CLUSTER_RANK_SHIFT;

/// What boxes are aligned to in shared memory, bytes.
const BOX_ALIGN_BYTES: u64 = 128;
/// Bytes that stay together when a box is swizzled.
const PIECE_BYTES: usize = 16;

/// What is done with a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum BoxAction {
    /// Device memory to the own shared memory.
    Load,
    /// Device memory to the shared memory of several blocks of the cluster.
    Multicast,
    /// Shared memory to device memory.
    Store,
    /// Shared memory into device memory, element by element.
    Reduce(AtomicOp),
}

/// The form of a tensor copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) struct BoxForm {
    pub(in crate::exec) action: BoxAction,
    /// Coordinates that the instruction gives.
    pub(in crate::exec) rank: usize,
}

impl BoxForm {
    /// As the small immediate of an instruction.
    pub(in crate::exec) fn pack(self) -> u32 {
        let action = match self.action {
            BoxAction::Load => 0,
            BoxAction::Multicast => 1,
            BoxAction::Store => 2,
            BoxAction::Reduce(op) => 3 + op as u32,
        };
        action << 8 | (self.rank as u32) << 4
    }

    fn unpack(bits: u32) -> Self {
        let action = match bits >> 8 {
            0 => BoxAction::Load,
            1 => BoxAction::Multicast,
            2 => BoxAction::Store,
            op => BoxAction::Reduce(AtomicOp::from_number(op - 3)),
        };
        BoxForm { action, rank: (bits >> 4 & 7) as usize }
    }
}

/// Records what is wrong with an operand.
#[cold]
fn refuse<T>(cx: &mut Context<'_>, lane: u32, what: String) -> Option<T> {
    cx.raise(FaultKind::IllegalInstruction, lane, what);
    None
}

/// Where a lane's box goes or comes from.
struct Place {
    first: [i32; DIMENSIONS],
    shared: u64,
    barrier: u64,
    /// Blocks of the cluster, for [`BoxAction::Multicast`].
    blocks: u32,
}

/// `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor`: operand list of the map's address, the
/// shared address, the barrier, the mask of blocks, and five coordinates.
pub(in crate::exec) struct CopyBox;

impl Body for CopyBox {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = BoxForm::unpack(ins.x);
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let at = lane as usize;
            // SAFETY: operands by the emitter.
            let (map, place) = unsafe {
                let wide = |index| *frame.at::<u64>(cx.extra(ins.e, index)).add(at);
                let word = |index| *frame.at::<u32>(cx.extra(ins.e, index)).add(at);
                let place = Place {
                    shared: wide(1),
                    barrier: wide(2),
                    blocks: word(3),
                    first: std::array::from_fn(|index| word(4 + index) as i32),
                };
                (wide(0), place)
            };
            if move_box(cx, ins, lane, form, map, &place).is_none() {
                return Flow::Fault;
            }
        }
        Flow::Next
    }
}

/// The map at a generic address, checked.
fn read_map(cx: &mut Context<'_>, ins: &Ins, lane: u32, address: u64) -> Option<TensorMap> {
    let mut words = [0; MAP_WORDS];
    for (index, word) in words.iter_mut().enumerate() {
        let at = address.wrapping_add(8 * index as u64);
        let pointer = Generic::lane(cx, ins, at, lane, 8, Access::Read)?;
        // SAFETY: checked for 8 bytes.
        *word = unsafe { pointer.cast::<u64>().read_unaligned() };
    }
    match TensorMap::decode(&words) {
        Some(map) => Some(map),
        None => refuse(cx, lane, format!("what is at {address:#x} is no tensor map")),
    }
}

/// Moves one box. `None`: a fault is recorded.
fn move_box(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: u32,
    form: BoxForm,
    map: u64,
    place: &Place,
) -> Option<()> {
    let map = read_map(cx, ins, lane, map)?;
    if map.rank != form.rank {
        let what = format!("{} coordinates for a tensor of {} dimensions", form.rank, map.rank);
        return refuse(cx, lane, what);
    }
    let access = match form.action {
        BoxAction::Load | BoxAction::Multicast => Access::Write,
        _ => Access::Read,
    };
    if !place.shared.is_multiple_of(BOX_ALIGN_BYTES) {
        let (kind, size) = (FaultKind::MisalignedAddress, BOX_ALIGN_BYTES as u32);
        cx.raise_access(kind, access, place.shared, size, lane);
        return None;
    }
    // Rows begin at whole pieces, as an H200 has it.
    let start = i64::from(place.first[0]) * map.element.bytes() as i64;
    if start % PIECE_BYTES as i64 != 0 {
        let what = format!("a box that begins {start} bytes into its row");
        return refuse(cx, lane, what);
    }
    let is_load = matches!(form.action, BoxAction::Load | BoxAction::Multicast);
    if !is_load && place.first.iter().any(|&coordinate| coordinate < 0) {
        return refuse(cx, lane, "a box that is stored begins before its tensor".to_owned());
    }
    // Bounds what follows, too.
    let bytes = map.rows().saturating_mul(map.pitch_bytes());
    if bytes > u64::from(cx.shared_bytes) {
        let size = bytes.min(u64::from(u32::MAX)) as u32;
        cx.raise_access(FaultKind::SharedOutOfRange, access, place.shared, size, lane);
        return None;
    }
    match form.action {
        BoxAction::Load => {
            load(cx, ins, lane, &map, place, &[place.shared])?;
            complete(cx, ins, lane, place.barrier, &map)
        }
        BoxAction::Multicast => {
            let blocks = blocks_of(cx, lane, place.blocks)?;
            let targets: Vec<u64> = blocks.iter().map(|b| in_block(place.shared, *b)).collect();
            load(cx, ins, lane, &map, place, &targets)?;
            blocks
                .iter()
                .try_for_each(|b| complete(cx, ins, lane, in_block(place.barrier, *b), &map))
        }
        BoxAction::Store => store(cx, ins, lane, &map, place, |cx, bytes, row| {
            write_device(cx, ins, lane, &bytes[row.start..row.end], row.address, &map)
        }),
        BoxAction::Reduce(op) => store(cx, ins, lane, &map, place, |cx, bytes, row| {
            reduce_row(cx, ins, lane, op, map.element, &bytes[row.start..row.end], row.address)
        }),
    }
}

fn complete(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: u32,
    barrier: u64,
    map: &TensorMap,
) -> Option<()> {
    complete_bytes(cx, ins, barrier, lane, map.box_bytes() as i64).then_some(())
}

/// Ranks of a mask, as the fields of cluster addresses have them: 0 for a block without cluster.
pub(super) fn blocks_of(cx: &mut Context<'_>, lane: u32, mask: u32) -> Option<Vec<u64>> {
    let blocks = cx.cluster_shared.len().max(1);
    if mask >> blocks.min(31) != 0 {
        return refuse(cx, lane, format!("blocks {mask:#x} of a cluster of {blocks}"));
    }
    let is_cluster = !cx.cluster_shared.is_empty();
    let ranks = (0..blocks as u64).filter(|rank| mask >> rank & 1 != 0);
    Some(ranks.map(|rank| if is_cluster { rank + 1 } else { 0 }).collect())
}

/// The shared address in another block of the cluster.
pub(super) fn in_block(address: u64, block: u64) -> u64 {
    address & !(0xff << CLUSTER_RANK_SHIFT) | block << CLUSTER_RANK_SHIFT
}

/// Reads the box's rows and writes each to all `targets`.
fn load(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: u32,
    map: &TensorMap,
    place: &Place,
    targets: &[u64],
) -> Option<()> {
    let mut bytes = [0u8; ROW_BYTES];
    let bytes = &mut bytes[..map.row_bytes()];
    for index in 0..map.rows() {
        let row = map.row(&place.first, index);
        map.fill_outside(bytes);
        let inside = &mut bytes[row.start..row.end];
        read_device(cx, ins, lane, inside, row.address, map)?;
        map.convert(inside);
        for target in targets {
            let start = target.wrapping_add(index * map.pitch_bytes());
            for (piece, from) in bytes.chunks_exact(PIECE_BYTES).enumerate() {
                let at = map.swizzle.place(start.wrapping_add((piece * PIECE_BYTES) as u64));
                let pointer = Generic::lane(cx, ins, at, lane, 16, Access::Write)?;
                // SAFETY: checked for 16 bytes; a piece has as many.
                unsafe { pointer.copy_from(from.as_ptr(), PIECE_BYTES) };
            }
        }
    }
    Some(())
}

/// Reads the box's rows from shared memory and gives those that lie in the tensor to `put`.
fn store(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: u32,
    map: &TensorMap,
    place: &Place,
    mut put: impl FnMut(&mut Context<'_>, &[u8], Row) -> Option<()>,
) -> Option<()> {
    let mut bytes = [0u8; ROW_BYTES];
    let bytes = &mut bytes[..map.row_bytes()];
    for index in 0..map.rows() {
        let start = place.shared.wrapping_add(index * map.pitch_bytes());
        for (piece, to) in bytes.chunks_exact_mut(PIECE_BYTES).enumerate() {
            let at = map.swizzle.place(start.wrapping_add((piece * PIECE_BYTES) as u64));
            let pointer = Generic::lane(cx, ins, at, lane, 16, Access::Read)?;
            // SAFETY: checked for 16 bytes; a piece has as many.
            unsafe { pointer.copy_to(to.as_mut_ptr(), PIECE_BYTES) };
        }
        let row = map.row(&place.first, index);
        if row.start < row.end {
            put(cx, bytes, row)?;
        }
    }
    Some(())
}

/// Reads elements of device memory that follow each other.
fn read_device(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: u32,
    bytes: &mut [u8],
    address: u64,
    map: &TensorMap,
) -> Option<()> {
    if bytes.is_empty() {
        return Some(());
    }
    if let Some(pointer) = Global::contiguous(cx, ins, address, bytes.len() as u64) {
        // SAFETY: checked for as many bytes.
        unsafe { pointer.copy_to(bytes.as_mut_ptr(), bytes.len()) };
        return Some(());
    }
    let size = map.element.bytes();
    for (index, element) in bytes.chunks_exact_mut(size).enumerate() {
        let at = address.wrapping_add((index * size) as u64);
        let pointer = Global::lane(cx, ins, at, lane, size as u64, Access::Read)?;
        // SAFETY: checked for an element.
        unsafe { pointer.copy_to(element.as_mut_ptr(), size) };
    }
    Some(())
}

/// Writes elements of device memory that follow each other.
fn write_device(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: u32,
    bytes: &[u8],
    address: u64,
    map: &TensorMap,
) -> Option<()> {
    if let Some(pointer) = Global::contiguous(cx, ins, address, bytes.len() as u64) {
        // SAFETY: checked for as many bytes.
        unsafe { pointer.copy_from(bytes.as_ptr(), bytes.len()) };
        return Some(());
    }
    let size = map.element.bytes();
    for (index, element) in bytes.chunks_exact(size).enumerate() {
        let at = address.wrapping_add((index * size) as u64);
        let pointer = Global::lane(cx, ins, at, lane, size as u64, Access::Write)?;
        // SAFETY: checked for an element.
        unsafe { pointer.copy_from(element.as_ptr(), size) };
    }
    Some(())
}

/// Reduces elements into device memory.
fn reduce_row(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: u32,
    op: AtomicOp,
    element: TensorElement,
    bytes: &[u8],
    address: u64,
) -> Option<()> {
    use TensorElement as E;
    let ty = match element {
        E::Signed32 | E::Signed64 => AtomicType::Signed,
        E::Half => AtomicType::Half,
        E::Brain => AtomicType::Brain,
        E::Float | E::FloatFlushed | E::Tensor | E::TensorFlushed | E::Double => AtomicType::Float,
        E::Unsigned32 | E::Unsigned64 => AtomicType::Bits,
        E::Unsigned8 | E::Unsigned16 => {
            return refuse(cx, lane, format!("no reduction of elements {element:?}"));
        }
    };
    if !is_reduction(op, ty, element.bytes()) {
        return refuse(cx, lane, format!("no reduction {op:?} of elements {element:?}"));
    }
    let size = element.bytes();
    for (index, value) in bytes.chunks_exact(size).enumerate() {
        let at = address.wrapping_add((index * size) as u64);
        let pointer = Generic::lane(cx, ins, at, lane, size as u64, Access::Atomic)?;
        // SAFETY: checked for an element, aligned.
        unsafe { apply(pointer, op, ty, value) };
    }
    Some(())
}

/// Whether bulk copies reduce values of this type and size in this way.
pub(in crate::exec) fn is_reduction(op: AtomicOp, ty: AtomicType, size_bytes: usize) -> bool {
    match op {
        AtomicOp::Add => true,
        AtomicOp::Min | AtomicOp::Max => ty != AtomicType::Float,
        AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => ty == AtomicType::Bits,
        AtomicOp::Increment | AtomicOp::Decrement => ty == AtomicType::Bits && size_bytes == 4,
        AtomicOp::Exchange | AtomicOp::CompareExchange => false,
    }
}

/// Reduces a value of 2, 4 or 8 bytes into the one at `pointer`.
///
/// # Safety
/// `pointer` is valid and aligned for as many bytes.
unsafe fn apply(pointer: *mut u8, op: AtomicOp, ty: AtomicType, value: &[u8]) {
    let number = value.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    // SAFETY: by the caller's contract.
    unsafe {
        match value.len() {
            2 => drop(u16::apply(pointer, op, ty, number as u16, 0)),
            4 => drop(u32::apply(pointer, op, ty, number as u32, 0)),
            _ => drop(u64::apply(pointer, op, ty, number, 0)),
        }
    }
}

/// The form of a reduction of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) struct BlockForm {
    pub(in crate::exec) op: AtomicOp,
    pub(in crate::exec) ty: AtomicType,
    /// 2, 4 or 8.
    pub(in crate::exec) size_bytes: usize,
    /// Whether an mbarrier is told.
    pub(in crate::exec) completes: bool,
}

impl BlockForm {
    /// As the small immediate of an instruction.
    pub(in crate::exec) fn pack(self) -> u32 {
        u32::from(self.completes)
            | (self.op as u32) << 8
            | (self.ty as u32) << 16
            | (self.size_bytes as u32) << 24
    }

    fn unpack(bits: u32) -> Self {
        BlockForm {
            op: AtomicOp::from_number(bits >> 8 & 0xff),
            ty: AtomicType::from_number(bits >> 16 & 0xff),
            size_bytes: (bits >> 24) as usize,
            completes: bits & 1 != 0,
        }
    }
}

/// `cp.reduce.async.bulk`: operand list of to, from, size and barrier.
pub(in crate::exec) struct ReduceBlock;

impl Body for ReduceBlock {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = BlockForm::unpack(ins.x);
        for lane in (0..32u32).filter(|lane| mask >> lane & 1 != 0) {
            let at = lane as usize;
            // SAFETY: operands by the emitter.
            let (to, from, size, barrier) = unsafe {
                (
                    *frame.at::<u64>(ins.a).add(at),
                    *frame.at::<u64>(ins.b).add(at),
                    *frame.at::<u32>(ins.c).add(at),
                    *frame.at::<u64>(cx.extra(ins.e, 3)).add(at),
                )
            };
            if reduce_block(cx, ins, lane, form, [to, from], size).is_none() {
                return Flow::Fault;
            }
            if form.completes && !complete_bytes(cx, ins, barrier, lane, i64::from(size)) {
                return Flow::Fault;
            }
        }
        Flow::Next
    }
}

fn reduce_block(
    cx: &mut Context<'_>,
    ins: &Ins,
    lane: u32,
    form: BlockForm,
    [to, from]: [u64; 2],
    size: u32,
) -> Option<()> {
    if !(size as usize).is_multiple_of(PIECE_BYTES) || size > cx.shared_bytes {
        return refuse(cx, lane, format!("a reduction of {size} bytes"));
    }
    let step = form.size_bytes as u64;
    for at in (0..u64::from(size)).step_by(form.size_bytes) {
        let source = Generic::lane(cx, ins, from.wrapping_add(at), lane, step, Access::Read)?;
        let mut value = [0; 8];
        // SAFETY: checked for a value.
        unsafe { source.copy_to(value.as_mut_ptr(), form.size_bytes) };
        let target = Generic::lane(cx, ins, to.wrapping_add(at), lane, step, Access::Atomic)?;
        // SAFETY: checked for a value, aligned.
        unsafe { apply(target, form.op, form.ty, &value[..form.size_bytes]) };
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_survive_packing() {
        let actions = [
            BoxAction::Load,
            BoxAction::Multicast,
            BoxAction::Store,
            BoxAction::Reduce(AtomicOp::Add),
            BoxAction::Reduce(AtomicOp::Decrement),
        ];
        for action in actions {
            let form = BoxForm { action, rank: 5 };
            assert_eq!(BoxForm::unpack(form.pack()), form);
        }
        let form =
            BlockForm { op: AtomicOp::Xor, ty: AtomicType::Brain, size_bytes: 8, completes: true };
        assert_eq!(BlockForm::unpack(form.pack()), form);
    }
}
