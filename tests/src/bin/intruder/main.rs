//! A hostile process of a container: `intruder PID...` tries to get at other processes, and,
//! attached at `CUDA_MPS_PIPE_DIRECTORY`, to write what it may only read and to speak in others'
//! names. Each try is a line, `NAME: refused ...` or `NAME: done`; at the end its own input is
//! awaited.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use link::socket::Connection;
use link::wire::DAEMON_SOCKET;
use link::wire::attach::{
    ClientHello, ClientReply, ClientRequest, Hello, HelloReply, RequestedLimits,
};
use link::wire::version::Versions;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Ids of sessions and clients count from 1: with these, all others of a test are named.
const GUESSES: std::ops::Range<u64> = 1..32;

fn main() -> Result<()> {
    for argument in std::env::args().skip(1) {
        let pid: i32 = argument.parse().context("a process id")?;
        processes(pid);
    }
    foreign_descriptors();
    client()?;
    say("end", Ok(()))?;
    // Stays, so that what it did is seen while it lives.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn say(name: &str, result: io::Result<()>) -> Result<()> {
    let mut out = io::stdout().lock();
    match result {
        Ok(()) => writeln!(out, "{name}: done")?,
        Err(error) => writeln!(out, "{name}: refused {error}")?,
    }
    Ok(out.flush()?)
}

fn report(name: &str, result: io::Result<()>) {
    // Standard output is the test's: without it nobody asks.
    let _ = say(name, result);
}

/// What a debugger could do.
fn processes(pid: i32) {
    let folder = Path::new("/proc").join(pid.to_string());
    for name in ["mem", "environ", "maps", "auxv"] {
        report(&format!("open {name} of {pid}"), File::open(folder.join(name)).map(drop));
    }
    // Their numbers are no secret of one's own user; what they are is.
    for number in 0..64 {
        let link = folder.join("fd").join(number.to_string());
        let result = fs::read_link(&link).map(drop).or_else(|_| File::open(&link).map(drop));
        if number == 0 || result.is_ok() {
            report(&format!("open descriptor {number} of {pid}"), result);
        }
    }
    for name in ["root", "cwd", "exe"] {
        report(&format!("follow {name} of {pid}"), fs::read_link(folder.join(name)).map(drop));
    }
    let check = |result: libc::c_long| match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    };
    // SAFETY: attaching takes a process id and no pointers.
    let attached = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
    report(&format!("trace {pid}"), check(attached));
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(0x40_0000), iov_len: 1 };
    // SAFETY: one byte is written to a byte of ours, if anything.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    report(&format!("read memory of {pid}"), check(read as libc::c_long));
    // SAFETY: makes a descriptor or fails.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if process < 0 {
        return report(&format!("hold {pid}"), Err(io::Error::last_os_error()));
    }
    // SAFETY: the kernel has just made it.
    let process = unsafe { OwnedFd::from_raw_fd(process as i32) };
    for number in 3..64 {
        // SAFETY: makes a descriptor, which stays open till the end of this short process, or
        // fails.
        let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
        let result = check(taken);
        // All are refused alike.
        if number == 3 || result.is_ok() {
            report(&format!("take descriptor {number} of {pid}"), result);
        }
    }
}

/// Looks into every process that it sees for files in memory.
fn foreign_descriptors() {
    let own = std::process::id().to_string();
    let mut found = 0;
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        if name.to_string_lossy().parse::<u32>().is_err() || *name == *own {
            continue;
        }
        let descriptors = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            let is_memory = target.to_string_lossy().starts_with("/memfd:openmps");
            found += u32::from(is_memory && File::open(descriptor.path()).is_ok());
        }
    }
    let result = if found == 0 { Err(io::Error::other("none seen")) } else { Ok(()) };
    report("open others' memory files", result);
}

/// As a client that keeps to no rules.
fn client() -> Result<()> {
    let directory = std::env::var("CUDA_MPS_PIPE_DIRECTORY").context("no directory")?;
    let socket = Connection::connect(&Path::new(&directory).join(DAEMON_SOCKET), PATIENCE)?;
    let hello = ClientHello {
        versions: Versions::ours(),
        // Its word for who it is: nobody's.
        pid: 1,
        pid_namespace: 0,
        command: "intruder".to_owned(),
        limits: RequestedLimits::default(),
    };
    socket.send(&Hello::Client(hello), &[], PATIENCE)?;
    match socket.receive::<HelloReply>(PATIENCE)?.message {
        HelloReply::Welcome(_) => {}
        other => bail!("not attached: {other:?}"),
    }
    let wanted = ClientRequest::OpenContext { device: 0, active_thread_percentage: None };
    socket.send(&wanted, &[], PATIENCE)?;
    let reply = socket.receive::<ClientReply>(PATIENCE)?;
    if !matches!(reply.message, ClientReply::ContextOpened(_)) {
        bail!("no context: {:?}", reply.message);
    }
    let [session, completions, executor] = <[OwnedFd; 3]>::try_from(reply.descriptors)
        .map_err(|all| anyhow::anyhow!("{} descriptors", all.len()))?;
    read_only(completions.as_fd());
    let shorter = rustix::fs::ftruncate(&session, 0).map_err(io::Error::from);
    report("shorten its session's file", shorter);
    // In the server's name to the executor, in the daemon's to the server, about every session and
    // client that there may be.
    let executor = Connection::from_socket(executor)?;
    for message in forgeries() {
        let _ = executor.send(&message, &[], Duration::from_secs(1));
        let _ = socket.send(&message, &[], Duration::from_secs(1));
    }
    // Whoever hung up for that has done right; it must only not have obeyed, which the test sees by
    // the others.
    Ok(())
}

/// Completions are the executor's to write.
fn read_only(completions: BorrowedFd<'_>) {
    let written = rustix::io::pwrite(completions, &[0xff; 8], 0).map(drop).map_err(Into::into);
    report("write to its completions", written);
    // The server's user could open the file anew, and would deceive itself alone: the words are of
    // one session.
    let mapping = link::shm::Mapping::new(completions, 4096, link::shm::Access::ReadWrite);
    report("map its completions for writing", mapping.map(drop).map_err(io::Error::other));
}

fn forgeries() -> Vec<Value> {
    let mut all = Vec::new();
    for id in GUESSES {
        all.push(json!({"end_session": {"session": id, "code": 999}}));
        all.push(json!({"close_session": {"session": id}}));
        all.push(json!({"memory_limit": {"session": id, "limit_bytes": null}}));
        all.push(json!({"weigh": {"session": id, "weight": 1000}}));
        all.push(json!({"terminate": {"id": 1, "pid": id}}));
    }
    all.push(json!({"shutdown": "now"}));
    all.push(json!({"set_defaults": {"active_thread_percentage": 1.0, "pinned_device_mem_limits_bytes": [], "client_priority": 1}}));
    all
}
