//! What a new process has of the one that starts it, and is not to have where it is another user's.
//!
//! A process of a user can be traced by that user, and does from then on what that user likes, with
//! all that it has: a terminal takes typing for its session, a descriptor what it is open for, and
//! keys can be read. So these are left before the process is that user's ([`crate::user`]).

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// This very executable, for whoever starts a process that must speak the same protocol. It leads
/// to the file that this process runs, also after an upgrade has put another one in its place.
pub const OWN_EXECUTABLE: &str = "/proc/self/exe";
/// The terminal that a process is controlled by, if any.
const TERMINAL: &str = "/dev/tty";
/// The first descriptor that is not standard input, output or error.
const FIRST: libc::c_uint = 3;
/// `KEYCTL_JOIN_SESSION_KEYRING` of linux/keyctl.h.
const JOIN_SESSION_KEYRING: libc::c_int = 1;

/// Has no program that this process starts from now on get descriptors that are open now, but for
/// standard input, output and error: whoever started this process may have left some.
///
/// # Errors
/// Where the kernel is too old to do it at once, those of `/proc/self/fd`.
pub fn keep_descriptors() -> io::Result<()> {
    // SAFETY: sets a flag of descriptors, which concerns nobody but programs that are started.
    let kept = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC as libc::c_uint,
        )
    };
    if kept == 0 {
        return Ok(());
    }
    // Before Linux 5.11, or where a filter of system calls does not know this one.
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(number) = number.filter(|number: &libc::c_int| *number >= FIRST as libc::c_int)
        {
            // SAFETY: as above; one that has been closed meanwhile is an error, which is of no
            // consequence.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Has a new process begin its program without a controlling terminal. It stays in its session, and
/// cannot get that one's terminal again.
///
/// # Errors
/// Those of opening the terminal; that there is none is none.
pub fn leave_terminal(command: &mut Command) -> io::Result<()> {
    // Here, as the new process may not be allowed to. A line whose carrier has gone is not waited
    // for.
    let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
    let terminal = match File::options().read(true).custom_flags(flags).open(TERMINAL) {
        Ok(terminal) => terminal,
        Err(error) if has_no_terminal(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    let leave = move || {
        // SAFETY: a descriptor that is open, and a request without an argument.
        match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes a system call only, which needs no lock and no memory.
    unsafe { command.pre_exec(leave) };
    Ok(())
}

/// What opening `/dev/tty` says where the process has none, or nobody could open it.
fn has_no_terminal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT | libc::ENODEV))
}

/// Gives this process a session keyring of its own, in which nothing is. It is the real user's.
///
/// # Errors
/// Those of the kernel; that there are no keys is none.
pub(crate) fn leave_keys() -> io::Result<()> {
    // SAFETY: no name is given, so nothing is read; a filter or a kernel without keys says so, and
    // then there are none to be read.
    let joined = unsafe {
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    };
    match joined {
        0.. => Ok(()),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
            error => Err(error),
        },
    }
}
