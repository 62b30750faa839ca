//! Addresses of variables that a client has, and that it goes on using in another context, where
//! the variables lie elsewhere.
//!
//! That is only done for variables whose owner is known to do no more than copy there
//! ([`are_copied_to`]). In copies and fills an address is told from other numbers, so it is
//! replaced. In parameters of kernels it is replaced where an aligned word is one. A kernel that
//! has it could store it, so the session then stays.

use std::collections::BTreeMap;

/// Variables of libraries that ask where their own variable is in order to copy there. They were
/// observed to give the address to no kernel and to write it nowhere. The names are reserved:
/// programs may not define anything in these namespaces.
const COPIED_TO: [&[u8]; 1] = [b"_ZN6cublas8internal15deviceConstantsE"];

/// Whether a variable's owner is known to only copy to it.
pub fn are_copied_to(name: &[u8]) -> bool {
    COPIED_TO.contains(&name)
}

/// Where variables are whose addresses the client was told.
#[derive(Debug, Default)]
pub struct FollowedAddresses {
    /// By the first address as it was told.
    variables: BTreeMap<u64, Variable>,
    /// No told address lies before this one, or at the end or behind it.
    first: u64,
    end: u64,
}

#[derive(Clone, Copy, Debug)]
struct Variable {
    size_bytes: u64,
    /// Its first address in this context.
    present: u64,
}

impl FollowedAddresses {
    /// Adds a variable; false, and nothing added, if what was told overlaps another's.
    #[must_use]
    pub fn insert(&mut self, told: u64, size_bytes: u64, present: u64) -> bool {
        if size_bytes == 0 || told.checked_add(size_bytes).is_none() || self.meet(told, size_bytes)
        {
            return false;
        }
        self.variables.insert(told, Variable { size_bytes, present });
        self.note_bounds();
        true
    }

    /// Forgets the variable that was told to be here.
    pub fn remove(&mut self, told: u64) {
        if self.variables.remove(&told).is_some() {
            self.note_bounds();
        }
    }

    fn note_bounds(&mut self) {
        self.first = self.variables.keys().next().copied().unwrap_or_default();
        let last = self.variables.last_key_value();
        self.end = last.map_or(0, |(told, variable)| told + variable.size_bytes);
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty()
    }

    /// Whether a range has an address that was told.
    pub fn meet(&self, at: u64, size_bytes: u64) -> bool {
        let end = at.saturating_add(size_bytes);
        let before = self.variables.range(..end).next_back();
        before.is_some_and(|(told, variable)| told + variable.size_bytes > at)
    }

    /// Where a range is in this context, of which the client has the address; `None` for one that
    /// is partly in such a variable, since what adjoined need not adjoin here.
    pub fn present(&self, at: u64, size_bytes: u64) -> Option<u64> {
        if at >= self.end || !self.meet(at, size_bytes.max(1)) {
            return Some(at);
        }
        let (told, variable) = self.variable_at(at)?;
        let offset = at - told;
        (size_bytes <= variable.size_bytes - offset).then_some(variable.present + offset)
    }

    /// Where the variable that was told to be here begins in this context.
    pub fn present_start(&self, told: u64) -> Option<u64> {
        self.variables.get(&told).map(|variable| variable.present)
    }

    /// First addresses, as they were told, of the variables that the aligned words of a kernel's
    /// parameters could name.
    pub fn named_by(&self, parameters: &[u8]) -> impl Iterator<Item = u64> {
        let words = parameters.as_chunks::<8>().0.iter();
        words.filter_map(|word| self.variable_of(word)).map(|(told, _)| told)
    }

    /// Whether they could name any.
    #[cold]
    pub fn are_named_by(&self, parameters: &[u8]) -> bool {
        self.named_by(parameters).next().is_some()
    }

    /// Parameters with the addresses of this context, where they have others.
    pub fn replaced(&self, parameters: &[u8]) -> Option<Vec<u8>> {
        let mut replaced = None;
        for (place, word) in parameters.as_chunks::<8>().0.iter().enumerate() {
            let Some((told, variable)) = self.variable_of(word) else { continue };
            if variable.present != told {
                let address = variable.present + (u64::from_ne_bytes(*word) - told);
                let bytes: &mut Vec<u8> = replaced.get_or_insert_with(|| parameters.to_vec());
                bytes[8 * place..][..8].copy_from_slice(&address.to_ne_bytes());
            }
        }
        replaced
    }

