//! Images of device code: what programs hand to module and library loading.
//!
//! An image is a fatbin wrapper, a fatbin, an ELF cubin or PTX text, told apart by its first bytes.
//! Programs give an address only, so [`Image::from_pointer`] finds the size from the contents;
//! everything else works on slices, checks every offset, and limits what decompression may yield.
//! The layouts were observed on the output of nvcc 11.8 to 13.5 and on shipped libraries.

mod bytes;
mod choice;
mod compression;
pub mod cubin;
pub mod elf;
pub mod fatbin;
mod pointer;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use choice::{Accepts, Target};

use crate::types::CUresult;
use elf::Elf;
use fatbin::Fatbin;

/// Why an image cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The first bytes are those of no known container, and not text.
    #[error("unknown kind of image, first bytes {0:#010x}")]
    UnknownMagic(u32),
    /// Something ends before it should.
    #[error("image is truncated: {what} at offset {offset} needs {size_bytes} more bytes")]
    Truncated {
        /// What was read.
        what: &'static str,
        /// Where, in bytes from the start of its container.
        offset: u64,
        /// How many bytes it needs there.
        size_bytes: u64,
    },
    /// A field has a value that it cannot have.
    #[error("image is malformed: {0}")]
    Malformed(&'static str),
    /// An entry says that it is larger than anything sensible.
    #[error("image is too large: {size_bytes} bytes, at most {limit_bytes} are accepted")]
    TooLarge {
        /// The size that the image declares.
        size_bytes: u64,
        /// The largest accepted.
        limit_bytes: u64,
    },
    /// Compressed data does not decompress to what was declared.
    #[error("cannot decompress an image: {0}")]
    Decompression(String),
    /// Memory that the image should occupy is not readable.
    #[error("image memory at {address:#x} is not readable")]
    Unreadable {
        /// The address of the part.
        address: u64,
    },
    /// No entry fits the device.
    #[error(
        "no code for a device of compute capability {major}.{minor} ({accepts}), found: {found}"
    )]
    NoCodeForDevice {
        /// The device's compute capability, major.
        major: u32,
        /// The device's compute capability, minor.
        minor: u32,
        /// What the device executes.
        accepts: Accepts,
        /// What the image has instead.
        found: String,
    },
}

impl ImageError {
    /// The code that a driver returns for this.
    pub fn result(&self) -> CUresult {
        match self {
            ImageError::NoCodeForDevice { .. } => CUresult::ERROR_NO_BINARY_FOR_GPU,
            _ => CUresult::ERROR_INVALID_IMAGE,
        }
    }
}

/// An image whose extent is known.
#[derive(Clone, Debug)]
pub enum Image<'a> {
    /// A fatbin, with the relocatable fatbins that its device code was linked from, if any.
    Fatbin {
        /// The fatbin to choose from.
        fatbin: Fatbin<'a>,
        /// What it was linked from (`nvcc -rdc=true`): PTX, if any, is only there.
        constituents: Vec<Fatbin<'a>>,
    },
    /// A cubin.
    Elf(Elf<'a>),
    /// PTX text without its terminating NUL. May be no valid UTF-8.
    Ptx(&'a [u8]),
}

/// Device code of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Code<'a> {
    /// A cubin.
    Elf(Cow<'a, [u8]>),
    /// PTX text without terminating NUL.
    Ptx(Cow<'a, [u8]>),
    /// PTX text with options for the driver's compiler, in a fatbin of its own; only
    /// [`Image::text_with_options`] gives it.
    Fatbin(Cow<'a, [u8]>),
}

impl Code<'_> {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Code::Elf(bytes) | Code::Ptx(bytes) | Code::Fatbin(bytes) => bytes,
        }
    }

    /// The same code with bytes of its own.
    pub fn into_owned(self) -> Code<'static> {
        match self {
            Code::Elf(bytes) => Code::Elf(Cow::Owned(bytes.into_owned())),
            Code::Ptx(bytes) => Code::Ptx(Cow::Owned(bytes.into_owned())),
            Code::Fatbin(bytes) => Code::Fatbin(Cow::Owned(bytes.into_owned())),
        }
    }
}

/// Magic number of a fatbin wrapper (`FatbinWrapper`).
pub const WRAPPER_MAGIC: u32 = 0x466243b1;

impl<'a> Image<'a> {
    /// Reads the image at the start of `bytes`. A wrapper cannot be read from a slice, as it holds
    /// addresses.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        match bytes::u32_at(bytes, 0, "magic number").unwrap_or(0) {
            fatbin::MAGIC => {
                Ok(Image::Fatbin { fatbin: Fatbin::parse(bytes)?, constituents: Vec::new() })
            }
            elf::MAGIC => Elf::parse(bytes).map(Image::Elf),
            WRAPPER_MAGIC => {
                Err(ImageError::Malformed("a fatbin wrapper holds addresses, not code"))
            }
            magic => match bytes.first() {
                Some(first) if is_text(*first) => Ok(Image::Ptx(until_nul(bytes))),
                _ => Err(ImageError::UnknownMagic(magic)),
            },
        }
    }

    /// The code for a device, decompressed.
    pub fn choose(&self, target: Target) -> Result<Code<'a>, ImageError> {
        choice::choose(self, target)
    }

    /// What to load in place of [`choose`](Self::choose)'s text, if options for the driver's
    /// compiler come with the text.
    pub fn text_with_options(&self, target: Target) -> Result<Option<Code<'static>>, ImageError> {
        let fatbin = choice::text_with_options(self, target)?;
        Ok(fatbin.map(|bytes| Code::Fatbin(Cow::Owned(bytes))))
    }

    /// The PTX of each relocatable constituent that has some, for a device that links PTX itself.
    pub fn relocatable_ptx(&self, target: Target) -> Result<Vec<Code<'a>>, ImageError> {
        choice::relocatable_ptx(self, target)
    }
}

/// Whether text can begin with this byte.
fn is_text(byte: u8) -> bool {
    byte.is_ascii_graphic() || byte.is_ascii_whitespace()
}

/// `bytes` up to the first NUL.
fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}
