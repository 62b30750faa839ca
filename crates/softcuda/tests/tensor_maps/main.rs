//! Tensor maps and the copies that use them, against boxes that are gathered element by element
//! here.
//!
//! Passes with NVIDIA's driver (580) and an H200 in softcuda's place, too, one test per process and
//! but for what is absent here: layouts, swizzles, what is outside, reductions and codes.

#[path = "../support/mod.rs"]
#[macro_use]
mod support;
mod boxes;

use std::ffi::c_void;

use boxes::*;
use cuda_abi::types::CUtensorMap;
use support::{allocate, context};

fn shapes() -> Vec<(Tensor, Vec<Vec<i32>>)> {
    vec![
        (Tensor::new(U8, &[100], &[32]), vec![vec![0], vec![16], vec![80], vec![-16], vec![208]]),
        (
            Tensor::new(U16, &[24, 9], &[16, 4]),
            vec![vec![0, 0], vec![8, 2], vec![-8, -1], vec![16, 7], vec![1000, 0]],
        ),
        (
            Tensor::new(U32, &[12, 7, 5], &[8, 3, 2]),
            vec![vec![4, 2, 3], vec![-4, -2, -1], vec![8, 6, 4]],
        ),
        (Tensor::new(F64, &[6, 5, 4, 3], &[2, 3, 2, 2]), vec![vec![2, 1, 1, 1], vec![4, 4, 3, 2]]),
        (
            Tensor::new(U64, &[6, 3, 3, 3, 3], &[4, 2, 2, 2, 2]),
            vec![vec![2, 1, 1, 1, 1], vec![-2, 2, -1, 2, 0]],
        ),
        (
            Tensor::new(F32, &[16, 20, 9], &[8, 7, 5]).stepping(&[1, 3, 2]),
            vec![vec![4, 1, 1], vec![12, 15, -1]],
        ),
        (Tensor::new(F16, &[80, 40], &[64, 24]).swizzled(3), vec![vec![8, 4], vec![-8, 30]]),
        (Tensor::new(BF16, &[80, 40], &[32, 24]).swizzled(2), vec![vec![8, 4], vec![64, -3]]),
        (Tensor::new(U8, &[80, 40], &[32, 24]).swizzled(1), vec![vec![16, 4], vec![64, 20]]),
    ]
}

#[test]
fn boxes_are_loaded_as_they_lie_and_zero_outside() {
    context();
    for (tensor, places) in shapes() {
        let bytes = noise(tensor.bytes(), 7);
        for first in &places {
            check_load(&tensor, &bytes, first, &loaded(&tensor, &bytes, first, 0));
        }
    }
}

#[test]
fn rows_that_are_shorter_than_their_swizzle_are_as_far_apart_as_it_is_long() {
    context();
    for swizzle in [1, 2, 3] {
        let tensor = Tensor::new(U8, &[64, 40], &[16, 32]).swizzled(swizzle);
        let bytes = noise(tensor.bytes(), 9);
        check_load(&tensor, &bytes, &[16, 2], &loaded(&tensor, &bytes, &[16, 2], 0));
    }
}

#[test]
fn floats_outside_are_nan_if_asked() {
    context();
    for element in [F16, BF16, F32, F64, F32_FLUSHED, TF32] {
        let size = element_bytes(element);
        let tensor =
            Tensor { fill: 1, ..Tensor::new(element, &[40, 3], &[16 / size as u32 * 2, 4]) };
        // Of whichever size an element is.
        let nan = 0x7ff7_7ff7_7ff7_7ff7;
        let bytes = match element {
            TF32 => vec![0; tensor.bytes()],
            _ => noise(tensor.bytes(), 5),
        };
        let first = [-16 / size as i32, -1];
        check_load(&tensor, &bytes, &first, &loaded(&tensor, &bytes, &first, nan));
    }
}

