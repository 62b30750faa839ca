//! Texture and surface instructions, lane by lane through the device's [`Textures`].

use crate::exec::alu::LANES;
use crate::exec::alu::half::Half;
use crate::exec::alu::lane::F16;
use crate::exec::code::{Flow, Frame, Ins};
use crate::exec::context::Context;
use crate::exec::fault::FaultKind;
use crate::exec::lanes::Vectors;
use crate::exec::machine::{
    SurfaceBounds, TextureCoordinates, TextureGeometry, TextureLevel, Textures,
};
use crate::exec::simd::Body;

const GEOMETRIES: [TextureGeometry; 7] = [
    TextureGeometry::D1,
    TextureGeometry::D2,
    TextureGeometry::D3,
    TextureGeometry::Layered1,
    TextureGeometry::Layered2,
    TextureGeometry::Cube,
    TextureGeometry::LayeredCube,
];

fn geometry_number(geometry: TextureGeometry) -> u32 {
    GEOMETRIES.iter().position(|&other| other == geometry).unwrap_or(0) as u32
}

fn geometry_of(number: u32) -> TextureGeometry {
    GEOMETRIES[(number & 7) as usize % GEOMETRIES.len()]
}

/// Where the level of a `tex` comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum LevelChoice {
    Base,
    Given,
    Gradients,
}

/// What a `tex` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum Results {
    /// Four 32-bit words.
    Words,
    /// Two pairs of `.f16`.
    Halves,
}

/// The form of a `tex`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) struct SampleForm {
    pub(in crate::exec) geometry: TextureGeometry,
    pub(in crate::exec) is_float: bool,
    pub(in crate::exec) level: LevelChoice,
    pub(in crate::exec) results: Results,
}

impl SampleForm {
    /// As the small immediate of an instruction.
    pub(in crate::exec) fn pack(self) -> u32 {
        let level = match self.level {
            LevelChoice::Base => 0,
            LevelChoice::Given => 1,
            LevelChoice::Gradients => 2,
        };
        geometry_number(self.geometry)
            | u32::from(self.is_float) << 3
            | level << 4
            | u32::from(self.results == Results::Halves) << 6
    }

    fn unpack(bits: u32) -> Self {
        SampleForm {
            geometry: geometry_of(bits),
            is_float: bits >> 3 & 1 != 0,
            level: match bits >> 4 & 3 {
                0 => LevelChoice::Base,
                1 => LevelChoice::Given,
                _ => LevelChoice::Gradients,
            },
            results: if bits >> 6 & 1 != 0 { Results::Halves } else { Results::Words },
        }
    }
}

/// Lanes of a set bits mask.
fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| mask >> lane & 1 != 0)
}

/// 32-bit operand number `index` of the list.
///
/// # Safety
/// The operand list has a 32-bit register there.
unsafe fn word(cx: &Context<'_>, ins: &Ins, frame: Frame, index: usize, lane: usize) -> u32 {
    // SAFETY: by the caller's contract.
    unsafe { *frame.at::<u32>(cx.extra(ins.e, index)).add(lane) }
}

/// Records why an access went wrong.
#[cold]
fn refuse(cx: &mut Context<'_>, kind: FaultKind, lane: usize, handle: u64, what: &str) -> Flow {
    cx.raise(kind, lane as u32, format!("{what}, handle {handle:#x}"));
    Flow::Fault
}

/// The device's units, or a fault.
fn units<'a>(cx: &mut Context<'a>, mask: u32) -> Option<&'a dyn Textures> {
    let units = cx.machine.textures();
    if units.is_none() {
        let lane = mask.trailing_zeros();
        cx.raise(FaultKind::IllegalInstruction, lane, "the device has no texture units");
    }
    units
}

/// `tex`: operand list of four (two) destinations, handle, layer, x, y, z, and the level or six
/// gradients.
pub(in crate::exec) struct Sample;

