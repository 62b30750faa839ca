//! Lines of the server's log, in the original's form, on standard error: a pipe, which the daemon
//! writes to `server.log`.
//!
//! Nobody waits for the daemon: a line for which the pipe has no room is lost and counted. Without
//! a daemon all are.

use link::printable;
use rustix::fd::{AsFd, OwnedFd};
use std::fmt::Arguments;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A longer line is cut. Lines up to this size go into a pipe whole or not at all, whoever else
/// writes to it.
const MOST_LINE_BYTES: usize = rustix::pipe::PIPE_BUF;

/// Where lines go instead of standard error, which in an executor is what its driver writes to.
static ELSEWHERE: OnceLock<OwnedFd> = OnceLock::new();

/// Lines of this process that had no room. Only counted, so it has no partner in any order.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The column that the original fills with the part that speaks.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// Before there is a context.
    Other,
    /// From then on.
    Server,
    /// The same for a fault, a kill and a takeover: the daemon writes such lines as the server's,
    /// and keeps room for them that no other lines use up.
    Fault,
}

/// From now on lines go to this pipe.
pub fn write_to(pipe: OwnedFd) {
    // Once in a process.
    let _ = ELSEWHERE.set(pipe);
}

/// Writes one line; that nobody can read it is no reason to stop serving.
pub fn write(part: Part, message: Arguments<'_>) {
    let lost = LOST.swap(0, Ordering::Relaxed);
    if lost > 0 {
        let text = format!("{lost} lines were lost: the log had no room for them");
        if !wrote(&line(Part::Server, &text)) {
            LOST.fetch_add(lost, Ordering::Relaxed);
        }
    }
    // Clients' words are in it: they stay on this line.
    if !wrote(&line(part, &printable(&message.to_string()))) {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

fn line(part: Part, text: &str) -> String {
    let part = match part {
        Part::Other => "Other",
        Part::Server => "Server",
        Part::Fault => "Fault",
    };
    let mut line = format!("[{} {part} {:>5}] {text}", timestamp(), std::process::id());
    line.truncate(line.floor_char_boundary(MOST_LINE_BYTES - 1));
    line.push('\n');
    line
}

/// Writes a line in one piece, if there is room for it: several processes share the file.
fn wrote(line: &str) -> bool {
    loop {
        let log = ELSEWHERE.get().map_or_else(rustix::stdio::stderr, AsFd::as_fd);
        match rustix::io::write(log, line.as_bytes()) {
            Err(rustix::io::Errno::INTR) => {}
            written => return written == Ok(line.len()),
        }
    }
}

/// `2026-11-20 15:27:30.566`, local time.
fn timestamp() -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let mut fields = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers lead to live objects; all-zero is a valid `tm` should the call fail.
    let fields = unsafe {
        libc::localtime_r(&now.tv_sec, fields.as_mut_ptr());
        fields.assume_init()
    };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03}",
        fields.tm_year + 1900,
        fields.tm_mon + 1,
        fields.tm_mday,
        fields.tm_hour,
        fields.tm_min,
        fields.tm_sec,
        now.tv_nsec / 1_000_000
    )
}

/// A line of the `Server` part.
#[macro_export]
macro_rules! log_server {
    ($($message:tt)*) => { $crate::log::write($crate::log::Part::Server, format_args!($($message)*)) };
}
/// A line of the `Fault` part.
#[macro_export]
macro_rules! log_fault {
    ($($message:tt)*) => { $crate::log::write($crate::log::Part::Fault, format_args!($($message)*)) };
}
/// A line of the `Other` part.
#[macro_export]
macro_rules! log_other {
    ($($message:tt)*) => { $crate::log::write($crate::log::Part::Other, format_args!($($message)*)) };
}
pub use {log_fault, log_other, log_server};
