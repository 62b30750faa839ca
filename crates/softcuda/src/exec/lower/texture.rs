//! Lowering of texture and surface instructions. Textures and surfaces are objects, named by
//! handles in registers; variables of type `.texref` and its like are refused by name.

use super::names::Symbol;
use super::opcode::Opcode;
use super::{Lower, Result};
use crate::exec::code::{OpFn, Width};
use crate::exec::ir::{Kind, VReg};
use crate::exec::machine::{SurfaceBounds, TextureGeometry};
use crate::exec::op::texture::{
    Gather, LevelChoice, QUERIES, Query, Results, Sample, SampleForm, SurfaceForm, SurfaceLoad,
    SurfaceStore, SurfaceStoreFormatted,
};
use crate::exec::simd::plain;
use crate::ptx::{Operand, Type};

/// Coordinates of an access: layer and three axes; zero where the geometry has none.
type Place = [VReg; 4];

impl<'a> Lower<'a, '_> {
    /// Instructions of this module; `None` for others.
    pub(super) fn lower_texture(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &[Operand<'a>],
    ) -> Option<Result<()>> {
        Some(match opcode.name {
            "tex" => self.sample(opcode, operands),
            "tld4" => self.gather(opcode, operands),
            "txq" | "suq" => self.query(opcode, operands),
            "suld" => self.surface_load(opcode, operands),
            "sust" => self.surface_store(opcode, operands),
            "sured" => Err("surface reductions are not supported".to_owned()),
            "istypep" => {
                Err("only handles of texture objects are supported, which all have one type"
                    .to_owned())
            }
            _ => return None,
        })
    }

    /// The register that holds a texture's or surface's handle.
    fn handle(&mut self, operand: &Operand<'a>) -> Result<VReg> {
        let (Operand::Name(name) | Operand::Address(name, 0)) = *operand else {
            return Err("it needs a texture or surface".to_owned());
        };
        match self.symbol(name)? {
            Symbol::Reg(reg) => self.convert(reg, Width::W64),
            Symbol::Words(_) | Symbol::KernelParam { .. } => {
                Err(format!("{name} is a parameter; load the handle into a register first"))
            }
            _ => Err(format!(
                "{name} is a texture, surface or sampler variable; only handles of texture and surface objects are supported"
            )),
        }
    }

    /// Handle and coordinates of a bracketed operand.
    fn object_and_place(
        &mut self,
        operand: &Operand<'a>,
        geometry: TextureGeometry,
        ty: Type,
    ) -> Result<(VReg, Place)> {
        let Operand::Bracket(range) = *operand else {
            return Err("it needs an object and coordinates in brackets".to_owned());
        };
        let parts = self.range(range);
        let (object, coordinates) = match parts.as_slice() {
            [object, coordinates] => (object, coordinates),
            [_, _, _] => {
                return Err(
                    "separate samplers are not supported: textures of objects carry their own"
                        .to_owned(),
                );
            }
            _ => return Err("it needs an object and coordinates in brackets".to_owned()),
        };
        let handle = self.handle(object)?;
        let coordinates = self.parts(coordinates);
        let (is_layered, axes) = axes(geometry);
        let needed = usize::from(is_layered) + axes;
        // Vectors of three have a fourth element that is not used.
        if coordinates.len() != needed && !(needed == 3 && coordinates.len() == 4) {
            return Err(format!("{} coordinates where {needed} belong", coordinates.len()));
        }
        let mut place = [self.constant(Width::W32, 0); 4];
        let mut rest = coordinates.as_slice();
        if is_layered {
            place[0] = self.source(&rest[0], Width::W32, Type::U32)?;
            rest = &rest[1..];
        }
        for (axis, operand) in rest.iter().take(axes).enumerate() {
            place[axis + 1] = self.source(operand, Width::W32, ty)?;
        }
        Ok((handle, place))
    }

    /// Destinations `{..}` or `{..}|p`; the predicate (whether all texels are resident) is always
    /// true.
    fn texel_destinations(&mut self, d: &Operand<'a>, count: usize) -> Result<Vec<VReg>> {
        let d = match *d {
            Operand::Pair(_) => return Err("residency predicates are not supported".to_owned()),
            d => d,
        };
        let parts = self.parts(&d);
        if parts.len() != count {
            return Err(format!("{} destinations where {count} belong", parts.len()));
        }
        parts.iter().map(|part| self.destination(part, Width::W32, false)).collect()
    }

    fn sample(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, object, rest @ ..] = operands else {
            return Err("it needs two operands".to_owned());
        };
        let geometry = geometry(opcode)?;
        let types: Vec<&str> = texel_types(opcode);
        let [result, coordinate] = types[..] else { return Err("it needs two types".to_owned()) };
        let results = match (result, opcode.vector()) {
            ("f32" | "s32" | "u32", 4) => Results::Words,
            ("f16x2", 2) => Results::Halves,
            _ => return Err("results of this type are not supported".to_owned()),
        };
        let (is_float, ty) = match coordinate {
            "f32" => (true, Type::F32),
            "s32" => (false, Type::S32),
            _ => return Err("coordinates are .f32 or .s32".to_owned()),
        };
        let is_cube = matches!(geometry, TextureGeometry::Cube | TextureGeometry::LayeredCube);
        if is_cube && !is_float {
            return Err("directions are .f32".to_owned());
        }
        let (handle, place) = self.object_and_place(object, geometry, ty)?;
        let level = match opcode.one_of(&["level", "grad"]) {
            Some("level") => LevelChoice::Given,
            Some(_) => LevelChoice::Gradients,
            None => LevelChoice::Base,
        };
        let mut sources = vec![handle];
        sources.extend(place);
        let used = match level {
            LevelChoice::Base => 0,
            LevelChoice::Given => {
                let [level, ..] = rest else { return Err("it needs a level".to_owned()) };
                // The level has the type of the coordinates.
                sources.push(self.source(level, Width::W32, ty)?);
                1
            }
            LevelChoice::Gradients if is_cube => {
                return Err("gradients on cube maps are not supported".to_owned());
            }
            LevelChoice::Gradients => {
                let [dx, dy, ..] = rest else { return Err("it needs two gradients".to_owned()) };
                for gradient in [dx, dy] {
                    let parts = self.parts(gradient);
                    for axis in 0..3 {
                        let reg = match parts.get(axis) {
                            Some(part) if axis < axes(geometry).1 => {
                                self.source(part, Width::W32, Type::F32)?
                            }
                            _ => self.constant(Width::W32, 0),
                        };
                        sources.push(reg);
                    }
                }
                2
            }
        };
        if rest.len() > used {
            return Err("texel offsets and depth comparison are not supported".to_owned());
        }
        let dsts = self.texel_destinations(d, opcode.vector())?;
        let form = SampleForm { geometry, is_float, level, results };
        self.push(plain::<Sample>(), Kind::CrossLane, &dsts, &sources, 0, form.pack());
        Ok(())
    }

    fn gather(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, object] = operands else {
            return Err("texel offsets and depth comparison are not supported".to_owned());
        };
        let geometry = geometry(opcode)?;
        if !matches!(geometry, TextureGeometry::D2 | TextureGeometry::Layered2) {
            return Err("only .2d and .a2d textures are gathered from".to_owned());
        }
        let component = match opcode.one_of(&["r", "g", "b", "a"]) {
            Some("r") => 0,
            Some("g") => 1,
            Some("b") => 2,
            Some(_) => 3,
            None => return Err("it needs a component".to_owned()),
        };
        if opcode.vector() != 4 || texel_types(opcode).last() != Some(&"f32") {
            return Err("it needs .v4 and .f32 coordinates".to_owned());
        }
        let (handle, place) = self.object_and_place(object, geometry, Type::F32)?;
        let dsts = self.texel_destinations(d, 4)?;
        let sources = [handle, place[0], place[1], place[2]];
        self.push(plain::<Gather>(), Kind::CrossLane, &dsts, &sources, 0, component);
        Ok(())
    }

    fn query(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, object, level @ ..] = operands else {
            return Err("it needs two operands".to_owned());
        };
        let property = QUERIES.iter().position(|name| opcode.has_exactly(name));
        let property = property.ok_or("it needs a property that objects have")?;
        let handle = self.handle(object)?;
        let level = match level {
            [level] => self.source(level, Width::W32, Type::U32)?,
            _ => self.constant(Width::W32, 0),
        };
        let d = self.destination(d, Width::W32, false)?;
        let sources = [handle, level];
        self.push(plain::<Query>(), Kind::CrossLane, &[d], &sources, 0, property as u32);
        Ok(())
    }

    fn surface_load(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [d, object] = operands else { return Err("it needs two operands".to_owned()) };
        if !opcode.has_exactly("b") {
            return Err("only unformatted loads (.b) are supported".to_owned());
        }
        let form = surface_form(opcode)?;
        let (handle, place) = self.object_and_place(object, form.geometry, Type::S32)?;
        let width = if form.element_bytes == 8 { Width::W64 } else { Width::W32 };
        let mut dsts = Vec::new();
        for part in &self.parts(d) {
            dsts.push(self.destination(part, width, false)?);
        }
        if dsts.len() != form.elements {
            return Err(format!("{} destinations where {} belong", dsts.len(), form.elements));
        }
        let mut sources = vec![handle];
        sources.extend(place);
        self.push(plain::<SurfaceLoad>(), Kind::CrossLane, &dsts, &sources, 0, form.pack());
        Ok(())
    }

    fn surface_store(&mut self, opcode: &Opcode<'_>, operands: &[Operand<'a>]) -> Result<()> {
        let [object, values] = operands else { return Err("it needs two operands".to_owned()) };
        let form = surface_form(opcode)?;
        let is_formatted = opcode.has_exactly("p");
        if is_formatted && form.element_bytes != 4 {
            return Err("formatted stores take .b32".to_owned());
        }
        let (handle, place) = self.object_and_place(object, form.geometry, Type::S32)?;
        let (width, ty) = match form.element_bytes {
            8 => (Width::W64, Type::B64),
            _ => (Width::W32, Type::B32),
        };
        let mut sources = vec![handle];
        sources.extend(place);
        let values = self.parts(values);
        if values.len() != form.elements {
            return Err(format!("{} values where {} belong", values.len(), form.elements));
        }
        for value in &values {
            sources.push(self.source(value, width, ty)?);
        }
        let run: OpFn = match is_formatted {
            true => plain::<SurfaceStoreFormatted>(),
            false => plain::<SurfaceStore>(),
        };
        self.push(run, Kind::Effect, &[], &sources, 0, form.pack());
        Ok(())
    }
}

