//! Whole products of `wmma`: fragments loaded, multiplied and stored, against the host's.

use softcuda::exec::SimdLevel;

use super::{FUEL, encode, list, mix};
use crate::machine::{Params, TestMachine, launch, levels};

/// A matrix in memory: element type, number of lines, elements per line, stride in elements.
struct Stored {
    bits: usize,
    bytes: Vec<u8>,
    stride: usize,
}

impl Stored {
    fn new(bits: usize, lines: usize, stride: usize) -> Self {
        Stored { bits, bytes: vec![0; lines * stride * bits / 8], stride }
    }

    fn set(&mut self, line: usize, at: usize, value: u64) {
        let bit = (line * self.stride + at) * self.bits;
        if self.bits >= 8 {
            let size = self.bits / 8;
            self.bytes[bit / 8..bit / 8 + size].copy_from_slice(&value.to_le_bytes()[..size]);
        } else {
            self.bytes[bit / 8] |= ((value & ((1 << self.bits) - 1)) << (bit % 8)) as u8;
        }
    }

    fn get(&self, line: usize, at: usize) -> u64 {
        let (start, size) = ((line * self.stride + at) * self.bits / 8, self.bits / 8);
        self.bytes[start..start + size].iter().rev().fold(0, |v, &b| v << 8 | u64::from(b))
    }
}

/// Bits of a small integer in a type.
pub(crate) fn number(ty: &str, value: i64) -> u64 {
    match ty {
        "f16" => encode(5, 10, value),
        "bf16" => encode(8, 7, value),
        "tf32" | "f32" => encode(8, 23, value),
        "f64" => encode(11, 52, value),
        _ => value as u64,
    }
}

fn bits(ty: &str) -> usize {
    match ty {
        "b1" => 1,
        "u4" | "s4" => 4,
        "u8" | "s8" => 8,
        "f16" | "bf16" => 16,
        "f64" => 64,
        _ => 32,
    }
}

/// Small integers that a type has: signs only where it has them.
fn range(ty: &str, seed: u64) -> i64 {
    let r = mix(seed);
    match ty {
        "b1" => (r & 1) as i64,
        "u4" => (r & 15) as i64,
        "s4" => (r & 15) as i64 - 8,
        "u8" => (r & 255) as i64,
        "s8" => (r & 255) as i64 - 128,
        _ => (r % 17) as i64 - 8,
    }
}

