//! From coordinates to a color: levels, faces, addressing modes, filtering.

use super::format::{Color, ReadMode, linear_from_srgb};
use super::image::{Image, Shape};
use crate::device::memory::ranges::Entered;
use crate::device::memory::touch;
use crate::exec::{TextureCoordinates, TextureGeometry, TextureLevel};

/// Steps of a filter weight.
const WEIGHT_STEPS: f32 = 256.0;
/// Bytes of the largest texel.
const TEXEL_BYTES: usize = 16;

/// What coordinates outside mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Address {
    Wrap,
    #[default]
    Clamp,
    Mirror,
    Border,
}

/// How texels are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Filter {
    #[default]
    Point,
    Linear,
}

/// What coordinates count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Units {
    #[default]
    Texels,
    /// Fractions of the extent.
    Normalized,
}

/// How colors are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Coding {
    #[default]
    Linear,
    Srgb,
}

/// Whether it is an array or a buffer, which is never filtered and zero outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Backing {
    #[default]
    Array,
    Buffer,
}

/// How a texture is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Sampler {
    pub(crate) address: [Address; 3],
    pub(crate) filter: Filter,
    pub(crate) level_filter: Filter,
    pub(crate) units: Units,
    pub(crate) read: ReadMode,
    pub(crate) coding: Coding,
    pub(crate) level_bias: f32,
    pub(crate) level_range: [f32; 2],
    pub(crate) border: [f32; 4],
}

/// A texture: images of falling size, and how they are sampled.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Texture {
    pub(crate) levels: Vec<Image>,
    pub(crate) backing: Backing,
    pub(crate) sampler: Sampler,
}

/// One image under a sampler, in memory that is held.
struct View<'a> {
    memory: &'a Entered<'a>,
    image: &'a Image,
    sampler: &'a Sampler,
    backing: Backing,
    /// Dimensions that are addressed; the others are layers.
    dimensions: usize,
    /// Slice of the layer or face.
    layer: u32,
}

impl Texture {
    /// Samples it.
    pub(crate) fn fetch(
        &self,
        memory: &Entered<'_>,
        geometry: TextureGeometry,
        layer: u32,
        coordinates: TextureCoordinates,
        level: TextureLevel,
    ) -> Option<[u32; 4]> {
        let level = self.level(level);
        let (low, weight) = (level.floor(), quantise(level - level.floor()));
        let color = |level: f32| {
            let image = self.levels.get((level as usize).min(self.levels.len() - 1))?;
            self.at(memory, image, geometry, layer, coordinates)
        };
        if self.sampler.level_filter == Filter::Point || weight == 0.0 {
            return Some(color((level + 0.5).floor())?.words());
        }
        match (color(low)?, color(low + 1.0)?) {
            (Color::Float(a), Color::Float(b)) => {
                Some(Color::Float(std::array::from_fn(|c| mix(a[c], b[c], weight))).words())
            }
            (color, _) => Some(color.words()),
        }
    }

    /// One component of the four texels that linear filtering would combine.
    pub(crate) fn gather(
        &self,
        memory: &Entered<'_>,
        layer: u32,
        coordinates: TextureCoordinates,
        component: u32,
    ) -> Option<[u32; 4]> {
        let TextureCoordinates::Float([x, y, _]) = coordinates else { return None };
        let image = self.levels.first()?;
        let view = self.view(memory, image, 2, layer);
        let (i, j) =
            ((view.scale(x, 0) - 0.5).floor() as i64, (view.scale(y, 1) - 0.5).floor() as i64);
        let mut found = [0; 4];
        let (right, below) = (i.saturating_add(1), j.saturating_add(1));
        for (to, (i, j)) in found.iter_mut().zip([(i, below), (right, below), (right, j), (i, j)]) {
            *to = view.texel([i, j, 0])?.words()[component.min(3) as usize];
        }
        Some(found)
    }