/// Whether there is a layer, and the number of axes.
fn axes(geometry: TextureGeometry) -> (bool, usize) {
    match geometry {
        TextureGeometry::D1 => (false, 1),
        TextureGeometry::D2 => (false, 2),
        TextureGeometry::D3 | TextureGeometry::Cube => (false, 3),
        TextureGeometry::Layered1 => (true, 1),
        TextureGeometry::Layered2 => (true, 2),
        TextureGeometry::LayeredCube => (true, 3),
    }
}

fn geometry(opcode: &Opcode<'_>) -> Result<TextureGeometry> {
    use TextureGeometry as G;
    match opcode.one_of(&["1d", "2d", "3d", "a1d", "a2d", "cube", "acube", "2dms", "a2dms"]) {
        Some("1d") => Ok(G::D1),
        Some("2d") => Ok(G::D2),
        Some("3d") => Ok(G::D3),
        Some("a1d") => Ok(G::Layered1),
        Some("a2d") => Ok(G::Layered2),
        Some("cube") => Ok(G::Cube),
        Some("acube") => Ok(G::LayeredCube),
        Some(_) => Err("multi-sample textures are not supported".to_owned()),
        None => Err("it needs a geometry".to_owned()),
    }
}

/// Types of the results and of the coordinates.
fn texel_types<'b>(opcode: &Opcode<'b>) -> Vec<&'b str> {
    let is_type = |modifier: &&&str| Type::from_suffix(modifier).is_some();
    opcode.modifiers.iter().filter(is_type).copied().collect()
}

fn surface_form(opcode: &Opcode<'_>) -> Result<SurfaceForm> {
    let geometry = geometry(opcode)?;
    if matches!(geometry, TextureGeometry::Cube | TextureGeometry::LayeredCube) {
        return Err("faces of cubes are layers (.a2d) of surfaces".to_owned());
    }
    let bounds = match opcode.one_of(&["trap", "clamp", "zero"]) {
        Some("trap") => SurfaceBounds::Trap,
        Some("clamp") => SurfaceBounds::Clamp,
        Some(_) => SurfaceBounds::Zero,
        None => return Err("it needs .trap, .clamp or .zero".to_owned()),
    };
    let element_bytes = match opcode.ty() {
        Some(Type::B8) => 1,
        Some(Type::B16) => 2,
        Some(Type::B32) => 4,
        Some(Type::B64) => 8,
        _ => return Err("elements are .b8, .b16, .b32 or .b64".to_owned()),
    };
    let elements = opcode.vector();
    if elements > 4 || element_bytes * elements > 16 {
        return Err("at most 16 bytes are accessed".to_owned());
    }
    Ok(SurfaceForm { geometry, bounds, element_bytes, elements })
}
