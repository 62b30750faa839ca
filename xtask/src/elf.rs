//! What an executable or a library needs of the system that it runs on: libraries, and symbols with
//! their versions. Read from ELF files of 64 bits, little endian, with section headers.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// One symbol of another library.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// Its name.
    pub(crate) name: String,
    /// The version that was linked against, like `GLIBC_2.17`; none of what has no versions.
    pub(crate) version: Option<String>,
}

/// What a file needs.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Libraries, by their names.
    pub(crate) libraries: Vec<String>,
    /// Symbols of these libraries.
    pub(crate) symbols: Vec<Symbol>,
    /// Versions without a symbol, like `GLIBC_ABI_DT_RELR`, beside those of symbols.
    pub(crate) versions: Vec<String>,
}

/// Reads a file.
///
/// # Errors
/// When it cannot be read or is no such file.
pub(crate) fn needs(file: &Path) -> Result<Needs> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    parse(&bytes).with_context(|| format!("{} is not understood", file.display()))
}

const SECTION_DYNAMIC: u32 = 6;
const SECTION_DYNAMIC_SYMBOLS: u32 = 11;
const SECTION_VERSIONS_NEEDED: u32 = 0x6fff_fffe;
const SECTION_VERSIONS_OF_SYMBOLS: u32 = 0x6fff_ffff;
const TAG_NEEDED: u64 = 1;
const UNDEFINED: u16 = 0;
/// The bit of a symbol's version that hides it.
const HIDDEN: u16 = 0x8000;

/// A section header: what it is, which section has its strings, and where it lies.
struct Section {
    kind: u32,
    link: usize,
    range: Range<usize>,
}

fn parse(bytes: &[u8]) -> Result<Needs> {
    ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "it is no ELF file of 64 bits, little endian");
    let sections = sections(bytes)?;
    let of_kind = |kind| sections.iter().find(|section| section.kind == kind);
    let mut needs = Needs::default();
    let Some(dynamic) = of_kind(SECTION_DYNAMIC) else { return Ok(needs) };
    let strings = |section: &Section| -> Result<&[u8]> {
        let strings = sections.get(section.link).context("a section without strings")?;
        part(bytes, strings.range.clone())
    };
    let names = strings(dynamic)?;
    for entry in part(bytes, dynamic.range.clone())?.chunks_exact(16) {
        if u64_at(entry, 0)? == TAG_NEEDED {
            needs.libraries.push(text(names, u64_at(entry, 8)? as usize)?);
        }
    }
    let versions = match of_kind(SECTION_VERSIONS_NEEDED) {
        Some(section) => versions(part(bytes, section.range.clone())?, strings(section)?)?,
        None => Vec::new(),
    };
    needs.versions = versions.iter().map(|(_, name)| name.clone()).collect();
    let Some(symbols) = of_kind(SECTION_DYNAMIC_SYMBOLS) else { return Ok(needs) };
    let numbers = match of_kind(SECTION_VERSIONS_OF_SYMBOLS) {
        Some(section) => part(bytes, section.range.clone())?,
        None => &[],
    };
    let names = strings(symbols)?;
    // The first is no symbol.
    for (index, symbol) in part(bytes, symbols.range.clone())?.chunks_exact(24).enumerate().skip(1)
    {
        if u16_at(symbol, 6)? != UNDEFINED {
            continue;
        }
        let number = u16_at(numbers, index * 2).unwrap_or(0) & !HIDDEN;
        let version = versions.iter().find(|(known, _)| *known == number);
        needs.symbols.push(Symbol {
            name: text(names, u32_at(symbol, 0)? as usize)?,
            version: version.map(|(_, name)| name.clone()),
        });
    }
    Ok(needs)
}

fn sections(bytes: &[u8]) -> Result<Vec<Section>> {
    let (start, size, count) = (u64_at(bytes, 40)?, u16_at(bytes, 58)?, u16_at(bytes, 60)?);
    ensure!(size == 64 && count > 0, "it has no section headers");
    let mut sections = Vec::new();
    for index in 0..usize::from(count) {
        let at = start as usize + index * 64;
        let header = part(bytes, at..at + 64)?;
        let (offset, size) = (u64_at(header, 24)? as usize, u64_at(header, 32)? as usize);
        sections.push(Section {
            kind: u32_at(header, 4)?,
            link: u32_at(header, 40)? as usize,
            range: offset..offset.checked_add(size).context("a section beyond the file")?,
        });
    }
    Ok(sections)
}

/// The versions of other libraries' symbols, with the numbers that symbols have for them.
fn versions(section: &[u8], strings: &[u8]) -> Result<Vec<(u16, String)>> {
    let mut found = Vec::new();
    let mut library = 0;
    loop {
        let count = u16_at(section, library + 2)?;
        let mut version = library + u32_at(section, library + 8)? as usize;
        for _ in 0..count {
            let name = text(strings, u32_at(section, version + 8)? as usize)?;
            found.push((u16_at(section, version + 6)?, name));
            version += u32_at(section, version + 12)? as usize;
        }
        match u32_at(section, library + 12)? {
            0 => return Ok(found),
            next => library += next as usize,
        }
    }
}

fn part(bytes: &[u8], range: Range<usize>) -> Result<&[u8]> {
    bytes.get(range).context("a part lies beyond the end of the file")
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(part(bytes, at..at + 2)?.try_into()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(part(bytes, at..at + 4)?.try_into()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(part(bytes, at..at + 8)?.try_into()?))
}

fn text(strings: &[u8], at: usize) -> Result<String> {
    let rest = strings.get(at..).context("a name beyond the strings")?;
    match rest.iter().position(|&byte| byte == 0) {
        Some(end) => Ok(String::from_utf8_lossy(&rest[..end]).into_owned()),
        None => bail!("a name without an end"),
    }
}
