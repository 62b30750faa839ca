//! Lowering of the tensor instructions: `wmma` and `mma`.

use super::opcode::Opcode;
use super::{Lower, Result};
use crate::exec::code::Width;
use crate::exec::ir::{Kind, VReg};
use crate::exec::op::collective::WarpSync;
use crate::exec::op::tensor::{LoadFragment, MultiplyMatrices, StoreFragment};
use crate::exec::simd::{pick, plain};
use crate::exec::tensor::{Element, Manner, Multiply, Order, Role, Shape, Transfer};
use crate::ptx::{Operand, Type};

impl<'a> Lower<'a, '_> {
    /// Instructions of this module; `None` for others.
    pub(super) fn lower_tensor(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Option<Result<()>> {
        Some(match opcode.name {
            "wmma" if opcode.has("load") => self.load_fragment(opcode, operands),
            "wmma" if opcode.has("store") => self.store_fragment(opcode, operands),
            "wmma" => self.multiply(opcode, operands),
            "mma" if opcode.has("sp") => {
                Err("products of sparse matrices are not supported".to_owned())
            }
            "mma" if opcode.has("kind") || opcode.has("block_scale") => {
                Err("it belongs to sm_120a, and the device is no sm_120a: its features are those of compute capability 12.0".to_owned())
            }
            "mma" => self.multiply(opcode, operands),
            "wgmma" => Err("it belongs to sm_90a alone, and the device is of another architecture".to_owned()),
            "tcgen05" => Err("it belongs to sm_100a and its relatives, and the device is of another architecture".to_owned()),
            _ => return None,
        })
    }

    /// All lanes of the warp come together here.
    pub(super) fn gather_warp(&mut self) {
        let members = self.constant(Width::W32, u64::from(u32::MAX));
        self.push(plain::<WarpSync>(), Kind::Effect, &[], &[members], 0, 0);
    }

    fn load_fragment(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, address, stride @ ..] = operands else {
            return Err("it needs two operands".to_owned());
        };
        let role = match opcode.one_of(&["a", "b", "c"]) {
            Some("a") => Role::A,
            Some("b") => Role::B,
            Some(_) => Role::Accumulator,
            None => return Err("it needs a matrix".to_owned()),
        };
        let form = transfer(opcode, role)?;
        let (address, imm) = self.matrix_address(opcode, address)?;
        let stride = self.stride(form, stride)?;
        let width = register_width(form.element);
        let mut dsts = Vec::new();
        for part in &self.parts(d) {
            dsts.push(self.destination(part, width, false)?);
        }
        expect_registers("destinations", dsts.len(), form.registers())?;
        if dsts.len() == 1 {
            // The operand list is needed.
            dsts.push(self.ir.vreg(width));
        }
        self.gather_warp();
        let run = plain::<LoadFragment>();
        self.push(run, Kind::CrossLane, &dsts, &[address, stride], imm, form.pack());
        Ok(())
    }

    fn store_fragment(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [address, values, stride @ ..] = operands else {
            return Err("it needs two operands".to_owned());
        };
        let form = transfer(opcode, Role::Accumulator)?;
        let (address, imm) = self.matrix_address(opcode, address)?;
        let mut sources = vec![address, self.stride(form, stride)?];
        self.registers("sources", values, form.element, form.registers(), &mut sources)?;
        self.gather_warp();
        let run = plain::<StoreFragment>();
        self.push(run, Kind::CrossLane, &[], &sources, imm, form.pack());
        Ok(())
    }

    fn multiply(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, a, b, c] = operands else { return Err("it needs four operands".to_owned()) };
        let form = product(opcode)?;
        let [a_count, b_count, c_count, d_count] = form.registers();
        let mut sources = Vec::new();
        self.registers("registers of a", a, form.a, a_count, &mut sources)?;
        self.registers("registers of b", b, form.b, b_count, &mut sources)?;
        self.registers("registers of c", c, form.c, c_count, &mut sources)?;
        let mut dsts = Vec::new();
        for part in &self.parts(d) {
            dsts.push(self.destination(part, register_width(form.d), false)?);
        }
        expect_registers("destinations", dsts.len(), d_count)?;
        self.gather_warp();
        let run = pick::<MultiplyMatrices>(self.level);
        self.push(run, Kind::CrossLane, &dsts, &sources, 0, form.pack());
        Ok(())
    }

    /// The registers of one operand.
    fn registers(
        &mut self,
        what: &str,
        operand: &Operand<'a>,
        element: Element,
        count: usize,
        into: &mut Vec<VReg>,
    ) -> Result<()> {
        let (width, ty) = match register_width(element) {
            Width::W64 => (Width::W64, Type::F64),
            width => (width, Type::B32),
        };
        let parts = self.parts(operand);
        expect_registers(what, parts.len(), count)?;
        for part in &parts {
            into.push(self.source(part, width, ty)?);
        }
        Ok(())
    }

    /// Elements from one row (or column) to the next; without operand they follow each other.
    fn stride(&mut self, form: Transfer, operand: &[Operand<'a>]) -> Result<VReg> {
        if let [operand] = operand {
            return self.source(operand, Width::W32, Type::U32);
        }
        let Shape { m, n, k } = form.shape;
        let elements = match (form.role, form.order) {
            (Role::A, Order::Row) | (Role::B, Order::Column) => k,
            (Role::A, Order::Column) | (Role::Accumulator, Order::Column) => m,
            (Role::B, Order::Row) | (Role::Accumulator, Order::Row) => n,
        };
        Ok(self.constant(Width::W32, elements as u64))
    }
}

