//! `userfaultfd`: the kernel tells of this process's faults in managed memory instead of serving
//! them.
//!
//! A descriptor that serves faults of user mode alone would let `read` and `write` on managed
//! memory fail (EFAULT). So one is used that serves system calls, too, or none.

use super::blocks::{Fault, Guard, Hole};
use link::spin::{Cores, Spin};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;
use std::ops::Range;
use std::time::Instant;

const DEVICE: &str = "/dev/userfaultfd";
/// Bound of one sleep; nothing depends on its length.
const SLEEP: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
/// Messages that are read at once.
const MESSAGES: usize = 16;

// Of linux/userfaultfd.h.
const GROUP: u8 = 0xaa;
const API_VERSION: u64 = 0xaa;
const NEW: Opcode = opcode::none(GROUP, 0x00);
const API: Opcode = opcode::read_write::<Api>(GROUP, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0x00);
const WAKE: Opcode = opcode::read::<Pages>(GROUP, 0x02);
const COPY: Opcode = opcode::read_write::<Copy>(GROUP, 0x03);
const ZERO_PAGE: Opcode = opcode::read_write::<ZeroPage>(GROUP, 0x04);
const WRITE_PROTECT: Opcode = opcode::read_write::<WriteProtect>(GROUP, 0x06);
/// Guarded pages are told of.
const FEATURE_WRITE_PROTECT: u64 = 1;
const REGISTER_MISSING_AND_GUARDED: u64 = 1 | 2;
const COPY_GUARDED: u64 = 2;
const PROTECT: u64 = 1;
const EVENT_PAGE_FAULT: u8 = 0x12;
const FAULT_WRITE: u64 = 1;
const FAULT_GUARDED: u64 = 2;
/// Throws away locked pages, too (5.18).
const DONTNEED_LOCKED: i32 = 24;

#[repr(C)]
#[derive(Default)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct Pages {
    start: u64,
    length: u64,
}

#[repr(C)]
#[derive(Default)]
struct Register {
    pages: Pages,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct Copy {
    destination: u64,
    source: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
#[derive(Default)]
struct ZeroPage {
    pages: Pages,
    mode: u64,
    zeroed: i64,
}

#[repr(C)]
#[derive(Default)]
struct WriteProtect {
    pages: Pages,
    mode: u64,
}

/// A message; what follows the address is not looked at.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    rest: u64,
}

/// Why managed memory stays with the host.
#[derive(Debug, thiserror::Error)]
pub(super) enum FaultsError {
    #[error(
        "no userfaultfd that serves system calls: {DEVICE}: {device}; userfaultfd(2): {call}; what the server hands on: {server}"
    )]
    Refused { device: Errno, call: Errno, server: Errno },
    #[error("this kernel's userfaultfd cannot guard pages against writing: {0}; it is from 5.7 on")]
    Old(Errno),
    #[error("a range cannot be watched: {0}")]
    Register(Errno),
}

/// A descriptor, for this process's memory.
#[derive(Debug)]
pub(super) struct Faults(OwnedFd);

fn pages(range: &Range<u64>) -> Pages {
    Pages { start: range.start, length: range.end - range.start }
}

impl Faults {
    /// From the device, or the system call, or else of what `ask` gets from the server.
    pub(super) fn open(ask: impl FnOnce() -> Option<OwnedFd>) -> Result<Self, FaultsError> {
        let file = from_device().or_else(|device| {
            let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
            // SAFETY: what the descriptor is used for is this module's own affair: only ranges that
            // the client has mapped for managed memory are registered.
            let made = unsafe { rustix::mm::userfaultfd(flags) };
            made.or_else(|call| {
                let handed_on = ask().ok_or(Errno::PERM).and_then(of_device);
                handed_on.map_err(|server| FaultsError::Refused { device, call, server })
            })
        })?;
        let faults = Self(file);
        let mut api = Api { api: API_VERSION, features: FEATURE_WRITE_PROTECT, ioctls: 0 };
        // SAFETY: the opcode's structure, which the kernel reads and writes.
        unsafe { faults.update::<API, Api>(&mut api) }.map_err(FaultsError::Old)?;
        Ok(faults)
    }

