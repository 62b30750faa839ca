//! The signals that the daemon obeys, as sockets that its loop polls.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Signals as things to poll.
pub(super) struct Signals {
    /// SIGTERM and SIGINT.
    pub(super) stop: UnixStream,
    /// SIGHUP: logs are opened again under their names.
    pub(super) reopen_logs: UnixStream,
}

impl Signals {
    pub(super) fn take_over() -> io::Result<Self> {
        Ok(Signals { stop: as_stream(&[SIGTERM, SIGINT])?, reopen_logs: as_stream(&[SIGHUP])? })
    }
}

/// A socket that can be read after any of these signals.
fn as_stream(signals: &[i32]) -> io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, writer.try_clone()?)?;
    }
    Ok(reader)
}

/// Whether any of a stream's signals came.
pub(super) fn came(mut signals: &UnixStream) -> bool {
    let mut bytes = [0; 64];
    let mut any = false;
    while matches!(signals.read(&mut bytes), Ok(count) if count > 0) {
        any = true;
    }
    any
}
