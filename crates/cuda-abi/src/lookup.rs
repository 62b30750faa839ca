//! Which symbol answers a `cuGetProcAddress` request.
//!
//! Pure data: callers turn the symbol into an address. The rules are those measured on real
//! drivers, which differ from the documentation where a version above the driver's is asked for
//! (the newest entry is given).

use crate::functions::FUNCTIONS;
use crate::generated;
use crate::lookup_index;
use crate::types::CUdriverProcAddressQueryResult;

/// The flag with which a program asks for the per-thread default stream variants.
pub const FLAG_PER_THREAD_DEFAULT_STREAM: u64 = 2;

/// A base name with the symbols that answer it, each from a CUDA version on.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// The name that programs ask for.
    pub name: &'static str,
    /// Version and symbol, ascending, for the legacy default stream.
    pub legacy: &'static [(u32, &'static str)],
    /// The same for the per-thread default stream.
    pub per_thread: &'static [(u32, &'static str)],
}

pub(crate) const fn name(
    name: &'static str,
    legacy: &'static [(u32, &'static str)],
    per_thread: &'static [(u32, &'static str)],
) -> Name {
    Name { name, legacy, per_thread }
}

/// All names that can be asked for, sorted.
pub static NAMES: &[Name] = generated::lookup::NAMES;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The function with this symbol.
    Symbol(&'static str),
    /// No function of that name.
    NotFound,
    /// The name exists, but only for programs of newer versions.
    VersionNotSufficient,
}

impl Answer {
    /// What `cuGetProcAddress_v2` stores as the request's status. The call itself succeeds in all
    /// three cases, with a NULL address in the last two; version 1 of the call instead returns
    /// CUDA_ERROR_NOT_FOUND for these and leaves the caller's pointer alone.
    pub fn status(self) -> CUdriverProcAddressQueryResult {
        match self {
            Answer::Symbol(_) => CUdriverProcAddressQueryResult::SUCCESS,
            Answer::NotFound => CUdriverProcAddressQueryResult::SYMBOL_NOT_FOUND,
            Answer::VersionNotSufficient => CUdriverProcAddressQueryResult::VERSION_NOT_SUFFICIENT,
        }
    }
}

/// As [`Answer`], with the function's position in [`FUNCTIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The function at this position.
    Function(usize),
    /// As [`Answer::NotFound`].
    NotFound,
    /// As [`Answer::VersionNotSufficient`].
    VersionNotSufficient,
}

impl Found {
    /// As [`Answer::status`].
    pub fn status(self) -> CUdriverProcAddressQueryResult {
        match self {
            Self::Function(_) => CUdriverProcAddressQueryResult::SUCCESS,
            Self::NotFound => CUdriverProcAddressQueryResult::SYMBOL_NOT_FOUND,
            Self::VersionNotSufficient => CUdriverProcAddressQueryResult::VERSION_NOT_SUFFICIENT,
        }
    }

    fn answer(self) -> Answer {
        match self {
            Self::Function(index) => Answer::Symbol(FUNCTIONS[index].symbol),
            Self::NotFound => Answer::NotFound,
            Self::VersionNotSufficient => Answer::VersionNotSufficient,
        }
    }
}

/// Answers a request for `name` by a program built for CUDA `version` (1000 * major + 10 * minor).
///
/// Versions count as unsigned: -1 asks for the newest. `driver_version` is the version that this
/// process is told; what came later does not exist for it. Of the flags only
/// [`FLAG_PER_THREAD_DEFAULT_STREAM`] means anything.
pub fn lookup(name: &[u8], version: i32, flags: u64, driver_version: u32) -> Answer {
    find(name, version, flags, driver_version).answer()
}

