//! A session's memory: its windows, grants, regions ([`regions`]) and globals; copies and fills,
//! checked against them.

pub(crate) mod announced;
mod commands;
pub(crate) mod kept;
pub(crate) mod mapping;
pub(crate) mod peer;
mod regions;
pub(crate) mod virtual_journal;
pub(crate) mod virtual_memory;

use super::context::Context;
use crate::memory::mapping::DeviceWindow;
use crate::session::allowance::Allowance;
use crate::session::budgets::Holding;
use crate::session::failure::Failure;
use crate::session::session_handle::DeliveredGrant;
use cuda_abi::types::*;
use executor_link::messages::OpenSession;
use link::closer::Foreign;
use link::completion::CompletionWords;
use link::shm::Reservation;
use link::wire::attach::Window;
use link::wire::owner::Owner;
use policy::faults::followed_addresses::FollowedAddresses;
use policy::limits::GuardMode;
use policy::memory::ranges::Ranges;
use regions::{Region, RegionKind};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
const REGISTER_FLAGS: u32 = 1 | 2;
/// The client sends a region's file before the command.
pub(crate) const FILE_TIMEOUT: Duration = Duration::from_secs(1);
/// The keeper answers at once, were it only that a session must wait, or is gone.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory of this process that the device may write.
#[derive(Debug)]
pub(crate) struct Registered {
    base: u64,
    pub(crate) device_base: CUdeviceptr,
}

impl Registered {
    /// Registers a part of a session's file, which is mapped until it is unregistered.
    pub(crate) fn new(
        context: &Context,
        (base, size_bytes): (u64, usize),
        what: &str,
    ) -> Result<Self, (CUresult, String)> {
        let driver = context.driver();
        // SAFETY: it is mapped, by the caller's word.
        let register =
            || unsafe { driver.cuMemHostRegister_v2(address(base), size_bytes, REGISTER_FLAGS) };
        context.check(context.gate.between(register)).map_err(|result| {
            (result, format!("registering the {what} of a new session failed: {result}"))
        })?;
        let mut device_base = 0;
        // SAFETY: just registered; the result is written.
        let mapped =
            unsafe { driver.cuMemHostGetDevicePointer_v2(&mut device_base, address(base), 0) };
        if context.check(mapped).is_err() {
            device_base = base;
        }
        Ok(Self { base, device_base })
    }

    /// Before anybody has used it.
    fn unregister(&self, context: &Context) {
        // SAFETY: registered by `new`.
        let _ = unsafe { context.driver().cuMemHostUnregister(address(self.base)) };
    }
}

/// What a session may address, and what keeps it so.
pub(crate) struct Memory {
    pub(crate) device_window: DeviceWindow,
    host: Reservation,
    completion: Registered,
    /// Of guarded sessions. Apart, as guarded kernels know its address.
    guard_record: Option<Registered>,
    pub(crate) socket: Foreign,
    /// The file of the region that is being mapped still lies in the socket.
    has_region_file: bool,
    pub(crate) grants_from_keeper: Receiver<DeliveredGrant>,
    /// What it holds and may hold: grants, and what the driver has for the client besides them
    /// (arrays).
    allowance: Arc<Allowance>,
    pub(crate) grants: BTreeMap<u64, u64>,
    regions: BTreeMap<u64, Region>,
    /// What of the host counts for it.
    holding: Holding,
    /// Device memory, pinned regions and globals: what copies and kernels may name.
    pub(crate) addressable: Ranges,
    /// Those of variables that may be elsewhere than the client was told.
    pub(crate) followed: FollowedAddresses,
    /// All regions: what images may be read from.
    pub(crate) readable: Ranges,
}

