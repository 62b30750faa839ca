//! Shared-memory files and their mappings.
//!
//! Files are memfds whose size is sealed, so that nobody can make a mapping's pages vanish under
//! its reader. A received descriptor is [`check`]ed before it is mapped. Windows of addresses that
//! must be the same in several processes are reserved first ([`Reservation`]), and files are mapped
//! inside the reservation.

use crate::pages::{self, Pages};
use crate::wire::attach::Window;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ptr;
use thiserror::Error;

/// `HUGETLBFS_MAGIC` of linux/magic.h, which `fstatfs` says of a memfd of huge pages.
const HUGETLBFS: u64 = 0x9584_58f6;
/// `TMPFS_MAGIC` there, of a plain one.
const TMPFS: u64 = 0x0102_1994;

/// Above what clients' windows and reservations take, and below where the kernel puts what has no
/// place of its own.
const SCATTERED_BASE: u64 = 0x6200_0000_0000;
const SCATTERED_STEP: u64 = pages::LONGEST_BYTES as u64;
const SCATTERED_PLACES: u64 = (0x7000_0000_0000 - SCATTERED_BASE) / SCATTERED_STEP;

/// What went wrong with a file or a mapping.
#[derive(Debug, Error)]
pub enum ShmError {
    /// The kernel refused to make, size or seal a file.
    #[error(
        "cannot make a shared-memory file of {size_bytes} bytes: {source}; is there memory left, and a descriptor?"
    )]
    Create {
        /// Its length.
        size_bytes: u64,
        /// The kernel's word.
        source: Errno,
    },
    /// A file cannot be opened again.
    #[error("cannot open a shared-memory file for reading: {0}; is /proc mounted?")]
    Reopen(Errno),
    /// The descriptor is no memfd.
    #[error("the descriptor received is no sealable shared-memory file: {0}")]
    NotAMemfd(Errno),
    /// Its pages are not the kernel's own kind of shared memory: touching it could fail.
    #[error(
        "the file received lies in a file system of type {0:#x}: huge pages, and files, can be lost when they are touched; pass plain shared memory"
    )]
    Foreign(u64),
    /// Its size could change.
    #[error("the shared-memory file received is not sealed against shrinking and growing")]
    NotSealed,
    /// It has another size than was said.
    #[error("the shared-memory file received has {actual} bytes instead of {expected}")]
    WrongSize {
        /// Bytes that it has.
        actual: u64,
        /// Bytes that it should have.
        expected: u64,
    },
    /// The kernel refused the mapping.
    #[error("cannot map {size_bytes} bytes at {address:#x}: {source}")]
    Map {
        /// Wanted address; 0 for any.
        address: u64,
        /// Its length.
        size_bytes: u64,
        /// The kernel's word.
        source: Errno,
    },
    /// The wanted addresses are not free.
    #[error("the addresses {address:#x} + {size_bytes:#x} are taken in this process")]
    AddressTaken {
        /// First address.
        address: u64,
        /// Length.
        size_bytes: u64,
    },
    /// Outside of the reservation, or no whole pages.
    #[error("{address:#x} + {size_bytes:#x} is no range of whole pages inside {window:x?}")]
    OutsideWindow {
        /// First address.
        address: u64,
        /// Length.
        size_bytes: u64,
        /// The reservation.
        window: Window,
    },
}

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

impl Access {
    fn protection(self) -> ProtFlags {
        match self {
            Self::ReadOnly => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        }
    }
}

/// Makes a shared-memory file of zeros whose size is sealed. `name` shows in `/proc/PID/maps`.
///
/// # Errors
/// [`ShmError::Create`].
pub fn create(name: &str, size_bytes: u64) -> Result<OwnedFd, ShmError> {
    let make = || {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, size_bytes)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(file)
    };
    make().map_err(|source| ShmError::Create { size_bytes, source })
}

/// Another descriptor of a file that can only read it, for a process that must not write there:
/// neither through the descriptor nor through a mapping of it. The file is closed to other users
/// besides; one of the same user could open it anew, as it could stop the writer itself.
///
/// # Errors
/// [`ShmError::Reopen`] where `/proc` is not mounted.
pub fn read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, ShmError> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let reopen = || {
        rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    };
    reopen().map_err(ShmError::Reopen)
}