#[test]
fn stores_leave_what_is_outside() {
    context();
    for (tensor, places) in shapes() {
        for first in &places {
            if first.iter().any(|&coordinate| coordinate < 0) {
                continue;
            }
            let (before, bytes) = (noise(tensor.bytes(), 3), noise(tensor.room(), 11));
            let address = upload(&before);
            let (code, map) = tensor.encode_at(address);
            assert_eq!(code, 0);
            let instruction = format!(
                "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group",
                tensor.rank()
            );
            let text =
                kernel(bytes.len(), "", &store_body(bytes.len(), tensor.rank(), &instruction));
            assert_eq!(run(&text, 1, &map, upload(&bytes), first), 0, "{tensor:?} at {first:?}");
            let size = element_bytes(tensor.element);
            let mut expected = before.clone();
            for (from, to) in tensor.places(first) {
                if let Some(to) = to {
                    expected[to..to + size].copy_from_slice(&bytes[from..from + size]);
                }
            }
            assert!(download(address, before.len()) == expected, "{tensor:?} at {first:?}");
        }
    }
}

fn words<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).map(|chunk| from(chunk.try_into().expect("a whole word"))).collect()
}

/// Reduces `added` into `before`, both as little-endian elements, and compares with `expected`.
fn check_reduction(element: u32, operation: &str, before: &[u8], added: &[u8], expected: &[u8]) {
    let size = element_bytes(element);
    let count = (before.len() / size) as u32;
    // Block reductions know types, tensor reductions take them from the map.
    let name = match (element, operation) {
        (U32, "and" | "or" | "xor") => "b32",
        (U64, "and" | "or" | "xor") => "b64",
        _ => {
            ["u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16"][element as usize]
        }
    };
    let rounding = if matches!(element, F16 | BF16) && operation == "add" { ".noftz" } else { "" };
    let tensor = Tensor::new(element, &[u64::from(count)], &[count]);
    let by_box = store_body(
        added.len(),
        1,
        &format!("cp.reduce.async.bulk.tensor.1d.global.shared::cta.{operation}.tile.bulk_group"),
    );
    let by_block = format!(
        "{} fence.proxy.async; ld.param.u64 %d1, [at]; cvta.to.global.u64 %d1, %d1;
        cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}{rounding}.{name} [%d1], [%s], {};
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
        copy_words(added.len(), "in", true),
        added.len()
    );
    let align = |text: String| text.replace(".align 4 .b8 at[20]", ".align 8 .b8 at[24]");
    for (body, is_box) in [(by_box, true), (by_block, false)] {
        let address = upload(before);
        let (code, map) = tensor.encode_at(address);
        assert_eq!(code, 0);
        let first = if is_box { [0, 0] } else { [address as i32, (address >> 32) as i32] };
        let text = align(kernel(added.len(), "", &body));
        assert_eq!(run(&text, 1, &map, upload(added), &first), 0, "{name} {operation}");
        let found = download(address, before.len());
        assert!(found == expected, "{name} {operation}:\n{found:02x?}\nfor\n{expected:02x?}");
    }
}

fn reduce<const N: usize, T: Copy>(
    element: u32,
    operation: &str,
    from: impl Fn([u8; N]) -> T,
    to: impl Fn(T) -> [u8; N],
    f: impl Fn(T, T) -> T,
) {
    let (before, added) = (noise(64, 21), noise(64, 22));
    let (old, new) = (words(&before, &from), words(&added, &from));
    let expected: Vec<u8> = old.iter().zip(&new).flat_map(|(&a, &b)| to(f(a, b))).collect();
    check_reduction(element, operation, &before, &added, &expected);
}

#[test]
fn integers_are_reduced_into_memory() {
    context();
    let u32s = |operation: &str, f: fn(u32, u32) -> u32| {
        reduce(U32, operation, u32::from_le_bytes, u32::to_le_bytes, f);
    };
    u32s("add", u32::wrapping_add);
    u32s("min", u32::min);
    u32s("max", u32::max);
    u32s("inc", |old, most| if old >= most { 0 } else { old + 1 });
    u32s("dec", |old, most| if old == 0 || old > most { most } else { old - 1 });
    u32s("and", |a, b| a & b);
    u32s("or", |a, b| a | b);
    u32s("xor", |a, b| a ^ b);
    reduce(S32, "add", i32::from_le_bytes, i32::to_le_bytes, i32::wrapping_add);
    reduce(S32, "min", i32::from_le_bytes, i32::to_le_bytes, i32::min);
    reduce(U64, "add", u64::from_le_bytes, u64::to_le_bytes, u64::wrapping_add);
    reduce(U64, "xor", u64::from_le_bytes, u64::to_le_bytes, |a, b| a ^ b);
    reduce(S64, "max", i64::from_le_bytes, i64::to_le_bytes, i64::max);
}

