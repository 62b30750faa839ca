//! What processes of one machine know of each other's use of its devices: memory taken and open
//! contexts.
//!
//! Processes that name the same machine (`OPENMPS_SOFT_MACHINE`) share a file of slots, one per
//! process. A process owns its slot by a lock on the slot's number, which the operating system
//! takes away when the process ends, however it ends: what a dead process's slot says is not
//! counted, and the slot is used again. Nothing is ever waited for. Two processes that take the
//! last memory, or an exclusive device, at the same moment may both be refused.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// Processes that can use a machine at a time.
const SLOTS: usize = 512;
/// Devices of a machine.
const DEVICES: usize = 16;
/// Where locks begin: behind everything that is in the file.
const LOCKS_OFFSET: i64 = 1 << 40;

/// What one process uses; zero is a process that uses nothing.
#[repr(C)]
struct Slot {
    memory_bytes: [AtomicU64; DEVICES],
    contexts: [AtomicU64; DEVICES],
}

/// The machine as one process sees it.
pub(crate) struct Machine {
    /// Open for the process's life: closing it would give the lock back.
    file: File,
    slots: *const Slot,
    own: usize,
}

// SAFETY: the mapping stays for the process's life and holds nothing but atomics.
unsafe impl Send for Machine {}
// SAFETY: as above.
unsafe impl Sync for Machine {}

/// Why a machine cannot be joined.
#[derive(Debug, Error)]
pub(crate) enum MachineError {
    #[error("cannot open the machine's state {}: {source}; set OPENMPS_SOFT_MACHINE to a name or to a writable path", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("the machine's state {} belongs to another user; set OPENMPS_SOFT_MACHINE to a path of your own", .0.display())]
    Foreign(PathBuf),
    #[error("{SLOTS} processes use the machine {} already; end some or name another machine", .0.display())]
    Full(PathBuf),
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("own", &self.own).finish_non_exhaustive()
    }
}

impl Machine {
    /// Joins the machine of a name, or of a path if it has a slash.
    pub(crate) fn join(name: &str) -> Result<Self, MachineError> {
        let path = path_of(name)?;
        let open = |source| MachineError::Open { path: path.clone(), source };
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(&path)
            .map_err(open)?;
        let metadata = file.metadata().map_err(open)?;
        if metadata.uid() != rustix::process::getuid().as_raw() {
            return Err(MachineError::Foreign(path));
        }
        let size_bytes = size_of::<Slot>() * SLOTS;
        // Never shorter: others have it mapped. Every process sets the same length.
        if metadata.len() < size_bytes as u64 {
            file.set_len(size_bytes as u64).map_err(open)?;
        }
        // SAFETY: a new mapping that nothing else refers to; the file is that long and never gets
        // shorter.
        let slots = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_bytes,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &file,
                0,
            )
        };
        let slots = slots.map_err(|errno| open(errno.into()))?.cast::<Slot>().cast_const();
        let own = (0..SLOTS).find(|slot| lock(&file, *slot)).ok_or(MachineError::Full(path))?;
        let machine = Machine { file, slots, own };
        // What a dead process left. Relaxed: independent counts.
        for device in 0..DEVICES {
            machine.slot(own).memory_bytes[device].store(0, Ordering::Relaxed);
            machine.slot(own).contexts[device].store(0, Ordering::Relaxed);
        }
        Ok(machine)
    }

    fn slot(&self, index: usize) -> &Slot {
        // SAFETY: below SLOTS by its callers; the mapping holds that many, of atomics, for which
        // every content is valid.
        unsafe { &*self.slots.add(index) }
    }

    /// Sum over the living processes, this one included.
    fn sum(&self, count: impl Fn(&Slot) -> u64) -> u64 {
        let others = (0..SLOTS).filter(|index| *index != self.own).filter_map(|index| {
            let used = count(self.slot(index));
            // Most slots say nothing, and asking who lives is a system call.
            (used > 0 && is_locked(&self.file, index)).then_some(used)
        });
        others.fold(count(self.slot(self.own)), u64::saturating_add)
    }

    /// Memory of a device that all processes have taken, bytes.
    pub(crate) fn used_bytes(&self, device: u32) -> u64 {
        let device = device as usize % DEVICES;
        // SeqCst: partner of the addition in `take`, so that of two that take at once at least one
        // sees the other.
        self.sum(|slot| slot.memory_bytes[device].load(Ordering::SeqCst))
    }

    /// Takes memory of a device that has `total_bytes`; `false` when there is not enough.
    pub(crate) fn take(&self, device: u32, size_bytes: u64, total_bytes: u64) -> bool {
        if size_bytes > total_bytes {
            return false;
        }
        let own = &self.slot(self.own).memory_bytes[device as usize % DEVICES];
        // SeqCst: see `used_bytes`.
        own.fetch_add(size_bytes, Ordering::SeqCst);
        let fits = self.used_bytes(device) <= total_bytes;
        if !fits {
            own.fetch_sub(size_bytes, Ordering::SeqCst);
        }
        fits
    }

    /// Gives memory back.
    pub(crate) fn give(&self, device: u32, size_bytes: u64) {
        let own = &self.slot(self.own).memory_bytes[device as usize % DEVICES];
        // Relaxed: a count that guards nothing.
        own.fetch_sub(size_bytes, Ordering::Relaxed);
    }

    /// Counts a context; `false`, and not counted, if only one process may have some and another
    /// one has.
    pub(crate) fn open_context(&self, device: u32, sharing: Sharing) -> bool {
        let place = device as usize % DEVICES;
        let own = &self.slot(self.own).contexts[place];
        // SeqCst: as in `take`.
        let before = own.fetch_add(1, Ordering::SeqCst);
        let all = self.sum(|slot| slot.contexts[place].load(Ordering::SeqCst));
        let is_fine = sharing == Sharing::Processes || all <= before + 1;
        if !is_fine {
            own.fetch_sub(1, Ordering::SeqCst);
        }
        is_fine
    }

    pub(crate) fn close_context(&self, device: u32) {
        // Relaxed: a count that guards nothing.
        self.slot(self.own).contexts[device as usize % DEVICES].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who may have contexts on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    Processes,
    OneProcess,
}

