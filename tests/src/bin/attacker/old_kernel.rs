//! Runs a program as on a kernel before 6.16: `SO_PASSRIGHTS` does not exist there.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, bail};

/// `SO_PASSRIGHTS` of `asm-generic/socket.h`.
const PASS_RIGHTS: u32 = 83;

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Goes on with the next statement if the accumulator is `k`, else skips so many.
const fn unless_equal(k: u32, skipped: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: 0, jf: skipped, k }
}

/// Becomes the program.
///
/// # Errors
/// When the filter or the program is refused.
pub(crate) fn exec(program: &OsStr, arguments: impl Iterator<Item = OsString>) -> Result<()> {
    /// Where `seccomp_data` has the lower half of the third argument, the option of `setsockopt`.
    const OPTION: u32 = 16 + 2 * 8;
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        statement(load, 0),
        unless_equal(libc::SYS_setsockopt as u32, 3),
        statement(load, OPTION),
        unless_equal(PASS_RIGHTS, 1),
        statement(answer, libc::SECCOMP_RET_ERRNO | libc::ENOPROTOOPT as u32),
        statement(answer, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives until the call has copied it.
    let result =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    if result != 0 {
        bail!("no filter of system calls: {}", std::io::Error::last_os_error());
    }
    bail!("cannot run {}: {}", program.display(), Command::new(program).args(arguments).exec());
}
