//! Textures and surfaces of every geometry: coordinates in and around them, with weights and sums
//! that are exact.

use cuda_abi::types::CUarray_format;
use softcuda::exec::FaultKind;

use crate::case::{Case, Slot, exactly, words};
use crate::driver::{Object, ObjectKind};
use crate::form::Form;
use crate::operands::{bytes, mix};

pub(crate) fn case(form: &Form<'_>) -> Option<Case> {
    match form.name {
        "tex" => Some(sample(form)),
        "suld" => Some(surface_load(form)),
        "sust" => Some(surface_store(form)),
        _ => None,
    }
}

const LAYERED: u32 = 1;
const SURFACE: u32 = 2;
const CUBEMAP: u32 = 4;

const THREADS: u64 = 64;

/// Texels of four channels: multiples of eight up to 2040.
fn texel(index: usize, channel: usize) -> f64 {
    (mix((index * 4 + channel) as u64) % 256 * 8) as f64
}

fn texels(count: usize, seed: usize, integers: bool) -> Vec<u8> {
    let channel = |value: f64| if integers { value as u32 } else { (value as f32).to_bits() };
    (0..count * 4).flat_map(|k| channel(texel(seed + k / 4, k % 4)).to_le_bytes()).collect()
}

/// One axis of a filtered access: two texels and the weight of the second.
fn axis(at: f64, size: usize) -> [(usize, f64); 2] {
    let at = at - 0.5;
    let inside = |i: f64| i.clamp(0.0, size as f64 - 1.0) as usize;
    let fraction = at - at.floor();
    [(inside(at.floor()), 1.0 - fraction), (inside(at.floor() + 1.0), fraction)]
}

/// The directions that the programming guide's table of cube faces gives: face, then (s, t) from -1
/// to 1.
fn face([x, y, z]: [f64; 3]) -> (usize, f64, f64) {
    let (ax, ay, az) = (x.abs(), y.abs(), z.abs());
    let (face, s, t, m) = if ax >= ay && ax >= az {
        if x >= 0.0 { (0, -z, -y, ax) } else { (1, z, -y, ax) }
    } else if ay >= az {
        if y >= 0.0 { (2, x, z, ay) } else { (3, x, -z, ay) }
    } else if z >= 0.0 {
        (4, x, -y, az)
    } else {
        (5, -x, -y, az)
    };
    (face, s / m, t / m)
}

