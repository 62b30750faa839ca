//! Tensor maps: how a tensor lies in device memory, and the boxes in which `cp.async.bulk.tensor`
//! moves it.
//!
//! The driver writes one into 128 bytes that are opaque to programs (`cuTensorMapEncodeTiled`), and
//! a kernel's instructions read them from wherever the program has put them: what they say is
//! checked again then. The layout is this driver's own; the meaning is that of the CUDA driver
//! API's documentation and of the PTX ISA (tensors, tiled mode). What these leave open is as an
//! H200 (driver 580) has it: which boxes are illegal, the bits of NaN outside, rounding of `.tf32`,
//! the pitch of short rows. Interleaved layouts and the im2col modes are absent.

/// Most dimensions of a tensor.
pub(crate) const DIMENSIONS: usize = 5;
/// Words of an encoded map.
pub(crate) const MAP_WORDS: usize = 16;
/// Largest extent of a box, elements.
const BOX_EXTENT: u32 = 256;
/// Largest step between the elements of a box.
const STEP: u32 = 8;
/// What rows of boxes, strides and addresses are multiples of, bytes.
const UNIT_BYTES: u64 = 16;
/// Largest extent of a tensor, elements.
const EXTENT: u64 = 1 << 32;
/// Strides are below this, bytes.
const STRIDE_BYTES: u64 = 1 << 40;
/// Starts an encoded map.
const MAGIC: u32 = 0x7350_4d54;
/// Longest row of a box, bytes.
pub(crate) const ROW_BYTES: usize = BOX_EXTENT as usize * 8;

/// What a tensor is made of, numbered as `CUtensorMapDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TensorElement {
    Unsigned8,
    Unsigned16,
    Unsigned32,
    Signed32,
    Unsigned64,
    Signed64,
    Half,
    Float,
    Double,
    Brain,
    /// Subnormals are moved as they are, all the same.
    FloatFlushed,
    /// Rounded to `.tf32` by loads.
    Tensor,
    /// As `Tensor`.
    TensorFlushed,
}

impl TensorElement {
    const ALL: [Self; 13] = [
        Self::Unsigned8,
        Self::Unsigned16,
        Self::Unsigned32,
        Self::Signed32,
        Self::Unsigned64,
        Self::Signed64,
        Self::Half,
        Self::Float,
        Self::Double,
        Self::Brain,
        Self::FloatFlushed,
        Self::Tensor,
        Self::TensorFlushed,
    ];

    /// The type of a number of `CUtensorMapDataType`.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Bytes of an element.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Unsigned8 => 1,
            Self::Unsigned16 | Self::Half | Self::Brain => 2,
            Self::Unsigned64 | Self::Signed64 | Self::Double => 8,
            _ => 4,
        }
    }

    fn is_float(self) -> bool {
        !matches!(
            self,
            Self::Unsigned8
                | Self::Unsigned16
                | Self::Unsigned32
                | Self::Signed32
                | Self::Unsigned64
                | Self::Signed64
        )
    }
}

/// What elements outside are made of if they shall be NaN, whatever their size.
const NAN_PATTERN: u16 = 0x7ff7;

/// How 16-byte pieces change places in shared memory, so that columns are free of bank conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Swizzle {
    None,
    Bytes32,
    Bytes64,
    Bytes128,
}

impl Swizzle {
    const ALL: [Self; 4] = [Self::None, Self::Bytes32, Self::Bytes64, Self::Bytes128];

    /// The mode of a number of `CUtensorMapSwizzle`; `None`: not one of these.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Where in shared memory the piece is that would lie at `address`.
    pub(crate) fn place(self, address: u64) -> u64 {
        let bits = match self {
            Self::None => 0,
            Self::Bytes32 => 1,
            Self::Bytes64 => 3,
            Self::Bytes128 => 7,
        };
        address ^ (address >> 7 & bits) << 4
    }

    /// Longest row of a box, bytes, and what shorter ones are apart.
    fn row_bytes(self) -> usize {
        match self {
            Self::None => ROW_BYTES,
            Self::Bytes32 => 32,
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }
}

/// What elements outside the tensor read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outside {
    Zero,
    Nan,
}

/// A tensor in device memory and the box that is moved at a time; the innermost dimension is the
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorMap {
    pub(crate) address: u64,
    pub(crate) element: TensorElement,
    /// Number of dimensions, 1 to 5.
    pub(crate) rank: usize,
    /// Elements of the tensor.
    pub(crate) extent: [u64; DIMENSIONS],
    /// Bytes from one element to the next in all dimensions but the first, where elements follow
    /// each other.
    pub(crate) stride_bytes: [u64; DIMENSIONS - 1],
    /// Elements that a box spans.
    pub(crate) span: [u32; DIMENSIONS],
    /// Every so many of them is taken; the first dimension's is 1.
    pub(crate) step: [u32; DIMENSIONS],
    pub(crate) swizzle: Swizzle,
    pub(crate) outside: Outside,
}

