//! Matrices of the tensor instructions (`wmma`, `mma`): their shapes, element types, the registers
//! that hold them, and products.
//!
//! | file | concept |
//! |---|---|
//! | this one | element types and forms, as an instruction carries them |
//! | [`fragment`] | which elements of a matrix each register of each lane holds |
//! | [`product`] | the product of dense matrices, element type by element type |
//!
//! Sources: the PTX ISA's fragment layouts of `mma`; for `wmma`, whose fragments the ISA leaves
//! open, and for the order and precision of accumulation, which it leaves open too, what an H200
//! (driver 580) was observed to do.

pub(super) mod fragment;
pub(super) mod product;

/// Element types of matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    F32,
    F64,
    S32,
    U8,
    S8,
    U4,
    S4,
    B1,
}

use Element::{B1, Bf16, E4m3, E5m2, F16, F32, F64, S4, S8, S32, Tf32, U4, U8};

/// By number, with the modifier that names each.
const ELEMENTS: [(Element, &str); 13] = [
    (F16, "f16"),
    (Bf16, "bf16"),
    (Tf32, "tf32"),
    (E4m3, "e4m3"),
    (E5m2, "e5m2"),
    (F32, "f32"),
    (F64, "f64"),
    (S32, "s32"),
    (U8, "u8"),
    (S8, "s8"),
    (U4, "u4"),
    (S4, "s4"),
    (B1, "b1"),
];

impl Element {
    /// The type that a modifier names.
    pub(super) fn from_modifier(modifier: &str) -> Option<Self> {
        ELEMENTS.iter().find(|(_, name)| *name == modifier).map(|(element, _)| *element)
    }

    /// Bits of an element in memory and in registers.
    pub(super) fn bits(self) -> usize {
        match self {
            B1 => 1,
            U4 | S4 => 4,
            U8 | S8 | E4m3 | E5m2 => 8,
            F16 | Bf16 => 16,
            Tf32 | F32 | S32 => 32,
            F64 => 64,
        }
    }

    fn number(self) -> u32 {
        ELEMENTS.iter().position(|(element, _)| *element == self).unwrap_or(0) as u32
    }

    fn from_number(number: u32) -> Self {
        ELEMENTS.get(number as usize).map_or(F16, |(element, _)| *element)
    }
}

/// Extents: A is `m` by `k`, B `k` by `n`, C and D `m` by `n`. Powers of two, `m` and `n` from 8 to
/// 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

impl Shape {
    /// The shape that a modifier such as `m16n8k16` names.
    pub(super) fn from_modifier(modifier: &str) -> Option<Self> {
        let (m, rest) = modifier.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        let extent = |digits: &str| digits.parse::<usize>().ok();
        let (m, n, k) = (extent(m)?, extent(n)?, extent(k)?);
        let fits = |extent| [8, 16, 32].contains(&extent);
        (fits(m) && fits(n) && k.is_power_of_two() && (4..=256).contains(&k)).then_some(Shape {
            m,
            n,
            k,
        })
    }

    fn pack(self) -> u32 {
        let exponent = |extent: usize| extent.trailing_zeros();
        (exponent(self.m) - 3) | (exponent(self.n) - 3) << 2 | exponent(self.k) << 4
    }

    fn unpack(bits: u32) -> Self {
        Shape { m: 8 << (bits & 3), n: 8 << (bits >> 2 & 3), k: 1 << (bits >> 4 & 15) }
    }
}

/// Which matrix of `d = a * b + c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    A,
    B,
    /// C or D.
    Accumulator,
}

/// What is consecutive in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Row,
    Column,
}

/// What `wmma.load` or `wmma.store` moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) shape: Shape,
    pub(super) role: Role,
    pub(super) order: Order,
    pub(super) element: Element,
}

