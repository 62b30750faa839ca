//! What each session has done, counted in shared memory: written by the executor, read by the
//! keeper whenever somebody asks, and still there when the executor is not.

use crate::history::History;
use link::shm::{self, Access, Mapping, ShmError};
use link::wire::daemon::LAUNCH_BOUNDS_US;
use policy::faults::hindrance::Hindrance;
use policy::memory::windows;
use policy::{MOST_CONTEXTS_PER_DEVICE, contexts};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sessions that one executor can count: of as many contexts as can be allowed, and those that have
/// not come to their end though their client has left. Each of these has a pair of windows, of
/// which every owner leaves some for the others: so nobody uses up the slots before.
pub const SLOTS: usize = contexts::at_most(MOST_CONTEXTS_PER_DEVICE) + windows::MOST_PAIRS as usize;
const COUNTER_BYTES: usize = SLOTS * size_of::<Counters>();
/// Pages of the file that nobody writes to cost nothing.
const PAGE_BYTES: usize = COUNTER_BYTES + SLOTS * size_of::<History>();

/// One session's counts. All relaxed: they are statistics, and order nothing. The session's thread
/// alone writes them while it serves.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Counters {
    kernels: AtomicU64,
    chained_kernels: AtomicU64,
    chained_copies: AtomicU64,
    chained_signals: AtomicU64,
    copied_bytes: AtomicU64,
    commands: AtomicU64,
    gpu_time_ns: AtomicU64,
    queued_bytes: AtomicU64,
    error: AtomicU64,
    launch_time_ns: AtomicU64,
    launches: [AtomicU64; LAUNCH_CLASSES],
    /// 0: it has commands to take.
    idle_since_ns: AtomicU64,
    kept_bytes: AtomicU64,
    /// One of [`Waits`].
    waits: AtomicU64,
    /// Why it waits here: a [`Hindrance`], 0: for no such reason.
    hindrance: AtomicU64,
}

/// What a session's thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    Nothing,
    /// Until others have had their turn.
    Turn,
    /// For the end of kernels, its own and others': its call needs an idle device.
    Kernels,
}

/// One thread writes, so that no other may come between, and no processor need lock the word.
fn add(word: &AtomicU64, more: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Nanoseconds of the clock that all processes of a machine share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Classes of launch times; see [`LAUNCH_BOUNDS_US`].
const LAUNCH_CLASSES: usize = LAUNCH_BOUNDS_US.len() + 1;

/// One reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub kernels: u64,
    pub chained_kernels: u64,
    pub chained_copies: u64,
    pub chained_signals: u64,
    pub copied_bytes: u64,
    pub commands: u64,
    pub gpu_time_ns: u64,
    pub queued_bytes: u64,
    pub error: u32,
    pub launch_time_ns: u64,
    pub launches: [u64; LAUNCH_CLASSES],
}

impl Counts {
    /// Adds what another session did. What waits in its ring and its error are of the moment, and
    /// not summed up.
    pub fn add(&mut self, other: &Counts) {
        self.kernels += other.kernels;
        self.chained_kernels += other.chained_kernels;
        self.chained_copies += other.chained_copies;
        self.chained_signals += other.chained_signals;
        self.copied_bytes += other.copied_bytes;
        self.commands += other.commands;
        self.gpu_time_ns += other.gpu_time_ns;
        self.launch_time_ns += other.launch_time_ns;
        for (sum, count) in self.launches.iter_mut().zip(other.launches) {
            *sum += count;
        }
    }

    /// What was done since an earlier reading; the rest of it is of the moment.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let mut since = *self;
        for (count, before) in [
            (&mut since.kernels, earlier.kernels),
            (&mut since.chained_kernels, earlier.chained_kernels),
            (&mut since.chained_copies, earlier.chained_copies),
            (&mut since.chained_signals, earlier.chained_signals),
            (&mut since.copied_bytes, earlier.copied_bytes),
            (&mut since.commands, earlier.commands),
            (&mut since.gpu_time_ns, earlier.gpu_time_ns),
            (&mut since.launch_time_ns, earlier.launch_time_ns),
        ]
        .into_iter()
        .chain(since.launches.iter_mut().zip(earlier.launches))
        {
            *count = count.saturating_sub(before);
        }
        since
    }
}

