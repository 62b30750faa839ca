//! Which addresses kernels of a PTX text could store: they are followed from register to register,
//! whatever the order of instructions, within a function.
//!
//! An address may be computed with, compared, and be where something is read or written. Whatever
//! else is done with it counts as storing it. So does passing it to a function, unless a compiler's
//! text is passed to a function of the driver's that prints it.

mod statements;

use super::{StorableAddresses, is_table_of_toolkit, printable};
use crate::faults::code_state::declared_variables;
use statements::{Part, parts, words};
use std::collections::{BTreeSet, HashMap};

/// Of variables and functions: how many a text can have for this to be told in time.
const MOST_NAMES: usize = 4096;
/// Functions that print a text or tell of it, and keep nothing.
const PRINTING: [&str; 2] = ["vprintf", "__assertfail"];
/// Instructions whose first operand is the result of the others.
const COMPUTING: [&str; 31] = [
    "abs", "add", "addc", "and", "bfe", "bfi", "cnot", "cvt", "cvta", "lop3", "mad", "mad24",
    "madc", "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "prmt", "selp", "shf", "shl",
    "shr", "slct", "sub", "subc", "xor", "szext",
];
/// Instructions that say something of addresses, which is none itself.
const COMPARING: [&str; 3] = ["isspacep", "set", "setp"];
/// Instructions whose addresses are in brackets, and which store what is not.
const STORING: [&str; 3] = ["atom", "red", "st"];
/// Likewise, and which store nothing that they are given.
const TOUCHING: [&str; 5] = ["cp", "ld", "ldu", "prefetch", "prefetchu"];
/// Of those: instructions whose first operand is what they have read.
const READING: [&str; 3] = ["atom", "ld", "ldu"];

/// The names whose addresses a register can have.
type Origins<'a> = BTreeSet<&'a str>;

/// See [`StorableAddresses::of`].
pub(super) fn storable(text: &[u8]) -> Result<StorableAddresses, &'static str> {
    let untold = "variables whose names cannot be told";
    let text = statements::without_comments(text);
    let parts = parts(&text);
    let variables = declared_variables(text.as_bytes()).ok_or(untold)?;
    let variables: Result<Vec<_>, _> = variables.into_iter().map(String::from_utf8).collect();
    let variables = variables.map_err(|_| untold)?;
    let mut known: Origins<'_> = parts.iter().filter_map(Part::function).collect();
    known.extend(variables.iter().map(String::as_str));
    if known.len() > MOST_NAMES {
        return Err("more names than are looked at");
    }
    let mut stored = Origins::new();
    let mut body = Vec::new();
    for part in &parts {
        match part {
            Part::Declaration(text) | Part::Statement(text) if text.starts_with('.') => {
                let initial = text.split_once('=').map_or("", |(_, initial)| initial);
                stored.extend(words(initial).filter_map(|word| known.get(word)));
            }
            Part::Begins(_) => body.clear(),
            Part::Declaration(text) | Part::Statement(text) => body.push(*text),
            Part::Ends => {
                let body = std::mem::take(&mut body);
                Function { known: &known, body }.add_stored(&mut stored)?;
            }
        }
    }
    let names = stored.into_iter().filter(|name| !is_table_of_toolkit(name.as_bytes()));
    Ok(StorableAddresses::from_names(names.map(|name| printable(name.as_bytes())).collect()))
}

/// Passes over a function's text. Each follows an address as far as the text goes on, so there are
/// as many as jumps back that matter.
const MOST_PASSES: usize = 64;

/// From where a call's parameter is put in its place to the call.
const MOST_STATEMENTS: usize = 256;

/// One function's instructions.
struct Function<'a> {
    known: &'a Origins<'a>,
    body: Vec<&'a str>,
}

