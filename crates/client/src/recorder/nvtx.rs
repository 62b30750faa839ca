//! NVTX: ranges and marks that a program names, in its trace.
//!
//! NVTX is headers that are compiled into programs and libraries; at its first call it loads what
//! `NVTX_INJECTION64_PATH` names, calls `InitializeInjectionNvtx2` there, and then calls what that
//! has put into its tables (NVTX 3, `nvtxInit.h`, `nvtxTypes.h`). `openmps trace` names this
//! library. Handles of strings and domains are numbers of ours; nothing that a program passes as
//! one is followed.

use super::tracer::open_from_environment;
use super::{Recorder, now_ns, recorder, thread_number};
use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use link::trace::{Annotation, MAX_TEXT_BYTES, Record};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// `NVTX_ETID_CALLBACKS`.
const CALLBACKS: u32 = 1;
/// `NVTX_CB_MODULE_CORE`, `NVTX_CB_MODULE_CORE2`.
const CORE: u32 = 1;
const CORE2: u32 = 5;
/// `NVTX_MESSAGE_TYPE_*`.
const ASCII: i32 = 1;
const UNICODE: i32 = 2;
const REGISTERED: i32 = 3;

type Function = *const c_void;
/// A place in a table, and what belongs there.
type Entry = (usize, fn() -> Function);
type Table = *mut *mut Function;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size_bytes: usize,
    module_table: Option<unsafe extern "C" fn(u32, *mut Table, *mut c_uint) -> c_int>,
}

/// `nvtxEventAttributes_t`, version 2 and later.
#[repr(C)]
struct Attributes {
    version: u16,
    size_bytes: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_void,
}

/// Strings and domains, by handle, from 1.
static NAMES: Mutex<Vec<Arc<str>>> = Mutex::new(Vec::new());
/// Ranges that were started.
static RANGES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// How many ranges of a domain are open.
    static DEPTHS: RefCell<HashMap<u64, c_int>> = RefCell::default();
}

fn register(name: String) -> usize {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.push(name.into());
    names.len()
}

fn registered(handle: usize) -> Option<Arc<str>> {
    let names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.get(handle.checked_sub(1)?).cloned()
}