fn sample(form: &Form<'_>) -> Case {
    let geometry = form.one_of(&["1d", "2d", "3d", "a2d", "cube"]).expect("a geometry");
    let types = form.types();
    let (integers, by_index) = (types[0] == "u32", types[1] == "s32");
    let levels = if form.has("level") { 3 } else { 1 };
    let (extent, flags, axes) = match geometry {
        "1d" => ([16, 0, 0], 0, 1),
        "2d" => ([16, 8, 0], 0, 2),
        "3d" => ([8, 4, 4], 0, 3),
        "a2d" => ([8, 4, 4], LAYERED, 2),
        _ => ([4, 4, 6], CUBEMAP, 3),
    };
    let kind = match geometry {
        "cube" => ObjectKind::PointNormalized,
        _ if form.has("level") => ObjectKind::PointNormalized,
        "1d" if by_index => ObjectKind::Buffer,
        _ if integers || by_index => ObjectKind::Point,
        _ => ObjectKind::Linear,
    };
    let count = |level: usize| extent.iter().map(|n| (n >> level).max(1)).product::<usize>();
    let object = Object {
        kind,
        extent,
        flags,
        format: if integers { CUarray_format::UNSIGNED_INT32 } else { CUarray_format::FLOAT },
        channels: 4,
        levels: (0..levels).map(|level| texels(count(level), level * 1000, integers)).collect(),
    };
    // Words of a thread: layer, three coordinates, level.
    let (mut input, mut expected) = (Vec::new(), Vec::new());
    for thread in 0..THREADS {
        let random = |k: u64| mix(thread * 8 + k);
        let layer = (random(0) % 4) as usize;
        let level = if levels == 1 { 0 } else { (random(1) % 3) as usize };
        // Quarters of texels, somewhat beyond the edges.
        let quarters = |k: usize| {
            let size = extent[k].max(1) as u64 * 4;
            (random(2 + k as u64) % (size + 16)) as f64 / 4.0 - 2.0
        };
        let mut at = [quarters(0), quarters(1), quarters(2)];
        if by_index {
            at = [0, 1, 2].map(|k| (random(2 + k as u64) % extent[k].max(1) as u64) as f64);
        } else if geometry == "cube" {
            // No two components are of the same size, and none falls between two texels.
            at = [0, 1, 2].map(|k| ((random(2 + k as u64) % 40) as f64 - 20.0) / 16.0 + 0.031_25);
            at[(random(5) % 3) as usize] = if random(6) & 1 == 0 { 2.0 } else { -2.0 };
        } else if levels > 1 {
            at = [at[0] / extent[0] as f64, at[1] / extent[1] as f64, 0.0];
        }
        let size = extent.map(|n: usize| (n >> level).max(1));
        let value = |channel: usize| -> f64 {
            let place = |x: usize, y: usize, z: usize| {
                texel(level * 1000 + (z * size[1] + y) * size[0] + x, channel)
            };
            let nearest = |c: f64, size: usize| c.floor().clamp(0.0, size as f64 - 1.0) as usize;
            if geometry == "cube" {
                let (face, s, t) = face(at);
                let in_face = |c: f64| nearest((c + 1.0) / 2.0 * 4.0, 4);
                return place(in_face(s), in_face(t), face);
            }
            if levels > 1 {
                let [x, y] = [0, 1].map(|k| nearest(at[k] * size[k] as f64, size[k]));
                return place(x, y, 0);
            }
            if matches!(kind, ObjectKind::Point | ObjectKind::Buffer) {
                let [x, y] = [0, 1].map(|k| nearest(at[k], size[k]));
                return place(x, if axes > 1 { y } else { 0 }, 0);
            }
            let mut sum = 0.0;
            for (x, wx) in axis(at[0], size[0]) {
                for (y, wy) in if axes > 1 { axis(at[1], size[1]) } else { [(0, 1.0), (0, 0.0)] } {
                    for (z, wz) in match geometry {
                        "3d" => axis(at[2], size[2]),
                        "a2d" => [(layer, 1.0), (0, 0.0)],
                        _ => [(0, 1.0), (0, 0.0)],
                    } {
                        sum += place(x, y, z) * wx * wy * wz;
                    }
                }
            }
            sum
        };
        for channel in 0..4 {
            let value = value(channel);
            let bits = if integers { value as u32 } else { (value as f32).to_bits() };
            expected.push(Slot::Bits(u64::from(bits)));
        }
        let coordinate =
            |c: f64| u64::from(if by_index { c as i32 as u32 } else { (c as f32).to_bits() });
        let level = u64::from((level as f32).to_bits());
        input.extend([
            layer as u64,
            coordinate(at[0]),
            coordinate(at[1]),
            coordinate(at[2]),
            level,
        ]);
    }
    let class = if by_index { 'r' } else { 'f' };
    let coordinates = match geometry {
        "1d" => format!("{{%{class}1}}"),
        "2d" => format!("{{%{class}1, %{class}2}}"),
        "a2d" => "{%r10, %f1, %f2, %f2}".to_owned(),
        _ => "{%f1, %f2, %f3, %f3}".to_owned(),
    };
    let result = if integers { 'r' } else { 'f' };
    let level = if levels > 1 { ", %f4" } else { "" };
    let body = format!(
        "{} {{%{result}20, %{result}21, %{result}22, %{result}23}}, [%d1, {coordinates}]{level};",
        form.text
    );
    let mut case = Case::bare(THREADS as u32, body);
    case.setup = "ld.param.u64 %d1, [blob];\nmad.wide.u32 %in, %t, 40, %in;\n\
                  mad.wide.u32 %out, %t, 32, %out;\nld.global.b32 %r10, [%in];\n"
        .to_owned();
    for k in 1..5 {
        case.setup += &format!("ld.global.b32 %r{k}, [%in+{0}];\nmov.b32 %f{k}, %r{k};\n", 8 * k);
    }
    for k in 0..4 {
        case.setup += &format!("mov.b32 %{result}2{k}, 0x5A5A5A5B;\n")
            .replace("mov.b32 %f", "mov.f32 %f")
            .replace(" 0x5", if integers { " 0x5" } else { " 0f5" });
        case.finish +=
            &format!("mov.b32 %q0, %{result}2{k};\nst.global.b32 [%out+{}], %q0;\n", 8 * k);
    }
    case.input = words(&input);
    case.output = vec![0; expected.len() * 8];
    case.expected = Ok(expected);
    case.object = Some(object);
    case
}

