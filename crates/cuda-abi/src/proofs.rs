//! Where functions are proven: the programs in which a library answers them with success, and which
//! check their results.
//!
//! `tests/proofs.tsv` has a line `LIBRARY<TAB>SYMBOL<TAB>PROGRAM PROGRAM...` for each function that
//! has a proof; `tests/unproven.tsv` a line `LIBRARY<TAB>SYMBOL<TAB>REASON` for each that has none.
//! `cargo xtask test` makes sure that the programs still call what the first says
//! ([`record`](crate::record)), and that nothing is on neither list.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::classes::Library;
use crate::functions::{self, FUNCTIONS, Function};

/// A function in a library.
pub type Key = (Library, &'static str);

/// The two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proofs {
    /// Programs by function, best first.
    pub programs: BTreeMap<Key, Vec<String>>,
    /// Why a function has no proof.
    pub reasons: BTreeMap<Key, String>,
}

/// A line that is not understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{line:?}: {what}")]
pub struct ProofsError {
    line: String,
    what: &'static str,
}

impl Proofs {
    /// Parses the text of both files.
    ///
    /// # Errors
    /// A line that is not understood, a function that is named twice.
    pub fn parse(proofs: &str, unproven: &str) -> Result<Self, ProofsError> {
        let mut parsed = Self::default();
        for (line, key, rest) in rows(proofs)? {
            let programs = rest.split_whitespace().map(str::to_owned).collect();
            if parsed.programs.insert(key, programs).is_some() {
                return Err(error(line, "the function is listed twice"));
            }
        }
        for (line, key, rest) in rows(unproven)? {
            if parsed.reasons.insert(key, rest.to_owned()).is_some() {
                return Err(error(line, "the function is listed twice"));
            }
            if parsed.programs.contains_key(&key) {
                return Err(error(line, "the function has a proof: take it off the list"));
            }
        }
        Ok(parsed)
    }

    /// The text of `proofs.tsv`.
    pub fn render(&self) -> String {
        let mut out = String::from("# Written by `cargo xtask proofs --update`; do not edit.\n");
        for ((library, symbol), programs) in &self.programs {
            _ = writeln!(out, "{}\t{symbol}\t{}", library.name(), programs.join(" "));
        }
        out
    }

    /// Programs that prove a function, best first.
    pub fn programs(&self, library: Library, function: &Function) -> &[String] {
        self.programs.get(&(library, function.symbol)).map_or(&[], Vec::as_slice)
    }

    /// Why nothing proves it, if that is so and the reason is known.
    pub fn reason(&self, library: Library, function: &Function) -> Option<&str> {
        self.reasons.get(&(library, function.symbol)).map(String::as_str)
    }
}

/// The function of a symbol, for a list's key.
pub fn key(library: Library, symbol: &str) -> Option<Key> {
    Some((library, FUNCTIONS[functions::index_of(symbol)?].symbol))
}

fn rows(text: &str) -> Result<Vec<(&str, Key, &str)>, ProofsError> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut fields = line.splitn(3, '\t');
            let (library, symbol, rest) = (fields.next(), fields.next(), fields.next());
            let library = Library::ALL.into_iter().find(|found| Some(found.name()) == library);
            let library = library.ok_or_else(|| error(line, "no library has this name"))?;
            let key = symbol.and_then(|symbol| key(library, symbol));
            let key = key.ok_or_else(|| error(line, "no function has this name"))?;
            let rest = rest.map(str::trim).filter(|rest| !rest.is_empty());
            Ok((line, key, rest.ok_or_else(|| error(line, "the third field is empty"))?))
        })
        .collect()
}

fn error(line: &str, what: &'static str) -> ProofsError {
    ProofsError { line: line.to_owned(), what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let text = "client\tcuInit\ta b\nsoftcuda\tcuInit\tc\n";
        let proofs = Proofs::parse(text, "client\tcuMemAlloc_v2\ttakes two machines\n").unwrap();
        let init = &FUNCTIONS[functions::index_of("cuInit").unwrap()];
        assert_eq!(proofs.programs(Library::Client, init), ["a", "b"]);
        assert_eq!(proofs.reason(Library::Client, init), None);
        assert!(proofs.render().ends_with(text), "{}", proofs.render());
        assert_eq!(Proofs::parse(&proofs.render(), "").unwrap().programs, proofs.programs);
    }

    #[test]
    fn wrong_lines_are_named() {
        let what = |proofs, unproven| Proofs::parse(proofs, unproven).unwrap_err().what;
        assert_eq!(what("server\tcuInit\ta", ""), "no library has this name");
        assert_eq!(what("client\tcuInnit\ta", ""), "no function has this name");
        assert_eq!(what("client\tcuInit\t", ""), "the third field is empty");
        assert_eq!(
            what("client\tcuInit\ta", "client\tcuInit\tb"),
            "the function has a proof: take it off the list"
        );
    }
}