    fn view<'a>(
        &'a self,
        memory: &'a Entered<'a>,
        image: &'a Image,
        dimensions: usize,
        layer: u32,
    ) -> View<'a> {
        let layer = layer.min(image.extent[2] - 1);
        View { memory, image, sampler: &self.sampler, backing: self.backing, dimensions, layer }
    }

    /// The level to read, clamped to what there is.
    fn level(&self, asked: TextureLevel) -> f32 {
        let last = (self.levels.len() - 1) as f32;
        let level = match asked {
            TextureLevel::Base => 0.0,
            TextureLevel::Level(level) if level.is_nan() => 0.0,
            TextureLevel::Level(level) => level,
        };
        let [least, most] = self.sampler.level_range;
        let level = level + self.sampler.level_bias;
        if last == 0.0 { 0.0 } else { level.max(least).min(most.max(least)).clamp(0.0, last) }
    }

    fn at(
        &self,
        memory: &Entered<'_>,
        image: &Image,
        geometry: TextureGeometry,
        layer: u32,
        coordinates: TextureCoordinates,
    ) -> Option<Color> {
        use TextureGeometry as G;
        let (dimensions, layer) = match geometry {
            G::D1 => (1, 0),
            G::Layered1 => (1, layer),
            G::D2 => (2, 0),
            G::Layered2 => (2, layer),
            G::D3 => (3, 0),
            G::Cube | G::LayeredCube => {
                let TextureCoordinates::Float(direction) = coordinates else { return None };
                let (face, u, v) = face_of(direction);
                let layer = if geometry == G::LayeredCube {
                    layer.saturating_mul(6).saturating_add(face)
                } else {
                    face
                };
                let view = self.view(memory, image, 2, layer);
                let at = [u * image.extent[0] as f32, v * image.extent[1] as f32, 0.0];
                return view.filtered(at);
            }
        };
        let view = self.view(memory, image, dimensions, layer);
        if geometry == G::D1 && !self.is_line_for(coordinates) {
            return Some(view.nothing());
        }
        match coordinates {
            TextureCoordinates::Integer(at) => view.fetched(at),
            TextureCoordinates::Float(at) => {
                view.filtered(std::array::from_fn(|axis| view.scale(at[axis], axis)))
            }
        }
    }

    /// Whether `.1d` with such coordinates finds a line in it: integers (`tex1Dfetch`) find one in
    /// linear memory only, floats (`tex1D`) in anything else. To a GPU's texture unit the line of
    /// an array is a plane with one row; an H200 answers the others with zeros.
    fn is_line_for(&self, coordinates: TextureCoordinates) -> bool {
        match coordinates {
            TextureCoordinates::Integer(_) => self.backing == Backing::Buffer,
            TextureCoordinates::Float(_) => self.backing == Backing::Array,
        }
    }

    /// A property, by its name in PTX.
    pub(crate) fn query(&self, property: &str) -> Option<u32> {
        let sampler = &self.sampler;
        let mode = |axis: usize| match sampler.address[axis] {
            Address::Wrap => 0,
            Address::Mirror => 1,
            Address::Clamp => 2,
            Address::Border => 3,
        };
        match property {
            "normalized_coords" => Some(u32::from(sampler.units == Units::Normalized)),
            "force_unnormalized_coords" => Some(0),
            "filter_mode" => Some(u32::from(sampler.filter == Filter::Linear)),
            "addr_mode_0" => Some(mode(0)),
            "addr_mode_1" => Some(mode(1)),
            "addr_mode_2" => Some(mode(2)),
            "num_mipmap_levels" => Some(self.levels.len() as u32),
            "num_samples" => Some(1),
            other => self.levels.first()?.query(other),
        }
    }
}

