//! Memory that other processes of a machine hold when the one that made it has let go: it stays
//! taken until the last of them has, however that one ends.
//!
//! Who imports an allocation opens it anew and locks it (an open file description's lock, which
//! goes with its last descriptor and with its process). Who made it is charged until nobody has
//! such a lock.

use super::physical::Account;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

/// Between two looks at who still holds memory; a thread looks as long as there is any.
const LOOK: Duration = Duration::from_millis(1);

/// Memory that its maker has let go.
struct Lingering {
    fd: OwnedFd,
    account: Arc<Account>,
    size_bytes: u64,
}

static LINGERING: Mutex<Vec<Lingering>> = Mutex::new(Vec::new());
/// Whether the thread runs. Relaxed: read and written under the lock.
static IS_LOOKED_AFTER: AtomicBool = AtomicBool::new(false);

/// A descriptor by which this process holds an allocation that another one has made.
pub(super) fn hold(fd: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let own = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let request = request(libc::F_RDLCK);
    // SAFETY: an open descriptor and a valid structure.
    match unsafe { libc::fcntl(own.as_raw_fd(), libc::F_OFD_SETLK, &request) } {
        0 => Ok(own),
        _ => Err(rustix::io::Errno::NOLCK),
    }
}

/// Refunds memory that its maker has let go, now or as soon as nobody holds it.
pub(super) fn refund(fd: BorrowedFd<'_>, account: &Arc<Account>, size_bytes: u64) {
    let copy = is_held(fd).then(|| rustix::io::fcntl_dupfd_cloexec(fd, 0).ok()).flatten();
    let Some(fd) = copy else { return account.refund(size_bytes) };
    let mut lingering = LINGERING.lock().unwrap_or_else(PoisonError::into_inner);
    lingering.push(Lingering { fd, account: Arc::clone(account), size_bytes });
    if !IS_LOOKED_AFTER.swap(true, Ordering::Relaxed) {
        let thread = std::thread::Builder::new().name("softcuda holders".into());
        if thread.spawn(look_after).is_err() {
            IS_LOOKED_AFTER.store(false, Ordering::Relaxed);
            lingering.drain(..).for_each(|it| it.account.refund(it.size_bytes));
        }
    }
}

fn look_after() {
    loop {
        std::thread::sleep(LOOK);
        let mut lingering = LINGERING.lock().unwrap_or_else(PoisonError::into_inner);
        look(&mut lingering);
        if lingering.is_empty() {
            IS_LOOKED_AFTER.store(false, Ordering::Relaxed);
            return;
        }
    }
}

/// Refunds what nobody holds any more, for who needs memory now.
pub(super) fn refund_all() {
    look(&mut LINGERING.lock().unwrap_or_else(PoisonError::into_inner));
}

fn look(lingering: &mut Vec<Lingering>) {
    lingering.retain(|it| {
        let is_held = is_held(it.fd.as_fd());
        if !is_held {
            it.account.refund(it.size_bytes);
        }
        is_held
    });
}

/// Whether anybody holds an allocation of this process's.
fn is_held(fd: BorrowedFd<'_>) -> bool {
    let mut request = request(libc::F_WRLCK);
    // SAFETY: an open descriptor and a valid structure, which is written.
    let asked = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut request) };
    asked == 0 && request.l_type != libc::F_UNLCK as libc::c_short
}

fn request(kind: libc::c_int) -> libc::flock {
    // SAFETY: a plain C structure, for which zeros are valid.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_len = 1;
    request
}
