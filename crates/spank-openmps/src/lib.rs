//! A SPANK plugin: `srun`, `sbatch` and `salloc` get the options `--openmps-memory=4G` and
//! `--openmps-sm-percent=30`.
//!
//! What they say of a job goes to its prolog (`openmps slurm prolog`, which makes it the job's
//! limit), as `SPANK_OPENMPS_MEMORY` and `SPANK_OPENMPS_SM`; what they say of a step limits each of
//! its processes, by the variables of NVIDIA's MPS guide (4.2). The plugin needs nothing of Slurm
//! to be built, only its version ([`plugin_version`]); its interface is that of `spank.h`
//! ([`host`]).

mod host;
mod options;

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use host::{FAILURE, Handle, SUCCESS, SpankOption};
use options::{Asked, OPTIONS};

/// What Slurm calls us.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks for this name")]
pub static plugin_name: [u8; 8] = *b"openmps\0";

/// What kind of plugin it is.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks for this name")]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// The version of Slurm that it is for: major, minor and micro, a byte each.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks for this name")]
pub static plugin_version: u32 = number(env!("SLURM_VERSION_NUMBER"));

/// Ours.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "Slurm looks for this name")]
pub static spank_plugin_version: u32 = 1;

const fn number(text: &str) -> u32 {
    let (bytes, mut index, mut number) = (text.as_bytes(), 0, 0);
    while index < bytes.len() {
        number = number * 10 + (bytes[index] - b'0') as u32;
        index += 1;
    }
    number
}

/// Registers the options, in srun and its kin, and in slurmstepd, which is told what was given.
///
/// # Safety
/// Slurm's to call, with a handle of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(
    handle: Handle,
    _count: c_int,
    _arguments: *mut *mut c_char,
) -> c_int {
    guarded(|| {
        // Where options cannot be given (in slurmd, in job scripts) Slurm refuses them, which is no
        // failure.
        for option in &OPTIONS {
            host::register(handle, option);
        }
        SUCCESS
    })
}

/// After the options were read: what they say of the job is for its prolog.
///
/// # Safety
/// Slurm's to call, with a handle of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init_post_opt(
    handle: Handle,
    _count: c_int,
    _arguments: *mut *mut c_char,
) -> c_int {
    guarded(|| {
        for (name, value) in options::asked().for_job() {
            // Refused in slurmstepd, where the prolog has long run.
            with_c_string(&value, |value| host::set_for_job(handle, name, value));
        }
        SUCCESS
    })
}

/// Before a task starts: what the options say limits each of its processes.
///
/// # Safety
/// Slurm's to call, with a handle of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(
    handle: Handle,
    _count: c_int,
    _arguments: *mut *mut c_char,
) -> c_int {
    guarded(|| {
        let share = host::of_task(handle, options::PERCENTAGE_VARIABLE);
        let variables = options::asked().for_task(share.as_deref());
        let set = |(name, value): &(&'static CStr, String)| {
            with_c_string(value, |value| host::set_for_task(handle, name, value))
        };
        match variables.iter().all(set) {
            true => SUCCESS,
            false => {
                host::complain("the limits of this task cannot be set in its environment");
                FAILURE
            }
        }
    })
}

/// Called for each option that is given, with its place in [`OPTIONS`].
///
/// # Safety
/// Slurm's to call, with a text or null.
unsafe extern "C" fn option_given(place: c_int, value: *const c_char, _remote: c_int) -> c_int {
    guarded(|| {
        if value.is_null() {
            return FAILURE;
        }
        // SAFETY: not null, and Slurm's texts end with a null.
        let value = unsafe { CStr::from_ptr(value) }.to_string_lossy();
        match Asked::note(place, &value) {
            Ok(()) => SUCCESS,
            Err(message) => {
                host::complain(&message);
                FAILURE
            }
        }
    })
}

fn with_c_string(text: &str, set: impl FnOnce(&CStr) -> bool) -> bool {
    CString::new(text).is_ok_and(|text| set(&text))
}

/// No panic crosses the C ABI.
fn guarded(work: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(FAILURE)
}

const fn option(
    name: &'static CStr,
    argument: &'static CStr,
    usage: &'static CStr,
    place: c_int,
) -> SpankOption {
    SpankOption {
        name: name.as_ptr(),
        argument: argument.as_ptr(),
        usage: usage.as_ptr(),
        has_argument: 1,
        value: place,
        callback: Some(option_given),
    }
}