impl View<'_> {
    /// A coordinate in texels.
    fn scale(&self, coordinate: f32, axis: usize) -> f32 {
        match self.sampler.units {
            Units::Texels => coordinate,
            Units::Normalized => coordinate * self.image.extent[axis] as f32,
        }
    }

    /// The color at coordinates in texels.
    fn filtered(&self, at: [f32; 3]) -> Option<Color> {
        let is_float = self.image.texel.channel.is_float(self.sampler.read);
        if self.sampler.filter == Filter::Point || !is_float || self.backing == Backing::Buffer {
            return self.texel(at.map(|at| at.floor() as i64));
        }
        let first = at.map(|at| (at - 0.5).floor());
        let weight: [f32; 3] = std::array::from_fn(|axis| quantise(at[axis] - 0.5 - first[axis]));
        let mut sum = [0.0f32; 4];
        for corner in 0..1usize << self.dimensions {
            let mut share = 1.0;
            let place: [i64; 3] = std::array::from_fn(|axis| {
                let is_second = corner >> axis & 1 == 1;
                if axis < self.dimensions {
                    share *= if is_second { weight[axis] } else { 1.0 - weight[axis] };
                }
                (first[axis] as i64).saturating_add(i64::from(is_second))
            });
            if share == 0.0 {
                continue;
            }
            let Color::Float(color) = self.texel(place)? else { return None };
            sum.iter_mut().zip(color).for_each(|(sum, color)| *sum += share * color);
        }
        Some(Color::Float(sum))
    }

    /// The texel at whole coordinates as `.s32` coordinates ask for it: zero outside, whatever the
    /// addressing mode.
    fn fetched(&self, at: [i32; 3]) -> Option<Color> {
        let extent = self.image.extent;
        let is_inside = |axis: usize| u32::try_from(at[axis]).is_ok_and(|at| at < extent[axis]);
        if (0..self.dimensions).all(is_inside) {
            return self.texel(at.map(i64::from));
        }
        Some(self.nothing())
    }

    /// Zeros.
    fn nothing(&self) -> Color {
        match self.image.texel.channel.is_float(self.sampler.read) {
            true => Color::Float([0.0; 4]),
            false => Color::Bits([0; 4]),
        }
    }

    /// The texel at whole coordinates, which may be outside; `None`: its memory is gone.
    fn texel(&self, at: [i64; 3]) -> Option<Color> {
        let mut place = [0, 0, self.layer];
        for axis in 0..self.dimensions {
            match self.index(at[axis], axis) {
                Some(index) => place[axis] = index,
                None => return Some(self.outside()),
            }
        }
        let address = self.image.address(place);
        let size = self.image.texel.bytes() as usize;
        let mut bytes = [0; TEXEL_BYTES];
        if !self.memory.covers(address, size as u64) {
            return None;
        }
        // SAFETY: covered while the slice holds `memory`; a texel has at most 16 bytes.
        unsafe { touch::copy(address, bytes.as_mut_ptr() as u64, size) };
        let color = self.image.texel.read(&bytes[..size], self.sampler.read);
        Some(match (color, self.sampler.coding) {
            (Color::Float([r, g, b, a]), Coding::Srgb) => {
                let [r, g, b] = [r, g, b].map(linear_from_srgb);
                Color::Float([r, g, b, a])
            }
            (color, _) => color,
        })
    }

    /// A coordinate brought inside; `None`: it stays outside.
    fn index(&self, at: i64, axis: usize) -> Option<u32> {
        let size = i64::from(self.image.extent[axis]);
        if (0..size).contains(&at) {
            return Some(at as u32);
        }
        if self.backing == Backing::Buffer {
            return None;
        }
        let is_normalized = self.sampler.units == Units::Normalized;
        Some(match self.sampler.address[axis] {
            Address::Border => return None,
            Address::Wrap if is_normalized => at.rem_euclid(size) as u32,
            Address::Mirror if is_normalized => {
                let at = at.rem_euclid(2 * size);
                at.min(2 * size - 1 - at) as u32
            }
            _ => at.clamp(0, size - 1) as u32,
        })
    }

    /// The color outside.
    fn outside(&self) -> Color {
        let border = match self.backing {
            Backing::Buffer => [0.0; 4],
            Backing::Array => self.sampler.border,
        };
        // Of the channels that there are.
        let channels = self.image.texel.channels as usize;
        let border: [f32; 4] =
            std::array::from_fn(|index| if index < channels { border[index] } else { 0.0 });
        match self.image.texel.channel.is_float(self.sampler.read) {
            true => Color::Float(border),
            false => Color::Bits(border.map(|value| value as i32 as u32)),
        }
    }
}

/// A filter weight as the hardware has it.
fn quantise(weight: f32) -> f32 {
    (weight * WEIGHT_STEPS).round() / WEIGHT_STEPS
}

fn mix(a: f32, b: f32, weight: f32) -> f32 {
    a * (1.0 - weight) + b * weight
}

/// The face of a cube that a direction meets, and where, in fractions of the face.
fn face_of([x, y, z]: [f32; 3]) -> (u32, f32, f32) {
    let (ax, ay, az) = (x.abs(), y.abs(), z.abs());
    let (face, major, s, t) = if ax >= ay && ax >= az {
        if x >= 0.0 { (0, ax, -z, -y) } else { (1, ax, z, -y) }
    } else if ay >= az {
        if y >= 0.0 { (2, ay, x, z) } else { (3, ay, x, -z) }
    } else if z >= 0.0 {
        (4, az, x, -y)
    } else {
        (5, az, -x, -y)
    };
    let fraction = |value: f32| if major == 0.0 { 0.5 } else { (value / major + 1.0) / 2.0 };
    (face, fraction(s), fraction(t))
}

