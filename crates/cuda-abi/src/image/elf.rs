//! As much of 64-bit little-endian ELF as cubins need.

use super::ImageError;
use super::bytes::{slice, u16_at, u32_at, u64_at};

/// The first four bytes of an ELF file.
pub const MAGIC: u32 = 0x464c457f;
/// Size of the file header.
pub const HEADER_BYTES: u64 = 64;
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const MACHINE_CUDA: u16 = 0xbe;
const SECTION_HEADER_BYTES: u64 = 64;
const PROGRAM_HEADER_BYTES: u64 = 56;
const SECTION_NOBITS: u32 = 8;
const SECTION_ALLOCATED: u64 = 2;
/// OS ABI of cubins since toolkit 13, which keeps the architecture in other bits.
const OSABI_TOOLKIT_13: u8 = 0x41;

/// An ELF file of known extent.
#[derive(Clone, Debug)]
pub struct Elf<'a> {
    bytes: &'a [u8],
    tables: Tables,
}

/// Where the file header says that the header tables are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tables {
    program_offset: u64,
    program_entry_bytes: u64,
    program_count: u64,
    section_offset: u64,
    section_entry_bytes: u64,
    section_count: u64,
    names_index: u64,
    header_bytes: u64,
}

impl Tables {
    /// Reads the file header.
    pub(super) fn parse(header: &[u8]) -> Result<Self, ImageError> {
        let ident = slice(header, 0, 16, "ELF identification")?;
        if u32_at(header, 0, "ELF magic")? != MAGIC {
            return Err(ImageError::Malformed("not an ELF file"));
        }
        if ident[4] != CLASS_64 || ident[5] != LITTLE_ENDIAN {
            return Err(ImageError::Malformed("ELF file is not 64-bit little-endian"));
        }
        let field = |offset| u16_at(header, offset, "ELF header").map(u64::from);
        let tables = Self {
            program_offset: u64_at(header, 32, "ELF header")?,
            section_offset: u64_at(header, 40, "ELF header")?,
            header_bytes: field(52)?,
            program_entry_bytes: field(54)?,
            program_count: field(56)?,
            section_entry_bytes: field(58)?,
            section_count: field(60)?,
            names_index: field(62)?,
        };
        if tables.program_count > 0 && tables.program_entry_bytes < PROGRAM_HEADER_BYTES
            || tables.section_count > 0 && tables.section_entry_bytes < SECTION_HEADER_BYTES
        {
            return Err(ImageError::Malformed("ELF header tables have entries that are too small"));
        }
        Ok(tables)
    }

    /// Offset and size in bytes of the program header table.
    pub(super) fn program_headers(&self) -> (u64, u64) {
        (self.program_offset, self.program_entry_bytes * self.program_count)
    }

    /// Offset and size in bytes of the section header table.
    pub(super) fn section_headers(&self) -> (u64, u64) {
        (self.section_offset, self.section_entry_bytes * self.section_count)
    }

    /// The file's size, given both header tables: where the last part of it ends.
    pub(super) fn total_bytes(&self, programs: &[u8], sections: &[u8]) -> Result<u64, ImageError> {
        let too_far = ImageError::Malformed("ELF part ends beyond the address space");
        let mut total = self.header_bytes.max(HEADER_BYTES);
        let mut extend = |offset: u64, size_bytes: u64| {
            let end = offset.checked_add(size_bytes).ok_or(too_far.clone())?;
            total = total.max(end);
            Ok(())
        };
        for (offset, size_bytes) in [self.program_headers(), self.section_headers()] {
            if size_bytes > 0 {
                extend(offset, size_bytes)?;
            }
        }
        for i in 0..self.program_count {
            let at = i * self.program_entry_bytes;
            let file_bytes = u64_at(programs, at + 32, "ELF segment")?;
            if file_bytes > 0 {
                extend(u64_at(programs, at + 8, "ELF segment")?, file_bytes)?;
            }
        }
        for i in 0..self.section_count {
            let at = i * self.section_entry_bytes;
            if u32_at(sections, at + 4, "ELF section")? != SECTION_NOBITS {
                let (offset, size) = (at + 24, at + 32);
                extend(
                    u64_at(sections, offset, "ELF section")?,
                    u64_at(sections, size, "ELF section")?,
                )?;
            }
        }
        Ok(total)
    }
}