impl Body for Sample {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = SampleForm::unpack(ins.x);
        let results = if form.results == Results::Halves { 2 } else { 4 };
        let Some(units) = units(cx, mask) else { return Flow::Fault };
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter.
            unsafe {
                let source = |index: usize| word(cx, ins, frame, results + 1 + index, lane);
                let handle = *frame.at::<u64>(ins.a).add(lane);
                let at = [source(1), source(2), source(3)];
                let coordinates = match form.is_float {
                    true => TextureCoordinates::Float(at.map(f32::from_bits)),
                    false => TextureCoordinates::Integer(at.map(|word| word as i32)),
                };
                let level = match (form.level, form.is_float) {
                    (LevelChoice::Base, _) => TextureLevel::Base,
                    (LevelChoice::Given, true) => TextureLevel::Level(f32::from_bits(source(4))),
                    (LevelChoice::Given, false) => TextureLevel::Level(source(4) as i32 as f32),
                    (LevelChoice::Gradients, _) => {
                        let gradients: [f32; 6] =
                            std::array::from_fn(|index| f32::from_bits(source(4 + index)));
                        TextureLevel::Level(level_of(units, handle, gradients))
                    }
                };
                let texel = units.fetch(handle, form.geometry, source(0), coordinates, level);
                let Some(texel) = texel else {
                    return refuse(cx, FaultKind::IllegalAddress, lane, handle, "no such texture");
                };
                for index in 0..results {
                    let half = |part: usize| {
                        u32::from(F16::nearest(f32::from_bits(texel[2 * index + part])).0)
                    };
                    let value = match form.results {
                        Results::Words => texel[index],
                        Results::Halves => half(0) | half(1) << 16,
                    };
                    *frame.at::<u32>(cx.extra(ins.e, index)).add(lane) = value;
                }
            }
        }
        Flow::Next
    }
}

/// The level at which the longer of two gradients is one texel long.
fn level_of(units: &dyn Textures, handle: u64, gradients: [f32; 6]) -> f32 {
    let size = |property| units.query(handle, property).unwrap_or(1).max(1) as f32;
    let is_normalized = units.query(handle, "normalized_coords") == Some(1);
    let extent = match is_normalized {
        true => [size("width"), size("height"), size("depth")],
        false => [1.0; 3],
    };
    let length = |gradient: &[f32]| {
        gradient.iter().zip(extent).map(|(g, size)| (g * size) * (g * size)).sum::<f32>().sqrt()
    };
    let (dx, dy) = gradients.split_at(3);
    length(dx).max(length(dy)).max(f32::MIN_POSITIVE).log2()
}

/// `tld4`: operand list of four destinations, handle, layer, x, y; `x` is the component.
pub(in crate::exec) struct Gather;

impl Body for Gather {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let Some(units) = units(cx, mask) else { return Flow::Fault };
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter.
            unsafe {
                let handle = *frame.at::<u64>(ins.a).add(lane);
                let [layer, x, y] = [5, 6, 7].map(|index| word(cx, ins, frame, index, lane));
                let at = [f32::from_bits(x), f32::from_bits(y), 0.0];
                let found = units.gather(handle, layer, TextureCoordinates::Float(at), ins.x);
                let Some(found) = found else {
                    return refuse(cx, FaultKind::IllegalAddress, lane, handle, "no such texture");
                };
                for (index, value) in found.into_iter().enumerate() {
                    *frame.at::<u32>(cx.extra(ins.e, index)).add(lane) = value;
                }
            }
        }
        Flow::Next
    }
}

/// Properties that `txq` and `suq` ask for.
pub(in crate::exec) const QUERIES: [&str; 15] = [
    "width",
    "height",
    "depth",
    "array_size",
    "channel_data_type",
    "channel_order",
    "normalized_coords",
    "num_mipmap_levels",
    "num_samples",
    "filter_mode",
    "addr_mode_0",
    "addr_mode_1",
    "addr_mode_2",
    "force_unnormalized_coords",
    "memory_layout",
];
/// Those of [`QUERIES`] that halve from level to level.
const EXTENTS: usize = 3;

/// `txq d, [a]{, level}` and `suq`; `x` is the property.
pub(in crate::exec) struct Query;

impl Body for Query {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let property = ins.x as usize % QUERIES.len();
        let Some(units) = units(cx, mask) else { return Flow::Fault };
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter.
            unsafe {
                let handle = *frame.at::<u64>(ins.a).add(lane);
                let level = *frame.at::<u32>(ins.b).add(lane);
                let Some(value) = units.query(handle, QUERIES[property]) else {
                    let what = "no such texture or surface, or it has no such property";
                    return refuse(cx, FaultKind::IllegalAddress, lane, handle, what);
                };
                let value = match property < EXTENTS && level > 0 {
                    true => value.checked_shr(level).unwrap_or(0).max(1),
                    false => value,
                };
                *frame.at::<u32>(ins.d).add(lane) = value;
            }
        }
        Flow::Next
    }
}

