//! `wmma.load`, `wmma.store`, `wmma.mma` and `mma`: fragments of matrices spread over the registers
//! of a warp.
//!
//! All lanes take part; lowering puts a warp barrier before each. Matrices are gathered from the
//! lanes, multiplied as dense ones ([`product`]) and spread again.

use super::address::{Generic, Space};
use crate::exec::alu::LANES;
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::Access;
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;
use crate::exec::tensor::product::{self, EXTENT, WORDS};
use crate::exec::tensor::{Element, Multiply, Order, Role, Shape, Transfer, fragment};

/// Bytes of the longest row or column in memory.
const LINE_BYTES: usize = 128;

/// A matrix as it lies in memory: rows, or columns.
type Lines = [[u8; LINE_BYTES]; EXTENT];

/// Where a matrix lies.
struct Place {
    address: u64,
    /// From one line to the next.
    pitch_bytes: u64,
    lines: usize,
    line_bytes: usize,
    /// What must be aligned and valid at a time.
    piece_bytes: usize,
    lane: u32,
}

impl Transfer {
    /// Elements along a line, if the multiplicand's words lie as in registers.
    fn is_along_k(self) -> bool {
        matches!((self.role, self.order), (Role::A, Order::Row) | (Role::B, Order::Column))
    }

    /// Number of lines and elements of each.
    fn lines(self) -> (usize, usize) {
        let Shape { m, n, k } = self.shape;
        let (rows, columns) = match self.role {
            Role::A => (m, k),
            Role::B => (k, n),
            Role::Accumulator => (m, n),
        };
        match self.order {
            Order::Row => (rows, columns),
            Order::Column => (columns, rows),
        }
    }

    /// Where the matrix lies; all lanes give the same address and stride, the first one's count.
    ///
    /// # Safety
    /// `a` is a 64-bit and `b` a 32-bit register of `frame`.
    unsafe fn place(self, ins: &Ins, frame: Frame, mask: u32) -> Place {
        let lane = mask.trailing_zeros();
        let (lines, elements) = self.lines();
        let bits = self.element.bits();
        // SAFETY: by the caller's contract.
        let (address, stride) = unsafe {
            (
                (*frame.at::<u64>(ins.a).add(lane as usize)).wrapping_add_signed(ins.imm),
                u64::from(*frame.at::<u32>(ins.b).add(lane as usize)),
            )
        };
        Place {
            address,
            pitch_bytes: stride * bits as u64 / 8,
            lines,
            line_bytes: elements * bits / 8,
            piece_bytes: if bits < 8 { 4 } else { bits / 8 },
            lane,
        }
    }
}

impl Place {
    /// Calls `each` with every piece: its pointer, line and offset there. `None`: a fault is
    /// recorded.
    fn walk(
        &self,
        cx: &mut Context<'_>,
        ins: &Ins,
        access: Access,
        mut each: impl FnMut(*mut u8, usize, std::ops::Range<usize>),
    ) -> Option<()> {
        let is_aligned = self.address | self.pitch_bytes;
        let is_aligned = is_aligned & (self.piece_bytes as u64 - 1) == 0;
        for line in 0..self.lines {
            let start = self.address.wrapping_add(self.pitch_bytes.wrapping_mul(line as u64));
            let whole = Generic::contiguous(cx, ins, start, self.line_bytes as u64);
            if let Some(pointer) = whole.filter(|_| is_aligned) {
                each(pointer, line, 0..self.line_bytes);
                continue;
            }
            for at in (0..self.line_bytes).step_by(self.piece_bytes) {
                let (address, size) = (start.wrapping_add(at as u64), self.piece_bytes as u64);
                let pointer = Generic::lane(cx, ins, address, self.lane, size, access)?;
                each(pointer, line, at..at + self.piece_bytes);
            }
        }
        Some(())
    }
}

