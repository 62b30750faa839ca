//! Which addresses instructions read of an image's table of addresses (bank 4), and whether they
//! read where its constants are.
//!
//! A compiler's texts are the exception. They are read to be printed, or to be told by a failed
//! assertion, and in no other way most of the time. So it is looked whether what reads one goes
//! straight to a call of a function of the driver's.

use super::instruction::{ADDRESSES, Architecture, Instruction, PARAMETERS, Reading};
use super::{is_table_of_toolkit, printable};
use std::collections::{BTreeMap, BTreeSet};

/// What a place of the table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry<'a> {
    /// The address of a variable of the image.
    Variable(&'a [u8]),
    /// Of a function of the image.
    Function(&'a [u8]),
    /// Of a text that a compiler named.
    Text(&'a [u8]),
    /// Of a function of the driver's.
    Driver,
}

/// What code is judged by.
#[derive(Debug)]
pub(super) struct Tables<'a> {
    pub(super) architecture: Architecture,
    /// By the offset in bank 4.
    pub(super) addresses: BTreeMap<u64, Vec<Entry<'a>>>,
    /// Whether a function of the image is among them.
    pub(super) has_functions: bool,
    /// Its `__constant__` variables.
    pub(super) constants: BTreeSet<String>,
}

/// Bytes of an address.
const ADDRESS_BYTES: u64 = 8;
/// Instructions from where an address is read to its call: fourteen, as compilers write it.
const MOST_INSTRUCTIONS: usize = 64;

impl Tables<'_> {
    /// Adds what one section of code could store.
    pub(super) fn add_storable(
        &self,
        code: &[Instruction],
        names: &mut BTreeSet<String>,
    ) -> Result<(), &'static str> {
        // Names are added once, however often code reads them.
        let (mut reads_any_address, mut reads_constants) = (false, false);
        for (at, instruction) in code.iter().enumerate() {
            match instruction.reading() {
                Reading::Fixed { bank: ADDRESSES, offset, size_bytes } => {
                    let is_passed = || self.goes_to_driver(code, at);
                    let read = self.entries(offset, size_bytes);
                    names.extend(read.filter_map(|entry| storable(entry, is_passed)));
                }
                Reading::Indexed { bank: ADDRESSES, .. }
                    if !self.has_functions && is_called(code, at) => {}
                Reading::Indexed { bank: ADDRESSES, .. } => reads_any_address = true,
                Reading::Fixed { bank: PARAMETERS, offset, size_bytes } => {
                    let constants_at = self.architecture.constants_at;
                    reads_constants |=
                        offset < constants_at + ADDRESS_BYTES && offset + size_bytes > constants_at;
                }
                Reading::Indexed { bank: PARAMETERS, offset } => {
                    let is_of_parameters =
                        u64::try_from(offset).is_ok_and(|it| it >= self.architecture.parameters_at);
                    reads_constants |= !is_of_parameters;
                }
                Reading::Elsewhere if !self.constants.is_empty() || !self.addresses.is_empty() => {
                    return Err("constants that are described in a register");
                }
                _ => {}
            }
        }
        if reads_any_address {
            let all = self.addresses.values().flatten();
            names.extend(all.filter_map(|entry| storable(entry, || false)));
        }
        if reads_constants {
            names.extend(self.constants.iter().cloned());
        }
        Ok(())
    }

    fn entries(&self, offset: u64, size_bytes: u64) -> impl Iterator<Item = &Entry<'_>> {
        // What is not aligned to an address is half of one.
        let first = offset & !(ADDRESS_BYTES - 1);
        self.addresses.range(first..first + size_bytes).flat_map(|(_, it)| it)
    }

    /// Whether a function of the driver's is called in any case after an instruction, and nothing
    /// is stored before.
    fn goes_to_driver(&self, code: &[Instruction], at: usize) -> bool {
        let Some((ahead, called)) = next_call(code, at) else { return false };
        let before = code[..ahead].iter().rev().take(MOST_INSTRUCTIONS);
        let mut straight = before.take_while(|it| !it.is_control());
        straight.find(|it| it.may_change(called)).is_some_and(|it| match it.reading() {
            Reading::Indexed { bank: ADDRESSES, .. } => !self.has_functions,
            Reading::Fixed { bank: ADDRESSES, offset, size_bytes } => {
                self.entries(offset, size_bytes).all(|entry| *entry == Entry::Driver)
            }
            _ => false,
        })
    }
}

/// The call that follows in any case on an instruction, whose result is not stored before; and
/// which registers have the address that it calls.
fn next_call(code: &[Instruction], at: usize) -> Option<(usize, u8)> {
    // What may come of the result: whatever is made of it, too.
    let mut tainted = results(code[at]);
    for (ahead, instruction) in code.iter().enumerate().skip(at + 1).take(MOST_INSTRUCTIONS) {
        if let Some(called) = instruction.called() {
            return Some((ahead, called));
        }
        if instruction.is_control() || instruction.may_store(&tainted) {
            return None;
        }
        if instruction.operands().iter().any(|operand| tainted.contains(operand)) {
            tainted.append(&mut results(*instruction));
        }
    }
    None
}

/// A pair of registers, or two: uniform registers have the same numbers here.
fn results(instruction: Instruction) -> BTreeSet<u8> {
    (instruction.result()..instruction.result().saturating_add(4)).collect()
}

/// Whether what an instruction reads of the table is called in any case: so it was a function.
fn is_called(code: &[Instruction], at: usize) -> bool {
    let pair = code[at].result();
    for instruction in code.iter().skip(at + 1).take(MOST_INSTRUCTIONS) {
        if let Some(called) = instruction.called() {
            return called == pair;
        }
        if instruction.is_control() || instruction.may_change(pair) {
            return false;
        }
    }
    false
}

/// The name of an entry whose address could be stored once it was read.
fn storable(entry: &Entry<'_>, is_passed: impl Fn() -> bool) -> Option<String> {
    match entry {
        Entry::Driver => None,
        Entry::Text(_) if is_passed() => None,
        Entry::Variable(name) if is_table_of_toolkit(name) => None,
        Entry::Variable(name) | Entry::Function(name) | Entry::Text(name) => Some(printable(name)),
    }
}
