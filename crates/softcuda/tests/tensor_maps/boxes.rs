//! Tensors and boxes of them: kernels that move a box, and what they must give, element by element.

use std::ffi::c_void;

use cuda_abi::types::CUtensorMap;

use crate::support::{allocate, function, read};

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const NOT_SUPPORTED: u32 = 801;

/// Elements by `CUtensorMapDataType`.
pub(crate) const U8: u32 = 0;
pub(crate) const U16: u32 = 1;
pub(crate) const U32: u32 = 2;
pub(crate) const S32: u32 = 3;
pub(crate) const U64: u32 = 4;
pub(crate) const S64: u32 = 5;
pub(crate) const F16: u32 = 6;
pub(crate) const F32: u32 = 7;
pub(crate) const F64: u32 = 8;
pub(crate) const BF16: u32 = 9;
pub(crate) const F32_FLUSHED: u32 = 10;
pub(crate) const TF32: u32 = 11;
pub(crate) const TF32_FLUSHED: u32 = 12;

pub(crate) fn element_bytes(element: u32) -> usize {
    [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4][element as usize]
}

/// A tensor, a box of it, and how the box lies in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) element: u32,
    pub(crate) extent: Vec<u64>,
    pub(crate) span: Vec<u32>,
    pub(crate) step: Vec<u32>,
    pub(crate) swizzle: u32,
    pub(crate) fill: u32,
}

impl Tensor {
    pub(crate) fn new(element: u32, extent: &[u64], span: &[u32]) -> Self {
        Tensor {
            element,
            extent: extent.to_vec(),
            span: span.to_vec(),
            step: vec![1; extent.len()],
            swizzle: 0,
            fill: 0,
        }
    }

    pub(crate) fn swizzled(self, swizzle: u32) -> Self {
        Tensor { swizzle, ..self }
    }

    pub(crate) fn stepping(self, step: &[u32]) -> Self {
        Tensor { step: step.to_vec(), ..self }
    }

    pub(crate) fn rank(&self) -> usize {
        self.extent.len()
    }

    /// Strides of all dimensions but the first: rows have gaps behind them.
    pub(crate) fn strides(&self) -> Vec<u64> {
        let mut row = (self.extent[0] * element_bytes(self.element) as u64).next_multiple_of(16);
        let mut strides = Vec::new();
        for extent in &self.extent[1..] {
            row += 16;
            strides.push(row);
            row *= extent;
        }
        strides
    }

    pub(crate) fn bytes(&self) -> usize {
        let strides = self.strides();
        let last = (self.extent.len() - 1).checked_sub(1);
        match last {
            Some(last) => (strides[last] * self.extent[last + 1]) as usize,
            None => (self.extent[0] * element_bytes(self.element) as u64) as usize,
        }
    }

    /// Elements of the box in each dimension.
    pub(crate) fn counts(&self) -> Vec<u64> {
        let count = |(at, span): (usize, &u32)| match at {
            0 => u64::from(*span),
            _ => u64::from(span.div_ceil(self.step[at])),
        };
        self.span.iter().enumerate().map(count).collect()
    }

    /// Bytes from row to row of the box: a swizzle's lines are as long as it, however short the
    /// rows.
    pub(crate) fn pitch(&self) -> usize {
        let row = self.span[0] as usize * element_bytes(self.element);
        [row, 32, 64, 128][self.swizzle as usize]
    }

    /// Bytes that the box takes in shared memory.
    pub(crate) fn room(&self) -> usize {
        self.counts()[1..].iter().product::<u64>() as usize * self.pitch()
    }

    /// Bytes of the box's elements.
    pub(crate) fn box_bytes(&self) -> usize {
        self.counts().iter().product::<u64>() as usize * element_bytes(self.element)
    }

    /// Byte of the box and byte of the tensor for every element, `None` outside.
    pub(crate) fn places(&self, first: &[i32]) -> Vec<(usize, Option<usize>)> {
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

    /// Pieces of 16 bytes change places inside lines of 128 bytes: a piece's number in its group
    /// and the line's are combined.
    pub(crate) fn swizzled_byte(&self, byte: usize) -> usize {
        let group = [1, 2, 4, 8][self.swizzle as usize];
        let (piece, line) = (byte / 16, byte / 128);
        let moved = piece / group * group + ((piece % group) ^ (line % group));
        moved * 16 + byte % 16
    }

    pub(crate) fn encode_at(&self, address: u64) -> (u32, CUtensorMap) {
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
pub(crate) fn noise(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 11) as u8
    };
    (0..count).map(|_| next()).collect()
}

pub(crate) fn upload(bytes: &[u8]) -> u64 {
    let address = allocate(bytes.len().max(16));
    let code =
        cu!(cuMemcpyHtoD_v2(address => u64, bytes.as_ptr() => *const u8, bytes.len() => usize));
    assert_eq!(code, 0);
    address
}

pub(crate) fn download(address: u64, count: usize) -> Vec<u8> {
    let words = read(address, count.div_ceil(4));
    words.iter().flat_map(|word| word.to_le_bytes()).take(count).collect()
}

/// Coordinates `{c0, c1, ..}` of a kernel.
pub(crate) fn coordinates(rank: usize) -> String {
    (0..rank).map(|at| format!("%c{at}")).collect::<Vec<_>>().join(", ")
}

/// One thread with a tensor map, a buffer and five coordinates; `body` moves a box between shared
/// memory (`box`) and the tensor.
pub(crate) fn kernel(bytes: usize, cluster: &str, body: &str) -> String {
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
pub(crate) fn copy_words(bytes: usize, name: &str, from_buffer: bool) -> String {
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

pub(crate) fn load_body(bytes: usize, expected: usize, rank: usize) -> String {
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
pub(crate) fn store_body(bytes: usize, rank: usize, instruction: &str) -> String {
    format!(
        "{} fence.proxy.async;
        {instruction} [%map, {{{}}}], [%s];
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
        copy_words(bytes, "in", true),
        coordinates(rank)
    )
}

pub(crate) const STORE: &str = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group";

pub(crate) fn run(text: &str, blocks: u32, map: &CUtensorMap, buffer: u64, first: &[i32]) -> u32 {
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
pub(crate) fn loaded(tensor: &Tensor, bytes: &[u8], first: &[i32], outside: u64) -> Vec<u8> {
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

pub(crate) fn check_load(tensor: &Tensor, bytes: &[u8], first: &[i32], expected: &[u8]) {
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
