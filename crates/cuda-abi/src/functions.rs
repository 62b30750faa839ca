//! The functions of the driver API as data: one entry per exported symbol.
//!
//! Old ABI versions (`cuMemAlloc` beside `cuMemAlloc_v2`) and the per-thread default stream
//! variants (`_ptsz`, `_ptds`) are symbols of their own, as in the original library. Source: the
//! CUDA 13.0 headers and the table of versions measured on real drivers (`tools/codegen`). For code
//! that is expanded per function use [`for_each_function`](crate::for_each_function).

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::generated;

/// Which stream a NULL stream handle means to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DefaultStream {
    /// The legacy stream, which synchronises with all blocking streams of its context.
    Legacy,
    /// The calling thread's own stream (symbols that end in `_ptsz` or `_ptds`).
    PerThread,
}

/// One parameter of a prototype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The name of the parameter.
    pub name: &'static str,
    /// Its Rust type, spelled for a place that imports `cuda_abi::types::*`.
    pub ty: &'static str,
}

/// One exported function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The exported symbol, `cuMemcpyHtoD_v2_ptds`.
    pub symbol: &'static str,
    /// The name by which `cuGetProcAddress` knows it, `cuMemcpyHtoD`.
    pub base_name: &'static str,
    /// The lowest CUDA version (1000 * major + 10 * minor) whose programs are given this symbol.
    pub since: u32,
    /// What a NULL stream means to it.
    pub default_stream: DefaultStream,
    /// Its parameters. Every function returns a `CUresult`.
    pub parameters: &'static [Parameter],
}

impl Function {
    /// The parameter list as Rust source: `name: Type, name: Type`.
    pub fn prototype(&self) -> String {
        let parts: Vec<_> =
            self.parameters.iter().map(|p| format!("{}: {}", p.name, p.ty)).collect();
        parts.join(", ")
    }

    /// The symbol of the same function with the legacy default stream, if this is a per-thread
    /// variant: `cuMemcpyHtoD_v2` for `cuMemcpyHtoD_v2_ptds`.
    pub fn legacy_symbol(&self) -> Option<&'static str> {
        match self.default_stream {
            DefaultStream::Legacy => None,
            DefaultStream::PerThread => {
                self.symbol.strip_suffix("_ptsz").or_else(|| self.symbol.strip_suffix("_ptds"))
            }
        }
    }
}

/// All functions of CUDA 13.0, sorted by symbol. A function's position is its index everywhere.
pub static FUNCTIONS: &[Function] = generated::functions::FUNCTIONS;

/// How many functions there are.
pub const FUNCTION_COUNT: usize = FUNCTIONS.len();

/// The position of a symbol in [`FUNCTIONS`].
pub fn index_of(symbol: &str) -> Option<usize> {
    FUNCTIONS.binary_search_by(|f| f.symbol.cmp(symbol)).ok()
}

/// A number of each function of [`FUNCTIONS`] that is the same in every build, whatever other
/// functions a build has: a digest of its symbol (FNV-1a).
pub static FUNCTION_NUMBERS: [u32; FUNCTION_COUNT] = {
    let mut numbers = [0; FUNCTION_COUNT];
    let mut index = 0;
    while index < FUNCTION_COUNT {
        numbers[index] = number_of(FUNCTIONS[index].symbol.as_bytes());
        index += 1;
    }
    numbers
};

const fn number_of(symbol: &[u8]) -> u32 {
    let mut number = 0x811c_9dc5_u32;
    let mut at = 0;
    while at < symbol.len() {
        number = (number ^ symbol[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    number
}

/// The symbol of a number of [`FUNCTION_NUMBERS`].
pub fn symbol_of_number(number: u32) -> Option<&'static str> {
    static SYMBOLS: LazyLock<HashMap<u32, &'static str>> = LazyLock::new(|| {
        FUNCTION_NUMBERS.iter().copied().zip(FUNCTIONS.iter().map(|f| f.symbol)).collect()
    });
    SYMBOLS.get(&number).copied()
}

pub(crate) const fn function(
    symbol: &'static str,
    base_name: &'static str,
    since: u32,
    default_stream: DefaultStream,
    parameters: &'static [Parameter],
) -> Function {
    Function { symbol, base_name, since, default_stream, parameters }
}

pub(crate) const fn parameter(name: &'static str, ty: &'static str) -> Parameter {
    Parameter { name, ty }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_671_symbols_are_there_sorted_and_found() {
        assert_eq!(FUNCTIONS.len(), 671);
        assert!(FUNCTIONS.is_sorted_by(|a, b| a.symbol < b.symbol));
        for (i, f) in FUNCTIONS.iter().enumerate() {
            assert_eq!(index_of(f.symbol), Some(i));
        }
        assert_eq!(index_of("cuNothing"), None);
    }

    #[test]
    fn numbers_stay_and_tell_functions_apart() {
        assert_eq!(FUNCTION_NUMBERS[index_of("cuInit").unwrap()], 0xd889_6ef3);
        for (number, function) in FUNCTION_NUMBERS.iter().zip(FUNCTIONS) {
            assert_eq!(symbol_of_number(*number), Some(function.symbol));
        }
        assert_eq!(symbol_of_number(0), None);
    }

    #[test]
    fn per_thread_variants_have_a_legacy_twin_with_the_same_prototype() {
        let variants: Vec<_> =
            FUNCTIONS.iter().filter(|f| f.default_stream == DefaultStream::PerThread).collect();
        assert!(variants.len() > 80, "{} variants", variants.len());
        for f in variants {
            let twin = index_of(f.legacy_symbol().unwrap());
            let twin = &FUNCTIONS[twin.unwrap_or_else(|| panic!("{} has no twin", f.symbol))];
            let types = |f: &Function| f.parameters.iter().map(|p| p.ty).collect::<Vec<_>>();
            assert_eq!(types(f), types(twin), "{}", f.symbol);
        }
    }

    #[test]
    fn macro_and_data_agree() {
        macro_rules! names {
            ($(fn $name:ident($($p:ident: $t:ty),*) -> CUresult;)*) => {
                [$((stringify!($name), <[&str]>::len(&[$(stringify!($p)),*]))),*]
            };
        }
        let listed = for_each_function!(names);
        assert_eq!(listed.len(), FUNCTIONS.len());
        for ((name, parameter_count), f) in listed.iter().zip(FUNCTIONS) {
            assert_eq!(*name, f.symbol);
            assert_eq!(*parameter_count, f.parameters.len());
        }
    }
}
