//! Peer access: memory of one device in the executor of another, so that kernels and copies there
//! reach it at its own address.
//!
//! What the program allows (`cuCtxEnablePeerAccess`, `cuMemPoolSetAccess`) is made so at once, and
//! for what it allocates later. Copies between devices need no permission, so they make reachable
//! what they touch; what cannot be made reachable, such as `__device__` variables, is copied by way
//! of this process ([`crate::copy::cross_copy`]).

use crate::client::Client;
use crate::context::Context;
use crate::context::backend::Backend;
use crate::memory::memory_map::{Area, Kind, Reach};
use crate::memory::pool::Pool;
use crate::memory::virtual_memory;
use crate::result::Result;
use cuda_abi::types::CUresult;
use link::wire::attach::PeerInfo;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What the server says of two devices.
pub(crate) fn info(client: &Client, device: i32, peer: i32) -> Result<PeerInfo> {
    let peer = client.device(peer)?.index as usize;
    Ok(client.device(device)?.info.peers.get(peer).copied().unwrap_or_default())
}

fn backend(client: &Client, device: i32) -> Result<&'static Backend> {
    client.device(device)?.opened().ok_or(CUresult::ERROR_INVALID_CONTEXT)
}

/// Whether it is memory of a device's heap, which is made reachable by its grants.
fn is_of_heap(area: &Area) -> bool {
    matches!(area.kind, Kind::Device | Kind::Pool { .. } | Kind::Graph)
}

/// Makes allocated memory reachable for another device.
fn show(client: &Client, viewer: i32, owner: i32, address: u64) -> Result {
    let index = client.device(owner)?.index;
    let (of, to) = (backend(client, owner)?, backend(client, viewer)?);
    of.device_heap.show(&of.session, &to.session, index, address)
}

fn show_all(client: &Client, viewer: i32, owner: i32, which: impl Fn(&Area) -> bool) -> Result {
    let areas =
        client.memory.select(|area| area.device == owner && is_of_heap(area) && which(area));
    areas.iter().try_for_each(|area| show(client, viewer, owner, area.base))
}

/// `cuCtxEnablePeerAccess`: what the contexts' devices are decides, as all of a process's contexts
/// on a device share its memory here.
pub(crate) fn enable(client: &Client, viewer: &Arc<Context>, owner: &Arc<Context>) -> Result {
    let (viewer, owner) = (viewer.owner(), owner.owner());
    if viewer.device == owner.device || !info(client, viewer.device, owner.device)?.can_access {
        return Err(CUresult::ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    viewer.backend()?;
    owner.backend()?;
    let pair = (viewer.token, owner.token);
    if !client.peers.lock().insert(pair) {
        return Err(CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    client.peers.note_use();
    show_all(client, viewer.device, owner.device, |_| true).inspect_err(|_| {
        client.peers.lock().remove(&pair);
    })
}

/// `cuCtxDisablePeerAccess`.
pub(crate) fn disable(client: &Client, viewer: &Arc<Context>, owner: &Arc<Context>) -> Result {
    let (viewer, owner) = (viewer.owner(), owner.owner());
    if !client.peers.lock().remove(&(viewer.token, owner.token)) {
        return Err(CUresult::ERROR_PEER_ACCESS_NOT_ENABLED);
    }
    if viewers(client, owner.device).contains(&viewer.device) {
        return Ok(());
    }
    let kept: Vec<u64> = client
        .memory
        .select(|area| pool_of(client, area).is_some_and(|pool| pool.admits(viewer.device)))
        .iter()
        .map(|area| area.base)
        .collect();
    let seen_by = backend(client, viewer.device)?;
    seen_by.session.wait_all(0)?;
    backend(client, owner.device)?.device_heap.hide(&seen_by.session, &kept)
}

fn pool_of(client: &Client, area: &Area) -> Option<Arc<Pool>> {
    match area.kind {
        Kind::Pool { pool } => client.pools.get(pool),
        _ => None,
    }
}

/// Devices that may reach a device's memory.
fn viewers(client: &Client, owner: i32) -> BTreeSet<i32> {
    let device = |token: usize| client.contexts.get(token).map(|context| context.device);
    let enabled = client.peers.lock();
    let of_owner = enabled.iter().filter(|(_, whose)| device(*whose) == Some(owner));
    of_owner.filter_map(|&(viewer, _)| device(viewer)).collect()
}

/// Makes new memory reachable for those who may reach it.
pub(crate) fn allocated(client: &Client, device: i32, address: u64, pool: Option<&Pool>) -> Result {
    if !client.peers.is_used() {
        return Ok(());
    }
    let mut seen_by = viewers(client, device);
    seen_by.extend(pool.into_iter().flat_map(Pool::viewers));
    seen_by.into_iter().try_for_each(|viewer| show(client, viewer, device, address))
}

/// `cuMemPoolSetAccess`: lets another device reach a pool's memory, or no longer.
pub(crate) fn set_pool_access(
    client: &'static Client,
    pool: &Pool,
    viewer: i32,
    admitted: Admission,
) -> Result {
    if viewer == pool.device {
        // Its own device always reaches it.
        return if admitted == Admission::No { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) };
    }
    if admitted == Admission::No {
        pool.dismiss(viewer);
        return Ok(());
    }
    if !info(client, viewer, pool.device)?.can_access {
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    client.device(viewer)?.session(client)?;
    client.device(pool.device)?.session(client)?;
    pool.admit(viewer);
    client.peers.note_use();
    let is_here = |area: &Area| matches!(area.kind, Kind::Pool { pool: of } if of == pool.token);
    show_all(client, viewer, pool.device, is_here).inspect_err(|_| pool.dismiss(viewer))
}

/// Whether a device is to reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Yes,
    No,
}

/// Whether work on a device reaches one end of a copy or a fill: memory of another device is made
/// reachable, where that can be.
pub(crate) fn reaches(
    client: &'static Client,
    device: i32,
    reach: &Reach,
    address: u64,
    size_bytes: u64,
) -> bool {
    let Reach::Shared(area) = reach else { return true };
    if !reach.is_foreign(device) {
        return true;
    }
    if !info(client, device, area.device).is_ok_and(|info| info.can_access) {
        return false;
    }
    if matches!(area.kind, Kind::Mapped { .. }) {
        return virtual_memory::is_shown(client, address, size_bytes, device);
    }
    if !is_of_heap(area) {
        return false;
    }
    let shown = show(client, device, area.device, area.base);
    if let Err(error) = shown {
        crate::warn!("memory of device {} is copied through this process: {error}", area.device);
    }
    shown.is_ok()
}