/// Refuses a file whose pages another process can take away so that touching them ends this one:
/// huge pages, which are used up one day.
///
/// # Errors
/// [`ShmError::Foreign`].
pub fn refuse_huge_pages(file: BorrowedFd<'_>) -> Result<(), ShmError> {
    match file_system(file) {
        HUGETLBFS => Err(ShmError::Foreign(HUGETLBFS)),
        _ => Ok(()),
    }
}

/// The type of the file system that a file lies in; 0: unknown.
fn file_system(file: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstatfs(file).map_or(0, |about| about.f_type as u64)
}

/// Checks a received descriptor: a memfd of pages of the usual size, sealed against shrinking and
/// growing, of exactly `size_bytes`. Nobody can make touching it fail.
///
/// # Errors
/// What is wrong with it.
pub fn check(file: BorrowedFd<'_>, size_bytes: u64) -> Result<(), ShmError> {
    // Seals first: without them the size means nothing.
    let seals = rustix::fs::fcntl_get_seals(file).map_err(ShmError::NotAMemfd)?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(ShmError::NotSealed);
    }
    let found = file_system(file);
    if found != TMPFS {
        return Err(ShmError::Foreign(found));
    }
    let status = rustix::fs::fstat(file).map_err(ShmError::NotAMemfd)?;
    let actual = status.st_size as u64;
    if actual != size_bytes {
        return Err(ShmError::WrongSize { actual, expected: size_bytes });
    }
    Ok(())
}

/// Where in the process a mapping lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// Where the kernel likes: beside the last one, as a rule.
    Anywhere,
    /// At a random place, of which no other mapping's address says anything. Where the kernel has
    /// no such addresses, anywhere.
    Scattered,
}

impl Spot {
    fn hint(self) -> *mut c_void {
        match self {
            Self::Anywhere => ptr::null_mut(),
            Self::Scattered => {
                address(SCATTERED_BASE + random() % SCATTERED_PLACES * SCATTERED_STEP)
            }
        }
    }
}

/// A number that nobody can guess; 0 where the kernel has none.
fn random() -> u64 {
    crate::random::bytes().map_or(0, u64::from_ne_bytes)
}

/// A shared mapping of a file, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    size_bytes: usize,
}