    fn variable_of(&self, word: &[u8; 8]) -> Option<(u64, Variable)> {
        let address = u64::from_ne_bytes(*word);
        (self.first..self.end).contains(&address).then(|| self.variable_at(address))?
    }

    fn variable_at(&self, at: u64) -> Option<(u64, Variable)> {
        let (&told, &variable) = self.variables.range(..=at).next_back()?;
        (at - told < variable.size_bytes).then_some((told, variable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: u64 = 0x7f00_0000_1000;
    const PRESENT: u64 = 0x7e00_0000_2000;

    fn followed() -> FollowedAddresses {
        let mut followed = FollowedAddresses::default();
        assert!(followed.insert(TOLD, 16, PRESENT));
        assert!(followed.insert(TOLD + 32, 8, TOLD + 32));
        followed
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn ranges_of_a_variable_are_where_it_is_now() {
        let followed = followed();
        assert_eq!(followed.present(TOLD, 16), Some(PRESENT));
        assert_eq!(followed.present(TOLD + 12, 4), Some(PRESENT + 12));
        assert_eq!(followed.present(TOLD + 32, 8), Some(TOLD + 32));
    }

    #[test]
    fn other_ranges_are_where_they_were() {
        let followed = followed();
        for (at, size_bytes) in [(TOLD - 8, 8), (TOLD + 16, 16), (TOLD + 40, 100), (0, 1)] {
            assert_eq!(followed.present(at, size_bytes), Some(at), "{at:#x}");
        }
        assert_eq!(FollowedAddresses::default().present(TOLD, 16), Some(TOLD));
    }

    #[test]
    fn ranges_that_are_partly_in_a_variable_are_nowhere() {
        let followed = followed();
        for (at, size_bytes) in [(TOLD - 8, 16), (TOLD + 8, 9), (TOLD - 8, 100), (TOLD, 32)] {
            assert_eq!(followed.present(at, size_bytes), None, "{at:#x} {size_bytes}");
        }
    }

    #[test]
    fn aligned_words_of_parameters_are_replaced() {
        let followed = followed();
        let given = words(&[7, TOLD + 8, TOLD + 16, TOLD + 32]);
        assert!(followed.named_by(&given).eq([TOLD, TOLD + 32]));
        assert!(followed.are_named_by(&given));
        let replaced = words(&[7, PRESENT + 8, TOLD + 16, TOLD + 32]);
        assert_eq!(followed.replaced(&given), Some(replaced));
        let others = words(&[TOLD - 1, TOLD + 16, 0, u64::MAX]);
        assert!(!followed.are_named_by(&others));
        assert_eq!(followed.replaced(&others), None);
        let same = words(&[TOLD + 32]);
        assert_eq!(followed.replaced(&same), None, "it is where it was");
        assert_eq!(followed.replaced(&given[..7]), None, "half a word");
    }

    #[test]
    fn what_was_told_is_told_once() {
        let mut followed = followed();
        for (told, size_bytes) in [(TOLD, 16), (TOLD + 15, 1), (TOLD - 8, 9), (u64::MAX, 8)] {
            assert!(!followed.insert(told, size_bytes, 0), "{told:#x}");
        }
        assert!(!followed.insert(TOLD + 64, 0, 0));
        followed.remove(TOLD);
        assert_eq!(followed.present(TOLD, 16), Some(TOLD));
        assert!(followed.insert(TOLD, 16, TOLD));
        followed.remove(TOLD);
        followed.remove(TOLD + 32);
        assert!(followed.is_empty());
    }

    #[test]
    fn only_variables_of_libraries_are_followed() {
        assert!(are_copied_to(b"_ZN6cublas8internal15deviceConstantsE"));
        assert!(!are_copied_to(b"deviceConstants") && !are_copied_to(b""));
    }
}
