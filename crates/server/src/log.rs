//! Lines of the server's log, in the original's form, on standard error, which the daemon points at `server.log`.

use link::printable;
use std::fmt::Arguments;
use std::io::Write;
use std::mem::MaybeUninit;

/// The column that the original fills with the part that speaks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// Before there is a context.
    Other,
    /// From then on.
    Server,
}

/// Writes one line; that nobody can read it is no reason to stop serving.
pub(crate) fn write(part: Part, message: Arguments<'_>) {
    let part = match part {
        Part::Other => "Other",
        Part::Server => "Server",
    };
    // Clients' words are in it: they stay on this line.
    let message = printable(&message.to_string());
    let line = format!("[{} {part} {:>5}] {message}\n", timestamp(), std::process::id());
    // One write per line: several processes share the file.
    let _ = std::io::stderr().write_all(line.as_bytes());
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
macro_rules! log_server {
    ($($message:tt)*) => { $crate::log::write($crate::log::Part::Server, format_args!($($message)*)) };
}
/// A line of the `Other` part.
macro_rules! log_other {
    ($($message:tt)*) => { $crate::log::write($crate::log::Part::Other, format_args!($($message)*)) };
}
pub(crate) use {log_other, log_server};