/// `wmma.load d.., [a], b`: operand list of the destinations (two at least), the address and the
/// stride in elements.
pub(in crate::exec) struct LoadFragment;

impl Body for LoadFragment {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = Transfer::unpack(ins.x);
        // SAFETY: operands by the emitter; pieces are checked for their length.
        unsafe {
            let mut lines: Lines = [[0; LINE_BYTES]; EXTENT];
            let place = form.place(ins, frame, mask);
            let read = place.walk(cx, ins, Access::Read, |pointer, line, range| {
                let target = &mut lines[line][range];
                pointer.copy_to_nonoverlapping(target.as_mut_ptr(), target.len());
            });
            if read.is_none() {
                return Flow::Fault;
            }
            let distinct = form.distinct_registers();
            for index in 0..form.registers() {
                let d = cx.extra(ins.e, index);
                for lane in lanes(mask) {
                    let value = register_of(form, &lines, lane, index % distinct);
                    match form.element {
                        Element::F64 => *frame.at::<u64>(d).add(lane) = value,
                        _ => *frame.at::<u32>(d).add(lane) = value as u32,
                    }
                }
            }
        }
        Flow::Next
    }
}

/// `wmma.store [a], s.., b`: operand list of the address, the stride and the sources.
pub(in crate::exec) struct StoreFragment;

impl Body for StoreFragment {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = Transfer::unpack(ins.x);
        let element = form.element;
        // SAFETY: operands by the emitter; pieces are checked for their length.
        unsafe {
            let mut lines: Lines = [[0; LINE_BYTES]; EXTENT];
            for lane in 0..LANES {
                for index in 0..form.shape.m * form.shape.n / LANES {
                    let value = accumulator_element(cx, ins, frame, 2, element, lane, index);
                    let (row, column) = fragment::accumulator(form.shape, lane, index);
                    let (line, at) = match form.order {
                        Order::Row => (row, column),
                        Order::Column => (column, row),
                    };
                    let size = element.bits() / 8;
                    lines[line][at * size..(at + 1) * size]
                        .copy_from_slice(&value.to_le_bytes()[..size]);
                }
            }
            let place = form.place(ins, frame, mask);
            let written = place.walk(cx, ins, Access::Write, |pointer, line, range| {
                let source = &lines[line][range];
                pointer.copy_from_nonoverlapping(source.as_ptr(), source.len());
            });
            if written.is_some() { Flow::Next } else { Flow::Fault }
        }
    }
}

/// Lanes of a set bits mask.
fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// Little-endian bytes as a number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// The bits of register `reg` of a fragment of the matrix in `lines`.
fn register_of(form: Transfer, lines: &Lines, lane: usize, reg: usize) -> u64 {
    let size = (form.element.bits() / 8).max(1);
    if form.role == Role::Accumulator {
        let per_register = if form.element == Element::F16 { 2 } else { 1 };
        return (0..per_register).rev().fold(0, |value, part| {
            let index = reg * per_register + part;
            let (row, column) = fragment::accumulator(form.shape, lane, index);
            let (line, at) = match form.order {
                Order::Row => (row, column),
                Order::Column => (column, row),
            };
            value << 16 | number(&lines[line][at * size..(at + 1) * size])
        });
    }
    let (outer, word) = fragment::word(form.shape, form.role, form.element, lane, reg);
    let word_bytes = size.max(4);
    if form.is_along_k() {
        return number(&lines[outer][word * word_bytes..(word + 1) * word_bytes]);
    }
    let per_word = word_bytes / size;
    (0..per_word).rev().fold(0, |value, part| {
        let element = number(&lines[word * per_word + part][outer * size..(outer + 1) * size]);
        if size == 8 { element } else { value << (8 * size) | element }
    })
}

