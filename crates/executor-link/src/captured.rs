//! What a process writes to a standard stream that is a file in memory.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags};
use std::io;
use std::process::Stdio;

/// The file, which outlives the process, and how much of it was taken.
#[derive(Debug)]
pub struct Captured {
    file: OwnedFd,
    taken_bytes: u64,
}

impl Captured {
    /// An empty file. `name` shows in `/proc`.
    pub fn create(name: &str) -> io::Result<Self> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        // What was taken is cut out of the front while the process may be appending.
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
        Ok(Self { file, taken_bytes: 0 })
    }

    /// Makes it this process's standard output.
    pub fn become_stdout(&self) -> io::Result<()> {
        Ok(rustix::stdio::dup2_stdout(&self.file)?)
    }

    /// For a process that is about to begin.
    pub fn stdio(&self) -> io::Result<Stdio> {
        Ok(self.file.try_clone()?.into())
    }

    /// All text since the last call.
    pub fn take(&mut self) -> io::Result<Vec<u8>> {
        let end = rustix::fs::fstat(&self.file)?.st_size as u64;
        let mut text = vec![0; end.saturating_sub(self.taken_bytes) as usize];
        let mut filled = 0;
        while filled < text.len() {
            let at = self.taken_bytes + filled as u64;
            match rustix::io::pread(self.file.as_fd(), &mut text[filled..], at)? {
                0 => break,
                read => filled += read,
            }
        }
        text.truncate(filled);
        self.taken_bytes += filled as u64;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if filled > 0 {
            rustix::fs::fallocate(&self.file, hole, 0, self.taken_bytes)?;
        }
        Ok(text)
    }
}