/// As [`lookup`], for who needs the function and not its symbol.
pub fn find(name: &[u8], version: i32, flags: u64, driver_version: u32) -> Found {
    let Some(position) = lookup_index::position(name) else { return Found::NotFound };
    let entry = &NAMES[position];
    let (symbols, first) = if flags & FLAG_PER_THREAD_DEFAULT_STREAM != 0 {
        (entry.per_thread, entry.legacy.len())
    } else {
        (entry.legacy, 0)
    };
    let limit = (version as u32).min(driver_version);
    match symbols.iter().rposition(|(since, _)| *since <= limit) {
        Some(symbol) => Found::Function(lookup_index::function(position, first + symbol)),
        // Ascending: the first one tells whether this driver has any.
        None if symbols.first().is_some_and(|(since, _)| *since <= driver_version) => {
            Found::VersionNotSufficient
        }
        None => Found::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const DRIVER: u32 = 13000;

    fn legacy(name: &str, version: i32) -> Answer {
        lookup(name.as_bytes(), version, 0, DRIVER)
    }

    fn per_thread(name: &str, version: i32) -> Answer {
        lookup(name.as_bytes(), version, 2, DRIVER)
    }

    #[test]
    fn answers_every_measured_version_of_every_name() {
        let text = include_str!("../../../tools/codegen/abi-map.json");
        let measured: BTreeMap<String, BTreeMap<String, Vec<(u32, String)>>> =
            serde_json::from_str(text).unwrap();
        let mut symbols = std::collections::BTreeSet::new();
        for (name, by_flag) in &measured {
            for (flag, versions) in by_flag {
                let flags: u64 = flag.parse().unwrap();
                let known: Vec<_> = versions.iter().filter(|(since, _)| *since <= DRIVER).collect();
                if known.is_empty() {
                    assert_eq!(lookup(name.as_bytes(), 20000, flags, DRIVER), Answer::NotFound);
                    continue;
                }
                for (i, (since, symbol)) in known.iter().enumerate() {
                    let before = lookup(name.as_bytes(), *since as i32 - 1, flags, DRIVER);
                    match i.checked_sub(1).map(|previous| &known[previous].1) {
                        None => assert_eq!(before, Answer::VersionNotSufficient, "{name}"),
                        Some(previous) => {
                            assert!(matches!(before, Answer::Symbol(s) if s == previous), "{name}");
                        }
                    }
                    let at = lookup(name.as_bytes(), *since as i32, flags, DRIVER);
                    assert!(matches!(at, Answer::Symbol(s) if s == symbol), "{name}: {at:?}");
                    symbols.insert(symbol.as_str());
                }
            }
        }
        let exported: Vec<_> = crate::functions::FUNCTIONS.iter().map(|f| f.symbol).collect();
        assert_eq!(symbols.into_iter().collect::<Vec<_>>(), exported);
    }

    #[test]
    fn unknown_and_empty_names_are_not_found() {
        for name in ["", "cuNothing", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cudbgApiInit"] {
            assert_eq!(legacy(name, 0), Answer::NotFound, "{name}");
            assert_eq!(legacy(name, 13000), Answer::NotFound, "{name}");
        }
        assert_eq!(lookup(b"cuInit\xff", 13000, 0, DRIVER), Answer::NotFound);
        assert_eq!(legacy("", 0).status().0, 1);
    }

    #[test]
    fn version_decides_between_old_and_new_symbols() {
        assert_eq!(legacy("cuGetProcAddress", 11030), Answer::Symbol("cuGetProcAddress"));
        assert_eq!(legacy("cuGetProcAddress", 12000), Answer::Symbol("cuGetProcAddress_v2"));
        assert_eq!(legacy("cuGetProcAddress", 11020), Answer::VersionNotSufficient);
        assert_eq!(legacy("cuGetProcAddress", 11020).status().0, 2);
        assert_eq!(legacy("cuMemAlloc", 0), Answer::VersionNotSufficient);
    }

    #[test]
    fn a_version_above_the_drivers_gives_the_newest() {
        assert_eq!(legacy("cuMemAlloc", 99999), Answer::Symbol("cuMemAlloc_v2"));
        assert_eq!(legacy("cuMemAlloc", -1), Answer::Symbol("cuMemAlloc_v2"));
    }

    #[test]
    fn what_an_older_driver_did_not_have_is_hidden() {
        assert_eq!(lookup(b"cuCtxGetDevice", 13000, 0, 12090), Answer::Symbol("cuCtxGetDevice"));
        assert_eq!(lookup(b"cuLibraryLoadData", 13000, 0, 11080), Answer::NotFound);
    }

    #[test]
    fn per_thread_variants_start_at_7000() {
        assert_eq!(per_thread("cuLaunchKernel", 7000), Answer::Symbol("cuLaunchKernel_ptsz"));
        assert_eq!(per_thread("cuLaunchKernel", 6050), Answer::VersionNotSufficient);
        assert_eq!(legacy("cuLaunchKernel", 6050), Answer::Symbol("cuLaunchKernel"));
        assert_eq!(per_thread("cuMemcpyHtoD", 9000), Answer::Symbol("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(per_thread("cuInit", 9000), Answer::Symbol("cuInit"));
        assert_eq!(lookup(b"cuInit", 9000, 1, DRIVER), legacy("cuInit", 9000));
    }
}
