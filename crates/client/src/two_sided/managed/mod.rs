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

mod blocks;
mod carry;
mod faults;

pub(crate) use blocks::Attached;
pub(super) use blocks::Uses;

use crate::client;
use crate::context::backend::Backend;
use crate::memory::allocator::Range as Granted;
use crate::memory::host_heap::Region;
use crate::session::{Result, Session};
use blocks::{Books, Fault, Flight};
use carry::{Carriage, PIECE_BYTES, TRANSFER_BYTES};
use cuda_abi::types::CUresult;
use faults::Faults;
use link::pages::Pages;
use link::shm::Reservation;
use link::wire::attach::{ClientReply, ClientRequest};
use link::wire::command::REGION_PINNED;
use rustix::fd::{OwnedFd, RawFd};
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

/// What serves faults, by a thread of its own; made for the first allocation.
fn service(backend: &'static Backend, id: u32) -> Option<&'static Service> {
    let managed = &backend.session.two_sided().managed;
    // Where there is no memory for it now there may be later.
    backend.session.open_quiet_stream().ok()?;
    let made = managed.service.get_or_init(|| {
        let faults = Faults::open(faults_device).inspect_err(|error| {
            crate::info!("managed memory stays in the host's memory: {error}");
        });
        let faults = faults.ok()?;
        let (heap, session) = (&backend.host_heap, &backend.session);
        let transfer = heap.create_region(session, id, TRANSFER_BYTES, REGION_PINNED).ok()?;
        let started = crate::thread::spawn("openmps-managed", || {
            let (managed, session) = (&backend.session.two_sided().managed, &backend.session);
            if let Some(service) = managed.service.wait() {
                service.faults.serve(|address, fault| managed.serve(session, address, fault));
            }
        });
        started.ok()?;
        let zeros = vec![0; PIECE_BYTES as usize];
        Some(Service { faults, transfer, zeros })
    });
    made.as_ref()
}

/// What the server hands on for this process to have its faults told.
fn faults_device() -> Option<OwnedFd> {
    match client::started()?.request(&ClientRequest::FaultsDevice) {
        Ok((ClientReply::FaultsDevice, mut descriptors)) => descriptors.pop(),
        _ => None,
    }
}

/// Allocates; `None` where managed memory must stay with the host: no faults can be served, or the
/// device has no room, or not for this client.
pub(crate) fn allocate(backend: &'static Backend, id: u32, size_bytes: u64) -> Result<Option<u64>> {
    let session = &backend.session;
    session.check()?;
    let Some(window) = &backend.device_window else { return Ok(None) };
    let Some(size_bytes) = Pages::of_system().whole(size_bytes) else { return Ok(None) };
    let Some(service) = service(backend, id) else { return Ok(None) };
    let address = match backend.managed_heap.allocate(session, id, size_bytes) {
        Err(CUresult::ERROR_OUT_OF_MEMORY) => return Ok(None),
        address => address?,
    };
    let managed = &session.two_sided().managed;
    if let Err(error) = open(window, &service.faults, address, size_bytes) {
        crate::warn!("managed memory stays in the host's memory: {error}");
        backend.managed_heap.free(session, id, Granted { address, size_bytes }, || 0)?;
        return Ok(None);
    }
    let mut books = managed.lock();
    books.add(address..address + size_bytes);
    managed.note(&books);
    drop(books);
    session.two_sided().begin();
    Ok(Some(address))
}

/// Why a mirror cannot be.
#[derive(Debug, thiserror::Error)]
enum MirrorError {
    #[error(transparent)]
    Mapping(#[from] link::shm::ShmError),
    #[error(transparent)]
    Faults(#[from] faults::FaultsError),
}

fn open(
    window: &Reservation,
    faults: &Faults,
    address: u64,
    size_bytes: u64,
) -> core::result::Result<(), MirrorError> {
    window.open(address, size_bytes)?;
    let range = address..address + size_bytes;
    faults.register(range.clone()).inspect_err(|_| {
        // Nobody knows the address: it may stay open.
        let _ = window.unmap(address, size_bytes);
    })?;
    // A program that locks all of its memory has pages from the beginning.
    faults::discard(&range);
    Ok(())
}

/// Frees an allocation once all work posted so far is done; its mirror goes now.
pub(crate) fn free(backend: &Backend, id: u32, address: u64) -> Result {
    let managed = &backend.session.two_sided().managed;
    let mut books = managed.lock();
    let Some(range) = books.remove(address) else { return Ok(()) };
    managed.note(&books);
    let size_bytes = range.end - range.start;
    let closed = backend.device_window.as_ref().map(|window| window.unmap(address, size_bytes));
    drop(books);
    if let Some(Err(error)) = closed {
        // The addresses stay taken: nobody else may get them while something is mapped there.
        crate::error!("the mirror of managed memory at {address:#x} stays: {error}");
        return Ok(());
    }
    backend.managed_heap.free(&backend.session, id, Granted { address, size_bytes }, || 0)
}
