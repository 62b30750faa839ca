//! Allocating and freeing, on the device and on the host, and the registration of the program's own
//! memory.

pub(crate) mod allocator;
pub(crate) mod bounce;
pub(crate) mod device_heap;
pub(crate) mod fill;
pub(crate) mod host_heap;
pub(crate) mod memory_map;
pub(crate) mod pages;
pub(crate) mod pattern;
pub(crate) mod peer;
pub(crate) mod peers;
pub(crate) mod pool;
pub(crate) mod sharing;
pub(crate) mod virtual_memory;
pub(crate) mod virtual_ranges;

use crate::client::Client;
use crate::context::Context;
use crate::context::backend::Backend;
use crate::graph::memory::GraphMemory;
use crate::memory::allocator::Range;
use crate::memory::memory_map::{Alias, Area, Kind};
use crate::memory::pool::{Pool, Sharing};
use crate::result::Result;
use crate::stream::Target;
use crate::thread::current;
use crate::two_sided::managed::allocations;
use cuda_abi::types::CUresult;
use link::pages::Pages;
use link::wire::attach::Window;
use link::wire::command::REGION_PINNED;
use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `CU_MEMHOSTREGISTER_DEVICEMAP` and `CU_MEMHOSTALLOC_DEVICEMAP`.
const DEVICE_MAP: u32 = 2;

/// Allocates device memory in the current context.
pub(crate) fn allocate(client: &Client, size_bytes: u64, kind: Kind) -> Result<u64> {
    if size_bytes == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = current::owner()?;
    allocate_in(client, &context, size_bytes, kind)
}

pub(crate) fn allocate_in(
    client: &Client,
    context: &Context,
    size_bytes: u64,
    kind: Kind,
) -> Result<u64> {
    let (backend, id) = context.backend()?;
    if size_bytes > client.device(context.device)?.info.total_memory_bytes {
        return Err(CUresult::ERROR_OUT_OF_MEMORY);
    }
    let address = backend.device_heap.allocate(&backend.session, id, size_bytes)?;
    let pool = match kind {
        Kind::Pool { pool } => client.pools.get(pool),
        _ => None,
    };
    if let Err(error) = peer::allocated(client, context.device, address, pool.as_deref()) {
        let piece = Range { address, size_bytes };
        backend.device_heap.free(&backend.session, id, piece, || 0)?;
        return Err(error);
    }
    client.memory.insert(Area::new(address, size_bytes, kind, context.token, context.device));
    Ok(address)
}

