//! What Slurm gives its plugins: the functions of `spank.h` that are used here, by the names and
//! types that it documents.
//!
//! They are looked up in the process that has loaded us, so that the library can be built, and
//! tested, without Slurm.

use std::ffi::{CStr, c_char, c_int, c_void};

/// `spank_t`: Slurm's, and only given back to it.
pub(crate) type Handle = *mut c_void;

/// `struct spank_option`.
#[repr(C)]
pub(crate) struct SpankOption {
    pub(crate) name: *const c_char,
    pub(crate) argument: *const c_char,
    pub(crate) usage: *const c_char,
    pub(crate) has_argument: c_int,
    pub(crate) value: c_int,
    pub(crate) callback: Option<unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int>,
}

// SAFETY: its texts are constants, which nobody changes.
unsafe impl Sync for SpankOption {}

/// `ESPANK_SUCCESS`.
pub(crate) const SUCCESS: c_int = 0;
/// Any other: the option, or the start of the task, fails.
pub(crate) const FAILURE: c_int = -1;

/// Whether a look at the host's functions found the one that was asked for.
fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a null; the default handle is always valid.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Makes an option known; whether Slurm took it.
pub(crate) fn register(handle: Handle, option: &'static SpankOption) -> bool {
    type Register = unsafe extern "C" fn(Handle, *const SpankOption) -> c_int;
    let Some(function) = find(c"spank_option_register") else { return false };
    // SAFETY: spank.h declares it so; it copies what the option says.
    let function: Register = unsafe { std::mem::transmute(function) };
    // SAFETY: the handle is what Slurm called us with, the option lives for ever.
    unsafe { function(handle, option) == SUCCESS }
}

/// Sets a variable of the job's prolog and epilog, where it gets `SPANK_` before its name.
pub(crate) fn set_for_job(handle: Handle, name: &CStr, value: &CStr) -> bool {
    set(c"spank_job_control_setenv", handle, name, value)
}

/// Sets a variable of the task that is about to start.
pub(crate) fn set_for_task(handle: Handle, name: &CStr, value: &CStr) -> bool {
    set(c"spank_setenv", handle, name, value)
}

fn set(function: &CStr, handle: Handle, name: &CStr, value: &CStr) -> bool {
    type Set = unsafe extern "C" fn(Handle, *const c_char, *const c_char, c_int) -> c_int;
    const OVERWRITE: c_int = 1;
    let Some(function) = find(function) else { return false };
    // SAFETY: spank.h declares both functions of this name so.
    let function: Set = unsafe { std::mem::transmute(function) };
    // SAFETY: the handle is what Slurm called us with; it copies both texts.
    unsafe { function(handle, name.as_ptr(), value.as_ptr(), OVERWRITE) == SUCCESS }
}

/// A variable of the task that is about to start.
pub(crate) fn of_task(handle: Handle, name: &CStr) -> Option<String> {
    type Get = unsafe extern "C" fn(Handle, *const c_char, *mut c_char, c_int) -> c_int;
    let function = find(c"spank_getenv")?;
    // SAFETY: spank.h declares it so.
    let function: Get = unsafe { std::mem::transmute(function) };
    let mut value = [0_u8; 256];
    // SAFETY: the handle is what Slurm called us with; it writes a text that ends with a null, and
    // no more than so many bytes.
    let got =
        unsafe { function(handle, name.as_ptr(), value.as_mut_ptr().cast(), value.len() as c_int) };
    let text = (got == SUCCESS).then(|| CStr::from_bytes_until_nul(&value).ok()).flatten()?;
    text.to_str().ok().map(str::to_owned)
}

/// Tells the user, or the log, what is wrong.
pub(crate) fn complain(message: &str) {
    type Log = unsafe extern "C" fn(*const c_char, ...);
    let Ok(message) = std::ffi::CString::new(message) else { return };
    let Some(function) = find(c"slurm_error") else { return };
    // SAFETY: slurm.h declares it so.
    let function: Log = unsafe { std::mem::transmute(function) };
    // SAFETY: the format takes one text.
    unsafe { function(c"openmps: %s".as_ptr(), message.as_ptr()) };
}