impl Memory {
    /// Reserves the session's windows, as far as that was not done ahead, and registers its
    /// completion words.
    pub(crate) fn reserve(
        context: &Context,
        wanted: &OpenSession,
        ahead: Option<DeviceWindow>,
        words: &CompletionWords,
        socket: Foreign,
        grants_from_keeper: Receiver<DeliveredGrant>,
        (allowance, holding): (Arc<Allowance>, Holding),
    ) -> Result<Self, (CUresult, String)> {
        let host = Reservation::new(wanted.host_window)
            .map_err(|error| (CUresult::ERROR_OUT_OF_MEMORY, error.to_string()))?;
        let device_window = match ahead {
            Some(there) if there.window() == wanted.device_window => there,
            other => {
                drop(other);
                DeviceWindow::reserve(context, wanted.device_window)?
            }
        };
        let completion = Registered::new(context, words.range(), "completion words")?;
        let guard_record = match wanted.guard {
            GuardMode::Off => None,
            GuardMode::On | GuardMode::Strict => {
                let record = Registered::new(context, words.guard_record_range(), "guard record");
                Some(record.inspect_err(|_| completion.unregister(context))?)
            }
        };
        Ok(Self {
            device_window,
            host,
            completion,
            guard_record,
            socket,
            has_region_file: false,
            grants_from_keeper,
            allowance,
            grants: BTreeMap::new(),
            regions: BTreeMap::new(),
            holding,
            addressable: Ranges::default(),
            followed: FollowedAddresses::default(),
            readable: Ranges::default(),
        })
    }

    /// Where the device finds a stream's completion word. The slot has been checked.
    pub(crate) fn completion_address(&self, slot: u32) -> CUdeviceptr {
        self.completion.device_base + u64::from(slot) * 8
    }

    /// Whether all of it is device memory that was granted to the session, or pinned memory of its
    /// own: what kernels reach at this address, to read and to write.
    pub(crate) fn is_own(&self, at: u64, size_bytes: u64) -> bool {
        let is_in = |window: Window| {
            let offset = at.checked_sub(window.base);
            offset
                .and_then(|offset| offset.checked_add(size_bytes))
                .is_some_and(|end| end <= window.size_bytes)
        };
        (is_in(self.device_window.window()) || is_in(self.host.window()))
            && self.addressable.contain(at, size_bytes)
    }

    /// Where the windows of device memory and of pinned memory begin.
    #[cfg(test)]
    pub(crate) fn window_bases(&self) -> [u64; 2] {
        [self.device_window.window().base, self.host.window().base]
    }

    /// Where the device records what guarded code was about to touch, if the session began as a
    /// guarded one.
    pub(crate) fn guard_record_address(&self) -> Option<CUdeviceptr> {
        self.guard_record.as_ref().map(|record| record.device_base)
    }

    /// Whom it counts for.
    pub(crate) fn owner(&self) -> &Owner {
        self.holding.owner()
    }

    /// What of the host counts for it.
    pub(crate) fn holding(&self) -> &Holding {
        &self.holding
    }

    /// The keeper's next answer: it comes at once, or the keeper is gone.
    pub(crate) fn await_answer(&self) -> Result<DeliveredGrant, CUresult> {
        let delivered = self.grants_from_keeper.recv_timeout(ANSWER_TIMEOUT);
        delivered.map_err(|_| CUresult::ERROR_MPS_RPC_FAILURE)
    }

    /// Whether a range lies in one grant.
    pub(crate) fn is_granted(&self, at: u64, size_bytes: u64) -> bool {
        let found = self.grants.range(..=at).next_back();
        found.is_some_and(|(&base, &length)| {
            size_bytes > 0 && Window { base, size_bytes: length }.contains(at, size_bytes)
        })
    }

    /// Whether a range is mapped in this process.
    pub(crate) fn is_shared(&self, at: u64, size_bytes: u64) -> bool {
        self.readable.contain(at, size_bytes)
    }

    /// Counts memory that is to be held for the client, if it may have it.
    pub(crate) fn charge(&mut self, size_bytes: u64) -> Result<(), Failure> {
        if self.allowance.take(size_bytes) {
            Ok(())
        } else {
            Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY))
        }
    }

    /// Takes back what was counted.
    pub(crate) fn discharge(&mut self, size_bytes: u64) {
        self.allowance.give_back(size_bytes);
    }

    /// Everything that is registered with the driver, to be unregistered.
    fn take_registered(&mut self) -> Vec<u64> {
        let regions = std::mem::take(&mut self.regions).into_iter();
        let pinned = regions.filter(|(_, region)| region.kind == RegionKind::Pinned);
        let own = [Some(&self.completion), self.guard_record.as_ref()].into_iter().flatten();
        pinned.map(|(at, _)| at).chain(own.map(|it| it.base)).collect()
    }
}

/// An address of this process as a pointer.
pub(crate) fn address(at: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(at as usize)
}