#[test]
fn floats_are_reduced_into_memory() {
    context();
    let singles = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let (a, b) = ([1.5f32, -2.0, 1e20, 0.1], [0.25f32, 7.0, -1e20, 0.2]);
    let sum: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + b).collect();
    check_reduction(F32, "add", &singles(&a), &singles(&b), &singles(&sum));
    let doubles =
        |values: [f64; 2]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    check_reduction(
        F64,
        "add",
        &doubles([1.5, 0.1]),
        &doubles([2.0, 0.2]),
        &doubles([3.5, 0.1 + 0.2]),
    );
    let halves =
        |values: [u16; 8]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let (one, two, three) = ([0x3c00; 8], [0x4000; 8], [0x4200; 8]);
    check_reduction(F16, "add", &halves(one), &halves(two), &halves(three));
    check_reduction(F16, "max", &halves(one), &halves(two), &halves(two));
    let (one, two, three) = ([0x3f80; 8], [0x4000; 8], [0x4040; 8]);
    check_reduction(BF16, "add", &halves(one), &halves(two), &halves(three));
    check_reduction(BF16, "min", &halves(two), &halves(one), &halves(one));
}

/// Block 0 loads for both blocks of its cluster.
#[test]
fn a_multicast_reaches_the_same_place_in_every_block() {
    context();
    let tensor = Tensor::new(U32, &[40, 9], &[16, 4]);
    let bytes = noise(tensor.bytes(), 17);
    let (code, map) = tensor.encode_at(upload(&bytes));
    assert_eq!(code, 0);
    let size = tensor.box_bytes();
    let body = format!(
        "mov.u32 %rank, %cluster_ctarank;
        mbarrier.init.shared.b64 [%bar], 1; fence.proxy.async;
        mbarrier.arrive.expect_tx.shared.b64 %state, [%bar], {size};
        barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
        setp.ne.u32 %p2, %rank, 0; @%p2 bra wait; mov.b16 %h0, 3;
        cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%s], [%map, {{%c0, %c1}}], [%bar], %h0;
        wait: mbarrier.try_wait.parity.shared.b64 %p0, [%bar], 0; @!%p0 bra wait;
        mul.wide.u32 %d1, %rank, {size}; add.u64 %buffer, %buffer, %d1;
        {} barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
        copy_words(size, "out", false)
    );
    let text = kernel(size, ".reqnctapercluster 2, 1, 1", &body);
    let buffer = upload(&vec![0xee; 2 * size]);
    assert_eq!(run(&text, 2, &map, buffer, &[28, 6]), 0);
    let expected = loaded(&tensor, &bytes, &[28, 6], 0).repeat(2);
    assert!(download(buffer, 2 * size) == expected);
}