/// The form of a `suld` or `sust`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) struct SurfaceForm {
    pub(in crate::exec) geometry: TextureGeometry,
    pub(in crate::exec) bounds: SurfaceBounds,
    pub(in crate::exec) element_bytes: usize,
    pub(in crate::exec) elements: usize,
}

impl SurfaceForm {
    /// As the small immediate of an instruction.
    pub(in crate::exec) fn pack(self) -> u32 {
        let bounds = match self.bounds {
            SurfaceBounds::Trap => 0,
            SurfaceBounds::Clamp => 1,
            SurfaceBounds::Zero => 2,
        };
        geometry_number(self.geometry)
            | bounds << 3
            | (self.element_bytes as u32) << 8
            | (self.elements as u32) << 16
    }

    fn unpack(bits: u32) -> Self {
        SurfaceForm {
            geometry: geometry_of(bits),
            bounds: match bits >> 3 & 3 {
                0 => SurfaceBounds::Trap,
                1 => SurfaceBounds::Clamp,
                _ => SurfaceBounds::Zero,
            },
            element_bytes: (bits >> 8 & 15) as usize,
            elements: (bits >> 16 & 7) as usize,
        }
    }
}

/// Most bytes of a surface access.
const ACCESS_BYTES: usize = 16;

/// Handle, layer and coordinates of a lane.
///
/// # Safety
/// The operand list has the handle at `first`, then layer, x, y and z.
unsafe fn surface_place(
    cx: &Context<'_>,
    ins: &Ins,
    frame: Frame,
    first: usize,
    lane: usize,
) -> (u64, u32, [i32; 3]) {
    // SAFETY: by the caller's contract.
    unsafe {
        let handle = *frame.at::<u64>(ins.a).add(lane);
        let at = [2, 3, 4].map(|index| word(cx, ins, frame, first + index, lane) as i32);
        (handle, word(cx, ins, frame, first + 1, lane), at)
    }
}

const OUTSIDE: &str = "no such surface, or coordinates outside of it";

/// `suld.b`: operand list of the destinations, handle, layer, x in bytes, y, z.
pub(in crate::exec) struct SurfaceLoad;

impl Body for SurfaceLoad {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = SurfaceForm::unpack(ins.x);
        let size = form.element_bytes;
        let Some(units) = units(cx, mask) else { return Flow::Fault };
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter.
            unsafe {
                let place = surface_place(cx, ins, frame, form.elements, lane);
                let (handle, layer, at) = place;
                let mut bytes = [0; ACCESS_BYTES];
                let data = &mut bytes[..size * form.elements];
                if !units.surface_read(handle, form.geometry, layer, at, form.bounds, data) {
                    return refuse(cx, FaultKind::IllegalAddress, lane, handle, OUTSIDE);
                }
                for index in 0..form.elements {
                    let mut element = [0; 8];
                    element[..size].copy_from_slice(&bytes[index * size..(index + 1) * size]);
                    let value = u64::from_le_bytes(element);
                    let d = cx.extra(ins.e, index);
                    match size {
                        8 => *frame.at::<u64>(d).add(lane) = value,
                        _ => *frame.at::<u32>(d).add(lane) = value as u32,
                    }
                }
            }
        }
        Flow::Next
    }
}

/// `sust.b`: operand list of handle, layer, x in bytes, y, z, and the values.
pub(in crate::exec) struct SurfaceStore;

impl Body for SurfaceStore {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = SurfaceForm::unpack(ins.x);
        let size = form.element_bytes;
        let Some(units) = units(cx, mask) else { return Flow::Fault };
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter.
            unsafe {
                let (handle, layer, at) = surface_place(cx, ins, frame, 0, lane);
                let mut bytes = [0; ACCESS_BYTES];
                for index in 0..form.elements {
                    let source = cx.extra(ins.e, 5 + index);
                    let value = match size {
                        8 => *frame.at::<u64>(source).add(lane),
                        _ => u64::from(*frame.at::<u32>(source).add(lane)),
                    };
                    bytes[index * size..(index + 1) * size]
                        .copy_from_slice(&value.to_le_bytes()[..size]);
                }
                let data = &bytes[..size * form.elements];
                if !units.surface_write(handle, form.geometry, layer, at, form.bounds, data) {
                    return refuse(cx, FaultKind::IllegalAddress, lane, handle, OUTSIDE);
                }
            }
        }
        Flow::Next
    }
}

