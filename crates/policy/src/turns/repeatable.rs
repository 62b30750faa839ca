//! Which kernels a client has declared repeatable (`OPENMPS_REPEATABLE`): names with `*` for any
//! characters and `?` for one, commas between them.
//!
//! Names are those of the image, so a C++ kernel's is mangled, as the log and `openmps ps` print
//! it. Nothing is declared by default.

use link::wire::attach::RequestedLimits;
use serde::{Deserialize, Serialize};

/// Declarations of one client that count; more than a program would make by hand.
const MOST_PATTERNS: usize = 256;

/// The names that a client has declared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeatable(Vec<String>);

impl Repeatable {
    /// What a client's environment says.
    pub fn of(requested: &RequestedLimits) -> Self {
        requested.repeatable.as_deref().map_or_else(Self::default, Self::parse)
    }

    fn parse(text: &str) -> Self {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        Self(names.take(MOST_PATTERNS).map(str::to_owned).collect())
    }

    /// Whether no kernel is declared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a kernel of this name is declared.
    pub fn has(&self, kernel: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern.as_bytes(), kernel.as_bytes()))
    }
}

/// Whether a name is of a pattern; takes time in the order of the product of their lengths at most.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut here) = (0, 0);
    // Where the last `*` is, and from where on the name is behind it.
    let mut star: Option<(usize, usize)> = None;
    while here < name.len() {
        match (pattern.get(at), star) {
            (Some(b'*'), _) => {
                star = Some((at, here));
                at += 1;
            }
            (Some(&wanted), _) if wanted == b'?' || wanted == name[here] => {
                at += 1;
                here += 1;
            }
            (_, Some((place, from))) => {
                star = Some((place, from + 1));
                at = place + 1;
                here = from + 1;
            }
            _ => return false,
        }
    }
    pattern[at..].iter().all(|rest| *rest == b'*')
}

#[cfg(test)]
mod tests {
    use super::Repeatable;

    #[test]
    fn names_are_declared_whole_or_by_pattern() {
        let declared = Repeatable::parse(" gemm*, exact ,_Z?step*i,,");
        for kernel in ["gemm", "gemm_128", "exact", "_Z4stepPfi", "_Z4stepi"] {
            assert!(declared.has(kernel), "{kernel}");
        }
        for kernel in ["a_gemm", "exactly", "", "_Z4step", "_Zstepi", "_Z4stepP"] {
            assert!(!declared.has(kernel), "{kernel}");
        }
    }

    #[test]
    fn a_star_is_any_kernel_and_nothing_is_none() {
        assert!(Repeatable::parse("*").has("anything") && Repeatable::parse("**").has(""));
        for nothing in ["", " ", ",", " , "] {
            let declared = Repeatable::parse(nothing);
            assert!(declared.is_empty() && !declared.has("anything"));
        }
    }

    #[test]
    fn stars_find_what_is_behind_them() {
        let declared = Repeatable::parse("a*b*c");
        for (kernel, is_one) in [("abc", true), ("a_b_bc", true), ("abcb", false), ("acb", false)] {
            assert_eq!(declared.has(kernel), is_one, "{kernel}");
        }
        let many = "*a".repeat(40);
        assert!(!Repeatable::parse(&many).has(&"a".repeat(39)));
        assert!(Repeatable::parse(&many).has(&"a".repeat(4000)));
    }
}
