//! Closing what strangers have a hand in, where nobody waits for it.
//!
//! A descriptor that a peer has sent can be one whose closing blocks: a TCP socket lingers for as
//! long as its owner likes. A connection holds whatever was sent and not received, and closing it
//! closes that. So no thread that serves several peers does either: connections are kept as
//! [`Foreign`], and what cannot be closed at once goes to a thread of its owner's.
//!
//! An owner has one thread, which ends when nothing is left. What waits for it stays open and is
//! counted: an owner that [is behind](Closer::is_behind) is to get no further connections. The
//! thread is interrupted by a timer all the time, which ends any lingering, so that few wait; and
//! where a process ends the kernel never lingers.

use crate::socket::{Connection, Queued};
use crate::wire::owner::Owner;
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

/// More than that of one owner's are not to wait to be closed. Those who do as they should have
/// none, or for a moment.
const MOST_WAITING: usize = 512;
/// A closing that takes longer is interrupted, again and again.
const INTERRUPTED_AFTER: Duration = Duration::from_millis(2);
/// A closing thread calls nothing deep.
const STACK_BYTES: usize = 64 << 10;

/// Closes for others; copies are the same one.
#[derive(Clone, Debug, Default)]
pub struct Closer {
    queues: Arc<Mutex<BTreeMap<Owner, Queue>>>,
}

/// What waits to be closed, of one owner.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<OwnedFd>,
    /// What its thread is closing.
    in_hand: usize,
    has_thread: bool,
}

impl Closer {
    /// Takes charge of a connection of this owner's.
    pub fn guard(&self, owner: Owner, connection: Connection) -> Foreign {
        let connection = Some(connection);
        Foreign { connection, owner, holders: Holders::One, closer: self.clone() }
    }

    /// Has a descriptor closed that may be of any kind.
    pub fn close(&self, owner: &Owner, descriptor: OwnedFd) {
        let mut queues = self.lock();
        queues.entry(owner.clone()).or_default().waiting.push_back(descriptor);
        // Also those for whom there was no thread before.
        let owners: Vec<Owner> = queues
            .iter()
            .filter(|(_, queue)| !queue.has_thread)
            .map(|(it, _)| it.clone())
            .collect();
        for owner in owners {
            let (queues_of_thread, of) = (Arc::clone(&self.queues), owner.clone());
            let thread = std::thread::Builder::new().name("closer".into()).stack_size(STACK_BYTES);
            let started = thread.spawn(move || close_all(&queues_of_thread, &of)).is_ok();
            if let Some(queue) = queues.get_mut(&owner) {
                queue.has_thread = started;
            }
        }
    }

    /// How many descriptors of an owner's are still open.
    pub fn waiting(&self, owner: &Owner) -> usize {
        self.lock().get(owner).map_or(0, Queue::count)
    }

    /// How many there are of all owners.
    pub fn waiting_of_all(&self) -> usize {
        self.lock().values().map(Queue::count).sum()
    }