// SAFETY: owns its range of addresses; access to the bytes is the user's affair.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `size_bytes` of `file` anywhere.
    ///
    /// # Errors
    /// [`ShmError::Map`].
    pub fn new(file: BorrowedFd<'_>, size_bytes: usize, access: Access) -> Result<Self, ShmError> {
        Self::of_part(file, 0, size_bytes, access, Spot::Anywhere)
    }

    /// Maps `size_bytes` of `file` from `offset` on, which is a whole number of pages.
    ///
    /// # Errors
    /// [`ShmError::Map`].
    pub fn of_part(
        file: BorrowedFd<'_>,
        offset: usize,
        size_bytes: usize,
        access: Access,
        spot: Spot,
    ) -> Result<Self, ShmError> {
        // SAFETY: the address is a hint, so the kernel takes a free range.
        let base = unsafe {
            rustix::mm::mmap(
                spot.hint(),
                size_bytes,
                access.protection(),
                MapFlags::SHARED,
                file,
                offset as u64,
            )
        }
        .map_err(|source| ShmError::Map {
            address: 0,
            size_bytes: size_bytes as u64,
            source,
        })?;
        Ok(Self { base: base.cast(), size_bytes })
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Length.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this object's own, and whoever borrowed from it is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.size_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

/// A range of addresses that this process keeps free, to map files into; unmapped with all its
/// files on drop.
#[derive(Debug)]
pub struct Reservation {
    window: Window,
    pages: Pages,
}

impl Reservation {
    /// Reserves exactly `window`.
    ///
    /// # Errors
    /// [`ShmError::AddressTaken`] when anything is mapped there already.
    pub fn new(window: Window) -> Result<Self, ShmError> {
        Self::in_pages(window, Pages::of_system())
    }

    /// The same where pages have a certain length, that of the system's or a multiple of it.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_pages(window: Window, pages: Pages) -> Result<Self, ShmError> {
        let Window { base, size_bytes } = window;
        let taken = ShmError::AddressTaken { address: base, size_bytes };
        if base == 0 || !pages.are_whole(base, size_bytes) {
            return Err(ShmError::OutsideWindow { address: base, size_bytes, window });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: FIXED_NOREPLACE replaces nothing that is mapped.
        let got = unsafe {
            rustix::mm::mmap_anonymous(
                address(base),
                size_bytes as usize,
                ProtFlags::empty(),
                flags,
            )
        };
        match got {
            Ok(at) if at.addr() as u64 == base => Ok(Self { window, pages }),
            Ok(elsewhere) => {
                // A kernel before 4.17 takes the address for a hint.
                // SAFETY: just mapped, known to nobody.
                let _ = unsafe { rustix::mm::munmap(elsewhere, size_bytes as usize) };
                Err(taken)
            }
            Err(Errno::EXIST) => Err(taken),
            Err(source) => Err(ShmError::Map { address: base, size_bytes, source }),
        }
    }

    /// The reserved range.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Maps the first `size_bytes` of `file` at `at`, replacing what this reservation had there.
    ///
    /// # Errors
    /// [`ShmError::OutsideWindow`], [`ShmError::Map`].
    pub fn map(
        &self,
        file: BorrowedFd<'_>,
        at: u64,
        size_bytes: u64,
        access: Access,
    ) -> Result<(), ShmError> {
        self.check_range(at, size_bytes)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: inside the reservation, which is this object's own.
        unsafe {
            rustix::mm::mmap(address(at), size_bytes as usize, access.protection(), flags, file, 0)
        }
        .map(drop)
        .map_err(|source| ShmError::Map { address: at, size_bytes, source })
    }

    /// Has the pages of mapped files made now, rather than when each is first touched; a kernel
    /// that cannot (before 5.14) makes them then.
    pub fn populate(&self, at: u64, size_bytes: u64) {
        if self.check_range(at, size_bytes).is_ok() {
            let advice = rustix::mm::Advice::LinuxPopulateWrite;
            // SAFETY: inside the reservation, which is this object's own; no byte changes.
            let _ = unsafe { rustix::mm::madvise(address(at), size_bytes as usize, advice) };
        }
    }

    /// Has private memory in a range, of zeros; children of this process do not get it.
    ///
    /// # Errors
    /// [`ShmError::OutsideWindow`], [`ShmError::Map`].
    pub fn open(&self, at: u64, size_bytes: u64) -> Result<(), ShmError> {
        self.check_range(at, size_bytes)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let access = Access::ReadWrite.protection();
        // SAFETY: inside the reservation, which is this object's own, here and below.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(address(at), size_bytes as usize, access, flags).and_then(
                |pages| {
                    let advice = rustix::mm::Advice::LinuxDontFork;
                    rustix::mm::madvise(pages, size_bytes as usize, advice)
                },
            )
        };
        mapped.map_err(|source| ShmError::Map { address: at, size_bytes, source })
    }

    /// Takes files and private memory out of a range again; it stays reserved. The caller knows
    /// that nobody uses it.
    ///
    /// # Errors
    /// [`ShmError::OutsideWindow`], [`ShmError::Map`].
    pub fn unmap(&self, at: u64, size_bytes: u64) -> Result<(), ShmError> {
        self.check_range(at, size_bytes)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: inside the reservation, which is this object's own.
        unsafe {
            rustix::mm::mmap_anonymous(address(at), size_bytes as usize, ProtFlags::empty(), flags)
        }
        .map(drop)
        .map_err(|source| ShmError::Map { address: at, size_bytes, source })
    }

    fn check_range(&self, at: u64, size_bytes: u64) -> Result<(), ShmError> {
        let is_whole = size_bytes > 0 && self.pages.are_whole(at, size_bytes);
        if is_whole && self.window.contains(at, size_bytes) {
            return Ok(());
        }
        Err(ShmError::OutsideWindow { address: at, size_bytes, window: self.window })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the whole range is this object's own.
        let unmapped = unsafe {
            rustix::mm::munmap(address(self.window.base), self.window.size_bytes as usize)
        };
        debug_assert!(unmapped.is_ok(), "munmap of an own reservation: {unmapped:?}");
    }
}

fn address(at: u64) -> *mut c_void {
    ptr::without_provenance_mut(at as usize)
}
