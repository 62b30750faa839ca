//! Allocating and freeing managed memory, and what the first allocation of a session sets up.

use super::Service;
use super::carry::{PIECE_BYTES, TRANSFER_BYTES};
use super::faults::{self, Faults};
use crate::client;
use crate::context::backend::Backend;
use crate::memory::allocator::Range as Granted;
use crate::result::Result;
use cuda_abi::types::CUresult;
use link::pages::Pages;
use link::shm::Reservation;
use link::wire::attach::{ClientReply, ClientRequest};
use link::wire::command::REGION_PINNED;
use rustix::fd::OwnedFd;

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