struct Product<'a> {
    shape: (usize, usize, usize),
    /// Element types of A, B, C, D.
    types: [&'a str; 4],
    /// Orders of A, B and the accumulators.
    orders: [&'a str; 3],
    /// State space of all matrices: `.global`, `.shared` or none.
    space: &'a str,
    multiply: String,
}

/// Registers of a `wmma` fragment.
fn fragment_registers(role: char, ty: &str, (m, n, k): (usize, usize, usize)) -> usize {
    let elements = match role {
        'a' => m * k,
        'b' => k * n,
        _ => m * n,
    };
    match (role, ty) {
        ('a' | 'b', "f16") => 8,
        _ => elements * bits(ty) / 32 / bits(ty).max(32),
    }
}

fn product_kernel(product: &Product<'_>, strides: [usize; 4], offsets: [usize; 4]) -> String {
    let (m, n, k) = product.shape;
    let shape = format!("m{m}n{n}k{k}");
    let [a_type, b_type, c_type, d_type] = product.types;
    let [a_order, b_order, c_order] = product.orders;
    let space = product.space;
    let mut text = String::from(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) {
        .reg .pred q; .reg .b64 base, at, x; .reg .b32 i, s, v; .shared .align 128 .b8 sm[16384];
        ld.param.u64 base,[p];\n",
    );
    let shared = space == ".shared";
    if shared {
        text += "mov.u32 i, %tid.x; L1: shl.b32 v, i, 2; cvt.u64.u32 x, v; add.u64 at, base, x; mov.u32 s, sm; add.u32 s, s, v;
            ld.global.b32 v, [at]; st.shared.b32 [s], v; add.u32 i, i, 32; setp.lt.u32 q, i, 4096; @q bra L1; bar.sync 0; mov.u32 s, sm;\n";
    }
    let base = if shared { "s" } else { "base" };
    for (index, (role, ty)) in
        [('a', a_type), ('b', b_type), ('c', c_type), ('d', d_type)].into_iter().enumerate()
    {
        let count = fragment_registers(role, ty, product.shape);
        text += &format!(".reg .b{} {role}<{count}>;\n", bits(ty).max(32));
        let order = [a_order, b_order, c_order, c_order][index];
        if role != 'd' {
            let registers = list(role, 0..count);
            text += &format!(
                "wmma.load.{role}.sync.aligned.{order}.{shape}{space}.{ty} {registers}, [{base}+{}], {};\n",
                offsets[index], strides[index]
            );
        }
    }
    let registers = |role, ty| list(role, 0..fragment_registers(role, ty, product.shape));
    let d = registers('d', d_type);
    text += &format!(
        "{} {d}, {}, {}, {};\n",
        product.multiply,
        registers('a', a_type),
        registers('b', b_type),
        registers('c', c_type)
    );
    text += &format!(
        "wmma.store.d.sync.aligned.{c_order}.{shape}{space}.{d_type} [{base}+{}], {d}, {};\n",
        offsets[3], strides[3]
    );
    if shared {
        text += "bar.sync 0; mov.u32 i, %tid.x; L2: shl.b32 v, i, 2; cvt.u64.u32 x, v; add.u64 at, base, x; mov.u32 s, sm; add.u32 s, s, v;
            ld.shared.b32 v, [s]; st.global.b32 [at], v; add.u32 i, i, 32; setp.lt.u32 q, i, 4096; @q bra L2;\n";
    }
    text + "ret;\n}\n"
}

fn check_product(machine: &TestMachine, level: SimdLevel, product: &Product<'_>, seed: u64) {
    let (m, n, k) = product.shape;
    let [a_type, b_type, c_type, d_type] = product.types;
    let extents = [(m, k), (k, n), (m, n), (m, n)];
    let orders = [product.orders[0], product.orders[1], product.orders[2], product.orders[2]];
    let mut matrices = Vec::new();
    let mut values = Vec::new();
    for index in 0..4 {
        let ((rows, columns), ty) = (extents[index], product.types[index]);
        let (lines, along) = if orders[index] == "row" { (rows, columns) } else { (columns, rows) };
        // A stride larger than the line, in multiples of 16 bytes.
        let mut stored = Stored::new(bits(ty), lines, along + 128 / bits(ty).min(32));
        let mut numbers = vec![0i64; rows * columns];
        for row in 0..rows {
            for column in 0..columns {
                let place = (index * 10_000 + row * 300 + column) as u64;
                let value = if index == 3 { 0 } else { range(ty, seed << 20 | place) };
                numbers[row * columns + column] = value;
                let (line, at) = if orders[index] == "row" { (row, column) } else { (column, row) };
                stored.set(line, at, number(ty, value));
            }
        }
        matrices.push(stored);
        values.push(numbers);
    }
    let mut memory = Vec::new();
    let mut offsets = [0; 4];
    for (offset, matrix) in offsets.iter_mut().zip(&matrices) {
        *offset = memory.len();
        memory.extend_from_slice(&matrix.bytes);
        memory.resize(memory.len().next_multiple_of(256), 0);
    }
    assert!(memory.len() <= 16384);
    memory.resize(16384, 0);
    let strides = [0, 1, 2, 3].map(|index: usize| matrices[index].stride);
    let text = product_kernel(product, strides, offsets);
    let program = machine.load(&text, level);
    let kernel = program.kernel("k").unwrap_or_else(|error| panic!("{error}\n{text}"));
    let address = machine.upload(&memory);
    let launch = launch(&kernel, [1, 1, 1], [32, 1, 1], Params::new().push(address));
    machine.run(launch, FUEL).unwrap_or_else(|stop| panic!("{stop:?}\n{text}"));
    matrices[3].bytes = machine.read::<u8>(address + offsets[3] as u64, matrices[3].bytes.len());
    let exclusive = product.multiply.contains(".xor.");
    for row in 0..m {
        for column in 0..n {
            let terms = (0..k).map(|at| {
                let (a, b) = (values[0][row * k + at], values[1][at * n + column]);
                if exclusive { a ^ b } else { a * b }
            });
            let mut want = values[2][row * n + column] + terms.sum::<i64>();
            if product.multiply.contains(".satfinite") && d_type == "f16" {
                want = want.clamp(-65504, 65504);
            }
            let (line, at) = if orders[3] == "row" { (row, column) } else { (column, row) };
            let mask = u64::MAX >> (64 - bits(d_type));
            let have = matrices[3].get(line, at);
            // Rounded down, a sum that cancels is minus zero.
            let have = if have == 1 << 63 { 0 } else { have };
            assert_eq!(
                have,
                number(d_type, want) & mask,
                "row {row}, column {column}: {want} in {a_type} {b_type} {c_type} {d_type}\n{text}"
            );
        }
    }
}

#[test]
fn fragments_are_loaded_multiplied_and_stored() {
    let wide = [(16, 16, 16), (32, 8, 16), (8, 32, 16)];
    let orders = ["row", "col"];
    let mut products = Vec::new();
    for a in orders {
        for b in orders {
            for c in orders {
                let mut add =
                    |shape: (usize, usize, usize), types: [&'static str; 4], tail: &str| {
                        let (m, n, k) = shape;
                        let space = [".global", ".shared", ""][products.len() % 3];
                        let multiply = format!("wmma.mma.sync.aligned.{a}.{b}.m{m}n{n}k{k}{tail}");
                        products.push(Product { shape, types, orders: [a, b, c], space, multiply });
                    };
                for shape in wide {
                    for (d, c) in [("f16", "f16"), ("f32", "f32"), ("f16", "f32"), ("f32", "f16")] {
                        add(shape, ["f16", "f16", c, d], &format!(".{d}.{c}"));
                    }
                    add(shape, ["bf16", "bf16", "f32", "f32"], ".f32.bf16.bf16.f32");
                    add(shape, ["u8", "u8", "s32", "s32"], ".s32.u8.u8.s32");
                    add(shape, ["s8", "s8", "s32", "s32"], ".s32.s8.s8.s32.satfinite");
                }
                add((16, 16, 8), ["tf32", "tf32", "f32", "f32"], ".f32.tf32.tf32.f32");
                for rounding in ["", ".rn", ".rz", ".rm", ".rp"] {
                    let tail = format!("{rounding}.f64.f64.f64.f64");
                    add((8, 8, 4), ["f64", "f64", "f64", "f64"], &tail);
                }
                if (a, b) == ("row", "col") {
                    add((8, 8, 32), ["u4", "u4", "s32", "s32"], ".s32.u4.u4.s32");
                    add((8, 8, 32), ["s4", "s4", "s32", "s32"], ".s32.s4.s4.s32");
                }
            }
        }
    }
    for (operation, c) in [("xor", "row"), ("and", "col")] {
        products.push(Product {
            shape: (8, 8, 128),
            types: ["b1", "b1", "s32", "s32"],
            orders: ["row", "col", c],
            space: ".global",
            multiply: format!(
                "wmma.mma.{operation}.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32"
            ),
        });
    }
    for level in levels() {
        let machine = TestMachine::new();
        for (seed, product) in products.iter().enumerate() {
            check_product(&machine, level, product, seed as u64);
        }
    }
}