    /// For the child of a fork, which must close it.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// # Safety
    /// The structure is the opcode's, and what it makes the kernel do to this process's memory is
    /// meant.
    unsafe fn update<const OPCODE: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        loop {
            // SAFETY: the caller's promise.
            match unsafe { ioctl(&self.0, Updater::<OPCODE, T>::new(argument)) } {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    /// Has faults in a range told from now on.
    pub(super) fn register(&self, range: Range<u64>) -> Result<(), FaultsError> {
        let mode = REGISTER_MISSING_AND_GUARDED;
        let mut register = Register { pages: pages(&range), mode, ioctls: 0 };
        // SAFETY: the opcode's structure; the range is the client's own and nobody's yet.
        unsafe { self.update::<REGISTER, Register>(&mut register) }.map_err(FaultsError::Register)
    }

    /// Bytes from `source` into missing pages.
    pub(super) fn copy(&self, range: Range<u64>, source: u64, guard: Guard) {
        let mode = if guard == Guard::On { COPY_GUARDED } else { 0 };
        let mut done = 0;
        let length = range.end - range.start;
        while done < length {
            let mut copy = Copy {
                destination: range.start + done,
                source: source + done,
                length: length - done,
                mode,
                copied: 0,
            };
            // SAFETY: the opcode's structure; the source is as long as the range.
            let copied = unsafe { self.update::<COPY, Copy>(&mut copy) };
            match (copied, u64::try_from(copy.copied)) {
                (Ok(()), Ok(some)) | (Err(Errno::AGAIN), Ok(some)) => done += some,
                (Err(Errno::AGAIN), Err(_)) => {}
                // A page that nobody here has made: what it has is not the device's.
                (Err(Errno::EXIST), _) => discard(&(copy.destination..range.end)),
                (Err(error), _) => return self.unserved(&range, error),
                (Ok(()), Err(_)) => return self.unserved(&range, Errno::INVAL),
            }
        }
    }

    /// Zeros into one page, if it is missing.
    pub(super) fn zero_page(&self, page: Range<u64>) -> Hole {
        loop {
            let mut zero = ZeroPage { pages: pages(&page), ..ZeroPage::default() };
            // SAFETY: the opcode's structure; the page is managed memory.
            match unsafe { self.update::<ZERO_PAGE, ZeroPage>(&mut zero) } {
                Ok(()) => return Hole::Filled,
                Err(Errno::AGAIN) => {}
                Err(Errno::EXIST) => return Hole::None,
                Err(error) => {
                    self.unserved(&page, error);
                    return Hole::None;
                }
            }
        }
    }

    /// Zeros into the pages of a guarded range that the program has thrown away: who reads there
    /// while it keeps others from serving faults would wait for ever.
    pub(super) fn fill_holes(&self, range: &Range<u64>) {
        let page_bytes = link::pages::Pages::of_system().bytes();
        let missing = missing(range, page_bytes);
        for &page in &missing {
            // One that is elsewhere for the moment (swapped out) is there.
            let _ = self.zero_page(page..page + page_bytes);
        }
        if !missing.is_empty() {
            // Else a write to one of them would be no fault, and would be lost.
            self.guard(range.clone(), Guard::On);
        }
    }

    /// A fault that cannot be served: the thread tries again, and meets what the kernel makes of
    /// it. So does one whose memory was freed meanwhile.
    #[cold]
    fn unserved(&self, range: &Range<u64>, error: Errno) {
        crate::warn!("managed memory at {:#x} has no pages: {error}", range.start);
        self.wake(range.clone());
    }

    /// Guards pages against writing, or no longer.
    pub(super) fn guard(&self, range: Range<u64>, guard: Guard) {
        let mode = if guard == Guard::On { PROTECT } else { 0 };
        loop {
            let mut protect = WriteProtect { pages: pages(&range), mode };
            // SAFETY: the opcode's structure; the range is managed memory.
            match unsafe { self.update::<WRITE_PROTECT, WriteProtect>(&mut protect) } {
                Err(Errno::AGAIN) => {}
                Ok(()) => return,
                Err(error) => return self.unserved(&range, error),
            }
        }
    }

    /// Lets threads try again.
    pub(super) fn wake(&self, range: Range<u64>) {
        // SAFETY: the opcode's structure; no memory changes.
        let _ = unsafe { self.update::<WAKE, Pages>(&mut pages(&range)) };
    }

    /// Messages that are there; says how many.
    fn read(&self, messages: &mut [Message; MESSAGES]) -> Result<usize, Errno> {
        let length = size_of_val(messages);
        // SAFETY: messages are plain data of any bits, and as long as said.
        let bytes =
            unsafe { core::slice::from_raw_parts_mut(messages.as_mut_ptr().cast::<u8>(), length) };
        rustix::io::read(self.0.as_fd(), bytes).map(|read| read / size_of::<Message>())
    }

    /// Waits for faults, for ever, and has each served.
    pub(super) fn serve(&self, mut serve: impl FnMut(u64, Fault)) {
        let mut spin = Spin::default();
        loop {
            let mut messages = [Message::default(); MESSAGES];
            let mut told = Err(Errno::AGAIN);
            // Where one fault was, another follows soon.
            let mut is_told = || {
                told = self.read(&mut messages);
                told != Err(Errno::AGAIN)
            };
            if !spin.until(Cores::Spare, &mut is_told) {
                let began = Instant::now();
                let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
                match rustix::event::poll(&mut polled, Some(&SLEEP)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return crate::error!("faults are no longer told: {error}"),
                }
                is_told();
                spin.came_after(began.elapsed());
            }
            let count = match told {
                Ok(count) => count,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(error) => return crate::error!("faults are no longer told: {error}"),
            };
            for message in &messages[..count] {
                if message.event == EVENT_PAGE_FAULT {
                    let fault = match message.flags {
                        flags if flags & FAULT_GUARDED != 0 => Fault::Guarded,
                        flags if flags & FAULT_WRITE != 0 => Fault::Write,
                        _ => Fault::Read,
                    };
                    serve(message.address, fault);
                }
            }
        }
    }
}

/// Takes pages out of this process.
pub(super) fn discard(range: &Range<u64>) {
    let (start, length) = (range.start as *mut _, (range.end - range.start) as usize);
    // SAFETY: the range is managed memory: its next touch is a fault, which brings the bytes.
    let has_left = |advice| unsafe { libc::madvise(start, length, advice) } == 0;
    if has_left(DONTNEED_LOCKED) || has_left(libc::MADV_DONTNEED) {
        return;
    }
    // An older kernel keeps what the program has locked.
    // SAFETY: as above; what is locked changes no contents.
    unsafe { libc::munlock(start, length) };
    if !has_left(libc::MADV_DONTNEED) {
        crate::error!("pages of managed memory at {:#x} stay where they are", range.start);
    }
}

/// Of a range, the first addresses of pages that are not there, if the kernel says so.
fn missing(range: &Range<u64>, page_bytes: u64) -> Vec<u64> {
    let length = range.end - range.start;
    let mut is_there = vec![0_u8; length.div_ceil(page_bytes) as usize];
    // SAFETY: a byte for each page of the range.
    let told = unsafe {
        libc::mincore(range.start as *mut _, length as usize, is_there.as_mut_ptr().cast())
    };
    let pages = (range.start..range.end).step_by(page_bytes as usize).zip(is_there);
    match told {
        0 => pages.filter(|(_, there)| there & 1 == 0).map(|(page, _)| page).collect(),
        _ => Vec::new(),
    }
}

/// A descriptor for this process, from the file of those who may have one.
fn from_device() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open(DEVICE, flags, Mode::empty())?;
    of_device(device)
}

fn of_device(device: OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the opcode takes flags and makes a descriptor; of another file it is refused.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), u64::from(NEW), flags) };
    if made < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