impl Counters {
    /// Kernels were submitted.
    #[inline]
    pub fn count_kernels(&self, launches: u64) {
        add(&self.kernels, launches);
    }

    /// So many kernels were submitted together.
    #[inline]
    pub fn count_chain(&self, launches: u64) {
        self.count_kernels(launches);
        add(&self.chained_kernels, launches);
    }

    /// A copy was submitted together with launches.
    #[inline]
    pub fn count_chained_copy(&self, size_bytes: u64) {
        self.count_copy(size_bytes);
        add(&self.chained_copies, 1);
    }

    /// A signal was submitted together with launches.
    #[inline]
    pub fn count_chained_signal(&self) {
        add(&self.chained_signals, 1);
    }

    /// A copy was submitted.
    #[inline]
    pub fn count_copy(&self, size_bytes: u64) {
        add(&self.copied_bytes, size_bytes);
    }

    /// A command was taken.
    #[inline]
    pub fn count_command(&self) {
        add(&self.commands, 1);
    }

    /// Kernels took this long on the device, by estimate.
    pub fn add_gpu_time(&self, time: Duration) {
        add(&self.gpu_time_ns, time.as_nanos() as u64);
    }

    /// The ring held this much when the executor last looked.
    #[inline]
    pub fn set_queued(&self, size_bytes: u64) {
        self.queued_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// Since when the session has taken no command, by [`monotonic_ns`]; absent: it takes some.
    pub fn set_idle_since(&self, since_ns: Option<u64>) {
        self.idle_since_ns.store(since_ns.unwrap_or(0), Ordering::Relaxed);
    }

    /// See [`Self::set_idle_since`].
    pub fn idle_since_ns(&self) -> Option<u64> {
        Some(self.idle_since_ns.load(Ordering::Relaxed)).filter(|since| *since > 0)
    }

    /// So much of what the session was granted its client has given up.
    pub fn set_kept(&self, size_bytes: u64) {
        self.kept_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// See [`Self::set_kept`].
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes.load(Ordering::Relaxed)
    }

    /// Why the session does not leave for another context, though it is stuck.
    pub fn set_hindrance(&self, hindrance: Option<Hindrance>) {
        self.hindrance.store(hindrance.map_or(0, |it| it as u64), Ordering::Relaxed);
    }

    /// See [`Self::set_hindrance`].
    pub fn hindrance(&self) -> Option<Hindrance> {
        Hindrance::from_number(self.hindrance.load(Ordering::Relaxed))
    }

    /// What the session's thread waits for from now on.
    pub fn set_waits(&self, waits: Waits) {
        self.waits.store(waits as u64, Ordering::Relaxed);
    }

    /// See [`Self::set_waits`].
    pub fn waits(&self) -> Waits {
        match self.waits.load(Ordering::Relaxed) {
            0 => Waits::Nothing,
            1 => Waits::Turn,
            _ => Waits::Kernels,
        }
    }

    /// The session has failed with this `CUresult`.
    pub fn set_error(&self, code: u32) {
        self.error.store(code.into(), Ordering::Relaxed);
    }

    /// The driver took this long to accept a launch.
    pub fn count_launch_time(&self, time: Duration) {
        let us = time.as_nanos().div_ceil(1000) as u64;
        let class = LAUNCH_BOUNDS_US.partition_point(|bound| *bound < us);
        add(&self.launches[class], 1);
        add(&self.launch_time_ns, time.as_nanos() as u64);
    }

    fn read(&self) -> Counts {
        Counts {
            gpu_time_ns: self.gpu_time_ns.load(Ordering::Relaxed),
            queued_bytes: self.queued_bytes.load(Ordering::Relaxed),
            error: self.error.load(Ordering::Relaxed) as u32,
            launch_time_ns: self.launch_time_ns.load(Ordering::Relaxed),
            launches: std::array::from_fn(|class| self.launches[class].load(Ordering::Relaxed)),
            kernels: self.kernels.load(Ordering::Relaxed),
            chained_kernels: self.chained_kernels.load(Ordering::Relaxed),
            chained_copies: self.chained_copies.load(Ordering::Relaxed),
            chained_signals: self.chained_signals.load(Ordering::Relaxed),
            copied_bytes: self.copied_bytes.load(Ordering::Relaxed),
            commands: self.commands.load(Ordering::Relaxed),
        }
    }

    /// Goes on from what was counted elsewhere.
    pub fn restore(&self, counts: &Counts) {
        let numbers = [
            (&self.kernels, counts.kernels),
            (&self.chained_kernels, counts.chained_kernels),
            (&self.chained_copies, counts.chained_copies),
            (&self.chained_signals, counts.chained_signals),
            (&self.copied_bytes, counts.copied_bytes),
            (&self.commands, counts.commands),
            (&self.gpu_time_ns, counts.gpu_time_ns),
            (&self.launch_time_ns, counts.launch_time_ns),
        ];
        for (word, number) in numbers.into_iter().chain(self.launches.iter().zip(counts.launches)) {
            word.store(number, Ordering::Relaxed);
        }
    }

    fn reset(&self) {
        let words = [
            &self.kernels,
            &self.chained_kernels,
            &self.chained_copies,
            &self.chained_signals,
            &self.copied_bytes,
            &self.commands,
            &self.gpu_time_ns,
            &self.queued_bytes,
            &self.error,
            &self.launch_time_ns,
            &self.idle_since_ns,
            &self.kept_bytes,
            &self.waits,
            &self.hindrance,
        ];
        for word in words.into_iter().chain(&self.launches) {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// The counters of one executor.
#[derive(Clone, Debug)]
pub struct CounterPage {
    mapping: Arc<Mapping>,
}

impl CounterPage {
    /// A page of zeros, and the file to give to the executor.
    pub fn create() -> Result<(OwnedFd, Self), ShmError> {
        let file = shm::create("openmps-counters", PAGE_BYTES as u64)?;
        let page = Self::map(rustix::fd::AsFd::as_fd(&file))?;
        Ok((file, page))
    }

    /// The page in a received file.
    pub fn map(file: BorrowedFd<'_>) -> Result<Self, ShmError> {
        shm::check(file, PAGE_BYTES as u64)?;
        Ok(Self { mapping: Arc::new(Mapping::new(file, PAGE_BYTES, Access::ReadWrite)?) })
    }

    /// The counters of a slot; numbers beyond the last share the last.
    #[inline]
    pub fn slot(&self, index: usize) -> &Counters {
        // SAFETY: inside the mapping, aligned, only atomics; lives as long as the mapping.
        unsafe { &*self.mapping.base().cast::<Counters>().add(index.min(SLOTS - 1)) }
    }

    /// What a slot says now.
    pub fn read(&self, index: usize) -> Counts {
        self.slot(index).read()
    }

    /// The last calls of a slot's session.
    #[inline]
    pub fn history(&self, index: usize) -> &History {
        let histories = self.mapping.base().wrapping_add(COUNTER_BYTES).cast::<History>();
        // SAFETY: inside the mapping, behind the counters; aligned, only atomics; lives as long as
        // the mapping.
        unsafe { &*histories.add(index.min(SLOTS - 1)) }
    }

    /// Sets a slot to zero, for its next session.
    pub fn reset(&self, index: usize) {
        self.slot(index).reset();
        self.history(index).reset();
    }
}