/// Allocates from a pool, in stream order: the heap's free memory is free of earlier work already.
pub(crate) fn allocate_from(
    client: &Client,
    pool: &Pool,
    target: &Target,
    size_bytes: u64,
) -> Result<u64> {
    if size_bytes == 0 || pool.sharing == Sharing::Imported {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let address =
        allocate_in(client, &target.context, size_bytes, Kind::Pool { pool: pool.token })?;
    pool.took(size_bytes);
    Ok(address)
}

/// Frees what [`allocate`], [`allocate_from`] or [`allocate_managed`] gave. NULL is allowed.
pub(crate) fn free(client: &Client, address: u64) -> Result {
    if address == 0 {
        return Ok(());
    }
    if let Ok(memory) = client.graphs.memory.at(address) {
        return free_graph_memory(client, memory);
    }
    let is_freeable = |area: &Area| {
        matches!(area.kind, Kind::Device | Kind::Pool { .. } | Kind::Managed | Kind::ManagedHost)
    };
    let found = client.memory.find(address);
    if found.is_some_and(|area| area.base == address && matches!(area.kind, Kind::Opened { .. })) {
        // A pointer of another process's pool.
        return sharing::close(client, address);
    }
    let area = client.memory.remove(address, is_freeable).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    free_area(client, &area)
}

/// Frees what an allocation node allocated; it is the graph's to allocate again.
pub(crate) fn free_graph_memory(client: &Client, memory: Arc<GraphMemory>) -> Result {
    client.graphs.memory.free(&memory)?;
    drop(memory);
    client.graphs.memory.collect(client);
    Ok(())
}

fn free_area(client: &Client, area: &Area) -> Result {
    let Some(context) = client.contexts.get(area.context) else { return Ok(()) };
    let (backend, id) = context.backend()?;
    sharing::unshare(client, area)?;
    if area.is_managed() {
        client.advices.forget(area.base..area.base + area.size_bytes);
    }
    let free_on_device = || {
        let piece = Range { address: area.base, size_bytes: area.size_bytes };
        let held_bytes = || held_by_pools(client, area.device);
        backend.device_heap.free(&backend.session, id, piece, held_bytes)
    };
    match area.kind {
        Kind::Opened { token } => sharing::close_all(client, area, token),
        Kind::Device | Kind::Graph => free_on_device(),
        Kind::Pool { pool } => {
            if let Some(pool) = client.pools.get(pool) {
                pool.freed(area.size_bytes);
            }
            free_on_device()
        }
        Kind::Managed => allocations::free(backend, id, area.base),
        Kind::ManagedHost | Kind::Pinned(_) => free_shared(backend, id, area),
        Kind::Registered { ref alias, .. } => match &*locked(alias) {
            Some(alias) => {
                client.memory.remove(alias.address, |area| matches!(area.kind, Kind::Alias { .. }));
                restore(backend, id, alias)
            }
            None => Ok(()),
        },
        Kind::Global | Kind::ManagedGlobal | Kind::Alias { .. } | Kind::Mapped { .. } => Ok(()),
    }
}

/// Free bytes of a device that its pools hold on to.
pub(crate) fn held_by_pools(client: &Client, device: i32) -> u64 {
    let pools = client.pools.select(|pool| pool.device == device);
    pools.iter().fold(0, |sum, pool| sum.saturating_add(pool.spare_bytes()))
}

/// Gives back what the pools of a device no longer hold on to.
pub(crate) fn trim(client: &Client, device: i32) -> Result {
    if let Some(backend) = client.device(device)?.opened() {
        backend.device_heap.trim(&backend.session, held_by_pools(client, device));
    }
    Ok(())
}

/// Frees all that a context that is ending has allocated.
pub(crate) fn end_context(client: &Client, context: &Context) {
    for area in client.memory.remove_all(|area| area.context == context.token) {
        // A failed session has no memory left.
        let _ = free_area(client, &area);
    }
}

/// Allocates memory that both sides reach at one address.
fn allocate_shared(client: &Client, size_bytes: u64, kind: Kind) -> Result<u64> {
    if size_bytes == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = current::owner()?;
    let (backend, id) = context.backend()?;
    let address = match backend.host_heap.allocate_small(&backend.session, id, size_bytes) {
        Some(small) => small?,
        None => backend.host_heap.allocate_large(&backend.session, id, size_bytes)?,
    };
    client.memory.insert(Area::new(address, size_bytes, kind, context.token, context.device));
    Ok(address)
}

fn free_shared(backend: &Backend, id: u32, area: &Area) -> Result {
    backend.session.wait_all(0)?;
    if backend.host_heap.free_small(area.base) {
        return Ok(());
    }
    backend.host_heap.free_large(&backend.session, id, area.base, area.size_bytes)
}

/// `cuMemHostAlloc`.
pub(crate) fn allocate_pinned(client: &Client, size_bytes: u64, flags: u32) -> Result<u64> {
    const ALL_FLAGS: u32 = 7;
    if flags & !ALL_FLAGS != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    allocate_shared(client, size_bytes, Kind::Pinned(flags))
}

/// `cuMemAllocManaged`: beyond what there is of the device's memory, and of the client's limit, in
/// the host's.
pub(crate) fn allocate_managed(client: &Client, size_bytes: u64) -> Result<u64> {
    if size_bytes == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = current::owner()?;
    let (backend, id) = context.backend()?;
    if size_bytes <= client.device(context.device)?.info.total_memory_bytes
        && let Some(address) = allocations::allocate(backend, id, size_bytes)?
    {
        let (token, device) = (context.token, context.device);
        client.memory.insert(Area::new(address, size_bytes, Kind::Managed, token, device));
        return Ok(address);
    }
    allocate_shared(client, size_bytes, Kind::ManagedHost)
}

/// `cuMemFreeHost`. NULL is allowed.
pub(crate) fn free_pinned(client: &Client, address: u64) -> Result {
    if address == 0 {
        return Ok(());
    }
    let area = client.memory.remove(address, |area| matches!(area.kind, Kind::Pinned(_)));
    free_area(client, &*area.ok_or(CUresult::ERROR_INVALID_VALUE)?)
}

/// `cuMemHostRegister`: noted only. Copies from and to it are staged; the pages are moved to shared
/// memory when a device address of them is asked for.
pub(crate) fn register(client: &Client, address: u64, size_bytes: u64, flags: u32) -> Result {
    const ALL_FLAGS: u32 = 0xf;
    if address == 0
        || size_bytes == 0
        || flags & !ALL_FLAGS != 0
        || address.checked_add(size_bytes).is_none()
    {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = current::owner()?;
    context.backend()?.0.session.check()?;
    if client.memory.overlaps(address, size_bytes) {
        return Err(CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let kind = Kind::Registered { flags: flags | DEVICE_MAP, alias: Mutex::default() };
    client.memory.insert(Area::new(address, size_bytes, kind, context.token, context.device));
    Ok(())
}

/// `cuMemHostUnregister`.
pub(crate) fn unregister(client: &Client, address: u64) -> Result {
    let area = client.memory.remove(address, |area| matches!(area.kind, Kind::Registered { .. }));
    let area = area.ok_or(CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED)?;
    if let Some(context) = client.contexts.get(area.context)
        && let Ok((backend, _)) = context.backend()
    {
        backend.session.wait_all(0)?;
    }
    free_area(client, &area)
}

/// The device's address of host memory: the same for pinned memory; registered pages are moved to
/// shared memory first.
pub(crate) fn device_address(client: &Client, address: u64) -> Result<u64> {
    let is_same = client.memory.look(address, |area| {
        area.is_some_and(|area| area.is_host() && !matches!(area.kind, Kind::Registered { .. }))
    });
    if is_same {
        return Ok(address);
    }
    let area = client
        .memory
        .find(address)
        .filter(|area| area.is_host())
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let Kind::Registered { alias, .. } = &area.kind else { return Ok(address) };
    // Held while pages are moved: a second mover would take them away from the first.
    let mut known = locked(alias);
    let alias = match *known {
        Some(alias) => alias,
        None => {
            let made = share_pages(client, &area)?;
            let kind = Kind::Alias { first_page: made.first_page };
            client.memory.insert(Area::new(
                made.address,
                made.size_bytes,
                kind,
                area.context,
                area.device,
            ));
            *known.insert(made)
        }
    };
    Ok(alias.address + (address - alias.first_page))
}

fn locked(alias: &Mutex<Option<Alias>>) -> MutexGuard<'_, Option<Alias>> {
    alias.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves the pages of a registered range to a region, and maps that region over them: same bytes,
/// same addresses, and the executor reaches them too. Another thread that writes into these very
/// pages meanwhile may lose its write, as CUDA's callers own the range during the call.
fn share_pages(client: &Client, area: &Area) -> Result<Alias> {
    let context = client.context(area.context)?;
    let (backend, id) = context.backend()?;
    let range = Window { base: area.base, size_bytes: area.size_bytes };
    let whole = Pages::of_system().around(range).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let Window { base: first_page, size_bytes } = whole;
    if pages::sharing(first_page, size_bytes) != pages::Sharing::Private {
        crate::error!(
            "registered memory at {first_page:#x} is shared with other processes or files, or not mapped: it has no device address"
        );
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let region =
        backend.host_heap.create_region(&backend.session, id, size_bytes, REGION_PINNED)?;
    // SAFETY: the pages hold the caller's registered range, so they are mapped; the region is new
    // and as long. The same bytes appear at the same addresses afterwards, so references into the
    // pages stay valid.
    let mapped = unsafe {
        core::ptr::copy_nonoverlapping(
            first_page as *const u8,
            region.address as *mut u8,
            size_bytes as usize,
        );
        rustix::mm::mmap(
            first_page as *mut _,
            size_bytes as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
            region.file.as_fd(),
            0,
        )
    };
    if let Err(error) = mapped {
        crate::error!("registered pages at {first_page:#x} cannot be shared: {error}");
        backend.host_heap.destroy_region(
            &backend.session,
            id,
            region.address,
            region.size_bytes,
        )?;
        return Err(CUresult::ERROR_OUT_OF_MEMORY);
    }
    Ok(Alias { address: region.address, size_bytes, first_page })
}

/// Gives the program's pages memory of their own again.
fn restore(backend: &Backend, id: u32, alias: &Alias) -> Result {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: the pages are the ones that `share_pages` replaced; their bytes are in the region and
    // are put back at the same addresses.
    let mapped = unsafe {
        let pages = alias.first_page as *mut core::ffi::c_void;
        rustix::mm::mmap_anonymous(
            pages,
            alias.size_bytes as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
        .map(|_| {
            let from = alias.address as *const u8;
            core::ptr::copy_nonoverlapping(from, pages.cast(), alias.size_bytes as usize);
        })
    };
    mapped.map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
    backend.host_heap.destroy_region(&backend.session, id, alias.address, alias.size_bytes)
}
