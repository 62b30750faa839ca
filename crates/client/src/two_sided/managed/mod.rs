//! Managed memory (`cuMemAllocManaged`): device memory that the host uses at the same addresses.
//!
//! At those addresses this process has private pages, which come from the device when they are
//! touched ([`faults`]) and go back before work is posted ([`blocks`]). So kernels have the speed
//! of device memory. That is what CUDA promises devices without concurrent managed access: the host
//! touches managed memory when it has waited. Beyond that, host and kernels may be at work on
//! different bytes at once.
//!
//! One thread for each session serves faults. It must not touch managed memory, and nobody in this
//! library may while it holds a lock that the thread needs: the books' and the session's.

pub(crate) mod allocations;
mod blocks;
mod carry;
mod faults;

pub(crate) use blocks::Attached;
pub(super) use blocks::Uses;

use crate::memory::host_heap::Region;
use crate::result::Result;
use crate::session::Session;
use blocks::{Books, Fault, Flight};
use carry::Carriage;
use faults::Faults;
use rustix::fd::RawFd;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The managed memory of a session.
#[derive(Default)]
pub(crate) struct Managed {
    /// What serves faults, once there was an allocation; `None` where there can be none.
    service: OnceLock<Option<Service>>,
    books: Mutex<Books>,
    /// [`Books::held`], and more while a fault is served. Spares the lock.
    held: AtomicUsize,
    /// [`Books::kept`]. The same.
    kept: AtomicUsize,
    /// What waiting for work changes: [`Books::unsettled`], and more while a fault is served.
    unsettled: AtomicUsize,
}

struct Service {
    faults: Faults,
    transfer: Region,
    /// Read alone, so that they take no memory.
    zeros: Vec<u8>,
}

impl Managed {
    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carriage<'a>(&'a self, session: &'a Session) -> Option<Carriage<'a>> {
        let Service { faults, transfer, zeros } = self.service.get()?.as_ref()?;
        Some(Carriage { faults, session, transfer: transfer.address, zeros })
    }

    /// Notes what the books say, for those who do not lock them.
    fn note(&self, books: &Books) {
        // SeqCst: see `flight`.
        self.held.store(books.held(), Ordering::SeqCst);
        self.kept.store(books.kept(), Ordering::SeqCst);
        self.unsettled.store(books.unsettled(), Ordering::SeqCst);
    }

    /// Work is about to be posted, as is counted: the device gets what the host has.
    pub(crate) fn announce(&self, session: &Session, uses: Uses) -> Result {
        // SeqCst: see `flight`.
        let is_handed_over = match uses {
            Uses::Device => self.held.load(Ordering::SeqCst) == 0,
            Uses::All => self.held.load(Ordering::SeqCst) + self.kept.load(Ordering::SeqCst) == 0,
        };
        if is_handed_over {
            return Ok(());
        }
        let Some(mut carriage) = self.carriage(session) else { return Ok(()) };
        let mut books = self.lock();
        let handed_over = books.hand_over(uses, &mut carriage);
        self.note(&books);
        handed_over
    }

    /// Work has been waited for.
    pub(crate) fn settle(&self, session: &Session) -> Result {
        // SeqCst: see `flight`.
        fence(Ordering::SeqCst);
        if self.unsettled.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let Some(mut carriage) = self.carriage(session) else { return Ok(()) };
        let mut books = self.lock();
        let settled = books.settle(&mut carriage);
        if settled.is_ok() && books.misses() && self.flight(&books, session) == Flight::Idle {
            books.recall(&mut carriage);
        }
        self.note(&books);
        settled
    }

    /// Whether work may change what is fetched now.
    fn flight(&self, books: &Books, session: &Session) -> Flight {
        // Raised before the session is looked at, and all in one order (SeqCst). So either this
        // thread sees that work is being posted, and has not ended, or who posts it, or has waited
        // for it, sees that there may be something and waits for the books.
        self.held.store(books.held() + 1, Ordering::SeqCst);
        self.unsettled.store(books.unsettled() + 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let is_posting = session.two_sided().posting() > 0;
        if is_posting || session.is_busy() { Flight::Busy } else { Flight::Idle }
    }

    fn serve(&self, session: &Session, address: u64, fault: Fault) {
        let Some(mut carriage) = self.carriage(session) else { return };
        let mut books = self.lock();
        let flight = self.flight(&books, session);
        books.touch(address, fault, flight, &mut carriage);
        self.note(&books);
    }

    /// A program says who uses an allocation from now on.
    pub(crate) fn attach(&self, address: u64, attached: Attached) {
        let mut books = self.lock();
        books.attach(address, attached);
        self.note(&books);
    }

    /// A range is to come to the host: now, or once all work that is posted was waited for.
    pub(crate) fn want(&self, session: &Session, range: Range<u64>) {
        let Some(mut carriage) = self.carriage(session) else { return };
        let mut books = self.lock();
        books.want(range);
        if self.flight(&books, session) == Flight::Idle {
            books.recall(&mut carriage);
        }
        self.note(&books);
    }

    /// What the child of a fork must close.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.service.get()?.as_ref().map(|service| service.faults.descriptor())
    }
}
