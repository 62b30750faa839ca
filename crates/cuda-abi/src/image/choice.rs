//! Which entry of an image runs on a device.
//!
//! A device that executes machine code takes the nearest cubin of its major architecture, else the
//! newest PTX that is not newer than itself, as the original does. A device that executes PTX only
//! takes the newest PTX up to its own architecture, else the oldest above: libraries ship PTX for
//! their newest target alone, and what a program does not use of it does not matter.

use std::cmp::Reverse;
use std::fmt;

use super::fatbin::{Entry, EntryKind, Fatbin, Portability};
use super::{Code, Image, ImageError, elf};

/// What a device executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Accepts {
    /// Machine code, and PTX through a compiler.
    MachineCode,
    /// PTX alone.
    PtxOnly,
}

impl fmt::Display for Accepts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accepts::MachineCode => "machine code or PTX",
            Accepts::PtxOnly => "PTX only",
        })
    }
}

/// The device to choose for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Compute capability, major.
    pub major: u32,
    /// Compute capability, minor.
    pub minor: u32,
    /// What it executes.
    pub accepts: Accepts,
}

impl Target {
    fn architecture(self) -> u32 {
        self.major.saturating_mul(10).saturating_add(self.minor)
    }

    fn refuse(self, found: String) -> ImageError {
        let Target { major, minor, accepts } = self;
        ImageError::NoCodeForDevice { major, minor, accepts, found }
    }
}

pub(super) fn choose<'a>(image: &Image<'a>, target: Target) -> Result<Code<'a>, ImageError> {
    match image {
        Image::Ptx(text) => Ok(Code::Ptx((*text).into())),
        Image::Elf(elf) => match target.accepts {
            // Whether a lone cubin fits is for the driver to say.
            Accepts::MachineCode => Ok(Code::Elf(elf.bytes().into())),
            Accepts::PtxOnly => Err(target.refuse(describe_elf(elf))),
        },
        Image::Fatbin { fatbin, constituents } => match choose_entry(fatbin, target) {
            Some(entry) => decode(entry),
            None => Err(target.refuse(describe(fatbin, constituents))),
        },
    }
}

pub(super) fn text_with_options(
    image: &Image<'_>,
    target: Target,
) -> Result<Option<Vec<u8>>, ImageError> {
    let Image::Fatbin { fatbin, .. } = image else { return Ok(None) };
    choose_entry(fatbin, target).map_or(Ok(None), Entry::with_options)
}

pub(super) fn relocatable_ptx<'a>(
    image: &Image<'a>,
    target: Target,
) -> Result<Vec<Code<'a>>, ImageError> {
    let Image::Fatbin { constituents, .. } = image else { return Ok(Vec::new()) };
    constituents.iter().filter_map(|fatbin| ptx(fatbin, target)).map(decode).collect()
}

fn decode<'a>(entry: &Entry<'a>) -> Result<Code<'a>, ImageError> {
    let contents = entry.contents()?;
    Ok(if entry.kind == EntryKind::Elf { Code::Elf(contents) } else { Code::Ptx(contents) })
}

fn choose_entry<'f, 'a>(fatbin: &'f Fatbin<'a>, target: Target) -> Option<&'f Entry<'a>> {
    match target.accepts {
        Accepts::MachineCode => machine_code(fatbin, target).or_else(|| ptx(fatbin, target)),
        Accepts::PtxOnly => ptx(fatbin, target),
    }
}

/// Whether an entry's restriction, if it has one, admits the device.
fn admits(entry: &Entry<'_>, target: Target) -> bool {
    match entry.portability {
        Portability::Portable => true,
        Portability::ArchitectureSpecific => entry.architecture == target.architecture(),
        Portability::FamilySpecific => entry.architecture / 10 == target.major,
    }
}

fn machine_code<'f, 'a>(fatbin: &'f Fatbin<'a>, target: Target) -> Option<&'f Entry<'a>> {
    let fits = |entry: &&Entry<'_>| {
        entry.kind == EntryKind::Elf
            && entry.architecture / 10 == target.major
            && entry.architecture % 10 <= target.minor
            && admits(entry, target)
    };
    // The nearest; of several for one architecture the one made for it most closely.
    let closeness =
        |entry: &&Entry<'_>| (entry.architecture, entry.portability != Portability::Portable);
    fatbin.entries().iter().filter(fits).max_by_key(closeness)
}

fn ptx<'f, 'a>(fatbin: &'f Fatbin<'a>, target: Target) -> Option<&'f Entry<'a>> {
    let own = target.architecture();
    let texts = || fatbin.entries().iter().filter(|entry| entry.kind == EntryKind::Ptx);
    let fitting = texts()
        .filter(|entry| entry.architecture <= own && admits(entry, target))
        .max_by_key(|entry| entry.architecture);
    match target.accepts {
        Accepts::MachineCode => fitting,
        Accepts::PtxOnly => fitting.or_else(|| {
            let newer = |entry: &&Entry<'_>| entry.architecture > own;
            let portable = |entry: &&Entry<'_>| entry.portability == Portability::Portable;
            texts().max_by_key(|entry| (portable(entry), newer(entry), Reverse(entry.architecture)))
        }),
    }
}

fn describe(fatbin: &Fatbin<'_>, constituents: &[Fatbin<'_>]) -> String {
    let mut parts: Vec<String> = fatbin.entries().iter().map(describe_entry).collect();
    if constituents.iter().flat_map(Fatbin::entries).any(|entry| entry.kind == EntryKind::Ptx) {
        parts.push("relocatable PTX".to_owned());
    }
    parts.dedup();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

fn describe_entry(entry: &Entry<'_>) -> String {
    let suffix = match entry.portability {
        Portability::Portable => "",
        Portability::ArchitectureSpecific => "a",
        Portability::FamilySpecific => "f",
    };
    let architecture = entry.architecture;
    match entry.kind {
        EntryKind::Ptx => format!("PTX compute_{architecture}{suffix}"),
        EntryKind::Elf => format!("machine code sm_{architecture}{suffix}"),
        EntryKind::Other(8) => format!("LTO code lto_{architecture}{suffix}"),
        EntryKind::Other(kind) => format!("code of kind {kind}"),
    }
}

fn describe_elf(elf: &elf::Elf<'_>) -> String {
    match elf.architecture() {
        Some(architecture) => format!("machine code sm_{architecture}"),
        None => "an ELF file that is no cubin".to_owned(),
    }
}
