//! Which functions a library implements and how: the `functions.tsv` beside its manifest.
//!
//! One line per function: `symbol<TAB>class`, optionally a third column with a remark for
//! COMPATIBILITY.md. Empty lines and lines that begin with `#` are skipped. A function that is not
//! listed is absent: exported all the same, it returns `CUDA_ERROR_NOT_SUPPORTED`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::functions::{self, DefaultStream, FUNCTIONS, Function};

/// The two libraries that programs load as CUDA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// The client runtime, `libcuda.so.1`.
    Client,
    /// The software GPU, `libsoftcuda.so`.
    Software,
}

impl Library {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Client, Self::Software];

    /// The word for it in tables and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Software => "softcuda",
        }
    }
}

/// How a library answers a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Client: answered within the process.
    Local,
    /// Client: goes into the ring, no answer.
    Posted,
    /// Client: waits for the server's answer.
    Called,
    /// Software GPU: implemented.
    Implemented,
}

impl Class {
    /// The word in `functions.tsv`.
    pub fn word(self) -> &'static str {
        match self {
            Class::Local => "local",
            Class::Posted => "posted",
            Class::Called => "called",
            Class::Implemented => "implemented",
        }
    }

    fn parse(library: Library, word: &str) -> Option<Class> {
        let allowed: &[Class] = match library {
            Library::Client => &[Class::Local, Class::Posted, Class::Called],
            Library::Software => &[Class::Implemented],
        };
        allowed.iter().copied().find(|class| class.word() == word)
    }
}

/// Why a `functions.tsv` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClassesError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("functions.tsv line {line}: {what}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// A function's line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    class: Class,
    remark: String,
}

/// The contents of a `functions.tsv`.
#[derive(Clone, Debug)]
pub struct Classes {
    library: Library,
    listed: BTreeMap<&'static str, Listed>,
}

/// How a function is reached in a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It has an implementation of its own.
    Own(Class),
    /// It is a per-thread variant that calls this legacy symbol, with a NULL stream replaced by
    /// `CU_STREAM_PER_THREAD` or, where there is no stream to replace, with
    /// [`default_stream`](crate::boundary::default_stream) set.
    PerThreadOf(&'static str, Class),
    /// It is absent.
    Absent,
}

impl Classes {
    /// Reads a `functions.tsv`.
    pub fn read(library: Library, path: &Path) -> Result<Self, ClassesError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ClassesError::Read { path: path.to_owned(), source })?;
        Self::parse(library, &text)
    }

    /// Parses the text of a `functions.tsv`.
    pub fn parse(library: Library, text: &str) -> Result<Self, ClassesError> {
        let mut listed = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let wrong = |what: String| ClassesError::Line { line: number + 1, what };
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let mut columns = line.split('\t');
            let symbol = columns.next().unwrap_or_default();
            let word = columns.next().unwrap_or_default().trim_end();
            let remark = columns.next().unwrap_or_default().trim().to_owned();
            let index = functions::index_of(symbol)
                .ok_or_else(|| wrong(format!("no function is called {symbol:?}")))?;
            let class = Class::parse(library, word)
                .ok_or_else(|| wrong(format!("{word:?} is no class of this library")))?;
            let symbol = FUNCTIONS[index].symbol;
            if listed.insert(symbol, Listed { class, remark }).is_some() {
                return Err(wrong(format!("{symbol} is listed twice")));
            }
        }
        Ok(Self { library, listed })
    }

    /// Whose list this is.
    pub fn library(&self) -> Library {
        self.library
    }

    /// How `function` is reached.
    pub fn route(&self, function: &Function) -> Route {
        if let Some(own) = self.listed.get(function.symbol) {
            return Route::Own(own.class);
        }
        let twin = function.legacy_symbol();
        match twin.and_then(|twin| Some((twin, self.listed.get(twin)?.class))) {
            Some((twin, class)) => Route::PerThreadOf(twin, class),
            None => Route::Absent,
        }
    }

    /// The remark on a function's line, or an empty string.
    pub fn remark(&self, function: &Function) -> &str {
        let line = self.listed.get(function.symbol);
        let line = line.or_else(|| match function.default_stream {
            DefaultStream::PerThread => self.listed.get(function.legacy_symbol()?),
            DefaultStream::Legacy => None,
        });
        line.map_or("", |listed| &listed.remark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(symbol: &str) -> &'static Function {
        &FUNCTIONS[functions::index_of(symbol).unwrap()]
    }

    #[test]
    fn routes_follow_the_list() {
        let text = "# a comment\n\ncuInit\tlocal\ncuLaunchKernel\tposted\tno clusters\n\
                    cuMemcpyHtoD_v2\tcalled\ncuMemcpy\tcalled\ncuMemcpy_ptds\tcalled\n";
        let classes = Classes::parse(Library::Client, text).unwrap();
        let route = |symbol| classes.route(function(symbol));
        assert_eq!(route("cuInit"), Route::Own(Class::Local));
        assert_eq!(
            route("cuLaunchKernel_ptsz"),
            Route::PerThreadOf("cuLaunchKernel", Class::Posted)
        );
        assert_eq!(classes.remark(function("cuLaunchKernel_ptsz")), "no clusters");
        assert_eq!(route("cuMemcpy_ptds"), Route::Own(Class::Called));
        assert_eq!(
            route("cuMemcpyHtoD_v2_ptds"),
            Route::PerThreadOf("cuMemcpyHtoD_v2", Class::Called)
        );
        assert_eq!(route("cuMemcpyDtoH_v2_ptds"), Route::Absent);
        assert_eq!(route("cuMemAlloc_v2"), Route::Absent);
    }

    #[test]
    fn wrong_lines_are_named() {
        let error = |text| Classes::parse(Library::Software, text).unwrap_err().to_string();
        assert_eq!(
            error("cuInit\timplemented\ncuInnit\timplemented"),
            "functions.tsv line 2: no function is called \"cuInnit\""
        );
        assert_eq!(
            error("cuInit\tposted"),
            "functions.tsv line 1: \"posted\" is no class of this library"
        );
        assert_eq!(
            error("cuInit\timplemented\ncuInit\timplemented"),
            "functions.tsv line 2: cuInit is listed twice"
        );
        assert!(error("cuInit").contains("\"\" is no class"));
    }
}