impl TensorMap {
    /// Whether a driver would write such a map: all bounds that the documentation states.
    pub(crate) fn is_valid(&self) -> bool {
        let TensorMap { address, element, rank, extent, stride_bytes, span, step, .. } = self;
        if !(1..=DIMENSIONS).contains(rank) || !address.is_multiple_of(UNIT_BYTES) {
            return false;
        }
        let row_bytes = span[0] as usize * element.bytes();
        extent[..*rank].iter().all(|extent| (1..=EXTENT).contains(extent))
            && stride_bytes[..rank - 1]
                .iter()
                .all(|stride| stride.is_multiple_of(UNIT_BYTES) && *stride < STRIDE_BYTES)
            && span[..*rank].iter().all(|span| (1..=BOX_EXTENT).contains(span))
            && step[..*rank].iter().all(|step| (1..=STEP).contains(step))
            && (row_bytes as u64).is_multiple_of(UNIT_BYTES)
            && row_bytes <= self.swizzle.row_bytes()
            && (self.outside == Outside::Zero || element.is_float())
    }

    /// The map as programs carry it.
    pub(crate) fn encode(&self) -> [u64; MAP_WORDS] {
        let mut words = [0; MAP_WORDS];
        words[0] = u64::from(MAGIC)
            | (self.element as u64) << 32
            | (self.rank as u64) << 40
            | (self.swizzle as u64) << 48
            | (self.outside as u64) << 56;
        words[1] = self.address;
        for at in 0..DIMENSIONS {
            words[2 + at] = self.extent[at];
            words[11 + at] = u64::from(self.span[at]) | u64::from(self.step[at]) << 32;
        }
        words[7..11].copy_from_slice(&self.stride_bytes);
        words
    }

    /// Reads a map, whoever wrote it; `None`: it is none, or one that no driver writes.
    pub(crate) fn decode(words: &[u64; MAP_WORDS]) -> Option<Self> {
        let byte = |at: u32| words[0] >> (32 + 8 * at) & 0xff;
        if words[0] as u32 != MAGIC {
            return None;
        }
        let map = TensorMap {
            address: words[1],
            element: TensorElement::from_number(byte(0) as u32)?,
            rank: byte(1) as usize,
            extent: std::array::from_fn(|at| words[2 + at]),
            stride_bytes: std::array::from_fn(|at| words[7 + at]),
            span: std::array::from_fn(|at| words[11 + at] as u32),
            step: std::array::from_fn(|at| (words[11 + at] >> 32) as u32),
            swizzle: Swizzle::from_number(byte(2) as u32)?,
            outside: if byte(3) == 0 { Outside::Zero } else { Outside::Nan },
        };
        map.is_valid().then_some(map)
    }

    /// Elements of a box in each dimension; 1 beyond the rank.
    fn counts(&self) -> [u32; DIMENSIONS] {
        std::array::from_fn(|at| match at {
            0 => self.span[0],
            at if at < self.rank => self.span[at].div_ceil(self.step[at]),
            _ => 1,
        })
    }

    /// Bytes of a row of a box.
    pub(crate) fn row_bytes(&self) -> usize {
        self.span[0] as usize * self.element.bytes()
    }

    /// Bytes from row to row of a box in shared memory.
    pub(crate) fn pitch_bytes(&self) -> u64 {
        match self.swizzle {
            Swizzle::None => self.row_bytes() as u64,
            swizzle => swizzle.row_bytes() as u64,
        }
    }

    /// Rows of a box.
    pub(crate) fn rows(&self) -> u64 {
        self.counts()[1..].iter().map(|&count| u64::from(count)).product()
    }

    /// Bytes of a box, what lies between its rows left out: so many a barrier is told of.
    pub(crate) fn box_bytes(&self) -> u64 {
        self.rows() * self.row_bytes() as u64
    }