    /// Whether so many of an owner's wait that it is to get no further connections.
    pub fn is_behind(&self, owner: &Owner) -> bool {
        self.waiting(owner) > MOST_WAITING
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Owner, Queue>> {
        lock(&self.queues)
    }
}

impl Queue {
    fn count(&self) -> usize {
        self.waiting.len() + self.in_hand
    }
}

fn lock(queues: &Mutex<BTreeMap<Owner, Queue>>) -> MutexGuard<'_, BTreeMap<Owner, Queue>> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An owner's thread.
fn close_all(queues: &Mutex<BTreeMap<Owner, Queue>>, owner: &Owner) {
    let _timer = interruption::Timer::start(INTERRUPTED_AFTER);
    loop {
        let mut all = lock(queues);
        let Some(queue) = all.get_mut(owner) else { return };
        queue.in_hand = 0;
        let Some(next) = queue.waiting.pop_front() else {
            all.remove(owner);
            return;
        };
        queue.in_hand = 1;
        drop(all);
        drop(next);
    }
}

/// Has a new process close the sockets that it is not to have before it becomes another program. It
/// may have the last copies by then, which this process has closed meanwhile: `exec` would linger
/// over them, and whoever started it would wait.
pub fn leave_sockets(command: &mut Command) {
    interruption::install();
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<libc::c_int> =
        open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let leave = move || {
        let _timer = interruption::Timer::start(INTERRUPTED_AFTER);
        for &descriptor in open.iter().filter(|&&descriptor| descriptor > libc::STDERR_FILENO) {
            interruption::close_socket(descriptor);
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls only, which need no lock and no memory.
    unsafe { command.pre_exec(leave) };
}

/// Who else has a connection open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holders {
    /// Nobody, or nobody who is to go on with it.
    One,
    /// Another process that goes on with it.
    Several,
}

/// A connection whose peer may have sent anything: it is closed by a [`Closer`] when it is dropped.
#[derive(Debug)]
pub struct Foreign {
    /// Until it is dropped.
    connection: Option<Connection>,
    owner: Owner,
    holders: Holders,
    closer: Closer,
}

impl Foreign {
    /// Whom it counts for.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The same where another process has the connection as well, and may go on with it.
    pub fn shared(mut self) -> Self {
        self.holders = Holders::Several;
        self
    }
}

impl Deref for Foreign {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match &self.connection {
            Some(connection) => connection,
            None => unreachable!("it is taken when it is dropped"),
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        // Once nothing more can be sent to it, it is known to hold nothing that blocks.
        if self.holders == Holders::One && connection.shut_down() == Queued::Nothing {
            return drop(connection);
        }
        self.closer.close(&self.owner, connection.into());
    }
}

/// A signal that does nothing but interrupt.
mod interruption {
    use super::{Duration, Once};
    use rustix::thread::gettid;
    use std::mem::zeroed;
    use std::ptr;

    /// Ignored by default, and used by nobody here: who gets it without being asleep notices
    /// nothing.
    const SIGNAL: libc::c_int = libc::SIGURG;

    /// Interrupts the thread that has started it, again and again.
    pub(super) struct Timer(libc::timer_t);

    extern "C" fn nothing(_: libc::c_int) {}

    /// Has the signal interrupt.
    pub(super) fn install() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            // SAFETY: plain data; zero is no flags and no masked signals.
            let mut action: libc::sigaction = unsafe { zeroed() };
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            // Other threads' calls go on, should the signal come from elsewhere.
            action.sa_flags = libc::SA_RESTART;
            // SAFETY: the handler does nothing, which any thread may do at any time.
            unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) };
        });
    }

    /// Closes this descriptor if it is a socket that no other program is to have. To be called in a
    /// new process, of which nobody else knows the descriptors.
    pub(super) fn close_socket(descriptor: libc::c_int) {
        // SAFETY: asks for flags; what is not open has none.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        let mut kind: libc::c_int = 0;
        let mut size_bytes = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the pointers are to an int and to its size.
        let is_socket = unsafe {
            libc::getsockopt(
                descriptor,
                libc::SOL_SOCKET,
                libc::SO_TYPE,
                (&raw mut kind).cast(),
                &raw mut size_bytes,
            )
        } == 0;
        if is_socket && flags >= 0 && flags & libc::FD_CLOEXEC != 0 {
            // SAFETY: the process is about to become another program, before which nothing uses the
            // descriptor.
            unsafe { libc::close(descriptor) };
        }
    }

    impl Timer {
        /// `None` where the kernel has no timer left: closing takes longer then.
        pub(super) fn start(interval: Duration) -> Option<Self> {
            install();
            // SAFETY: plain data, of which what counts is set below.
            let mut event: libc::sigevent = unsafe { zeroed() };
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = SIGNAL;
            event.sigev_notify_thread_id = gettid().as_raw_nonzero().get();
            let mut timer: libc::timer_t = ptr::null_mut();
            // SAFETY: the pointers are to an event and to where the timer's name is written.
            let made = unsafe {
                libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
            };
            if made != 0 {
                return None;
            }
            let timer = Self(timer);
            let time = libc::timespec { tv_sec: 0, tv_nsec: interval.subsec_nanos().into() };
            let times = libc::itimerspec { it_interval: time, it_value: time };
            // SAFETY: a timer that was just made, and times that outlive the call.
            let set = unsafe { libc::timer_settime(timer.0, 0, &raw const times, ptr::null_mut()) };
            (set == 0).then_some(timer)
        }
    }

    impl Drop for Timer {
        fn drop(&mut self) {
            // SAFETY: made by this object, and deleted by nobody else.
            unsafe { libc::timer_delete(self.0) };
        }
    }
}

#[cfg(test)]
mod tests;
