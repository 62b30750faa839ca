//! Which elements of a matrix each register of each lane holds.
//!
//! A multiplicand is stored in words of consecutive elements along `k`; four lanes hold the four
//! words of a chunk, eight such groups eight rows (of A; columns of B). An accumulator's elements
//! go in pairs along `n`, or along `m` where the product is computed transposed.

use super::{Element, Multiply, Role, Shape};

/// The group of four lanes that a lane belongs to, and its place there.
fn place_in_group(lane: usize) -> (usize, usize) {
    (lane / 4, lane % 4)
}

/// The row (of A; column of B) and the word in it that register `reg` of `lane` holds.
pub(in crate::exec) fn word(
    shape: Shape,
    role: Role,
    element: Element,
    lane: usize,
    reg: usize,
) -> (usize, usize) {
    let (group, place) = place_in_group(lane);
    let chunks = (shape.k * element.bits() / (4 * element.bits().max(32))).max(1);
    // Tiles of sixteen rows have their two halves side by side in registers.
    let halves = match role {
        Role::A if shape.m >= 16 => 2,
        Role::B if shape.n == 32 => 2,
        _ => 1,
    };
    let (half, chunk, tile) = (reg % halves, reg / halves % chunks, reg / halves / chunks);
    (group + 8 * half + 8 * halves * tile, chunk * 4 + place)
}

/// Row and column of element `index` of a lane's part of an accumulator.
pub(in crate::exec) fn accumulator(shape: Shape, lane: usize, index: usize) -> (usize, usize) {
    let (group, place) = place_in_group(lane);
    let (pair, second) = (index / 2, index % 2);
    if shape.n == 32 {
        return (place * 2 + second, group + 8 * pair);
    }
    let halves = shape.m / 8;
    (group + 8 * (pair % halves), 8 * (pair / halves) + place * 2 + second)
}

/// `mma.m8n8k4` of halves: the lanes of product `quad`.
pub(in crate::exec) fn quad_lanes(quad: usize) -> impl Iterator<Item = usize> {
    (0..8).map(move |index| quad * 4 + index % 4 + index / 4 * 16)
}

/// `mma.m8n8k4` of halves: row of A (column of B) and place along `k` of half `index` of a lane.
pub(in crate::exec) fn quad_multiplicand(
    form: Multiply,
    role: Role,
    lane: usize,
    index: usize,
) -> (usize, usize) {
    let upper = if lane < 16 { 0 } else { 4 };
    let along_k = match role {
        Role::A => !form.manner.a_by_column,
        _ => form.manner.b_by_column,
    };
    if along_k { (lane % 4 + upper, index) } else { (index + upper, lane % 4) }
}

/// `mma.m8n8k4` of halves: row and column of element `index` of an accumulator.
pub(in crate::exec) fn quad_accumulator(
    element: Element,
    lane: usize,
    index: usize,
) -> (usize, usize) {
    let upper = if lane < 16 { 0 } else { 4 };
    match element {
        Element::F16 => (lane % 4 + upper, index),
        _ => ((lane & 1) + (index & 2) + upper, (index & 4) + (lane & 2) + (index & 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_held_once() {
        for (shape, element) in [
            ("m16n16k16", Element::Bf16),
            ("m32n8k16", Element::U8),
            ("m8n32k16", Element::Bf16),
            ("m16n16k8", Element::Tf32),
            ("m8n8k4", Element::F64),
            ("m16n8k256", Element::B1),
        ] {
            let shape = Shape::from_modifier(shape).unwrap();
            let words = shape.k * element.bits() / element.bits().max(32);
            for (role, extent) in [(Role::A, shape.m), (Role::B, shape.n)] {
                let mut seen = vec![0; extent * words];
                for lane in 0..32 {
                    for reg in 0..extent * words / 32 {
                        let (row, at) = word(shape, role, element, lane, reg);
                        seen[row * words + at] += 1;
                    }
                }
                assert!(seen.iter().all(|&count| count == 1), "{shape:?} {role:?} {element:?}");
            }
            let mut seen = vec![0; shape.m * shape.n];
            for lane in 0..32 {
                for index in 0..shape.m * shape.n / 32 {
                    let (row, column) = accumulator(shape, lane, index);
                    seen[row * shape.n + column] += 1;
                }
            }
            assert!(seen.iter().all(|&count| count == 1), "{shape:?}");
        }
    }
}