/// A surface's shape: bytes of a row, rows, slices or layers.
struct Shape {
    row: usize,
    rows: usize,
    slices: usize,
}

/// A surface of words for the form's geometry.
fn surface(form: &Form<'_>) -> (Object, Shape) {
    let (extent, flags) = match form.one_of(&["1d", "2d", "3d", "a2d"]).expect("a geometry") {
        "1d" => ([64, 0, 0], 0),
        "2d" => ([16, 8, 0], 0),
        "3d" => ([8, 4, 4], 0),
        _ => ([8, 4, 4], LAYERED),
    };
    let [width, rows, slices] = extent.map(|n: usize| n.max(1));
    let object = Object {
        kind: ObjectKind::Surface,
        extent,
        flags: flags | SURFACE,
        format: CUarray_format::UNSIGNED_INT32,
        channels: 1,
        levels: vec![bytes(width * rows * slices * 4, 21)],
    };
    (object, Shape { row: width * 4, rows, slices })
}

/// `{..}` of the coordinates in `%r1` (bytes), `%r2`, `%r3` (slice or layer).
fn coordinates(form: &Form<'_>) -> &'static str {
    match form.one_of(&["1d", "2d", "3d"]) {
        Some("1d") => "{%r1}",
        Some("2d") => "{%r1, %r2}",
        Some(_) => "{%r1, %r2, %r3, %r3}",
        None => "{%r3, %r1, %r2, %r2}",
    }
}

/// Element registers: narrow ones for bytes.
fn elements(form: &Form<'_>, first: usize) -> (String, char) {
    let class = if form.has("b8") { 'h' } else { 'r' };
    let names: Vec<String> =
        (first..first + form.vector()).map(|n| format!("%{class}{n}")).collect();
    (format!("{{{}}}", names.join(", ")), class)
}

/// Bytes of an access.
fn size(form: &Form<'_>) -> usize {
    form.vector() * if form.has("b8") { 1 } else { 4 }
}

/// Where thread `thread` goes: byte, row, slice; all differ, and the last element of all is left
/// out.
fn place(form: &Form<'_>, shape: &Shape, thread: usize) -> [i64; 3] {
    let each = size(form);
    let per_row = shape.row / each;
    let (slice, in_slice) = (thread % shape.slices, thread / shape.slices);
    [(in_slice % per_row * each) as i64, (in_slice / per_row % shape.rows) as i64, slice as i64]
}

fn offset(shape: &Shape, at: [i64; 3]) -> usize {
    ((at[2] as usize * shape.rows) + at[1] as usize) * shape.row + at[0] as usize
}

/// The setup that surfaces share: the handle, and three coordinates.
const PLACES: &str = "ld.param.u64 %d1, [blob];\nmad.wide.u32 %in, %t, 64, %in;\n\
                      mad.wide.u32 %out, %t, 32, %out;\nld.global.b32 %r1, [%in];\n\
                      ld.global.b32 %r2, [%in+8];\nld.global.b32 %r3, [%in+16];\n";

/// A trapping form reaches outside in a case of its own, which ends with a fault.
fn with_trap(form: &Form<'_>, mut case: Case, outside: Case) -> Case {
    if form.has("trap") {
        case.next = Some(Box::new(outside));
    }
    case
}

/// Threads that take part: no two reach the same bytes.
fn threads(form: &Form<'_>, shape: &Shape) -> usize {
    (shape.row / size(form) * shape.rows * shape.slices - 1).min(32)
}

fn surface_load(form: &Form<'_>) -> Case {
    let (object, shape) = surface(form);
    let count = threads(form, &shape);
    let each = size(form);
    let data = object.levels[0].clone();
    let build = |outside: bool| {
        let (list, class) = elements(form, 20);
        let body = format!("{} {list}, [%d1, {}];", form.text, coordinates(form));
        let mut case = Case::bare(count as u32, body);
        case.setup = PLACES.to_owned();
        let (mut input, mut expected) = (Vec::new(), Vec::new());
        for thread in 0..count {
            let mut at = place(form, &shape, thread);
            let beyond = if form.has("trap") { outside && thread == 7 } else { thread % 3 == 0 };
            let mut inside = at;
            if beyond {
                // Left of the surface or below it.
                let [x, y] = if thread % 2 == 0 { [-16, at[1]] } else { [at[0], 100] };
                (at[0], at[1]) = (x, y);
                inside[0] = x.clamp(0, (shape.row - each) as i64);
                inside[1] = y.clamp(0, shape.rows as i64 - 1);
            }
            input.extend([at[0] as u64, at[1] as u64, at[2] as u64, 0, 0, 0, 0, 0]);
            let element = each / form.vector();
            for k in 0..4 {
                let start = offset(&shape, inside) + k * element;
                let mut word = [0u8; 8];
                if k < form.vector() && !(beyond && form.has("zero")) {
                    word[..element].copy_from_slice(&data[start..start + element]);
                }
                expected.push(Slot::Bits(u64::from_le_bytes(word)));
            }
        }
        for k in 0..form.vector() {
            case.setup +=
                &format!("mov.b{} %{class}2{k}, 0x5A5B;\n", if class == 'h' { 16 } else { 32 });
            let width = if class == 'h' { 16 } else { 32 };
            case.finish += &format!("st.global.b{width} [%out+{}], %{class}2{k};\n", 8 * k);
        }
        case.input = words(&input.iter().map(|&w| w & 0xffff_ffff).collect::<Vec<u64>>());
        case.output = vec![0; expected.len() * 8];
        case.expected = if outside { Err(FaultKind::IllegalAddress) } else { Ok(expected) };
        case.object = Some(object.clone());
        case
    };
    with_trap(form, build(false), build(true))
}

fn surface_store(form: &Form<'_>) -> Case {
    let (object, shape) = surface(form);
    let count = threads(form, &shape);
    let each = size(form);
    let build = |outside: bool| {
        let (list, class) = elements(form, 20);
        let body = format!("{} [%d1, {}], {list};", form.text, coordinates(form));
        let mut case = Case::bare(count as u32, body);
        case.setup = PLACES.to_owned();
        let mut data = object.levels[0].clone();
        let mut input = Vec::new();
        for thread in 0..count {
            let mut at = place(form, &shape, thread);
            // One thread alone goes outside, so that it is known who wrote the last element.
            let beyond = thread == 7 && (outside || !form.has("trap"));
            let mut inside = at;
            if beyond {
                (at[0], at[1]) = (shape.row as i64 + 16, 100);
                inside[0] = (shape.row - each) as i64;
                inside[1] = shape.rows as i64 - 1;
            }
            let values: Vec<u64> =
                (0..4).map(|k| mix((thread * 4 + k) as u64) & 0xffff_ffff).collect();
            let element = each / form.vector();
            if !(beyond && form.has("zero")) {
                for (k, value) in values.iter().take(form.vector()).enumerate() {
                    let start = offset(&shape, inside) + k * element;
                    data[start..start + element].copy_from_slice(&value.to_le_bytes()[..element]);
                }
            }
            input.extend([at[0] as u64, at[1] as u64, at[2] as u64]);
            input.extend(values);
            input.push(0);
        }
        for k in 0..form.vector() {
            let width = if class == 'h' { 16 } else { 32 };
            case.setup += &format!("ld.global.b{width} %{class}2{k}, [%in+{}];\n", 24 + 8 * k);
        }
        case.input = words(&input.iter().map(|&w| w & 0xffff_ffff).collect::<Vec<u64>>());
        case.output = vec![0; 8];
        let mut expected = vec![Slot::Bits(0)];
        expected.extend(exactly(&data));
        case.expected = if outside { Err(FaultKind::IllegalAddress) } else { Ok(expected) };
        case.object = Some(object.clone());
        case
    };
    with_trap(form, build(false), build(true))
}
