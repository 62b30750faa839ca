//! An opcode split into its name and its set of modifiers.

use crate::ptx::Type;

/// `ld.global.v4.u32`: name `ld`, modifiers `global`, `v4`, `u32` in order.
pub(super) struct Opcode<'a> {
    pub(super) name: &'a str,
    pub(super) modifiers: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    pub(super) fn split(text: &'a str) -> Self {
        let mut parts = text.split('.');
        let name = parts.next().unwrap_or("");
        Self { name, modifiers: parts.collect() }
    }

    /// Whether `modifier` is there, as a whole or before `::` (`shared` covers `shared::cta`).
    pub(super) fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| *m == modifier || m.split("::").next() == Some(modifier))
    }

    /// Whether exactly `modifier` is there.
    pub(super) fn has_exactly(&self, modifier: &str) -> bool {
        self.modifiers.contains(&modifier)
    }

    /// The first of `list` that is there.
    pub(super) fn one_of<'b>(&self, list: &[&'b str]) -> Option<&'b str> {
        list.iter().copied().find(|m| self.has_exactly(m))
    }

    /// The types among the modifiers, in order.
    pub(super) fn types(&self) -> Vec<Type> {
        self.modifiers.iter().filter_map(|m| Type::from_suffix(m)).collect()
    }

    /// The last type.
    pub(super) fn ty(&self) -> Option<Type> {
        self.modifiers.iter().rev().find_map(|m| Type::from_suffix(m))
    }

    /// Vector length: 1 without `.v2`, `.v4`, `.v8`.
    pub(super) fn vector(&self) -> usize {
        match self.one_of(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }
}