impl<'a> Function<'a> {
    fn add_stored(&self, stored: &mut Origins<'a>) -> Result<(), &'static str> {
        let is_about_any = |it: &&str| words(it).any(|word| self.known.contains(word));
        if !self.body.iter().any(is_about_any) {
            return Ok(());
        }
        let mut registers: HashMap<&str, Origins<'a>> = HashMap::new();
        let mut follow = || {
            let computes = |is_new, statement| self.computes(statement, &mut registers) | is_new;
            self.body.iter().copied().fold(false, computes)
        };
        if (0..MOST_PASSES).all(|_| follow()) {
            return Err("addresses that go against the order of the text again and again");
        }
        for (at, statement) in self.body.iter().enumerate() {
            let stored_here = self.stored_by(at, statement, &registers);
            stored.extend(stored_here);
        }
        Ok(())
    }

    fn origins(&self, text: &'a str, registers: &HashMap<&str, Origins<'a>>) -> Origins<'a> {
        let mut origins = Origins::new();
        for word in words(text) {
            origins.extend(self.known.get(word));
            origins.extend(registers.get(word).into_iter().flatten());
        }
        origins
    }

    /// Follows what one instruction computes; says whether that was not known yet.
    fn computes(&self, statement: &'a str, registers: &mut HashMap<&'a str, Origins<'a>>) -> bool {
        let Some(instruction) = Instruction::read(statement) else { return false };
        if !COMPUTING.contains(&instruction.name) {
            return false;
        }
        let origins = self.origins(instruction.others, registers);
        let mut is_new = false;
        for register in words(instruction.first).filter(|_| !origins.is_empty()) {
            let of_register = registers.entry(register).or_default();
            let before = of_register.len();
            of_register.extend(&origins);
            is_new |= of_register.len() > before;
        }
        is_new
    }

    fn stored_by(
        &self,
        at: usize,
        statement: &'a str,
        registers: &HashMap<&str, Origins<'a>>,
    ) -> Origins<'a> {
        let Some(instruction) = Instruction::read(statement) else { return Origins::new() };
        let operands = instruction.operands;
        match instruction.name {
            name if COMPUTING.contains(&name) || COMPARING.contains(&name) => Origins::new(),
            name if TOUCHING.contains(&name) || STORING.contains(&name) => {
                let given = if READING.contains(&name) { instruction.others } else { operands };
                let mut origins = Origins::new();
                for outside in statements::outside_of_brackets(given) {
                    origins.extend(self.origins(outside, registers));
                }
                if operands_go_to_function(statement) && self.prints_next(at) {
                    origins.retain(|name| !is_text(name));
                }
                origins
            }
            "call" => {
                let mut origins = self.origins(operands, registers);
                // The first name of a function is what is called.
                if let Some(called) = words(operands).find(|it| self.known.contains(it)) {
                    let is_passed = words(operands).filter(|it| *it == called).count() > 1;
                    origins.retain(|name| *name != called || is_passed);
                }
                if self.prints_next(at) {
                    origins.retain(|name| !is_text(name));
                }
                origins
            }
            _ => self.origins(operands, registers),
        }
    }

    /// Whether the next call is one of a function that prints.
    fn prints_next(&self, at: usize) -> bool {
        let mut calls = self.body[at..]
            .iter()
            .take(MOST_STATEMENTS)
            .filter_map(|it| Instruction::read(it))
            .filter(|it| it.name == "call");
        calls.next().is_some_and(|it| words(it.operands).any(|word| PRINTING.contains(&word)))
    }
}

/// Whether a statement puts a parameter of a call in its place.
fn operands_go_to_function(statement: &str) -> bool {
    statement.contains("st.param")
}

fn is_text(name: &str) -> bool {
    name.starts_with("$str") || name.starts_with("__unnamed_")
}

/// One instruction of a text.
struct Instruction<'a> {
    /// Up to its first point: `ld` of `ld.global.u32`.
    name: &'a str,
    operands: &'a str,
    /// Of the operands.
    first: &'a str,
    others: &'a str,
}

impl<'a> Instruction<'a> {
    /// `None` for directives.
    fn read(statement: &'a str) -> Option<Self> {
        let mut rest = statement.trim();
        let is_part = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '$');
        while let Some((label, behind)) = rest.split_once(':')
            && label.trim_end().chars().all(is_part)
        {
            rest = behind.trim_start();
        }
        if rest.starts_with('@') {
            rest = rest.split_once(char::is_whitespace)?.1.trim_start();
        }
        if rest.starts_with('.') || rest.is_empty() {
            return None;
        }
        let (operation, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let name = operation.split('.').next()?;
        let first = statements::first_operand(operands);
        Some(Self { name, operands, first, others: &operands[first.len()..] })
    }
}

#[cfg(test)]
mod tests;
