//! The fatbin container: code of several kinds and architectures in one image.
//!
//! A header of 16 bytes (magic, version, header size, size of all entries), then entries, each with
//! a header of 64 bytes or more and a padded payload.

use std::borrow::Cow;

use super::bytes::{slice, u16_at, u32_at, u64_at};
pub use super::compression::{Compression, UNCOMPRESSED_LIMIT_BYTES};
use super::{ImageError, compression, until_nul};

/// Magic number of a fatbin.
pub const MAGIC: u32 = 0xba55ed50;
/// Size of the header that tells the size of the rest.
pub const HEADER_BYTES: u64 = 16;
const ENTRY_HEADER_BYTES: u64 = 64;

const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
const FLAG_ARCHITECTURE_SPECIFIC: u64 = 0x100000;
const FLAG_FAMILY_SPECIFIC: u64 = 0x200000;

/// A fatbin of known extent.
#[derive(Clone, Debug)]
pub struct Fatbin<'a> {
    bytes: &'a [u8],
    entries: Vec<Entry<'a>>,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// PTX text.
    Ptx,
    /// A cubin.
    Elf,
    /// Code for link-time optimisation, or something newer; not loadable.
    Other(u16),
}

/// For which devices an entry's code is besides its architecture number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Portability {
    /// Devices of that or a later architecture, as usual for the entry's kind.
    Portable,
    /// Devices of exactly that architecture (`sm_90a`).
    ArchitectureSpecific,
    /// Devices of that architecture's family (`sm_100f`).
    FamilySpecific,
}

/// One entry of a fatbin.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// What it holds.
    pub kind: EntryKind,
    /// Architecture number, 10 * major + minor of the compute capability: 75, 90, 120.
    pub architecture: u32,
    /// What else restricts it.
    pub portability: Portability,
    /// How the payload is stored.
    pub compression: Compression,
    /// The payload as stored, without padding where its size is known.
    pub payload: &'a [u8],
    /// Size of the payload when decompressed.
    pub uncompressed_bytes: u64,
    /// The header as it stands, options for the driver's compiler included.
    header: &'a [u8],
}

/// The size in bytes of a whole fatbin, from its header.
pub fn total_bytes(header: &[u8]) -> Result<u64, ImageError> {
    if u32_at(header, 0, "fatbin magic")? != MAGIC {
        return Err(ImageError::Malformed("not a fatbin"));
    }
    let header_bytes = u64::from(u16_at(header, 6, "fatbin header size")?);
    if header_bytes < HEADER_BYTES {
        return Err(ImageError::Malformed("fatbin header size below 16"));
    }
    let entries_bytes = u64_at(header, 8, "fatbin size")?;
    header_bytes
        .checked_add(entries_bytes)
        .ok_or(ImageError::Malformed("fatbin size exceeds the address space"))
}

