//! Tensor maps and the copies that use them, against boxes that are gathered element by element here.
//!
//! Passes with NVIDIA's driver (580) and an H200 in softcuda's place, too, one test per process and but for what is absent here: layouts,
//! swizzles, what is outside, reductions and codes.

mod support;

use std::ffi::c_void;

use cuda_abi::types::CUtensorMap;
use support::{allocate, context, function, read};

const INVALID_VALUE: u32 = 1;
const NOT_SUPPORTED: u32 = 801;

/// Elements by `CUtensorMapDataType`.
const U8: u32 = 0;
const U16: u32 = 1;
const U32: u32 = 2;
const S32: u32 = 3;
const U64: u32 = 4;
const S64: u32 = 5;
const F16: u32 = 6;
const F32: u32 = 7;
const F64: u32 = 8;
const BF16: u32 = 9;
const F32_FLUSHED: u32 = 10;
const TF32: u32 = 11;
const TF32_FLUSHED: u32 = 12;

fn element_bytes(element: u32) -> usize {
    [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4][element as usize]
}

/// A tensor, a box of it, and how the box lies in shared memory.
#[derive(Clone, Debug)]
struct Tensor {
    element: u32,
    extent: Vec<u64>,
    span: Vec<u32>,
    step: Vec<u32>,
    swizzle: u32,
    fill: u32,
}

impl Tensor {
    fn new(element: u32, extent: &[u64], span: &[u32]) -> Self {
        Tensor {
            element,
            extent: extent.to_vec(),
            span: span.to_vec(),
            step: vec![1; extent.len()],
            swizzle: 0,
            fill: 0,
        }
    }

    fn swizzled(self, swizzle: u32) -> Self {
        Tensor { swizzle, ..self }
    }

    fn stepping(self, step: &[u32]) -> Self {
        Tensor { step: step.to_vec(), ..self }
    }

    fn rank(&self) -> usize {
        self.extent.len()
    }

    /// Strides of all dimensions but the first: rows have gaps behind them.
    fn strides(&self) -> Vec<u64> {
        let mut row = (self.extent[0] * element_bytes(self.element) as u64).next_multiple_of(16);
        let mut strides = Vec::new();
        for extent in &self.extent[1..] {
            row += 16;
            strides.push(row);
            row *= extent;
        }
        strides
    }

    fn bytes(&self) -> usize {
        let strides = self.strides();
        let last = (self.extent.len() - 1).checked_sub(1);
        match last {
            Some(last) => (strides[last] * self.extent[last + 1]) as usize,
            None => (self.extent[0] * element_bytes(self.element) as u64) as usize,
        }
    }

    /// Elements of the box in each dimension.
    fn counts(&self) -> Vec<u64> {
        let count = |(at, span): (usize, &u32)| match at {
            0 => u64::from(*span),
            _ => u64::from(span.div_ceil(self.step[at])),
        };
        self.span.iter().enumerate().map(count).collect()
    }

    /// Bytes from row to row of the box: a swizzle's lines are as long as it, however short the rows.
    fn pitch(&self) -> usize {
        let row = self.span[0] as usize * element_bytes(self.element);
        [row, 32, 64, 128][self.swizzle as usize]
    }

    /// Bytes that the box takes in shared memory.
    fn room(&self) -> usize {
        self.counts()[1..].iter().product::<u64>() as usize * self.pitch()
    }

    /// Bytes of the box's elements.
    fn box_bytes(&self) -> usize {
        self.counts().iter().product::<u64>() as usize * element_bytes(self.element)
    }

    /// Byte of the box and byte of the tensor for every element, `None` outside.
    fn places(&self, first: &[i32]) -> Vec<(usize, Option<usize>)> {
        let (counts, strides) = (self.counts(), self.strides());
        let size = element_bytes(self.element);
        let total = counts.iter().product::<u64>();
        let place = |index: u64| {
            let (mut left, mut offset, mut inside) = (index, 0, true);
            for at in 0..self.rank() {
                let step = if at == 0 { 1 } else { u64::from(self.step[at]) };
                let coordinate = i64::from(first[at]) + (left % counts[at] * step) as i64;
                left /= counts[at];
                inside &= coordinate >= 0 && (coordinate as u64) < self.extent[at];
                let stride = if at == 0 { size as u64 } else { strides[at - 1] };
                offset += coordinate * stride as i64;
            }
            let (row, at) = (index / counts[0], (index % counts[0]) as usize * size);
            (
                self.swizzled_byte(row as usize * self.pitch() + at),
                inside.then_some(offset as usize),
            )
        };
        (0..total).map(place).collect()
    }

    /// Pieces of 16 bytes change places inside lines of 128 bytes: a piece's number in its group and the line's are combined.
    fn swizzled_byte(&self, byte: usize) -> usize {
        let group = [1, 2, 4, 8][self.swizzle as usize];
        let (piece, line) = (byte / 16, byte / 128);
        let moved = piece / group * group + ((piece % group) ^ (line % group));
        moved * 16 + byte % 16
    }

    fn encode_at(&self, address: u64) -> (u32, CUtensorMap) {
        let mut map = CUtensorMap::default();
        let strides = self.strides();
        let code = cu!(cuTensorMapEncodeTiled(
            &mut map => *mut CUtensorMap,
            self.element => u32,
            self.rank() as u32 => u32,
            address as *mut c_void => *mut c_void,
            self.extent.as_ptr() => *const u64,
            strides.as_ptr() => *const u64,
            self.span.as_ptr() => *const u32,
            self.step.as_ptr() => *const u32,
            0 => u32, self.swizzle => u32, 0 => u32, self.fill => u32,
        ));
        (code, map)
    }
}

/// Bytes that all differ from their neighbours.
fn noise(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 11) as u8
    };
    (0..count).map(|_| next()).collect()
}

