//! Trust domains: which clients share an executor. Clients of one domain share a context, and with
//! it one address space on the device; a kernel of another domain reaches none of it, and the
//! driver slices time between the two.
//!
//! Who may be together is the administrator's to say ([`Grouping`]); a client may only ask to be
//! further apart, by a name of its own.

pub use settings::Grouping;
use std::collections::BTreeMap;

/// Number of a domain in its server; never used again for other clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(pub u32);

/// Where clients are that nothing sets apart.
pub const SHARED: Domain = Domain(0);

/// Longest name that a client may give.
pub const LONGEST_NAME: usize = 64;

/// What puts clients into one domain: all of it must be the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The control group or the process, where those are apart.
    pub group: Option<String>,
    /// The name that the client asked for, and its user: names are not shared between users.
    pub named: Option<(u32, String)>,
}

impl Key {
    /// For people: the name, else the group.
    pub fn label(&self) -> String {
        let group = self.group.as_deref();
        match (&self.named, group) {
            (Some((_, name)), None) => name.clone(),
            (Some((_, name)), Some(group)) => format!("{name}@{group}"),
            (None, group) => group.unwrap_or_default().to_owned(),
        }
    }
}

/// Checks the name that a client asks for; an empty one is none.
///
/// # Errors
/// What is wrong with it.
pub fn checked_name(wanted: Option<&str>) -> Result<Option<String>, String> {
    let Some(name) = wanted.map(str::trim).filter(|name| !name.is_empty()) else { return Ok(None) };
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.len() > LONGEST_NAME || !name.chars().all(fine) {
        return Err(format!(
            "a name of isolation has up to {LONGEST_NAME} letters, digits, '.', '_' and '-'"
        ));
    }
    Ok(Some(name.to_owned()))
}

/// The domains of a server.
#[derive(Debug, Default)]
pub struct Domains {
    known: BTreeMap<Key, Domain>,
    last: u32,
}

impl Domains {
    /// The domain of a key, made if it is new.
    pub fn find(&mut self, key: Key) -> Domain {
        if key == Key::default() {
            return SHARED;
        }
        *self.known.entry(key).or_insert_with(|| {
            self.last += 1;
            Domain(self.last)
        })
    }

    /// For people; empty for [`SHARED`].
    pub fn label(&self, domain: Domain) -> String {
        let found = self.known.iter().find(|(_, known)| **known == domain);
        found.map(|(key, _)| key.label()).unwrap_or_default()
    }

    /// Forgets a domain that nobody is in.
    pub fn forget(&mut self, domain: Domain) {
        self.known.retain(|_, known| *known != domain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(uid: u32, name: &str, group: Option<&str>) -> Key {
        Key { group: group.map(str::to_owned), named: Some((uid, name.to_owned())) }
    }

    #[test]
    fn only_what_is_the_same_in_all_is_together() {
        let mut domains = Domains::default();
        assert_eq!(domains.find(Key::default()), SHARED);
        let one = domains.find(named(1, "a", None));
        assert_eq!(domains.find(named(1, "a", None)), one);
        for other in [named(2, "a", None), named(1, "b", None), named(1, "a", Some("/x"))] {
            assert_ne!(domains.find(other), one);
        }
        assert_eq!(domains.label(one), "a");
        assert_eq!(domains.label(SHARED), "");
        domains.forget(one);
        assert_ne!(domains.find(named(1, "a", None)), one, "numbers are not used again");
    }

    #[test]
    fn names_are_short_and_plain() {
        assert_eq!(checked_name(None), Ok(None));
        assert_eq!(checked_name(Some(" ")), Ok(None));
        assert_eq!(checked_name(Some("job-1.a_B")), Ok(Some("job-1.a_B".to_owned())));
        for wrong in ["a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(checked_name(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
