//! What a user can do with the own server by tracing it: system calls in its name.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::careless::{KEY, SESSION_KEYRING};

/// `KEYCTL_SEARCH` and `KEYCTL_READ` of linux/keyctl.h.
const SEARCH: i64 = 10;
const READ: i64 = 11;
/// Below the stack pointer is room for what the calls need.
const ROOM_BYTES: u64 = 16 << 10;
/// `syscall` of x86-64.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Types a letter into the terminal that a process is controlled by.
pub(crate) fn type_into_terminal(pid: i32) -> Result<String> {
    let mut traced = Traced::stop(pid)?;
    let path = traced.put(0, c"/dev/tty".to_bytes_with_nul())?;
    let terminal = traced.call(libc::SYS_open, [path, i64::from(libc::O_RDWR), 0, 0, 0])?;
    if terminal < 0 {
        return Ok(format!("no terminal: error {}", -terminal));
    }
    let letter = traced.put(0, b"X")?;
    let typed = traced.call(libc::SYS_ioctl, [terminal, libc::TIOCSTI as i64, letter, 0, 0])?;
    Ok(format!("a terminal, typing: {typed}"))
}

/// Reads the key of whoever has started the daemon.
pub(crate) fn read_key(pid: i32) -> Result<String> {
    const VALUE_BYTES: usize = 64;
    let mut traced = Traced::stop(pid)?;
    let [kind, name, _] = KEY;
    let kind = traced.put(0, kind.to_bytes_with_nul())?;
    let name = traced.put(64, name.to_bytes_with_nul())?;
    let key = traced.call(libc::SYS_keyctl, [SEARCH, SESSION_KEYRING, kind, name, 0])?;
    if key < 0 {
        return Ok("no key".to_owned());
    }
    let value = traced.put(128, &[0; VALUE_BYTES])?;
    let length = traced.call(libc::SYS_keyctl, [READ, key, value, VALUE_BYTES as i64, 0])?;
    ensure!((0..=VALUE_BYTES as i64).contains(&length), "it cannot be read: {length}");
    let mut bytes = vec![0; length as usize];
    traced.memory.read_exact_at(&mut bytes, value as u64)?;
    Ok(format!("the key {}", String::from_utf8_lossy(&bytes)))
}

/// Writes into all files that a process has open.
pub(crate) fn write_to_all(pid: i32) -> Result<String> {
    let process = pidfd_open(Pid::from_raw(pid).context("no process id")?, PidfdFlags::empty())?;
    let (mut taken, mut written) = (0, 0);
    for number in 0..256 {
        let Ok(taken_one) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        taken += 1;
        let file = File::from(taken_one);
        // Not memory, which has no name.
        if file.metadata().is_ok_and(|found| found.is_file() && found.nlink() > 0) {
            written += usize::from(file.write_all_at(b"written by a stranger\n", 0).is_ok());
        }
    }
    ensure!(taken > 0, "no descriptor can be taken");
    Ok(format!("wrote to {written}"))
}

/// A process that is stopped, and goes on when this is dropped.
struct Traced {
    pid: i32,
    memory: File,
    registers: libc::user_regs_struct,
    /// Where its program has a `syscall`.
    instruction: u64,
}

impl Traced {
    fn stop(pid: i32) -> Result<Self> {
        request(libc::PTRACE_SEIZE, pid, 0).context("it cannot be traced")?;
        request(libc::PTRACE_INTERRUPT, pid, 0)?;
        wait(pid)?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let instruction = find_syscall(pid, &memory)?;
        Ok(Self { pid, memory, registers: registers(pid)?, instruction })
    }

    /// Puts bytes where its calls find them; their address.
    fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<i64> {
        let address = (self.registers.rsp - ROOM_BYTES) / 16 * 16 + offset;
        self.memory.write_all_at(bytes, address)?;
        Ok(address as i64)
    }

    /// Has it call the kernel.
    fn call(&mut self, number: i64, arguments: [i64; 5]) -> Result<i64> {
        let [rdi, rsi, rdx, r10, r8] = arguments.map(|argument| argument as u64);
        let prepared = libc::user_regs_struct {
            rax: number as u64,
            // No call is to be begun again.
            orig_rax: u64::MAX,
            rip: self.instruction,
            rsp: (self.registers.rsp - ROOM_BYTES) / 16 * 16,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            ..self.registers
        };
        set_registers(self.pid, &prepared)?;
        request(libc::PTRACE_SINGLESTEP, self.pid, 0)?;
        wait(self.pid)?;
        Ok(registers(self.pid)?.rax as i64)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = set_registers(self.pid, &self.registers);
        let _ = request(libc::PTRACE_DETACH, self.pid, 0);
    }
}

/// Where code is mapped that calls the kernel.
fn find_syscall(pid: i32, memory: &File) -> Result<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    for line in maps.lines().filter(|line| line.contains("r-xp") && line.contains("libc")) {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let (from, to) = range.context("a line of maps")?;
        let from = u64::from_str_radix(from, 16)?;
        let mut code = vec![0; (u64::from_str_radix(to, 16)? - from) as usize];
        memory.read_exact_at(&mut code, from)?;
        if let Some(place) = code.windows(SYSCALL.len()).position(|part| part == SYSCALL) {
            return Ok(from + place as u64);
        }
    }
    bail!("no syscall is found in {pid}")
}

pub(crate) fn request(what: libc::c_uint, pid: i32, data: usize) -> io::Result<()> {
    // SAFETY: these requests read and write nothing of this process.
    match unsafe { libc::ptrace(what, pid, 0usize, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn wait(pid: i32) -> Result<()> {
    let mut status = 0;
    // SAFETY: writes the status.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    ensure!(waited == pid && libc::WIFSTOPPED(status), "it does not stop: {status:x}");
    Ok(())
}

fn registers(pid: i32) -> Result<libc::user_regs_struct> {
    // SAFETY: plain numbers, for which zeros are valid.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: writes the registers of a process that is stopped to where the last argument points.
    match unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0usize, &raw mut registers) } {
        -1 => Err(io::Error::last_os_error().into()),
        _ => Ok(registers),
    }
}

fn set_registers(pid: i32, registers: &libc::user_regs_struct) -> io::Result<()> {
    // SAFETY: reads the registers from where the last argument points.
    match unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, 0usize, &raw const *registers) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
