//! What an image of machine code says of its addresses: names, relocations, the table of addresses
//! in bank 4.

use super::instruction::{Architecture, Instruction};
use super::machine_code::{Entry, Tables};
use super::{StorableAddresses, is_table_of_toolkit, printable};
use crate::faults::code_state::{Symbol, has_variables_in, symbols};
use cuda_abi::image::elf::{Elf, Section};
use std::collections::{BTreeMap, BTreeSet};

const RELOCATIONS_WITH_ADDENDS: u32 = 4;
const RELOCATIONS: u32 = 9;
/// Relocations of one address: of its halves.
const MOST_AT_A_PLACE: usize = 4;
/// The table of addresses.
const ADDRESSES: &[u8] = b".nv.constant4";
const CODE: &[u8] = b".text";

/// See [`StorableAddresses::of`].
pub(super) fn storable(elf: &Elf<'_>) -> Result<StorableAddresses, &'static str> {
    let sections: Vec<_> =
        elf.sections().collect::<Result<_, _>>().map_err(|_| "sections that are cut off")?;
    let symbols: Vec<_> = match symbols(&sections) {
        Some(all) => all.collect::<Option<_>>().ok_or("names that are cut off")?,
        None => Vec::new(),
    };
    let image = Named { sections: &sections, symbols: &symbols };
    let mut names = image.never_told()?;
    let mut tables = Tables {
        architecture: Architecture::default(),
        addresses: BTreeMap::new(),
        has_functions: false,
        constants: image.constants(),
    };
    for section in &sections {
        image.add_relocations(section, &mut tables, &mut names)?;
    }
    let is_code = |section: &&Section<'_>| section.name.starts_with(CODE);
    if !tables.addresses.is_empty() || !tables.constants.is_empty() {
        let number = elf.architecture().ok_or("machine code of no GPU")?;
        tables.architecture =
            Architecture::of(number).ok_or("machine code of an architecture that is not read")?;
        for section in sections.iter().filter(is_code) {
            tables.add_storable(&Instruction::all(section.contents), &mut names)?;
        }
    }
    Ok(StorableAddresses::from_names(names))
}

/// A file's sections, and the names for what is in them.
struct Named<'a> {
    sections: &'a [Section<'a>],
    symbols: &'a [Symbol<'a>],
}

/// What a relocation is about.
enum Subject<'a> {
    Variable(&'a [u8]),
    /// Of the file, at so many bytes of its section.
    Function(&'a Symbol<'a>),
    /// A function of the driver's, or anything else that is no memory of the image.
    Other,
}

impl<'a> Named<'a> {
    /// Variables whose addresses are told by no instruction and no relocation.
    fn never_told(&self) -> Result<BTreeSet<String>, &'static str> {
        if self.symbols.iter().any(|it| Symbol::REFERENCES.contains(&it.kind)) {
            return Err("references to textures");
        }
        let managed = self.symbols.iter().filter(|it| it.is_managed && self.is_variable(it));
        Ok(managed.map(|it| printable(it.name)).collect())
    }

    fn constants(&self) -> BTreeSet<String> {
        let is_constant = |symbol: &&Symbol<'_>| {
            symbol.kind == Symbol::OBJECT
                && !is_table_of_toolkit(symbol.name)
                && self.section(symbol).is_some_and(|it| it.name.starts_with(b".nv.constant3"))
        };
        self.symbols.iter().filter(is_constant).map(|it| printable(it.name)).collect()
    }

    fn section(&self, symbol: &Symbol<'_>) -> Option<&'a Section<'a>> {
        self.sections.get(symbol.section).filter(|_| symbol.section != 0)
    }

    fn is_variable(&self, symbol: &Symbol<'_>) -> bool {
        self.section(symbol).is_some_and(has_variables_in)
    }

    fn subject(&self, number: u32) -> Result<Subject<'a>, &'static str> {
        let symbol = self.symbols.get(number as usize).ok_or("relocations of nothing")?;
        let section = self.section(symbol);
        Ok(match section {
            Some(section) if section.name.starts_with(CODE) => Subject::Function(symbol),
            Some(section) if has_variables_in(section) && symbol.name.is_empty() => {
                Subject::Variable(section.name)
            }
            Some(section) if has_variables_in(section) => Subject::Variable(symbol.name),
            None if symbol.kind == Symbol::OBJECT && !symbol.name.starts_with(b".nv.") => {
                Subject::Variable(symbol.name)
            }
            _ => Subject::Other,
        })
    }

    /// Adds what a section of relocations puts into the table of addresses, or elsewhere.
    fn add_relocations(
        &self,
        section: &Section<'a>,
        tables: &mut Tables<'a>,
        names: &mut BTreeSet<String>,
    ) -> Result<(), &'static str> {
        let (prefix, entry_bytes): (&[u8], _) = match section.kind {
            RELOCATIONS_WITH_ADDENDS => (b".rela", 24),
            RELOCATIONS => (b".rel", 16),
            _ => return Ok(()),
        };
        let of = section.name.strip_prefix(prefix).ok_or("relocations of no section")?;
        let of =
            self.sections.iter().find(|it| it.name == of).ok_or("relocations of no section")?;
        if !of.is_allocated {
            return Ok(());
        }
        for entry in section.contents.chunks_exact(entry_bytes) {
            let relocation = Relocation::read(entry);
            let subject = self.subject(relocation.symbol)?;
            if of.name.starts_with(ADDRESSES) {
                let entry = match subject {
                    Subject::Variable(name) if is_text(name) => Entry::Text(name),
                    Subject::Variable(name) => Entry::Variable(name),
                    Subject::Function(symbol) => Entry::Function(symbol.name),
                    Subject::Other => Entry::Driver,
                };
                tables.has_functions |= matches!(entry, Entry::Function(_));
                let place = tables.addresses.entry(relocation.offset & !7).or_default();
                place.push(entry);
                if place.len() > MOST_AT_A_PLACE {
                    return Err("many addresses at one place");
                }
                continue;
            }
            match subject {
                Subject::Variable(name) if is_table_of_toolkit(name) => {}
                Subject::Variable(name) => drop(names.insert(printable(name))),
                Subject::Function(function) if self.is_told(of, &relocation, function) => {
                    names.insert(printable(function.name));
                }
                Subject::Function(_) | Subject::Other => {}
            }
        }
        Ok(())
    }

    /// Whether a relocation tells a function's address, and does not call it or come back to the
    /// middle of it.
    fn is_told(&self, of: &Section<'_>, told: &Relocation, function: &Symbol<'_>) -> bool {
        /// Observed on the output of nvcc 13.0: of compute capability 7.5, and from 9.0 on.
        const CALLS: [u32; 2] = [0x3a, 0x4b];
        let is_own = self.section(function).is_some_and(|it| it.name == of.name);
        let comes_back = is_own && told.addend > 0;
        !of.name.starts_with(CODE) || !CALLS.contains(&told.kind) && !comes_back
    }
}

/// What loading writes to a place.
struct Relocation {
    offset: u64,
    kind: u32,
    symbol: u32,
    addend: i64,
}

impl Relocation {
    fn read(entry: &[u8]) -> Self {
        let word = |at: usize| {
            let bytes = entry.get(at..at + 8).and_then(|it| it.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let (info, addend) = (word(8), word(16));
        Self {
            offset: word(0),
            kind: info as u32,
            symbol: (info >> 32) as u32,
            addend: addend.cast_signed(),
        }
    }
}

/// What a compiler names that has a program's text, to be printed.
fn is_text(name: &[u8]) -> bool {
    name.starts_with(b"$str") || name.starts_with(b"__unnamed_")
}