/// A section of an ELF file.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Its name; empty where the file's names are unusable.
    pub name: &'a [u8],
    /// Its type.
    pub kind: u32,
    /// Whether loading makes it part of memory.
    pub is_allocated: bool,
    /// Its length in memory, which its contents may not have in the file.
    pub size_bytes: u64,
    /// Its contents; empty for a section without any in the file.
    pub contents: &'a [u8],
}

impl<'a> Elf<'a> {
    /// Reads the file at the start of `bytes`, which may be longer.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let tables = Tables::parse(slice(bytes, 0, HEADER_BYTES, "ELF header")?)?;
        let (offset, size_bytes) = tables.program_headers();
        let programs = match size_bytes {
            0 => &[],
            _ => slice(bytes, offset, size_bytes, "ELF program headers")?,
        };
        let (offset, size_bytes) = tables.section_headers();
        let sections = match size_bytes {
            0 => &[],
            _ => slice(bytes, offset, size_bytes, "ELF section headers")?,
        };
        let total_bytes = tables.total_bytes(programs, sections)?;
        Ok(Self { bytes: slice(bytes, 0, total_bytes, "ELF file")?, tables })
    }

    /// The whole file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The architecture number of a cubin, 10 * major + minor; `None` if this is none.
    pub fn architecture(&self) -> Option<u32> {
        if u16_at(self.bytes, 18, "machine").ok()? != MACHINE_CUDA {
            return None;
        }
        let flags = u32_at(self.bytes, 48, "flags").ok()?;
        let shift = if self.bytes.get(7) == Some(&OSABI_TOOLKIT_13) { 8 } else { 0 };
        Some((flags >> shift) & 0xff)
    }

    /// All sections.
    pub fn sections(&self) -> impl Iterator<Item = Result<Section<'a>, ImageError>> {
        let names = match self.tables.names_index {
            0 => Ok(&[][..]),
            index => self.contents(index),
        };
        (0..self.tables.section_count).map(move |index| {
            let name_offset = u64::from(u32_at(self.bytes, self.section_at(index), "ELF section")?);
            let name =
                usize::try_from(name_offset).ok().and_then(|at| names.clone().ok()?.get(at..));
            Ok(Section {
                name: name.map(super::until_nul).unwrap_or_default(),
                kind: u32_at(self.bytes, self.section_at(index) + 4, "ELF section")?,
                is_allocated: u64_at(self.bytes, self.section_at(index) + 8, "ELF section")?
                    & SECTION_ALLOCATED
                    != 0,
                size_bytes: u64_at(self.bytes, self.section_at(index) + 32, "ELF section")?,
                contents: self.contents(index)?,
            })
        })
    }

    fn section_at(&self, index: u64) -> u64 {
        // Inside the table, whose end `parse` has checked.
        self.tables.section_offset + index * self.tables.section_entry_bytes
    }

    fn contents(&self, index: u64) -> Result<&'a [u8], ImageError> {
        if index >= self.tables.section_count {
            return Err(ImageError::Malformed("ELF section index out of range"));
        }
        let at = self.section_at(index);
        if u32_at(self.bytes, at + 4, "ELF section")? == SECTION_NOBITS {
            return Ok(&[]);
        }
        let offset = u64_at(self.bytes, at + 24, "ELF section")?;
        slice(
            self.bytes,
            offset,
            u64_at(self.bytes, at + 32, "ELF section")?,
            "ELF section contents",
        )
    }
}
