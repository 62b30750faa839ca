//! `ldmatrix`, `stmatrix`, `movmatrix`: 8x8 matrices of 16-bit elements spread over a warp.

use super::address::{Generic, Space};
use crate::exec::alu::LANES;
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::Access;
use crate::exec::lanes::Vectors;
use crate::exec::simd::Body;

/// `ins.x` flag: `.trans`. The low bits hold the number of matrices.
pub(in crate::exec) const TRANSPOSED: u32 = 1 << 8;

type Matrix = [[u16; 8]; 8];

/// The word that `lane` holds of a matrix: elements (row, column) and the next one.
fn word(matrix: &Matrix, lane: usize, transposed: bool) -> u32 {
    let (row, column) = (lane / 4, lane % 4 * 2);
    let at = |row: usize, column: usize| {
        u32::from(if transposed { matrix[column][row] } else { matrix[row][column] })
    };
    at(row, column) | at(row, column + 1) << 16
}

/// `ldmatrix d.., [a]`: operand list of the destinations and the address, padded to two
/// destinations at least.
pub(in crate::exec) struct LoadMatrix;

impl Body for LoadMatrix {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let count = (ins.x & 0xff) as usize;
        let mut matrices = [[[0u16; 8]; 8]; 4];
        for (index, matrix) in matrices.iter_mut().enumerate().take(count) {
            for (row, elements) in matrix.iter_mut().enumerate() {
                let lane = index * 8 + row;
                // SAFETY: operands by the emitter; the pointer is checked for 16 bytes.
                unsafe {
                    let addr = (*frame.at::<u64>(ins.a).add(lane)).wrapping_add_signed(ins.imm);
                    let Some(p) = Generic::lane(cx, ins, addr, lane as u32, 16, Access::Read)
                    else {
                        return Flow::Fault;
                    };
                    *elements = p.cast::<[u16; 8]>().read_unaligned();
                }
            }
        }
        for (index, matrix) in matrices.iter().enumerate().take(count) {
            for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                // SAFETY: destinations are in the list, by the emitter.
                unsafe {
                    let d = cx.extra(ins.e, index);
                    *frame.at::<u32>(d).add(lane) = word(matrix, lane, ins.x & TRANSPOSED != 0);
                }
            }
        }
        Flow::Next
    }
}

/// `stmatrix [a], s..`: operand list of the address and the sources.
pub(in crate::exec) struct StoreMatrix;

impl Body for StoreMatrix {
    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, _: u32) -> Flow {
        let count = (ins.x & 0xff) as usize;
        for index in 0..count {
            let mut matrix: Matrix = [[0; 8]; 8];
            for lane in 0..LANES {
                // SAFETY: sources are in the list behind the address, by the emitter.
                let value = unsafe { *frame.at::<u32>(cx.extra(ins.e, 1 + index)).add(lane) };
                for half in 0..2 {
                    let (row, column) = (lane / 4, lane % 4 * 2 + half);
                    let element = (value >> (16 * half)) as u16;
                    if ins.x & TRANSPOSED != 0 {
                        matrix[column][row] = element;
                    } else {
                        matrix[row][column] = element;
                    }
                }
            }
            for (row, elements) in matrix.iter().enumerate() {
                let lane = index * 8 + row;
                // SAFETY: operands by the emitter; the pointer is checked for 16 bytes.
                unsafe {
                    let addr = (*frame.at::<u64>(ins.a).add(lane)).wrapping_add_signed(ins.imm);
                    let Some(p) = Generic::lane(cx, ins, addr, lane as u32, 16, Access::Write)
                    else {
                        return Flow::Fault;
                    };
                    p.cast::<[u16; 8]>().write_unaligned(*elements);
                }
            }
        }
        Flow::Next
    }
}

/// `movmatrix d, a`: transposes.
pub(in crate::exec) struct MoveMatrix;

impl Body for MoveMatrix {
    unsafe fn run<V: Vectors>(_: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let mut matrix: Matrix = [[0; 8]; 8];
        // SAFETY: operands by the emitter.
        unsafe {
            for lane in 0..LANES {
                let value = *frame.at::<u32>(ins.a).add(lane);
                matrix[lane / 4][lane % 4 * 2] = value as u16;
                matrix[lane / 4][lane % 4 * 2 + 1] = (value >> 16) as u16;
            }
            for lane in (0..LANES).filter(|lane| mask >> lane & 1 != 0) {
                *frame.at::<u32>(ins.d).add(lane) = word(&matrix, lane, true);
            }
        }
        Flow::Next
    }
}
