//! Which forms instructions have: an opcode and modifiers that belong together.
//!
//! `forms.txt` lists them. What is not listed is no PTX, and its module is refused when it is
//! loaded; whether a listed form is executed is `exec`'s business. Modules of a newer ISA than the
//! list are not checked. Instructions whose forms are many and rarely written by hand (textures,
//! tensors, asynchronous copies, video) are listed without their modifiers.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::ast::{Body, Statement};
use super::error::ParseError;

/// The newest ISA version that the list knows.
pub(super) const NEWEST_VERSION: (u32, u32) = (9, 0);

const LIST: &str = include_str!("forms.txt");

/// How often a slot is filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    One,
    Optional,
    Any,
}

/// A place for modifiers.
struct Slot {
    count: Count,
    choices: Vec<&'static str>,
}

/// Slots of a form; `open`: whatever else there is belongs to it too.
struct Form {
    slots: Vec<Slot>,
    open: bool,
}

type Forms = HashMap<&'static str, Vec<Form>>;

fn forms() -> &'static Forms {
    static FORMS: OnceLock<Forms> = OnceLock::new();
    FORMS.get_or_init(read)
}

fn read() -> Forms {
    let mut lists: HashMap<&'static str, (Count, Vec<&'static str>)> = HashMap::new();
    let mut forms = Forms::new();
    let lines = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        if first.starts_with('$') {
            let slot = slot(words.nth(1).unwrap_or(""), &lists);
            lists.insert(first, (slot.count, slot.choices));
            continue;
        }
        let mut form = Form { slots: Vec::new(), open: false };
        for word in words {
            match word {
                "any" => form.open = true,
                _ => form.slots.push(slot(word, &lists)),
            }
        }
        forms.entry(first).or_default().push(form);
    }
    forms
}

fn slot(word: &'static str, lists: &HashMap<&'static str, (Count, Vec<&'static str>)>) -> Slot {
    let (mut count, word) = match word.as_bytes().first() {
        Some(b'?') => (Count::Optional, &word[1..]),
        Some(b'*') => (Count::Any, &word[1..]),
        _ => (Count::One, word),
    };
    let mut choices = Vec::new();
    for choice in word.split('|') {
        match lists.get(choice) {
            Some((own_count, list)) => {
                choices.extend(list);
                if *own_count != Count::One {
                    count = *own_count;
                }
            }
            None => choices.push(choice),
        }
    }
    Slot { count, choices }
}

impl Slot {
    fn takes(&self, modifier: &str) -> bool {
        self.choices.iter().any(|choice| match choice.strip_suffix('~') {
            Some(start) => modifier.starts_with(start),
            None => *choice == modifier,
        })
    }
}

impl Form {
    /// Whether all modifiers find a slot, and all slots that need one a modifier.
    fn fits(&self, modifiers: &[&str]) -> bool {
        let mut left: Vec<&str> = modifiers.to_vec();
        for slot in &self.slots {
            if slot.count == Count::Any {
                left.retain(|modifier| !slot.takes(modifier));
                continue;
            }
            match left.iter().position(|modifier| slot.takes(modifier)) {
                Some(at) => {
                    left.remove(at);
                }
                None if slot.count == Count::One => return false,
                None => {}
            }
        }
        self.open || left.is_empty()
    }
}

/// What is wrong with an opcode; `None`: there is such a form.
fn problem(opcode: &str) -> Option<String> {
    let mut parts = opcode.split('.');
    let name = parts.next().unwrap_or("");
    let Some(known) = forms().get(name) else { return Some(format!("{name} is no instruction")) };
    let modifiers: Vec<&str> = parts.collect();
    if known.iter().any(|form| form.fits(&modifiers)) {
        return None;
    }
    // The first modifier that no form of the instruction has says most.
    let is_foreign = |modifier: &&&str| {
        !known.iter().any(|form| form.open || form.slots.iter().any(|slot| slot.takes(modifier)))
    };
    Some(match modifiers.iter().find(is_foreign) {
        Some(foreign) => format!("{opcode}: {name} does not take .{foreign}"),
        None => format!("{opcode}: {name} has no form with these modifiers"),
    })
}

/// Entries of the cache of opcodes that were found good.
const CACHE_ENTRIES: usize = 64;

/// Checks the forms of all instructions of a body.
pub(super) fn check(body: &Body<'_>) -> Result<(), ParseError> {
    let mut known = [""; CACHE_ENTRIES];
    for statement in &body.statements {
        let Statement::Instruction(instruction) = statement else { continue };
        let opcode = instruction.opcode;
        let entry = &mut known[place(opcode)];
        if *entry == opcode {
            continue;
        }
        if let Some(message) = problem(opcode) {
            let (line, column) = (instruction.line, instruction.column);
            return Err(ParseError { line, column, message });
        }
        *entry = opcode;
    }
    Ok(())
}

/// Where the cache keeps an opcode.
fn place(opcode: &str) -> usize {
    let hash = opcode.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31) ^ u32::from(byte));
    (hash ^ hash >> 8) as usize % CACHE_ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_belong_together_pass() {
        for opcode in [
            "add.s32",
            "add.sat.f32",
            "add.rn.ftz.sat.f32",
            "mul.wide.u16",
            "mad.lo.cc.u32",
            "setp.lt.and.s32",
            "setp.neu.ftz.f16x2",
            "vote.sync.ballot.b32",
            "vote.ballot.sync.b32",
            "atom.global.gpu.acq_rel.add.u32",
            "ld.global.nc.L1::no_allocate.L2::256B.v4.f32",
            "ld.param::entry.b32",
            "cvt.rn.satfinite.e4m3x2.f32",
            "cvt.u8.s64",
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32",
            "tex.2d.v4.f32.f32",
            "ret",
        ] {
            assert_eq!(problem(opcode), None);
        }
    }

    #[test]
    fn forms_that_do_not_are_told_apart() {
        for (opcode, message) in [
            ("add.f32.sat.wide", "add does not take .wide"),
            ("add.sat.u32", "add has no form"),
            ("add", "add has no form"),
            ("mul.s32", "mul has no form"),
            ("mul.wide.u64", "mul has no form"),
            ("fma.f32", "fma has no form"),
            ("div.f32", "div has no form"),
            ("setp.lo.s32", "setp has no form"),
            ("shl.u32", "shl does not take .u32"),
            ("and.s32", "and does not take .s32"),
            ("ld.global.f16", "ld does not take .f16"),
            ("atom.global.add.b32", "atom has no form"),
            ("cvt.rn.u32.u16", "cvt has no form"),
            ("frobnicate.u32", "frobnicate is no instruction"),
        ] {
            let found = problem(opcode).unwrap_or_else(|| panic!("{opcode} passes"));
            assert!(found.contains(message), "{found}");
        }
    }
}