/// # Safety
/// Null, or a NUL-terminated string.
unsafe fn narrow(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// # Safety
/// Null, or `wchar_t`s with a 0 at the end.
unsafe fn wide(text: *const u32) -> String {
    let mut out = String::new();
    if text.is_null() {
        return out;
    }
    for place in 0..MAX_TEXT_BYTES {
        // SAFETY: no 0 has come yet, so this one is there, too.
        match unsafe { *text.add(place) } {
            0 => break,
            code => out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }
    out
}

/// # Safety
/// Null, or an event's attributes whose message is what its type says.
unsafe fn message(attributes: *const Attributes) -> String {
    // SAFETY: the caller's promise.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else { return String::new() };
    if usize::from(attributes.size_bytes) < size_of::<Attributes>() {
        return String::new();
    }
    match attributes.message_type {
        // SAFETY: the caller's promise.
        ASCII => unsafe { narrow(attributes.message.cast()) },
        // SAFETY: the caller's promise.
        UNICODE => unsafe { wide(attributes.message.cast()) },
        REGISTERED => registered(attributes.message.addr()).as_deref().unwrap_or("").to_owned(),
        _ => String::new(),
    }
}

/// Writes a record, if this process is traced. No panic goes into the program.
fn note(domain: usize, text: Option<&str>, id: u64, kind: fn(Annotation) -> Record) {
    let write = |recorder: &Recorder| {
        let text = text.map_or(0, |text| recorder.text(text));
        let domain = registered(domain).map_or(0, |name| recorder.text(&name));
        recorder.push(&kind(Annotation {
            thread: thread_number(),
            text,
            at_ns: now_ns(),
            domain,
            id,
        }));
    };
    if let Some(recorder) = recorder() {
        let _ = catch_unwind(AssertUnwindSafe(|| write(recorder)));
    }
}

/// Opens (1) or closes (-1) a range of this thread; its level, from 0.
fn nest(domain: usize, by: c_int) -> c_int {
    let level = DEPTHS.try_with(|depths| {
        let mut depths = depths.try_borrow_mut().ok()?;
        let depth = depths.entry(domain as u64).or_default();
        let level = if by > 0 { *depth } else { *depth - 1 };
        *depth = (*depth + by).max(0);
        Some(level)
    });
    level.ok().flatten().unwrap_or(-1)
}

fn push(domain: usize, text: &str) -> c_int {
    note(domain, Some(text), 0, Record::Push);
    nest(domain, 1)
}

fn pop(domain: usize) -> c_int {
    let level = nest(domain, -1);
    if level >= 0 {
        note(domain, None, 0, Record::Pop);
    }
    level
}

fn start(domain: usize, text: &str) -> u64 {
    // Relaxed: a number that nobody else has.
    let id = RANGES.fetch_add(1, Ordering::Relaxed) + 1;
    note(domain, Some(text), id, Record::Start);
    id
}

/// Declares the functions of a table: number, name, and what it does with its arguments.
macro_rules! functions {
    ($table:ident: $($number:literal $name:ident($($argument:ident: $ty:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            /// # Safety
            /// As NVTX's function of this name has it.
            unsafe extern "C" fn $name($($argument: $ty),*) $(-> $result)? {
                // SAFETY: the pointers are the program's, as NVTX says.
                unsafe { $body }
            }
        )*
        const $table: &[Entry] = &[$(($number, || $name as *const c_void)),*];
    };
}

#[allow(unused_unsafe, reason = "some bodies follow no pointer")]
mod table {
    use super::*;

    functions! { CORE_TABLE:
        1 mark_ex(at: *const Attributes) { note(0, Some(&message(at)), 0, Record::Mark) }
        2 mark_a(text: *const c_char) { note(0, Some(&narrow(text)), 0, Record::Mark) }
        3 mark_w(text: *const u32) { note(0, Some(&wide(text)), 0, Record::Mark) }
        4 start_ex(at: *const Attributes) -> u64 { start(0, &message(at)) }
        5 start_a(text: *const c_char) -> u64 { start(0, &narrow(text)) }
        6 start_w(text: *const u32) -> u64 { start(0, &wide(text)) }
        7 end(id: u64) { note(0, None, id, Record::End) }
        8 push_ex(at: *const Attributes) -> c_int { push(0, &message(at)) }
        9 push_a(text: *const c_char) -> c_int { push(0, &narrow(text)) }
        10 push_w(text: *const u32) -> c_int { push(0, &wide(text)) }
        11 pop_core() -> c_int { pop(0) }
        14 name_thread_a(thread: u32, text: *const c_char) { name_thread(thread, &narrow(text)) }
        15 name_thread_w(thread: u32, text: *const u32) { name_thread(thread, &wide(text)) }
    }

    functions! { CORE2_TABLE:
        1 domain_mark(domain: usize, at: *const Attributes) { note(domain, Some(&message(at)), 0, Record::Mark) }
        2 domain_start(domain: usize, at: *const Attributes) -> u64 { start(domain, &message(at)) }
        3 domain_end(domain: usize, id: u64) { note(domain, None, id, Record::End) }
        4 domain_push(domain: usize, at: *const Attributes) -> c_int { push(domain, &message(at)) }
        5 domain_pop(domain: usize) -> c_int { pop(domain) }
        10 register_a(_domain: usize, text: *const c_char) -> usize { register(narrow(text)) }
        11 register_w(_domain: usize, text: *const u32) -> usize { register(wide(text)) }
        12 domain_a(text: *const c_char) -> usize { register(narrow(text)) }
        13 domain_w(text: *const u32) -> usize { register(wide(text)) }
        14 domain_destroy(_domain: usize) {}
        15 initialize(_reserved: *const c_void) {}
    }

    fn name_thread(thread: u32, text: &str) {
        note(0, Some(text), u64::from(thread), Record::ThreadName);
    }

    pub(super) const ALL: [(u32, &[Entry]); 2] = [(CORE, CORE_TABLE), (CORE2, CORE2_TABLE)];
}

/// What NVTX calls in an injected library: fills its tables, where the process is traced. 1: done.
///
/// # Safety
/// `export_table` is NVTX's function that gives its tables.
#[unsafe(no_mangle)]
#[allow(unreachable_pub, reason = "it is exported")]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    export_table: Option<unsafe extern "C" fn(u32) -> *const c_void>,
) -> c_int {
    let fill = || {
        open_from_environment();
        recorder()?;
        // SAFETY: NVTX's function, and a table of this type under that number.
        let callbacks = unsafe { export_table?(CALLBACKS).cast::<Callbacks>().as_ref() }?;
        let module_table = callbacks.module_table?;
        for (module, functions) in table::ALL {
            let (mut slots, mut count): (Table, c_uint) = (core::ptr::null_mut(), 0);
            // SAFETY: both are written.
            let found = unsafe { module_table(module, &mut slots, &mut count) };
            if found == 0 || slots.is_null() {
                continue;
            }
            for (number, function) in functions {
                if *number >= count as usize {
                    continue;
                }
                // SAFETY: NVTX has `count` places, each null or the address of a function pointer
                // that is ours to set.
                unsafe {
                    let slot = *slots.add(*number);
                    if !slot.is_null() {
                        slot.write(function());
                    }
                }
            }
        }
        Some(1)
    };
    catch_unwind(AssertUnwindSafe(fill)).ok().flatten().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_lie_as_in_nvtx() {
        assert_eq!(size_of::<Attributes>(), 48);
        assert_eq!(core::mem::offset_of!(Attributes, message), 40);
        assert_eq!(core::mem::offset_of!(Attributes, message_type), 32);
    }

    #[test]
    fn levels_of_a_domain_are_its_own() {
        assert_eq!((nest(7, 1), nest(7, 1), nest(8, 1)), (0, 1, 0));
        assert_eq!((nest(7, -1), nest(7, -1), nest(7, -1)), (1, 0, -1));
        assert_eq!(nest(7, 1), 0);
    }

    #[test]
    fn strings_and_domains_are_numbers() {
        let handle = register("a name".into());
        assert_eq!(registered(handle).as_deref(), Some("a name"));
        assert_eq!(registered(0), None);
        assert_eq!(registered(usize::MAX), None);
        let text: Vec<u32> = "größe".chars().map(u32::from).chain([0]).collect();
        // SAFETY: it ends with 0.
        assert_eq!(unsafe { wide(text.as_ptr()) }, "größe");
    }
}