/// Element `index` of a lane's part of an accumulator whose registers start at `first` in the
/// operand list.
///
/// # Safety
/// The operand list has the accumulator's registers there.
unsafe fn accumulator_element(
    cx: &Context<'_>,
    ins: &Ins,
    frame: Frame,
    first: usize,
    element: Element,
    lane: usize,
    index: usize,
) -> u64 {
    // SAFETY: by the caller's contract.
    unsafe {
        match element {
            Element::F64 => *frame.at::<u64>(cx.extra(ins.e, first + index)).add(lane),
            Element::F16 => {
                let pair = *frame.at::<u32>(cx.extra(ins.e, first + index / 2)).add(lane);
                u64::from(pair >> (16 * (index % 2)) & 0xffff)
            }
            _ => u64::from(*frame.at::<u32>(cx.extra(ins.e, first + index)).add(lane)),
        }
    }
}

/// `mma d.., a.., b.., c..` and `wmma.mma`: operand list of all of them.
pub(in crate::exec) struct MultiplyMatrices;

/// Where the operands' registers start in the operand list.
struct Firsts {
    a: usize,
    b: usize,
    c: usize,
}

impl Body for MultiplyMatrices {
    #[inline(always)]
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = Multiply::unpack(ins.x);
        let [a, b, _, d] = form.registers();
        let firsts = Firsts { a: d, b: d + a, c: d + a + b };
        // SAFETY: operands by the emitter.
        unsafe {
            match form.a {
                Element::F64 => doubles(cx, ins, frame, mask, form, &firsts),
                _ if form.manner.quads => quads(cx, ins, frame, mask, form, &firsts),
                _ => words(cx, ins, frame, mask, form, &firsts),
            }
        }
        Flow::Next
    }
}

/// Products of everything that 32-bit registers hold.
///
/// # Safety
/// The operand list is that of `form`.
#[inline(always)]
unsafe fn words(
    cx: &Context<'_>,
    ins: &Ins,
    frame: Frame,
    mask: u32,
    form: Multiply,
    firsts: &Firsts,
) {
    let shape = form.shape;
    let (mut a, mut b) = ([[0; WORDS]; EXTENT], [[0; WORDS]; EXTENT]);
    let mut c = [[0; EXTENT]; EXTENT];
    // SAFETY: by the caller's contract.
    unsafe {
        let mut gather = |role, element: Element, extent: usize, first: usize| {
            let target = if role == Role::A { &mut a } else { &mut b };
            for reg in 0..extent * shape.k * element.bits() / (32 * LANES) {
                let source = frame.at::<u32>(cx.extra(ins.e, first + reg));
                for lane in 0..LANES {
                    let (row, word) = fragment::word(shape, role, element, lane, reg);
                    target[row][word] = *source.add(lane);
                }
            }
        };
        gather(Role::A, form.a, shape.m, firsts.a);
        gather(Role::B, form.b, shape.n, firsts.b);
        let count = shape.m * shape.n / LANES;
        for lane in 0..LANES {
            for index in 0..count {
                let value = accumulator_element(cx, ins, frame, firsts.c, form.c, lane, index);
                let (row, column) = fragment::accumulator(shape, lane, index);
                c[row][column] = match form.c {
                    Element::F16 => product::widen(value as u16),
                    _ => value as u32,
                };
            }
        }
        match form.d {
            Element::S32 => product::integer(form, &a, &b, &mut c),
            _ => product::float(form, &a, &b, &mut c),
        }
        for lane in lanes(mask) {
            for index in 0..count {
                let (row, column) = fragment::accumulator(shape, lane, index);
                put_accumulator(cx, ins, frame, form.d, lane, index, c[row][column]);
            }
        }
    }
}