/// `sust.p`: as [`SurfaceStore`], x in texels, and the values converted to the surface's format.
pub(in crate::exec) struct SurfaceStoreFormatted;

impl Body for SurfaceStoreFormatted {
    const VECTOR: bool = false;

    unsafe fn run<V: Vectors>(cx: &mut Context<'_>, ins: &Ins, frame: Frame, mask: u32) -> Flow {
        let form = SurfaceForm::unpack(ins.x);
        let Some(units) = units(cx, mask) else { return Flow::Fault };
        for lane in lanes(mask) {
            // SAFETY: operands by the emitter.
            unsafe {
                let (handle, layer, mut at) = surface_place(cx, ins, frame, 0, lane);
                let format = (
                    units.query(handle, "channel_data_type"),
                    units.query(handle, "channel_order"),
                );
                let (Some(channel), Some(order)) = format else {
                    return refuse(cx, FaultKind::IllegalAddress, lane, handle, OUTSIDE);
                };
                let channels = match order {
                    0x10b0 => 1,
                    0x10b2 => 2,
                    _ => 4,
                };
                let mut bytes = [0; ACCESS_BYTES];
                let mut length = 0;
                for index in 0..channels {
                    // Components that the instruction does not give are zero.
                    let value = match index < form.elements {
                        true => word(cx, ins, frame, 5 + index, lane),
                        false => 0,
                    };
                    let (bits, size) = channel_bits(channel, value);
                    bytes[length..length + size].copy_from_slice(&bits.to_le_bytes()[..size]);
                    length += size;
                }
                at[0] = at[0].saturating_mul(length as i32);
                let data = &bytes[..length];
                if !units.surface_write(handle, form.geometry, layer, at, form.bounds, data) {
                    return refuse(cx, FaultKind::IllegalAddress, lane, handle, OUTSIDE);
                }
            }
        }
        Flow::Next
    }
}

/// A component in a channel's format (by its number in PTX), and its size in bytes.
fn channel_bits(channel: u32, value: u32) -> (u32, usize) {
    let float = f32::from_bits(value);
    // Halves between two steps go towards zero, as an H200 has it.
    let fraction = |least: f32, most: f32| {
        let scaled = float.clamp(least, 1.0) * most;
        (scaled.abs() - 0.5).ceil().copysign(scaled) as i32
    };
    match channel {
        // .snorm_int8, .snorm_int16, .unorm_int8, .unorm_int16
        0x10d0 => (fraction(-1.0, 127.0) as u32, 1),
        0x10d1 => (fraction(-1.0, 32767.0) as u32, 2),
        0x10d2 => (fraction(0.0, 255.0) as u32, 1),
        0x10d3 => (fraction(0.0, 65535.0) as u32, 2),
        // .signed_int8, .signed_int16
        0x10d7 => ((value as i32).clamp(-128, 127) as u32, 1),
        0x10d8 => ((value as i32).clamp(-32768, 32767) as u32, 2),
        // .unsigned_int8, .unsigned_int16
        0x10da => (value.min(255), 1),
        0x10db => (value.min(65535), 2),
        // .half_float
        0x10dd => (u32::from(half_bits(float)), 2),
        _ => (value, 4),
    }
}

/// A component as `.f16`: finite values stay finite, NaN is that of the texture units.
fn half_bits(value: f32) -> u16 {
    match value {
        value if value.is_nan() => 0x7e00,
        value if value.is_finite() => F16::nearest(value.clamp(-65504.0, 65504.0)).0,
        value => F16::nearest(value).0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_survive_packing() {
        for geometry in GEOMETRIES {
            let form = SampleForm {
                geometry,
                is_float: true,
                level: LevelChoice::Gradients,
                results: Results::Halves,
            };
            assert_eq!(SampleForm::unpack(form.pack()), form);
            let form = SurfaceForm {
                geometry,
                bounds: SurfaceBounds::Zero,
                element_bytes: 8,
                elements: 2,
            };
            assert_eq!(SurfaceForm::unpack(form.pack()), form);
        }
    }
}
