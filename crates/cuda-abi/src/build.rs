//! Emits the exported functions of a driver library, from the build script of its crate.
//!
//! # Use
//! The crate lists what it has in `functions.tsv` (see [`classes`](crate::classes)), depends on
//! cuda-abi both normally and as a build dependency, and has
//!
//! ```text
//! // build.rs
//! fn main() {
//!     cuda_abi::build::emit(cuda_abi::classes::Library::Software);
//! }
//! // lib.rs
//! include!(concat!(env!("OUT_DIR"), "/exports.rs"));
//! ```
//!
//! which defines `pub(crate) mod exports` with all functions of the API. It expects of the crate:
//! - for each listed symbol a function of that name and prototype, `unsafe fn` or `fn`, returning
//!   `CUresult`: `crate::api::<symbol>` in the software GPU, `crate::entry::<symbol>` in the
//!   client. A panic in it becomes `CUDA_ERROR_UNKNOWN`.
//! - `crate::answered(index: usize, result: CUresult) -> CUresult`, which passes on what the
//!   function at a position of [`FUNCTIONS`] answers: see [`record`](crate::record).
//! - `crate::absent(index: usize)`, called when a program calls a function that is not listed, with
//!   its position in [`FUNCTIONS`]; the program gets `CUDA_ERROR_NOT_SUPPORTED`.
//!   [`AbsentCalls`](crate::boundary::AbsentCalls) counts them.
//!
//! and gives it
//! - `exports::address(index)`: the address of the exported function at a position of
//!   [`FUNCTIONS`], the one that `dlsym` gives, for `cuGetProcAddress`;
//! - in the client also `exports::attach()`, `exports::pass_through(&DriverTable)` and
//!   `exports::detach()`, below.
//!
//! # Per-thread default stream
//! A `_ptsz` or `_ptds` variant that is not listed calls its legacy twin (`cuLaunchKernel` for
//! `cuLaunchKernel_ptsz`), so that an implementation written once serves both:
//! - where there are streams to replace, `CU_STREAM_PER_THREAD` replaces NULL: in every stream
//!   parameter, and in the launch configuration of `cuLaunchKernelEx`;
//! - elsewhere (synchronous copies and fills) [`default_stream`](crate::boundary::default_stream)
//!   is per-thread during the call. An implementation that does not ask works in the legacy stream,
//!   which waits for the per-thread streams and holds them back: the same results, less overlap.
//!
//! # The client's jump table
//! Every client function loads a pointer from its slot and jumps. Slots hold, one after another:
//! 1. until the choice is made, an entry that returns `CUDA_ERROR_NOT_INITIALIZED` as an
//!    uninitialised driver does, except for [`ALWAYS`], which call `crate::entry`;
//! 2. after `attach()`, the `crate::entry` functions, or the absent ones; after
//!    `attach_recorded()`, the same, each within `crate::recorder::call(index, ..)`;
//! 3. after `pass_through(&table)` instead, the native driver's own functions, so that a call costs
//!    one indirect jump more than without the client.
//!
//! `detach()` goes back to 1. It only stores to atomics, so the handler of a fork may call it: the
//! child then sees an uninitialised driver.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::classes::{Classes, ClassesError, Library, Route};
use crate::functions::{FUNCTIONS, Function};

/// Functions that a driver answers before `cuInit`; the client must list them all.
pub const ALWAYS: [&str; 7] = [
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetExportTable",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuInit",
];