/// Writes element `index` of D: `.f32` bits or an integer.
///
/// # Safety
/// The operand list starts with the registers of D.
unsafe fn put_accumulator(
    cx: &Context<'_>,
    ins: &Ins,
    frame: Frame,
    element: Element,
    lane: usize,
    index: usize,
    value: u32,
) {
    // SAFETY: by the caller's contract.
    unsafe {
        if element == Element::F16 {
            let pair = frame.at::<u32>(cx.extra(ins.e, index / 2)).add(lane);
            let shift = 16 * (index % 2);
            *pair = *pair & !(0xffff << shift) | u32::from(product::narrow(value)) << shift;
        } else {
            *frame.at::<u32>(cx.extra(ins.e, index)).add(lane) = value;
        }
    }
}

/// `mma.m8n8k4` of halves.
///
/// # Safety
/// The operand list is that of `form`.
unsafe fn quads(
    cx: &Context<'_>,
    ins: &Ins,
    frame: Frame,
    mask: u32,
    form: Multiply,
    firsts: &Firsts,
) {
    for quad in 0..4 {
        let (mut a, mut b) = ([[0u32; WORDS]; EXTENT], [[0u32; WORDS]; EXTENT]);
        let mut c = [[0; EXTENT]; EXTENT];
        // SAFETY: by the caller's contract.
        unsafe {
            for lane in fragment::quad_lanes(quad) {
                for index in 0..4 {
                    for (role, first, target) in
                        [(Role::A, firsts.a, &mut a), (Role::B, firsts.b, &mut b)]
                    {
                        let pair = *frame.at::<u32>(cx.extra(ins.e, first + index / 2)).add(lane);
                        let half = pair >> (16 * (index % 2)) & 0xffff;
                        let (row, k) = fragment::quad_multiplicand(form, role, lane, index);
                        target[row][k / 2] |= half << (16 * (k % 2));
                    }
                }
                for index in 0..8 {
                    let value = accumulator_element(cx, ins, frame, firsts.c, form.c, lane, index);
                    let (row, column) = fragment::quad_accumulator(form.c, lane, index);
                    c[row][column] = match form.c {
                        Element::F16 => product::widen(value as u16),
                        _ => value as u32,
                    };
                }
            }
            product::float(form, &a, &b, &mut c);
            for lane in fragment::quad_lanes(quad).filter(|lane| mask >> lane & 1 != 0) {
                for index in 0..8 {
                    let (row, column) = fragment::quad_accumulator(form.d, lane, index);
                    put_accumulator(cx, ins, frame, form.d, lane, index, c[row][column]);
                }
            }
        }
    }
}

/// Products of `.f64`.
///
/// # Safety
/// The operand list is that of `form`.
unsafe fn doubles(
    cx: &Context<'_>,
    ins: &Ins,
    frame: Frame,
    mask: u32,
    form: Multiply,
    firsts: &Firsts,
) {
    let shape = form.shape;
    let (mut a, mut b, mut c) = ([[0.0; 16]; 16], [[0.0; 16]; 16], [[0.0; 16]; 16]);
    // SAFETY: by the caller's contract.
    unsafe {
        for (role, extent, first, target) in
            [(Role::A, shape.m, firsts.a, &mut a), (Role::B, shape.n, firsts.b, &mut b)]
        {
            for reg in 0..extent * shape.k / LANES {
                let source = frame.at::<f64>(cx.extra(ins.e, first + reg));
                for lane in 0..LANES {
                    let (row, k) = fragment::word(shape, role, Element::F64, lane, reg);
                    target[row][k] = *source.add(lane);
                }
            }
        }
        for index in 0..shape.m * shape.n / LANES {
            let source = frame.at::<f64>(cx.extra(ins.e, firsts.c + index));
            for lane in 0..LANES {
                let (row, column) = fragment::accumulator(shape, lane, index);
                c[row][column] = *source.add(lane);
            }
        }
        product::double(form, &a, &b, &mut c);
        for index in 0..shape.m * shape.n / LANES {
            let target = frame.at::<f64>(cx.extra(ins.e, index));
            for lane in lanes(mask) {
                let (row, column) = fragment::accumulator(shape, lane, index);
                *target.add(lane) = c[row][column];
            }
        }
    }
}