fn register_width(element: Element) -> Width {
    if element == Element::F64 { Width::W64 } else { Width::W32 }
}

fn expect_registers(what: &str, have: usize, want: usize) -> Result<()> {
    if have == want { Ok(()) } else { Err(format!("{have} {what} where {want} belong")) }
}

fn shape(opcode: &Opcode<'_>) -> Result<Shape> {
    opcode
        .modifiers
        .iter()
        .find_map(|modifier| Shape::from_modifier(modifier))
        .ok_or_else(|| "it needs a known shape".to_owned())
}

fn elements(opcode: &Opcode<'_>) -> Vec<Element> {
    opcode.modifiers.iter().filter_map(|modifier| Element::from_modifier(modifier)).collect()
}

/// The form of `wmma.load` or `wmma.store`.
fn transfer(opcode: &Opcode<'_>, role: Role) -> Result<Transfer> {
    let order = match opcode.one_of(&["row", "col"]) {
        Some("row") => Order::Row,
        Some(_) => Order::Column,
        None => return Err("it needs .row or .col".to_owned()),
    };
    let (shape, elements) = (shape(opcode)?, elements(opcode));
    let [element] = elements[..] else { return Err("it needs one type".to_owned()) };
    let form = Transfer { shape, role, order, element };
    // Some product must have this matrix.
    let fits = |a: Element, accumulator: Element| {
        let manner = Manner { fragments: true, ..Manner::default() };
        let (c, d) = (accumulator, accumulator);
        Multiply { shape, a, b: a, c, d, manner }.is_defined()
    };
    use Element as E;
    let is_defined = match role {
        Role::Accumulator => {
            let multiplicands = [E::F16, E::Bf16, E::Tf32, E::F64, E::U8, E::U4, E::B1];
            multiplicands.iter().any(|&multiplicand| fits(multiplicand, element))
        }
        _ => [E::F32, E::F64, E::S32].iter().any(|&accumulator| fits(element, accumulator)),
    };
    let turned = element.bits() < 8
        && matches!((role, order), (Role::A, Order::Column) | (Role::B, Order::Row));
    if !is_defined || turned {
        return Err("there is no such matrix of this shape".to_owned());
    }
    Ok(form)
}

/// The form of `mma` or `wmma.mma`.
fn product(opcode: &Opcode<'_>) -> Result<Multiply> {
    use Element::{B1, F16, F64};
    let fragments = opcode.name == "wmma";
    let (shape, elements) = (shape(opcode)?, elements(opcode));
    let (d, a, b, c) = match elements[..] {
        [d, a, b, c] => (d, a, b, c),
        [d, c] if fragments => (d, F16, F16, c),
        _ => return Err("it needs the types of four matrices".to_owned()),
    };
    let orders: Vec<&&str> =
        opcode.modifiers.iter().filter(|m| ["row", "col"].contains(m)).collect();
    let [a_order, b_order] = orders[..] else {
        return Err("it needs the orders of two matrices".to_owned());
    };
    let quads = !fragments && a == F16 && (shape.m, shape.n, shape.k) == (8, 8, 4);
    if !quads && (*a_order, *b_order) != ("row", "col") && (!fragments || a.bits() < 8) {
        return Err("it needs .row.col".to_owned());
    }
    let rounding = match opcode.one_of(&["rn", "rz", "rm", "rp"]) {
        None | Some("rn") => 0,
        Some("rz") => 1,
        Some("rm") => 2,
        Some(_) => 3,
    };
    if a != F64 && opcode.one_of(&["rn", "rz", "rm", "rp"]).is_some() {
        return Err("only .f64 is rounded as asked".to_owned());
    }
    let exclusive = match (a, opcode.one_of(&["xor", "and"])) {
        (B1, Some(operation)) if opcode.has("popc") => operation == "xor",
        (B1, _) => return Err("it needs .xor.popc or .and.popc".to_owned()),
        _ => false,
    };
    let manner = Manner {
        saturates: opcode.has("satfinite"),
        exclusive,
        quads,
        a_by_column: *a_order == "col",
        b_by_column: *b_order == "col",
        fragments,
        rounding,
    };
    let form = Multiply { shape, a, b, c, d, manner };
    if form.is_defined() {
        Ok(form)
    } else {
        Err("there is no product of these types in this shape".to_owned())
    }
}
