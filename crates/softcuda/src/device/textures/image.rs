//! Where texels lie: one level of an array, a pitched plane, or a buffer.

use super::format::Texel;
use crate::exec::{SurfaceBounds, TextureGeometry};

/// What the third dimension is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    /// Slices of a volume, or nothing.
    Plain,
    /// Independent images.
    Layered,
    /// Six faces.
    Cube,
    /// Six faces per layer.
    LayeredCube,
}

/// Texels in memory, row after row, slice after slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) base: u64,
    /// Texels per row, rows per slice, slices (or layers, or faces); at least 1 each.
    pub(crate) extent: [u32; 3],
    pub(crate) row_bytes: u64,
    pub(crate) slice_bytes: u64,
    pub(crate) texel: Texel,
    pub(crate) shape: Shape,
}

/// Where a surface access goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    At(u64),
    Outside,
}

impl Image {
    /// The address of a texel inside the image.
    pub(crate) fn address(&self, [x, y, z]: [u32; 3]) -> u64 {
        self.base
            + u64::from(z) * self.slice_bytes
            + u64::from(y) * self.row_bytes
            + u64::from(x) * u64::from(self.texel.bytes())
    }

    /// Bytes from the first texel to behind the last.
    pub(crate) fn size_bytes(&self) -> u64 {
        let [x, y, z] = self.extent.map(u64::from);
        (z - 1) * self.slice_bytes + (y - 1) * self.row_bytes + x * u64::from(self.texel.bytes())
    }

    /// Where `size` bytes at byte x of row y of a slice or layer are.
    pub(crate) fn place(
        &self,
        geometry: TextureGeometry,
        layer: u32,
        [x, y, z]: [i32; 3],
        size: usize,
        bounds: SurfaceBounds,
    ) -> Place {
        let (y, z) = match geometry {
            TextureGeometry::D1 => (0, 0),
            TextureGeometry::Layered1 => (0, i64::from(layer)),
            TextureGeometry::D2 => (i64::from(y), 0),
            TextureGeometry::D3 => (i64::from(y), i64::from(z)),
            _ => (i64::from(y), i64::from(layer)),
        };
        let row_bytes = i64::from(self.extent[0]) * i64::from(self.texel.bytes());
        let last =
            [row_bytes - size as i64, i64::from(self.extent[1]) - 1, i64::from(self.extent[2]) - 1];
        let mut at = [i64::from(x), y, z];
        if at.iter().zip(last).any(|(at, last)| *at < 0 || *at > last) {
            if bounds != SurfaceBounds::Clamp || last[0] < 0 {
                return Place::Outside;
            }
            for (at, last) in at.iter_mut().zip(last) {
                *at = (*at).clamp(0, last);
            }
        }
        let [x, y, z] = at.map(|at| at as u64);
        Place::At(self.base + z * self.slice_bytes + y * self.row_bytes + x)
    }

    /// A property, by its name in PTX.
    pub(crate) fn query(&self, property: &str) -> Option<u32> {
        let is_layered = matches!(self.shape, Shape::Layered | Shape::LayeredCube);
        Some(match property {
            "width" => self.extent[0],
            "height" => self.extent[1],
            "depth" if is_layered => 1,
            "depth" => self.extent[2],
            "array_size" if is_layered => self.extent[2],
            "array_size" => 0,
            "channel_data_type" => self.texel.channel.query_code(),
            "channel_order" => match self.texel.channels {
                1 => 0x10b0,
                2 => 0x10b2,
                _ => 0x10b5,
            },
            "memory_layout" => 0,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::textures::format::Channel;

    #[test]
    fn surface_accesses_outside_do_what_they_say() {
        let texel = Texel { channel: Channel::Unsigned32, channels: 1 };
        let image = Image {
            base: 0x1000,
            extent: [4, 2, 1],
            row_bytes: 64,
            slice_bytes: 128,
            texel,
            shape: Shape::Plain,
        };
        let place = |x, y, bounds| image.place(TextureGeometry::D2, 0, [x, y, 0], 4, bounds);
        assert_eq!(place(12, 1, SurfaceBounds::Trap), Place::At(0x104c));
        assert_eq!(place(13, 1, SurfaceBounds::Zero), Place::Outside, "half a texel too far");
        assert_eq!(place(100, -5, SurfaceBounds::Clamp), Place::At(0x100c));
        assert_eq!(image.size_bytes(), 64 + 16);
    }
}
