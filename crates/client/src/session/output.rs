//! What this process's kernels print: fetched from the executor where a native driver would write
//! it out, and written to the same place.

use crate::result::Result;
use link::wire::command::OutputReply;
use std::sync::atomic::{AtomicBool, Ordering};
use zerocopy::FromBytes;

/// Whether kernels that can print were launched since all text was fetched.
#[derive(Debug, Default)]
pub(crate) struct Output {
    expected: AtomicBool,
}

impl Output {
    /// A kernel that can print is being launched.
    pub(crate) fn expect(&self) {
        // Release: pairs with the swap in `deliver`, should another thread synchronise.
        self.expected.store(true, Ordering::Release);
    }

    /// Whether there may be text that was not fetched.
    pub(crate) fn is_expected(&self) -> bool {
        self.expected.load(Ordering::Relaxed)
    }

    /// Writes what has been printed to standard output; `take` fetches some of it.
    pub(crate) fn deliver(&self, take: impl Fn() -> Result<Vec<u8>>) -> Result {
        // Acquire: see `expect`.
        if !self.is_expected() || !self.expected.swap(false, Ordering::Acquire) {
            return Ok(());
        }
        loop {
            let reply = take()?;
            let Ok((head, text)) = OutputReply::read_from_prefix(&reply) else { return Ok(()) };
            write_out(&text[..text.len().min(head.size_bytes as usize)]);
            if head.more == 0 {
                return Ok(());
            }
            if head.size_bytes == 0 {
                // Kernels of other streams have not ended: a later call fetches what they print.
                self.expect();
                return Ok(());
            }
        }
    }
}

/// Writes a text to standard error, as [`write_out`] does.
pub(crate) fn write_error(text: &[u8]) {
    unsafe extern "C" {
        static stderr: *mut libc::FILE;
    }
    if !text.is_empty() {
        // SAFETY: `stderr` is the C library's stream; the text is valid for its length. A closed
        // stream prints nothing.
        let _ = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), stderr) };
    }
}

/// Through the C library's stream, as native drivers do, so that it keeps its place among the
/// program's own output.
fn write_out(text: &[u8]) {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
    }
    if !text.is_empty() {
        // SAFETY: `stdout` is the C library's stream; the text is valid for its length. A closed
        // stream prints nothing.
        let _ = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), stdout) };
    }
}