/// Whether the third dimension is layers or faces instead of depth.
pub(crate) fn is_layered(shape: Shape) -> bool {
    shape != Shape::Plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::memory::ranges::{Accessible, Precision};
    use crate::device::textures::format::{Channel, Texel};

    fn texture(texels: &[f32], extent: [u32; 3], sampler: Sampler) -> Texture {
        let row_bytes = u64::from(extent[0]) * 4;
        let image = Image {
            base: texels.as_ptr() as u64,
            extent,
            row_bytes,
            slice_bytes: row_bytes * u64::from(extent[1]),
            texel: Texel { channel: Channel::Float, channels: 1 },
            shape: Shape::Plain,
        };
        Texture { levels: vec![image], backing: Backing::Array, sampler }
    }

    fn red(
        texture: &Texture,
        texels: &[f32],
        at: TextureCoordinates,
        geometry: TextureGeometry,
    ) -> f32 {
        let accessible = Accessible::new(Precision::Mapping);
        let start = texels.as_ptr() as u64;
        accessible.add(start..start + 4 * texels.len() as u64);
        let memory = accessible.enter();
        let words = texture.fetch(&memory, geometry, 0, at, TextureLevel::Base).expect("mapped");
        f32::from_bits(words[0])
    }

    #[test]
    fn linear_filtering_weighs_neighbours_and_modes_bring_them_inside() {
        let texels = [0.0, 10.0, 20.0, 30.0];
        let sample = |address, units, x: f32| {
            let sampler = Sampler {
                address: [address; 3],
                filter: Filter::Linear,
                units,
                border: [-8.0; 4],
                ..Sampler::default()
            };
            let texture = texture(&texels, [4, 1, 1], sampler);
            red(&texture, &texels, TextureCoordinates::Float([x, 0.0, 0.0]), TextureGeometry::D1)
        };
        assert_eq!(sample(Address::Clamp, Units::Texels, 1.5), 10.0);
        assert_eq!(sample(Address::Clamp, Units::Texels, 1.75), 12.5);
        assert_eq!(sample(Address::Clamp, Units::Texels, -3.0), 0.0);
        assert_eq!(sample(Address::Border, Units::Texels, 0.0), -4.0, "half of it is border");
        assert_eq!(sample(Address::Wrap, Units::Normalized, 1.0), 15.0, "last and first");
        assert_eq!(sample(Address::Mirror, Units::Normalized, 1.25 - 0.125), 30.0);
        assert_eq!(sample(Address::Wrap, Units::Texels, 9.0), 30.0, "only normalised ones wrap");
        // Weights have 8 bits: 1/1024 of the way is none of it.
        assert_eq!(sample(Address::Clamp, Units::Texels, 1.5 + 1.0 / 1024.0), 10.0);
    }

    #[test]
    fn planes_are_filtered_both_ways_and_read_unfiltered_by_integers() {
        let texels = [0.0, 1.0, 2.0, 3.0];
        let sampler = Sampler { filter: Filter::Linear, ..Sampler::default() };
        let texture = texture(&texels, [2, 2, 1], sampler);
        let float = TextureCoordinates::Float([1.0, 1.0, 0.0]);
        assert_eq!(red(&texture, &texels, float, TextureGeometry::D2), 1.5);
        let integer = TextureCoordinates::Integer([1, 1, 0]);
        assert_eq!(red(&texture, &texels, integer, TextureGeometry::D2), 3.0);
    }

    #[test]
    fn coordinates_beyond_all_numbers_stay_inside() {
        let texels = [4.0, 4.0, 4.0, 4.0];
        let sampler = Sampler { filter: Filter::Linear, ..Sampler::default() };
        let texture = texture(&texels, [2, 2, 1], sampler);
        let accessible = Accessible::new(Precision::Mapping);
        let start = texels.as_ptr() as u64;
        accessible.add(start..start + 16);
        let memory = accessible.enter();
        for value in [1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let at = TextureCoordinates::Float([value; 3]);
            let geometry = TextureGeometry::D2;
            assert!(texture.fetch(&memory, geometry, 0, at, TextureLevel::Base).is_some());
            assert_eq!(texture.gather(&memory, 0, at, 0), Some([4f32.to_bits(); 4]));
        }
    }

    #[test]
    fn directions_meet_the_faces_of_a_cube() {
        assert_eq!(face_of([2.0, 0.0, 0.0]), (0, 0.5, 0.5));
        assert_eq!(face_of([0.0, -3.0, 0.0]).0, 3);
        assert_eq!(face_of([1.0, 0.0, -4.0]), (5, 0.375, 0.5));
    }
}