impl Transfer {
    /// As the small immediate of an instruction.
    pub(super) fn pack(self) -> u32 {
        let role = match self.role {
            Role::A => 0,
            Role::B => 1,
            Role::Accumulator => 2,
        };
        let order = u32::from(self.order == Order::Column);
        self.shape.pack() | self.element.number() << 8 | role << 12 | order << 14
    }

    /// The reverse of [`pack`](Self::pack).
    pub(super) fn unpack(bits: u32) -> Self {
        Transfer {
            shape: Shape::unpack(bits),
            role: match bits >> 12 & 3 {
                0 => Role::A,
                1 => Role::B,
                _ => Role::Accumulator,
            },
            order: if bits >> 14 & 1 == 0 { Order::Row } else { Order::Column },
            element: Element::from_number(bits >> 8 & 15),
        }
    }

    /// Registers per lane that hold distinct elements.
    pub(super) fn distinct_registers(self) -> usize {
        let Shape { m, n, k } = self.shape;
        let elements = match self.role {
            Role::A => m * k,
            Role::B => k * n,
            Role::Accumulator => m * n,
        };
        elements * self.element.bits() / (32 * self.element.bits().max(32))
    }

    /// Registers per lane of a `wmma` fragment: multiplicands of halves always have eight, if need
    /// be the same ones again.
    pub(super) fn registers(self) -> usize {
        match (self.role, self.element) {
            (Role::A | Role::B, F16) => 8,
            _ => self.distinct_registers(),
        }
    }
}

/// How elements are combined, beyond their types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Manner {
    /// `.satfinite`
    pub(super) saturates: bool,
    /// `.xor.popc` instead of `.and.popc`
    pub(super) exclusive: bool,
    /// `mma.m8n8k4` of halves: four products, one for each group of eight lanes.
    pub(super) quads: bool,
    /// Of `quads`: A is column by column.
    pub(super) a_by_column: bool,
    /// Of `quads`: B is column by column.
    pub(super) b_by_column: bool,
    /// Operands are `wmma` fragments.
    pub(super) fragments: bool,
    /// Rounding of `.f64`: 0 nearest, 1 towards zero, 2 down, 3 up.
    pub(super) rounding: u8,
}

/// `d = a * b + c`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiply {
    pub(super) shape: Shape,
    pub(super) a: Element,
    pub(super) b: Element,
    pub(super) c: Element,
    pub(super) d: Element,
    pub(super) manner: Manner,
}

impl Multiply {
    /// As the small immediate of an instruction.
    pub(super) fn pack(self) -> u32 {
        let types = [self.a, self.b, self.c, self.d].map(Element::number);
        let Manner { saturates, exclusive, quads, a_by_column, b_by_column, fragments, rounding } =
            self.manner;
        let flags = [saturates, exclusive, quads, a_by_column, b_by_column, fragments];
        let flags = flags.iter().rev().fold(0, |bits, &flag| bits << 1 | u32::from(flag));
        self.shape.pack()
            | types.iter().rev().fold(0, |bits, number| bits << 4 | number) << 8
            | flags << 24
            | u32::from(rounding & 3) << 30
    }

    /// The reverse of [`pack`](Self::pack).
    pub(super) fn unpack(bits: u32) -> Self {
        let element = |at: u32| Element::from_number(bits >> at & 15);
        let flag = |at: u32| bits >> at & 1 != 0;
        Multiply {
            shape: Shape::unpack(bits),
            a: element(8),
            b: element(12),
            c: element(16),
            d: element(20),
            manner: Manner {
                saturates: flag(24),
                exclusive: flag(25),
                quads: flag(26),
                a_by_column: flag(27),
                b_by_column: flag(28),
                fragments: flag(29),
                rounding: (bits >> 30) as u8,
            },
        }
    }

    fn matrix(self, role: Role, element: Element) -> Transfer {
        Transfer { shape: self.shape, role, order: Order::Row, element }
    }

