//! Runs a program as a shell does whose user leaves things lying about: in a terminal, with a file
//! open, and with a key in the session's keyring.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::io::FdFlags;

/// The key's type, name and value.
pub(crate) const KEY: [&std::ffi::CStr; 3] = [c"user", c"openmps-test", c"hunter2"];
/// `KEYCTL_JOIN_SESSION_KEYRING` and `KEY_SPEC_SESSION_KEYRING` of linux/keyctl.h.
const JOIN_SESSION_KEYRING: libc::c_long = 1;
pub(crate) const SESSION_KEYRING: libc::c_long = -3;

/// Becomes the program.
///
/// # Errors
/// When there is no terminal, or the file or the program is refused.
pub(crate) fn exec(
    file: &OsStr,
    program: &OsStr,
    arguments: impl Iterator<Item = OsString>,
) -> Result<()> {
    leave_open(File::options().read(true).write(true).open(file)?.into())?;
    have_terminal().context("no terminal")?;
    have_key().context("no key")?;
    bail!("cannot run {}: {}", program.display(), Command::new(program).args(arguments).exec());
}

/// For whatever program comes next.
fn leave_open(descriptor: OwnedFd) -> io::Result<()> {
    rustix::io::fcntl_setfd(&descriptor, FdFlags::empty())?;
    let _ = descriptor.into_raw_fd();
    Ok(())
}

/// Begins a session, with a new terminal that controls it. Both of its ends stay open, or it would
/// hang up.
fn have_terminal() -> io::Result<()> {
    // SAFETY: makes a descriptor, or fails.
    let master = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY) };
    if master < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it has just been made, and is nobody else's.
    let master = unsafe { OwnedFd::from_raw_fd(master) };
    let mut name = [0; 64];
    // SAFETY: a descriptor of a terminal, and a buffer with its length.
    let failed = unsafe {
        libc::unlockpt(master.as_raw_fd()) != 0
            || libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr(), name.len()) != 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    rustix::process::setsid()?;
    // SAFETY: the call above has ended the name with a zero. Opening makes it the session's
    // terminal.
    let slave = unsafe { libc::open(name.as_ptr(), libc::O_RDWR) };
    if slave < 0 {
        return Err(io::Error::last_os_error());
    }
    leave_open(master)
}

/// Where there are no keys, or they are not allowed, there is none that could be read.
fn have_key() -> io::Result<()> {
    let [kind, name, value] = KEY;
    // SAFETY: a request without a name.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, 0) };
    // SAFETY: texts that end with a zero, and a value with its length.
    let added = unsafe {
        let length = value.count_bytes();
        let (kind, name, value) = (kind.as_ptr(), name.as_ptr(), value.as_ptr());
        libc::syscall(libc::SYS_add_key, kind, name, value, length, SESSION_KEYRING)
    };
    match io::Error::last_os_error() {
        _ if joined >= 0 && added >= 0 => Ok(()),
        error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
        error => Err(error),
    }
}
