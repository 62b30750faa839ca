//! Memory of clients that cannot be touched: the kernel's SIGBUS ends what belongs to that client,
//! and nobody else.
//!
//! What clients give is checked so that touching it never fails ([`crate::shm::check`]); this is
//! for what nobody has thought of. The thread that touches such memory may be a driver's. It goes
//! on with a page of zeros, and whoever [watches](watch) the memory finds out.

use std::io;
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Ranges that can be watched at a time.
const SLOTS: usize = 4096;
/// Of a slot that nobody has.
const FREE: usize = 0;
/// Of one that is being taken; no address of memory.
const TAKEN: usize = 1;

struct Slot {
    base: AtomicUsize,
    end: AtomicUsize,
    has_failed: AtomicBool,
}

static WATCHED: [Slot; SLOTS] = [const {
    Slot {
        base: AtomicUsize::new(FREE),
        end: AtomicUsize::new(0),
        has_failed: AtomicBool::new(false),
    }
}; SLOTS];
/// How often memory that is watched has failed.
static FAILURES: AtomicUsize = AtomicUsize::new(0);
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// A range of addresses that is watched until this is dropped.
#[derive(Debug)]
pub struct Watched {
    slot: usize,
}

/// From now on this process survives that memory which is watched cannot be touched; for other
/// memory it ends, as before.
pub fn survive() {
    // Relaxed: the handler is made known to the kernel afterwards.
    PAGE_BYTES.store(rustix::param::page_size(), Ordering::Relaxed);
    // SAFETY: plain data; zero is no masked signals.
    let mut action: libc::sigaction = unsafe { zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler does only what may be done in a signal's: atomics, and system calls by
    // their wrappers that set nothing but errno.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    debug_assert!(set == 0, "{}", io::Error::last_os_error());
}

/// Watches a range; `None`: too many are.
pub fn watch(base: u64, size_bytes: u64) -> Option<Watched> {
    let (base, size_bytes) = (base as usize, size_bytes as usize);
    let slot = WATCHED.iter().position(|slot| {
        // Relaxed: what the slot says is read only when its base is an address.
        slot.base.compare_exchange(FREE, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    })?;
    WATCHED[slot].end.store(base.saturating_add(size_bytes), Ordering::Relaxed);
    WATCHED[slot].has_failed.store(false, Ordering::Relaxed);
    // Release: pairs with the acquire of the handler.
    WATCHED[slot].base.store(base, Ordering::Release);
    Some(Watched { slot })
}

/// A number that grows when memory that anybody watches fails.
pub fn failures() -> usize {
    // Acquire: pairs with the release of the handler, so that the slot's word is seen.
    FAILURES.load(Ordering::Acquire)
}

impl Watched {
    /// Whether some of it could not be touched, and is zeros now.
    pub fn has_failed(&self) -> bool {
        // Relaxed: `failures` orders it.
        WATCHED[self.slot].has_failed.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Release: pairs with the acquire of whoever takes it next, in `compare_exchange` or the
        // handler; nothing is kept here that could be missed.
        WATCHED[self.slot].base.store(FREE, Ordering::Release);
    }
}

extern "C" fn handle(_: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's own, of a SIGBUS; as there is no memory behind the address, it is not
    // read.
    let address = unsafe { (*about).si_addr() } as usize;
    // SAFETY: errno of this thread, which it may be about to look at.
    let errno = unsafe { *libc::__errno_location() };
    if !put_zeros(address) {
        // The instruction is tried once more, and then ends the process.
        // SAFETY: the default action needs nothing.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Puts a page of zeros where a client's cannot be touched. Async-signal-safe.
fn put_zeros(address: usize) -> bool {
    // Acquire: pairs with the release of `watch`.
    let is_in = |slot: &&Slot| {
        let base = slot.base.load(Ordering::Acquire);
        base > TAKEN && base <= address && address < slot.end.load(Ordering::Relaxed)
    };
    let Some(slot) = WATCHED.iter().find(is_in) else { return false };
    let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
    let page = ptr::with_exposed_provenance_mut(address / page_bytes * page_bytes);
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
    );
    // SAFETY: what is replaced is a page of a client's that nobody can read or write; whoever has
    // it mapped takes it for memory that others change at any time.
    let mapped = unsafe { libc::mmap(page, page_bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    slot.has_failed.store(true, Ordering::Relaxed);
    // Release: pairs with the acquire of `failures`.
    FAILURES.fetch_add(1, Ordering::Release);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Access, Mapping};
    use rustix::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const PAGES: usize = 4;
    const CHILD: &str = "OPENMPS_TEST_BUS_ERROR";

    /// Memory of which nothing is left.
    fn lost() -> Mapping {
        let file = tempfile::tempfile().unwrap();
        let length = PAGES * rustix::param::page_size();
        file.set_len(length as u64).unwrap();
        let mapping = Mapping::new(file.as_fd(), length, Access::ReadWrite).unwrap();
        file.set_len(0).unwrap();
        mapping
    }

    fn watched(mapping: &Mapping) -> Watched {
        let base = mapping.base().expose_provenance() as u64;
        watch(base, mapping.size_bytes() as u64).unwrap()
    }

    #[test]
    fn lost_memory_is_zeros_and_its_owner_alone_is_told() {
        survive();
        let (one, other) = (lost(), lost());
        let (of_one, of_other) = (watched(&one), watched(&other));
        let before = failures();
        let place = one.base().wrapping_add(rustix::param::page_size() + 7);
        // SAFETY: mapped, and when it cannot be touched it is zeros.
        unsafe {
            assert_eq!(place.read_volatile(), 0);
            place.write_volatile(5);
            assert_eq!(place.read_volatile(), 5, "the page is there now");
        }
        assert!(failures() > before);
        assert!(of_one.has_failed() && !of_other.has_failed());
        drop(of_one);
        assert!(!watched(&other).has_failed());
    }

    #[test]
    fn what_nobody_watches_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            survive();
            let (one, other) = (lost(), lost());
            let _watched = watched(&other);
            // SAFETY: mapped; that it cannot be touched is the test.
            unsafe { one.base().read_volatile() };
            return;
        }
        let name = "bus_error::tests::what_nobody_watches_ends_the_process";
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}