    /// Registers per lane of A, B, C and D.
    pub(super) fn registers(self) -> [usize; 4] {
        if self.manner.quads {
            let accumulators = |element| if element == F16 { 4 } else { 8 };
            return [2, 2, accumulators(self.c), accumulators(self.d)];
        }
        let matrices = [
            self.matrix(Role::A, self.a),
            self.matrix(Role::B, self.b),
            self.matrix(Role::Accumulator, self.c),
            self.matrix(Role::Accumulator, self.d),
        ];
        matrices.map(|matrix| {
            if self.manner.fragments { matrix.registers() } else { matrix.distinct_registers() }
        })
    }

    /// Whether the types go with each other and with the shape, in `mma` or, with `fragments`, in
    /// `wmma`.
    pub(super) fn is_defined(self) -> bool {
        let Shape { m, n, k } = self.shape;
        let Manner { fragments, quads, .. } = self.manner;
        let is_half = |element| matches!(element, F16 | F32);
        let byte = |element| matches!(element, U8 | S8);
        let nibble = |element| matches!(element, U4 | S4);
        let eight_bit_float = |element| matches!(element, E4m3 | E5m2);
        let whole = self.c == S32 && self.d == S32;
        let single = self.c == F32 && self.d == F32;
        let halves = is_half(self.c) && is_half(self.d);
        let wide = matches!((m, n, k), (16, 16, 16) | (32, 8, 16) | (8, 32, 16));
        let shape = (m, n, k);
        match (self.a, self.b, fragments) {
            (F16, F16, true) => halves && wide,
            (Bf16, Bf16, true) => single && wide,
            (Tf32, Tf32, true) => single && shape == (16, 16, 8),
            (F64, F64, true) => self.c == F64 && self.d == F64 && shape == (8, 8, 4),
            (a, b, true) if byte(a) => a == b && whole && wide,
            (a, b, true) if nibble(a) => a == b && whole && shape == (8, 8, 32),
            (B1, B1, true) => whole && shape == (8, 8, 128),
            (F16, F16, false) if quads => halves && shape == (8, 8, 4),
            (F16, F16, false) => halves && self.c == self.d && matches!(shape, (16, 8, 8 | 16)),
            (Bf16, Bf16, false) => single && matches!(shape, (16, 8, 8 | 16)),
            (Tf32, Tf32, false) => single && matches!(shape, (16, 8, 4 | 8)),
            (F64, F64, false) => {
                self.c == F64 && self.d == F64 && matches!(shape, (8, 8, 4) | (16, 8, 4 | 8 | 16))
            }
            (a, b, false) if eight_bit_float(a) && eight_bit_float(b) => {
                halves && self.c == self.d && matches!(shape, (16, 8, 16 | 32))
            }
            (a, b, false) if byte(a) && byte(b) => {
                whole && matches!(shape, (8, 8, 16) | (16, 8, 16 | 32))
            }
            (a, b, false) if nibble(a) && nibble(b) => {
                whole && matches!(shape, (8, 8, 32) | (16, 8, 32 | 64))
            }
            (B1, B1, false) => whole && matches!(shape, (8, 8, 128) | (16, 8, 128 | 256)),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_survive_packing() {
        let shape = Shape::from_modifier("m16n8k256").unwrap();
        let manner =
            Manner { exclusive: true, b_by_column: true, rounding: 3, ..Manner::default() };
        let multiply = Multiply { shape, a: B1, b: S4, c: S32, d: F64, manner };
        assert_eq!(Multiply::unpack(multiply.pack()), multiply);
        let shape = Shape::from_modifier("m8n32k16").unwrap();
        let transfer =
            Transfer { shape, role: Role::Accumulator, order: Order::Column, element: F32 };
        assert_eq!(Transfer::unpack(transfer.pack()), transfer);
        assert_eq!(Shape::from_modifier("m64n8k16"), None);
        assert_eq!(Shape::from_modifier("m8n8k12"), None);
    }
}