/// A name's file is in the user's runtime directory, which only the user can enter.
fn path_of(name: &str) -> Result<PathBuf, MachineError> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let user = rustix::process::getuid().as_raw();
    let directory = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if !runtime.is_empty() => Path::new(&runtime).join("openmps-softcuda"),
        _ => std::env::temp_dir().join(format!("openmps-softcuda-{user}")),
    };
    match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let metadata = std::fs::symlink_metadata(&directory);
            if !metadata.is_ok_and(|found| found.is_dir() && found.uid() == user) {
                return Err(MachineError::Foreign(directory));
            }
        }
        Err(source) => return Err(MachineError::Open { path: directory, source }),
    }
    Ok(directory.join(name))
}

fn lock_request(slot: usize) -> libc::flock {
    // SAFETY: a plain C structure, for which zeros are valid.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::F_WRLCK as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = LOCKS_OFFSET + slot as i64;
    request.l_len = 1;
    request
}

/// Takes a slot's lock if nobody has it. Such locks belong to the process: a fork does not inherit
/// them.
fn lock(file: &File, slot: usize) -> bool {
    // SAFETY: an open descriptor and a valid structure.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock_request(slot)) == 0 }
}

/// Whether another process has a slot's lock.
fn is_locked(file: &File, slot: usize) -> bool {
    let mut request = lock_request(slot);
    // SAFETY: as in `lock`; the structure is written.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut request) };
    asked == 0 && request.l_type != libc::F_UNLCK as libc::c_short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_its_own_use_and_forgets_what_is_left_over() {
        let path = std::env::temp_dir().join(format!("softcuda-machine-{}", std::process::id()));
        let name = path.to_str().expect("UTF-8").to_owned();
        let machine = Machine::join(&name).expect("joins");
        assert!(machine.take(1, 600, 1000));
        assert!(!machine.take(1, 500, 1000), "more than there is");
        assert!(machine.take(0, 1000, 1000), "another device");
        assert_eq!((machine.used_bytes(1), machine.used_bytes(0)), (600, 1000));
        machine.give(1, 600);
        assert_eq!(machine.used_bytes(1), 0);
        // A slot that says something but that no process has.
        machine.slot(7).memory_bytes[1].store(900, Ordering::SeqCst);
        machine.slot(7).contexts[1].store(1, Ordering::SeqCst);
        assert!(machine.take(1, 900, 1000) && machine.open_context(1, Sharing::OneProcess));
        assert!(machine.open_context(1, Sharing::OneProcess), "one process may have several");
        std::fs::remove_file(path).expect("removed");
    }
}
