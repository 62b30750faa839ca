//! Channels of a texel: their width, and the numbers that they stand for.

/// How a channel's bits are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    Unsigned8,
    Unsigned16,
    Unsigned32,
    Signed8,
    Signed16,
    Signed32,
    Half,
    Float,
    /// Unsigned fractions of 1.
    Unorm8,
    Unorm16,
    /// Signed fractions of 1.
    Snorm8,
    Snorm16,
}

/// What a texel is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Texel {
    pub(crate) channel: Channel,
    /// 1, 2 or 4.
    pub(crate) channels: u32,
}

/// What integers of 8 and 16 bits are read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ReadMode {
    /// As they are.
    #[default]
    Element,
    /// As fractions of 1.
    NormalizedFloat,
}

/// A texel's four components.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Color {
    Float([f32; 4]),
    /// Integers, sign-extended.
    Bits([u32; 4]),
}

impl Channel {
    /// Bytes of one channel.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Channel::Unsigned8 | Channel::Signed8 | Channel::Unorm8 | Channel::Snorm8 => 1,
            Channel::Unsigned16
            | Channel::Signed16
            | Channel::Half
            | Channel::Unorm16
            | Channel::Snorm16 => 2,
            Channel::Unsigned32 | Channel::Signed32 | Channel::Float => 4,
        }
    }

    fn is_signed(self) -> bool {
        matches!(
            self,
            Channel::Signed8
                | Channel::Signed16
                | Channel::Signed32
                | Channel::Snorm8
                | Channel::Snorm16
        )
    }

    /// Whether reading gives floats.
    pub(crate) fn is_float(self, mode: ReadMode) -> bool {
        match self {
            Channel::Half
            | Channel::Float
            | Channel::Unorm8
            | Channel::Unorm16
            | Channel::Snorm8
            | Channel::Snorm16 => true,
            Channel::Unsigned32 | Channel::Signed32 => false,
            _ => mode == ReadMode::NormalizedFloat,
        }
    }

    /// The PTX (and OpenCL) number of the type.
    pub(crate) fn query_code(self) -> u32 {
        match self {
            Channel::Snorm8 => 0x10d0,
            Channel::Snorm16 => 0x10d1,
            Channel::Unorm8 => 0x10d2,
            Channel::Unorm16 => 0x10d3,
            Channel::Signed8 => 0x10d7,
            Channel::Signed16 => 0x10d8,
            Channel::Signed32 => 0x10d9,
            Channel::Unsigned8 => 0x10da,
            Channel::Unsigned16 => 0x10db,
            Channel::Unsigned32 => 0x10dc,
            Channel::Half => 0x10dd,
            Channel::Float => 0x10de,
        }
    }

    fn integer(self, bytes: &[u8]) -> u32 {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u32::from_le_bytes(word);
        let shift = 32 - 8 * bytes.len() as u32;
        if self.is_signed() { (((unsigned << shift) as i32) >> shift) as u32 } else { unsigned }
    }

    fn float(self, bytes: &[u8]) -> f32 {
        let bits = self.integer(bytes);
        match self {
            Channel::Float => f32::from_bits(bits),
            Channel::Half => half(bits as u16),
            _ => {
                let most = ((1u64 << (8 * self.bytes() - u32::from(self.is_signed()))) - 1) as f32;
                let value = if self.is_signed() { bits as i32 as f32 } else { bits as f32 };
                (value / most).max(-1.0)
            }
        }
    }
}

impl Texel {
    /// Bytes of a texel.
    pub(crate) fn bytes(self) -> u32 {
        self.channel.bytes() * self.channels
    }

    /// Reads a texel; missing channels are 0, as measured on an H200 (the last one too).
    pub(crate) fn read(self, bytes: &[u8], mode: ReadMode) -> Color {
        let channels = || bytes.chunks_exact(self.channel.bytes() as usize);
        if self.channel.is_float(mode) {
            let mut color = [0.0; 4];
            color.iter_mut().zip(channels()).for_each(|(to, from)| *to = self.channel.float(from));
            Color::Float(color)
        } else {
            let mut color = [0; 4];
            color
                .iter_mut()
                .zip(channels())
                .for_each(|(to, from)| *to = self.channel.integer(from));
            Color::Bits(color)
        }
    }
}

impl Color {
    /// The components as 32-bit words.
    pub(crate) fn words(self) -> [u32; 4] {
        match self {
            Color::Float(color) => color.map(f32::to_bits),
            Color::Bits(color) => color,
        }
    }
}

/// An IEEE half as a float.
fn half(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, mantissa) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    match (exponent, mantissa) {
        (0x1f, _) => f32::from_bits(sign | 0x7f80_0000 | mantissa << 13),
        (0, _) => {
            let value = mantissa as f32 / 16_777_216.0;
            if sign == 0 { value } else { -value }
        }
        _ => f32::from_bits(sign | (exponent + 112) << 23 | mantissa << 13),
    }
}

/// A fraction of sRGB as a linear one.
pub(crate) fn linear_from_srgb(value: f32) -> f32 {
    if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texels_are_read_as_the_mode_says() {
        let bytes = Texel { channel: Channel::Signed8, channels: 4 };
        let raw = [0x81, 0x80, 0x7f, 0x00];
        assert_eq!(
            bytes.read(&raw, ReadMode::Element),
            Color::Bits([-127i32 as u32, -128i32 as u32, 127, 0])
        );
        assert_eq!(
            bytes.read(&raw, ReadMode::NormalizedFloat),
            Color::Float([-1.0, -1.0, 1.0, 0.0])
        );
        let words = Texel { channel: Channel::Unsigned16, channels: 1 };
        assert_eq!(
            words.read(&[0xff, 0xff], ReadMode::NormalizedFloat),
            Color::Float([1.0, 0.0, 0.0, 0.0])
        );
    }

    #[test]
    fn halves_are_exact() {
        for (bits, value) in
            [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 5.960_464_5e-8), (0x7bff, 65504.0)]
        {
            assert_eq!(half(bits), value);
        }
        assert!(half(0x7c00).is_infinite() && half(0x7e00).is_nan());
    }
}
