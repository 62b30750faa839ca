//! Sessions as the keeper sees them: a client on a device, its windows and its memory. Who gets memory is in [`super::memory`].

use super::Keeper;
use super::devices::allocation_properties;
use super::executors::Place;
use super::peers::Lending;
use crate::executor_link::{Placement, ShareWish};
use crate::log::log_server;
use crate::policy::domains::Domain;
use crate::policy::grants::Grants;
use crate::policy::windows::WindowPair;
use cuda_abi::types::*;
use rustix::fd::{FromRawFd, OwnedFd};
use std::collections::BTreeMap;

/// One client on one device, until all its work there has ended.
pub(crate) struct Session {
    pub(crate) client: u64,
    pub(crate) device: usize,
    pub(crate) domain: Domain,
    pub(crate) counter_slot: usize,
    pub(crate) windows: WindowPair,
    pub(crate) grants: Grants,
    /// The SMs that it is to have, and how many it has; 0: it has not said.
    pub(crate) share: ShareWish,
    pub(crate) multiprocessors: u32,
    /// Its weight, as its executor was told.
    pub(crate) weight: u32,
    /// First address of a grant, or key of a piece, to its memory; what is moved out to the host is not here.
    pub(super) memory: BTreeMap<u64, CUmemGenericAllocationHandle>,
    /// What it has asked for and waits for: address or key, length, and where that is to be.
    pub(super) wanted: Option<(u64, u64, Placement)>,
    /// Refusals that the log tells of.
    pub(super) refusals_logged: u32,
    /// What the client's other sessions have of it, and what it has of theirs.
    pub(super) lending: Lending,
}

impl Session {
    pub(crate) fn new(
        client: u64,
        place: Place,
        counter_slot: usize,
        windows: WindowPair,
        grants: Grants,
        (share, weight): (ShareWish, u32),
    ) -> Self {
        let Place { device, domain } = place;
        Self {
            client,
            device,
            domain,
            counter_slot,
            windows,
            grants,
            share,
            multiprocessors: 0,
            weight,
            memory: BTreeMap::new(),
            wanted: None,
            refusals_logged: 0,
            lending: Lending::default(),
        }
    }

    /// Where its executor is.
    pub(crate) fn place(&self) -> Place {
        Place { device: self.device, domain: self.domain }
    }
}

impl Keeper {
    /// Gives back all that a session had; its executor has nothing of it any more.
    pub(super) fn forget_session(&mut self, id: u64) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.forget_changes_of(id);
        for (owner, key) in session.lending.borrowed() {
            self.take_back(owner, key);
        }
        for memory in session.memory.into_values() {
            release_memory(self.driver, memory);
        }
        self.windows.give_back(session.windows);
        let device = &mut self.devices[session.device];
        if let Some(executor) = device.executors.get_mut(&session.domain) {
            let executor = &mut executor.process;
            let counts = executor.counters.read(session.counter_slot);
            device.departed.add(&counts);
            executor.free_slot(session.counter_slot);
            self.add_final_counts(session.client, session.device, counts);
        }
        self.residencies[session.device].close(id);
        self.serve_waiting(session.device);
    }
}

/// Device memory, and a descriptor of it for the executor.
pub(super) fn make_memory(
    driver: crate::driver::Driver,
    device: CUdevice,
    size_bytes: u64,
) -> Result<(CUmemGenericAllocationHandle, OwnedFd), CUresult> {
    let mut memory = CUmemGenericAllocationHandle::default();
    let properties = allocation_properties(device);
    // SAFETY: the properties are complete; `memory` is written.
    unsafe { driver.cuMemCreate(&mut memory, size_bytes as usize, &properties, 0) }.ok()?;
    match export_memory(driver, memory) {
        Ok(file) => Ok((memory, file)),
        Err(code) => {
            release_memory(driver, memory);
            Err(code)
        }
    }
}

/// A descriptor of memory, for an executor.
pub(super) fn export_memory(
    driver: crate::driver::Driver,
    memory: CUmemGenericAllocationHandle,
) -> Result<OwnedFd, CUresult> {
    let mut descriptor: i32 = -1;
    let kind = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;
    // SAFETY: a live handle; a descriptor is written.
    unsafe { driver.cuMemExportToShareableHandle((&raw mut descriptor).cast(), memory, kind, 0) }
        .ok()?;
    // SAFETY: the driver made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

pub(super) fn release_memory(driver: crate::driver::Driver, memory: CUmemGenericAllocationHandle) {
    // SAFETY: a live handle that is used no more.
    let released = unsafe { driver.cuMemRelease(memory) };
    if !released.is_success() {
        log_server!("Device memory was not released: {released}");
    }
}