#[test]
fn maps_that_cannot_be_are_refused() {
    context();
    let memory = allocate(1 << 16);
    let tensor = Tensor::new(U32, &[64, 8], &[16, 4]);
    assert_eq!(tensor.encode_at(memory).0, 0);
    assert_eq!(tensor.encode_at(memory + 8).0, INVALID_VALUE, "an address of 8 bytes");
    type Change = fn(&mut Tensor);
    let refused: [(&str, Change); 9] = [
        ("a type", |t| t.element = 0),
        ("an extent of 0", |t| t.extent[1] = 0),
        ("a span of 0", |t| t.span[1] = 0),
        ("a span of 257", |t| t.span[1] = 257),
        ("a row of 4 bytes", |t| t.span[0] = 1),
        ("a step of 0", |t| t.step[1] = 0),
        ("a step of 9", |t| t.step[1] = 9),
        ("a row longer than its swizzle", |t| t.swizzle = 1),
        ("integers that are NaN", |t| t.fill = 1),
    ];
    for (what, change) in refused {
        let mut other = tensor.clone();
        change(&mut other);
        if what == "a type" {
            // Smaller elements: a row of 16 bytes is fine, one of 8 is not.
            assert_eq!(other.encode_at(memory).0, 0);
            other.span[0] = 8;
        }
        assert_eq!(other.encode_at(memory).0, INVALID_VALUE, "{what}");
    }
    let mut map = tensor.encode_at(memory).1;
    let replace = |map: &mut CUtensorMap, address: u64| cu!(cuTensorMapReplaceAddress(map => *mut CUtensorMap, address as *mut c_void => *mut c_void));
    assert_eq!(replace(&mut map, memory + 4096), 0);
    assert_eq!(replace(&mut map, memory + 8), INVALID_VALUE);
}

/// What is not here says so.
#[test]
fn interleaved_maps_are_absent() {
    context();
    let memory = allocate(1 << 16);
    let mut map = CUtensorMap::default();
    let (extent, stride, span, step) = ([64u64, 8, 8], [256u64, 2048], [16u32, 4, 4], [1u32; 3]);
    let code = cu!(cuTensorMapEncodeTiled(
        &mut map => *mut CUtensorMap, U16 => u32, 3 => u32, memory as *mut c_void => *mut c_void,
        extent.as_ptr() => *const u64, stride.as_ptr() => *const u64, span.as_ptr() => *const u32, step.as_ptr() => *const u32,
        1 => u32, 0 => u32, 0 => u32, 0 => u32,
    ));
    assert_eq!(code, NOT_SUPPORTED);
}

/// Not a map, the wrong number of dimensions, a box beyond shared memory, memory that is not there,
/// places that an H200 refuses, too: faults.
#[test]
fn copies_by_bad_maps_fault() {
    let tensor = Tensor::new(U32, &[64, 64], &[16, 16]);
    let good = |address: u64| tensor.encode_at(address).1;
    let text = |bytes: usize, rank: usize| kernel(bytes, "", &load_body(bytes, bytes, rank));
    let size = tensor.box_bytes();
    let cases: [(&str, CUtensorMap, String, [i32; 2]); 6] = {
        context();
        let memory = allocate(tensor.bytes());
        [
            ("no map", CUtensorMap::default(), text(size, 2), [0, 0]),
            ("three coordinates", good(memory), text(size, 3), [0, 0]),
            ("too small a box", good(memory), text(256, 2), [0, 0]),
            ("no memory", good(0x1000), text(size, 2), [0, 0]),
            ("half a piece", good(memory), text(size, 2), [2, 0]),
            (
                "before the tensor",
                good(memory),
                kernel(size, "", &store_body(size, 2, STORE)),
                [0, -1],
            ),
        ]
    };
    for (what, map, text, first) in cases {
        context();
        let buffer = allocate(4096);
        assert_ne!(run(&text, 1, &map, buffer, &first), 0, "{what}");
    }
}

/// Loads of `.tf32` round to nearest, ties to even; other types change nothing.
#[test]
fn loads_round_to_tf32() {
    context();
    let values = [
        0x3f80_1000u32,
        0x3f80_3000,
        0x807f_efff,
        0x7f7f_f000,
        0x0000_1001,
        0xff80_0001,
        0x7f80_0000,
        1,
    ];
    let rounded = [
        0x3f80_0000u32,
        0x3f80_4000,
        0x807f_e000,
        0x7f80_0000,
        0x0000_2000,
        0x7fff_e000,
        0x7f80_0000,
        0,
    ];
    let [bytes, rounded] = [values, rounded]
        .map(|list| list.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
    for (element, expected) in
        [(F32, &bytes), (F32_FLUSHED, &bytes), (TF32, &rounded), (TF32_FLUSHED, &rounded)]
    {
        check_load(&Tensor::new(element, &[8], &[8]), &bytes, &[0], expected);
    }
}