fn upload(bytes: &[u8]) -> u64 {
    let address = allocate(bytes.len().max(16));
    let code =
        cu!(cuMemcpyHtoD_v2(address => u64, bytes.as_ptr() => *const u8, bytes.len() => usize));
    assert_eq!(code, 0);
    address
}

fn download(address: u64, count: usize) -> Vec<u8> {
    let words = read(address, count.div_ceil(4));
    words.iter().flat_map(|word| word.to_le_bytes()).take(count).collect()
}

/// Coordinates `{c0, c1, ..}` of a kernel.
fn coordinates(rank: usize) -> String {
    (0..rank).map(|at| format!("%c{at}")).collect::<Vec<_>>().join(", ")
}

/// One thread with a tensor map, a buffer and five coordinates; `body` moves a box between shared memory (`box`) and the tensor.
fn kernel(bytes: usize, cluster: &str, body: &str) -> String {
    format!(
        ".version 8.3 .target sm_90 .address_size 64
        .visible .entry k(.param .align 128 .b8 map[128], .param .u64 buffer, .param .align 4 .b8 at[20]) {cluster} {{
        .reg .b64 %map, %buffer, %state, %d<4>; .reg .b32 %c<5>, %i, %w, %s, %bar, %rank; .reg .pred %p<3>; .reg .b16 %h<2>;
        .shared .align 1024 .b8 box[{bytes}]; .shared .align 8 .b64 barrier;
        mov.b64 %map, map; cvta.param.u64 %map, %map;
        ld.param.u64 %buffer, [buffer]; cvta.to.global.u64 %buffer, %buffer;
        ld.param.s32 %c0, [at]; ld.param.s32 %c1, [at+4]; ld.param.s32 %c2, [at+8]; ld.param.s32 %c3, [at+12]; ld.param.s32 %c4, [at+16];
        mov.u32 %s, box; mov.u32 %bar, barrier;
        {body}
        ret; }}"
    )
}

/// Copies words between the buffer and the box: `ld`, `st` and where.
fn copy_words(bytes: usize, name: &str, from_buffer: bool) -> String {
    let copy = match from_buffer {
        true => "ld.global.b32 %w, [%d0]; st.shared.b32 [%s], %w;",
        false => "ld.shared.b32 %w, [%s]; st.global.b32 [%d0], %w;",
    };
    format!(
        "mov.u32 %i, 0; mov.u64 %d0, %buffer; mov.u32 %s, box;
        {name}: {copy} add.u64 %d0, %d0, 4; add.u32 %s, %s, 4; add.u32 %i, %i, 4;
        setp.lt.u32 %p1, %i, {bytes}; @%p1 bra {name}; mov.u32 %s, box;"
    )
}

fn load_body(bytes: usize, expected: usize, rank: usize) -> String {
    format!(
        "{} mbarrier.init.shared.b64 [%bar], 1; fence.proxy.async;
        mbarrier.arrive.expect_tx.shared.b64 %state, [%bar], {expected};
        cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s], [%map, {{{}}}], [%bar];
        wait: mbarrier.try_wait.parity.shared.b64 %p0, [%bar], 0; @!%p0 bra wait;
        {}",
        copy_words(bytes, "in", true),
        coordinates(rank),
        copy_words(bytes, "out", false)
    )
}

/// Moves the buffer's box into the tensor by `instruction`.
fn store_body(bytes: usize, rank: usize, instruction: &str) -> String {
    format!(
        "{} fence.proxy.async;
        {instruction} [%map, {{{}}}], [%s];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
        copy_words(bytes, "in", true),
        coordinates(rank)
    )
}

const STORE: &str = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group";

fn run(text: &str, blocks: u32, map: &CUtensorMap, buffer: u64, first: &[i32]) -> u32 {
    let function = function(text, "k");
    let mut at = [0i32; 5];
    at[..first.len()].copy_from_slice(first);
    let mut pointers: [*const c_void; 3] =
        [(&raw const *map).cast(), (&raw const buffer).cast(), (&raw const at).cast()];
    let code = cu!(cuLaunchKernel(
        function => usize, blocks => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 0 => u32, 0 => usize,
        pointers.as_mut_ptr() => *mut *const c_void,
        std::ptr::null_mut() => *mut c_void,
    ));
    assert_eq!(code, 0);
    cu!(cuCtxSynchronize())
}

/// What a load leaves in shared memory; elements outside have the bits `outside`.
fn loaded(tensor: &Tensor, bytes: &[u8], first: &[i32], outside: u64) -> Vec<u8> {
    let size = element_bytes(tensor.element);
    let mut expected = vec![0xee; tensor.room()];
    for (to, from) in tensor.places(first) {
        let element = match from {
            Some(from) => bytes[from..from + size].to_vec(),
            None => outside.to_le_bytes()[..size].to_vec(),
        };
        expected[to..to + size].copy_from_slice(&element);
    }
    expected
}

fn check_load(tensor: &Tensor, bytes: &[u8], first: &[i32], expected: &[u8]) {
    let (code, map) = tensor.encode_at(upload(bytes));
    assert_eq!(code, 0, "{tensor:?}");
    let size = tensor.room();
    let buffer = upload(&vec![0xee; size]);
    let text = kernel(size, "", &load_body(size, tensor.box_bytes(), tensor.rank()));
    assert_eq!(run(&text, 1, &map, buffer, first), 0, "{tensor:?} at {first:?}");
    let found = download(buffer, size);
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "{tensor:?} at {first:?}:\n{found:02x?}\nfor\n{expected:02x?}");
}

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

/// Not a map, the wrong number of dimensions, a box beyond shared memory, memory that is not there, places that an H200 refuses,
/// too: faults.
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