impl<'a> Fatbin<'a> {
    /// Reads the fatbin at the start of `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let total_bytes = total_bytes(bytes)?;
        let bytes = slice(bytes, 0, total_bytes, "fatbin")?;
        let mut entries = Vec::new();
        let mut offset = u64::from(u16_at(bytes, 6, "fatbin header size")?);
        while offset < total_bytes {
            let (entry, entry_bytes) =
                Entry::parse(slice(bytes, offset, total_bytes - offset, "fatbin entry")?)?;
            entries.push(entry);
            // An entry has at least its header, so this ends.
            offset += entry_bytes;
        }
        Ok(Self { bytes, entries })
    }

    /// All entries, in the order of the container.
    pub fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// The whole fatbin.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<'a> Entry<'a> {
    /// Reads the entry at the start of `bytes`; also returns the size of header and payload.
    fn parse(bytes: &'a [u8]) -> Result<(Self, u64), ImageError> {
        let header_bytes = u64::from(u32_at(bytes, 4, "entry header size")?);
        if header_bytes < ENTRY_HEADER_BYTES {
            return Err(ImageError::Malformed("entry header size below 64"));
        }
        let header = slice(bytes, 0, header_bytes, "entry header")?;
        let padded_bytes = u64_at(header, 8, "entry size")?;
        let padded = slice(bytes, header_bytes, padded_bytes, "entry payload")?;
        let compressed_bytes = u64::from(u32_at(header, 16, "entry compressed size")?);
        let flags = u64_at(header, 40, "entry flags")?;
        let compression = match (flags & FLAG_LZ4 != 0, flags & FLAG_ZSTD != 0) {
            _ if compressed_bytes == 0 => Compression::None,
            (true, false) => Compression::Lz4,
            (false, true) => Compression::Zstd,
            _ => return Err(ImageError::Malformed("compressed entry without one compression")),
        };
        let entry = Self {
            kind: match u16_at(header, 0, "entry kind")? {
                1 => EntryKind::Ptx,
                2 => EntryKind::Elf,
                other => EntryKind::Other(other),
            },
            architecture: u32_at(header, 28, "entry architecture")?,
            portability: if flags & FLAG_ARCHITECTURE_SPECIFIC != 0 {
                Portability::ArchitectureSpecific
            } else if flags & FLAG_FAMILY_SPECIFIC != 0 {
                Portability::FamilySpecific
            } else {
                Portability::Portable
            },
            compression,
            payload: match compression {
                Compression::None => padded,
                _ => slice(padded, 0, compressed_bytes, "compressed entry")?,
            },
            uncompressed_bytes: match compression {
                Compression::None => padded_bytes,
                _ => u64_at(header, 56, "entry uncompressed size")?,
            },
            header,
        };
        Ok((entry, header_bytes + padded_bytes))
    }

    /// Whether the entry has options for the driver's compiler, like nvcc's `-fmad=false`: a record
    /// of their place and size in the header, at the offset that stands at byte 20.
    fn has_options(&self) -> bool {
        let place = u32_at(self.header, 20, "entry options").unwrap_or(0);
        let size = u32_at(self.header, u64::from(place) + 4, "entry options").unwrap_or(0);
        place != 0 && size != 0
    }

    /// A fatbin of this entry alone, uncompressed, if it is text with options: these would be lost
    /// with the text alone.
    pub fn with_options(&self) -> Result<Option<Vec<u8>>, ImageError> {
        if self.kind != EntryKind::Ptx || !self.has_options() {
            return Ok(None);
        }
        let contents = self.contents()?;
        // At least one NUL ends the text.
        let padded_bytes = (contents.len() + 1).next_multiple_of(8);
        let mut header = self.header.to_vec();
        let mut set = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        let flags = u64_at(self.header, 40, "entry flags")? & !(FLAG_LZ4 | FLAG_ZSTD);
        set(8, &(padded_bytes as u64).to_le_bytes());
        set(16, &0u32.to_le_bytes());
        set(40, &flags.to_le_bytes());
        set(56, &0u64.to_le_bytes());
        let entry_bytes = header.len() + padded_bytes;
        let mut out = Vec::with_capacity(HEADER_BYTES as usize + entry_bytes);
        out.extend(MAGIC.to_le_bytes());
        out.extend(1u16.to_le_bytes());
        out.extend((HEADER_BYTES as u16).to_le_bytes());
        out.extend((entry_bytes as u64).to_le_bytes());
        out.extend(&header);
        out.extend(&*contents);
        out.resize(HEADER_BYTES as usize + entry_bytes, 0);
        Ok(Some(out))
    }

    /// The payload, decompressed; text ends before its first NUL.
    pub fn contents(&self) -> Result<Cow<'a, [u8]>, ImageError> {
        let whole = match self.compression {
            Compression::None => Cow::Borrowed(self.payload),
            other => {
                Cow::Owned(compression::decompress(other, self.payload, self.uncompressed_bytes)?)
            }
        };
        Ok(match (self.kind, whole) {
            (EntryKind::Ptx, Cow::Borrowed(text)) => Cow::Borrowed(until_nul(text)),
            (EntryKind::Ptx, Cow::Owned(mut text)) => {
                text.truncate(until_nul(&text).len());
                Cow::Owned(text)
            }
            (_, whole) => whole,
        })
    }
}
