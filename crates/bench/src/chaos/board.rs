//! A page that all processes of a run share: when the latest fault was, and how far each good
//! client is.

use super::kind::Kind;
use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Good clients of a run at most.
pub const MOST_GOOD: usize = 120;
const BYTES: usize = 4096;

/// The mapped page. Everything in it is a count or a time: all accesses are relaxed, and order
/// nothing.
#[derive(Debug)]
pub struct Board {
    base: *mut AtomicU64,
}

// SAFETY: atomics in a mapping that lives as long as this.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

/// Which count of a good client.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// When it was last heard of.
    ProgressNs,
    /// Kernels that ended.
    Kernels,
    /// Words of results that were compared.
    Words,
    /// Those of them that were wrong.
    Wrong,
}

/// What good clients are to do.
#[derive(Clone, Copy, Debug)]
pub enum Rest {
    /// Work, half of the time.
    Work,
    /// Nothing, and to say so.
    Idle,
}

impl Board {
    /// Maps the board in `file`, which is made if need be.
    pub fn open(file: &Path) -> io::Result<Self> {
        let file: File =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file)?;
        file.set_len(BYTES as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file that is as long.
        let base =
            unsafe { mmap(ptr::null_mut(), BYTES, access, MapFlags::SHARED, file.as_fd(), 0)? };
        Ok(Self { base: base.cast() })
    }

    /// Says that a fault is about to happen, now.
    pub fn announce_fault(&self, kind: Kind) {
        self.word(3).store(kind.code(), Ordering::Relaxed);
        self.word(1).store(now_ns(), Ordering::Relaxed);
        self.word(0).fetch_add(1, Ordering::Relaxed);
    }

    /// The number of the latest fault, when it was announced, and its [`Kind::code`].
    pub fn fault(&self) -> (u64, u64, u64) {
        let [number, time_ns, kind] = [0, 1, 3].map(|at| self.word(at).load(Ordering::Relaxed));
        (number, time_ns, kind)
    }

    /// Shows where a good client has device memory.
    pub fn show_memory(&self, address: u64) {
        self.word(4).store(address, Ordering::Relaxed);
    }

    /// Device memory of some good client.
    pub fn shown_memory(&self) -> u64 {
        self.word(4).load(Ordering::Relaxed)
    }

    /// A count of a good client.
    pub fn count(&self, client: usize, count: Count) -> &AtomicU64 {
        self.word(8 + client.min(MOST_GOOD - 1) * 4 + count as usize)
    }

    /// Has the good clients stay idle, or go on.
    pub fn set_rest(&self, rest: Rest) {
        self.word(2).store(rest as u64, Ordering::Relaxed);
    }

    /// Whether good clients are to stay idle.
    pub fn rests(&self) -> bool {
        self.word(2).load(Ordering::Relaxed) == Rest::Idle as u64
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: inside the page, aligned; other processes write whole words.
        unsafe { &*self.base.add(index) }
    }
}

const _: () = assert!((8 + MOST_GOOD * 4) * 8 <= BYTES);

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`; nothing refers to it any more.
        let _ = unsafe { munmap(self.base.cast(), BYTES) };
    }
}

/// CLOCK_MONOTONIC, which all processes of a machine share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