/// Why the exports could not be written.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The list of functions is unusable.
    #[error(transparent)]
    Classes(#[from] ClassesError),
    /// A function that must be there before `cuInit` is not listed.
    #[error("functions.tsv must list {0}: programs call it before cuInit")]
    NotListed(&'static str),
    /// Not called from a build script.
    #[error("{0} is not set: call this from a build script")]
    NoBuildScript(&'static str),
    /// The output cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Writes `$OUT_DIR/exports.rs` from `functions.tsv` in the crate's directory. A failure ends the
/// build with its reason.
pub fn emit(library: Library) {
    println!("cargo::rerun-if-changed=functions.tsv");
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(error) = try_emit(library) {
        println!("cargo::error={error}");
    }
}

fn try_emit(library: Library) -> Result<(), BuildError> {
    let directory = |name| std::env::var_os(name).ok_or(BuildError::NoBuildScript(name));
    let list = Path::new(&directory("CARGO_MANIFEST_DIR")?).join("functions.tsv");
    let path = Path::new(&directory("OUT_DIR")?).join("exports.rs");
    let text = render(&Classes::read(library, &list)?)?;
    std::fs::write(&path, text).map_err(|source| BuildError::Write { path, source })
}

/// The text of `exports.rs`.
pub fn render(classes: &Classes) -> Result<String, BuildError> {
    let mut out = String::new();
    out.push_str(HEAD);
    match classes.library() {
        Library::Software => software(&mut out, classes),
        Library::Client => client(&mut out, classes)?,
    }
    addresses(&mut out, "EXPORTED", "super::exports::");
    out.push_str(ADDRESS);
    out.push_str("}\n");
    Ok(out)
}

const HEAD: &str = "\
// Written by cuda_abi::build from functions.tsv.
/// The exported functions of the driver API.
// Undocumented unsafe: each block passes the caller's own arguments on, and its safety is the
// caller's to keep, as the API says; or reads a slot, see `slot`.
#[allow(non_snake_case, dead_code, unused_unsafe, unused_imports, unused_variables, unreachable_pub, missing_docs)]
#[allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks, clippy::type_complexity)]
#[allow(clippy::too_many_arguments, clippy::not_unsafe_ptr_arg_deref, clippy::macro_metavars_in_unsafe)]
pub(crate) mod exports {
    use ::core::ffi::{c_char, c_void};
    use ::core::sync::atomic::{AtomicPtr, Ordering};
    use ::cuda_abi::boundary::{guard, guard_per_thread};
    use ::cuda_abi::types::*;

";

const ADDRESS: &str = "
    /// The address of the exported function at `index` of `cuda_abi::functions::FUNCTIONS`.
    pub(crate) fn address(index: usize) -> *const c_void {
        const TABLE: &[*const c_void] = &EXPORTED;
        TABLE[index]
    }
";

const CLIENT_TAIL: &str = "
    /// Sends all calls to `crate::entry`.
    pub(crate) fn attach() {
        const TABLE: &[*const c_void] = &ATTACHED;
        fill(TABLE);
    }

    /// As `attach`, and each call is recorded.
    pub(crate) fn attach_recorded() {
        const TABLE: &[*const c_void] = &RECORDED;
        fill(TABLE);
    }

    fn fill(table: &[*const c_void]) {
        for (slot, entry) in SLOTS.iter().zip(table) {
            // Release, with the Acquire in each exported function: who jumps to an entry sees what
            // was made ready for it.
            slot.store(entry.cast_mut(), Ordering::Release);
        }
    }

    /// Makes the library look uninitialised again.
    pub(crate) fn detach() {
        const TABLE: &[*const c_void] = &INITIAL;
        for (slot, entry) in SLOTS.iter().zip(TABLE) {
            // Release: as in `attach`.
            slot.store(entry.cast_mut(), Ordering::Release);
        }
    }

    /// Sends all calls to the native driver.
    pub(crate) fn pass_through(native: &::cuda_abi::table::DriverTable) {
        const TABLE: &[*const c_void] = &ABSENT;
        for (index, slot) in SLOTS.iter().enumerate() {
            let entry = match native.address(index) {
                Some(entry) => entry.as_ptr(),
                None => TABLE[index].cast_mut(),
            };
            // Release: as in `attach`.
            slot.store(entry, Ordering::Release);
        }
    }
";

fn software(out: &mut String, classes: &Classes) {
    for (index, function) in FUNCTIONS.iter().enumerate() {
        let body = answered(classes.route(function), function, index, "crate::api");
        exported(out, function, &body);
    }
}

/// The body that answers a call and tells the library what the answer is.
fn answered(route: Route, function: &Function, index: usize, module: &str) -> String {
    let answer = implementation(route, function, index, module);
    // Statements before the call make it a block.
    let is_call = answer.starts_with("guard");
    let answer = if is_call { answer } else { format!("{{ {answer} }}") };
    format!("crate::answered({index}, {answer})")
}

fn client(out: &mut String, classes: &Classes) -> Result<(), BuildError> {
    for symbol in ALWAYS {
        let listed = crate::functions::index_of(symbol)
            .is_some_and(|index| matches!(classes.route(&FUNCTIONS[index]), Route::Own(_)));
        if !listed {
            return Err(BuildError::NotListed(symbol));
        }
    }
    let count = FUNCTIONS.len();
    for (index, function) in FUNCTIONS.iter().enumerate() {
        // Acquire: with the Release wherever a slot is stored to.
        let body = format!(
            "let slot_entry = SLOTS[{index}].load(Ordering::Acquire);\n        \
             // SAFETY: only functions of this type are ever stored in this slot.\n        \
             let slot_entry: {} = unsafe {{ ::core::mem::transmute(slot_entry) }};\n        \
             unsafe {{ slot_entry({}) }}",
            pointer_type(function),
            arguments(function)
        );
        exported(out, function, &body);
    }
    inner_module(out, "initial", |function, index| {
        if ALWAYS.contains(&function.symbol) {
            answered(classes.route(function), function, index, "crate::entry")
        } else {
            "CUresult::ERROR_NOT_INITIALIZED".to_owned()
        }
    });
    inner_module(out, "attached", |function, index| {
        answered(classes.route(function), function, index, "crate::entry")
    });
    inner_module(out, "recorded", |function, index| {
        let (symbol, arguments) = (function.symbol, arguments(function));
        format!("crate::recorder::call({index}, || unsafe {{ attached::{symbol}({arguments}) }})")
    });
    inner_module(out, "absent", |function, index| {
        implementation(Route::Absent, function, index, "crate::entry")
    });
    _ = writeln!(out, "    static SLOTS: [AtomicPtr<c_void>; {count}] = [");
    for function in FUNCTIONS {
        _ = writeln!(
            out,
            "        AtomicPtr::new(initial::{0} as {1} as *mut c_void),",
            function.symbol,
            pointer_type(function)
        );
    }
    out.push_str("    ];\n");
    addresses(out, "INITIAL", "initial::");
    addresses(out, "ATTACHED", "attached::");
    addresses(out, "RECORDED", "recorded::");
    addresses(out, "ABSENT", "absent::");
    out.push_str(CLIENT_TAIL);
    Ok(())
}

/// One `#[no_mangle]` function.
fn exported(out: &mut String, function: &Function, body: &str) {
    _ = writeln!(
        out,
        "    #[unsafe(no_mangle)]\n    pub unsafe extern \"C\" fn {}({}) -> CUresult {{\n        {body}\n    }}",
        function.symbol,
        function.prototype()
    );
}

/// A module with one C function per symbol, for the slots.
fn inner_module(out: &mut String, name: &str, body: impl Fn(&Function, usize) -> String) {
    _ = writeln!(out, "    mod {name} {{\n        use super::*;");
    for (index, function) in FUNCTIONS.iter().enumerate() {
        let body = body(function, index);
        _ = writeln!(
            out,
            "        #[allow(unused_variables)]\n        \
             pub(super) unsafe extern \"C\" fn {}({}) -> CUresult {{ {body} }}",
            function.symbol,
            function.prototype()
        );
    }
    out.push_str("    }\n");
}

/// A constant array with the addresses of all functions under `path`.
fn addresses(out: &mut String, name: &str, path: &str) {
    _ = writeln!(out, "    const {name}: [*const c_void; {}] = [", FUNCTIONS.len());
    for function in FUNCTIONS {
        _ = writeln!(
            out,
            "        {path}{} as {} as *const c_void,",
            function.symbol,
            pointer_type(function)
        );
    }
    out.push_str("    ];\n");
}

/// The body that answers a call inside the library.
fn implementation(route: Route, function: &Function, index: usize, module: &str) -> String {
    let call = |symbol: &str| format!("{module}::{symbol}({})", arguments(function));
    match route {
        Route::Own(_) => format!("guard(|| unsafe {{ {} }})", call(function.symbol)),
        Route::PerThreadOf(twin, _) => {
            let prelude = per_thread_prelude(function);
            let guard = if prelude.is_empty() { "guard_per_thread" } else { "guard" };
            format!("{prelude}{guard}(|| unsafe {{ {} }})", call(twin))
        }
        Route::Absent => {
            format!("guard(|| {{ crate::absent({index}); CUresult::ERROR_NOT_SUPPORTED }})")
        }
    }
}

/// Statements that replace NULL streams among the arguments by the calling thread's.
fn per_thread_prelude(function: &Function) -> String {
    let mut out = String::new();
    for parameter in function.parameters {
        let name = parameter.name;
        match parameter.ty {
            "CUstream" => {
                _ = write!(
                    out,
                    "let {name} = if {name}.is_null() {{ CUstream::PER_THREAD }} else {{ {name} }}; "
                );
            }
            "*const CUlaunchConfig" => {
                _ = write!(
                    out,
                    "let mut per_thread; \
                     let {name} = if {name}.is_null() || !unsafe {{ (*{name}).hStream }}.is_null() {{ {name} }} \
                     else {{ per_thread = unsafe {{ *{name} }}; \
                     per_thread.hStream = CUstream::PER_THREAD; &raw const per_thread }}; "
                );
            }
            _ => {}
        }
    }
    out
}

fn arguments(function: &Function) -> String {
    function.parameters.iter().map(|p| p.name).collect::<Vec<_>>().join(", ")
}

fn pointer_type(function: &Function) -> String {
    let types: Vec<_> = function.parameters.iter().map(|p| p.ty).collect();
    format!("unsafe extern \"C\" fn({}) -> CUresult", types.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(library: Library, text: &str) -> Result<String, BuildError> {
        render(&Classes::parse(library, text).unwrap())
    }

    #[test]
    fn every_symbol_is_exported_once_by_both_libraries() {
        let always: String = ALWAYS.map(|symbol| format!("{symbol}\tlocal\n")).concat();
        for text in
            [rendered(Library::Software, "").unwrap(), rendered(Library::Client, &always).unwrap()]
        {
            for function in FUNCTIONS {
                let export =
                    format!("no_mangle)]\n    pub unsafe extern \"C\" fn {}(", function.symbol);
                assert_eq!(text.matches(&export).count(), 1, "{}", function.symbol);
            }
        }
    }

    #[test]
    fn a_client_without_what_programs_call_first_is_refused() {
        let error = rendered(Library::Client, "cuInit\tlocal\n").unwrap_err();
        assert!(error.to_string().contains("cuDriverGetVersion"));
    }

    #[test]
    fn per_thread_variants_replace_the_null_stream() {
        let text = rendered(
            Library::Software,
            "cuLaunchKernel\timplemented\ncuLaunchKernelEx\timplemented\ncuMemcpy\timplemented\n",
        )
        .unwrap();
        let body = |symbol: &str| {
            let start = text.find(&format!("fn {symbol}(")).unwrap();
            let text = &text[start..];
            &text[..text.find("\n    }").unwrap()]
        };
        assert!(!body("cuLaunchKernel").contains("PER_THREAD"));
        let launch = body("cuLaunchKernel_ptsz");
        assert!(launch.contains("CUstream::PER_THREAD") && launch.contains("api::cuLaunchKernel("));
        let launch = body("cuLaunchKernelEx_ptsz");
        assert!(launch.contains("per_thread.hStream = CUstream::PER_THREAD"));
        assert!(
            body("cuMemcpy_ptds").contains("guard_per_thread(|| unsafe { crate::api::cuMemcpy(")
        );
        assert!(body("cuMemcpyHtoD_v2_ptds").contains("crate::absent("));
    }
}