    /// The part of a row of the box at coordinates `first` that lies inside the tensor.
    pub(crate) fn row(&self, first: &[i32; DIMENSIONS], row: u64) -> Row {
        let (mut address, mut left) = (self.address, row);
        for (at, count) in self.counts().into_iter().enumerate().take(self.rank).skip(1) {
            let index = left % u64::from(count) * u64::from(self.step[at]);
            left /= u64::from(count);
            let place = i64::from(first[at]) + index as i64;
            if place < 0 || place as u64 >= self.extent[at] {
                return Row { address, start: 0, end: 0 };
            }
            address = address.wrapping_add((place as u64).wrapping_mul(self.stride_bytes[at - 1]));
        }
        let size = self.element.bytes();
        let inside = |place: i64| (place - i64::from(first[0])).clamp(0, i64::from(self.span[0]));
        let (start, end) = (inside(0), inside(self.extent[0] as i64));
        let from = (i64::from(first[0]) + start) as u64;
        Row {
            address: address.wrapping_add(from.wrapping_mul(size as u64)),
            start: start as usize * size,
            end: end as usize * size,
        }
    }

    /// Fills bytes of a row with what is outside the tensor.
    pub(crate) fn fill_outside(&self, bytes: &mut [u8]) {
        let pattern = match self.outside {
            Outside::Zero => 0,
            Outside::Nan => NAN_PATTERN,
        };
        for element in bytes.chunks_exact_mut(2) {
            element.copy_from_slice(&pattern.to_le_bytes());
        }
    }

    /// Makes loaded elements what their type says.
    pub(crate) fn convert(&self, bytes: &mut [u8]) {
        if !matches!(self.element, TensorElement::Tensor | TensorElement::TensorFlushed) {
            return;
        }
        for element in bytes.chunks_exact_mut(4) {
            let bits = u32::from_le_bytes([element[0], element[1], element[2], element[3]]);
            element.copy_from_slice(&tensor_float(bits).to_le_bytes());
        }
    }
}

/// A float rounded to 10 bits of fraction, ties to even; any NaN is the one.
fn tensor_float(bits: u32) -> u32 {
    match f32::from_bits(bits).is_nan() {
        true => 0x7fff_e000,
        false => (bits + 0xfff + (bits >> 13 & 1)) & !0x1fff,
    }
}

/// Where in device memory the inner part of a row is, and its bytes of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Of byte `start`.
    pub(crate) address: u64,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plane() -> TensorMap {
        TensorMap {
            address: 0x1000,
            element: TensorElement::Float,
            rank: 2,
            extent: [10, 5, 0, 0, 0],
            stride_bytes: [64, 0, 0, 0],
            span: [4, 3, 0, 0, 0],
            step: [1, 2, 0, 0, 0],
            swizzle: Swizzle::None,
            outside: Outside::Nan,
        }
    }

    #[test]
    fn maps_survive_encoding_and_others_are_refused() {
        let map = plane();
        assert_eq!(TensorMap::decode(&map.encode()), Some(map));
        assert_eq!(TensorMap::decode(&[0; MAP_WORDS]), None);
        let wrong: [fn(&mut TensorMap); 9] = [
            |map| map.rank = 0,
            |map| map.rank = 6,
            |map| map.address = 8,
            |map| map.extent[1] = 0,
            |map| map.stride_bytes[0] = 1 << 40,
            |map| map.span[1] = 257,
            |map| map.span[0] = 3,
            |map| map.step[1] = 9,
            |map| map.element = TensorElement::Signed32,
        ];
        for (index, change) in wrong.into_iter().enumerate() {
            let mut map = plane();
            change(&mut map);
            assert_eq!(TensorMap::decode(&map.encode()), None, "change {index}");
        }
    }

    #[test]
    fn tensor_floats_are_rounded_to_even() {
        let rounded =
            [0x3f80_1000, 0x3f80_3000, 0x3f80_1001, 0x7f7f_f000, 0x8000_1000, 0xff80_0001]
                .map(tensor_float);
        let expected =
            [0x3f80_0000, 0x3f80_4000, 0x3f80_2000, 0x7f80_0000, 0x8000_0000, 0x7fff_e000];
        assert_eq!(rounded, expected);
    }

    #[test]
    fn rows_are_cut_at_the_tensors_edges() {
        let map = plane();
        assert_eq!((map.rows(), map.box_bytes()), (2, 32));
        let row = |x, y, row| map.row(&[x, y, 0, 0, 0], row);
        assert_eq!(row(2, 1, 1), Row { address: 0x1000 + 3 * 64 + 8, start: 0, end: 16 });
        assert_eq!(row(-1, 0, 0), Row { address: 0x1000, start: 4, end: 16 });
        assert_eq!(row(8, 0, 0), Row { address: 0x1020, start: 0, end: 8 });
        let is_empty = |row: Row| row.start == row.end;
        assert!(is_empty(row(i32::MIN, 0, 0)) && is_empty(row(i32::MAX, 0, 0)));
        assert!(is_empty(row(0, -1, 0)) && !is_empty(row(0, -1, 1)) && is_empty(row(0, 3, 1)));
    }
}
