//! A session's memory: its windows, grants, regions ([`regions`]) and globals; copies and fills,
//! checked against them.

pub(crate) mod announced;
pub(crate) mod kept;
pub(crate) mod mapping;
pub(crate) mod peer;
mod regions;
pub(crate) mod virtual_journal;
pub(crate) mod virtual_memory;

use super::context::Context;
use crate::code::module::Touch;
use crate::memory::mapping::DeviceWindow;
use crate::session::allowance::Allowance;
use crate::session::budgets::Holding;
use crate::session::failure::Failure;
use crate::session::session_handle::DeliveredGrant;
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::messages::{FromExecutor, OpenSession, Placement};
use link::closer::Foreign;
use link::completion::CompletionWords;
use link::shm::Reservation;
use link::wire::attach::Window;
use link::wire::command::{Grow, GrowReply, MemoryInfoReply, Release, StreamWriteValue};
use link::wire::owner::Owner;
use policy::limits::GuardMode;
use policy::memory::ranges::Ranges;
use regions::{Region, RegionKind};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
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

/// Memory of this process that the device may write.
#[derive(Debug)]
struct Registered {
    base: u64,
    device_base: CUdeviceptr,
}

impl Registered {
    /// Registers a part of a session's completion file.
    fn new(
        context: &Context,
        (base, size_bytes): (u64, usize),
    ) -> Result<Self, (CUresult, String)> {
        let driver = context.driver();
        // SAFETY: it is mapped for as long as the session's handle lives, and unregistered before
        // that ends.
        let registered =
            unsafe { driver.cuMemHostRegister_v2(address(base), size_bytes, REGISTER_FLAGS) };
        context.check(registered).map_err(|result| {
            let what = "registering the completion words of a new session failed";
            (result, format!("{what}: {result}"))
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
    /// All regions: what images may be read from.
    readable: Ranges,
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
        let completion = Registered::new(context, words.range())?;
        let guard_record = match wanted.guard {
            GuardMode::Off => None,
            GuardMode::On | GuardMode::Strict => {
                let record = Registered::new(context, words.guard_record_range());
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

    /// The keeper's next answer.
    pub(crate) fn await_answer(&self, timeout: Duration) -> Result<DeliveredGrant, CUresult> {
        let delivered = self.grants_from_keeper.recv_timeout(timeout);
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

impl State {
    /// Gives all device memory of its window back, which nobody uses any more; the window stays its
    /// own.
    pub(crate) fn return_grants(&mut self) {
        let driver = self.driver();
        for (at, size_bytes) in std::mem::take(&mut self.memory.grants) {
            // SAFETY: mapped by this session.
            let unmapped = unsafe { driver.cuMemUnmap(at, size_bytes as usize) };
            if self.check(unmapped).is_ok() {
                self.return_to_keeper(at, size_bytes);
            }
        }
        self.memory.device_window.unmap_all();
        self.tell_given_up();
    }

    /// Takes out of the driver what is registered there; nobody uses it any more.
    pub(crate) fn unregister_memory(&mut self) {
        let registered = self.memory.take_registered();
        let driver = self.driver();
        self.quietly_each(registered, |at| {
            // SAFETY: registered by this session.
            let _ = unsafe { driver.cuMemHostUnregister(address(at)) };
        });
    }

    /// Takes the progress words out of the driver; nobody writes them any more.
    pub(crate) fn clear_repeating(&mut self) {
        let driver = self.driver();
        self.quietly_each(self.repeating.take_registered(), |at| {
            // SAFETY: registered when the session was opened.
            let _ = unsafe { driver.cuMemHostUnregister(address(at)) };
        });
    }

    /// Asks the keeper for memory: its address or key, its length and its descriptor. It counts
    /// until [`Self::return_to_keeper`].
    pub(crate) fn ask_keeper(
        &mut self,
        size_bytes: u64,
        placement: Placement,
    ) -> Result<(u64, u64, OwnedFd), Failure> {
        self.memory.charge(size_bytes)?;
        let granted = self.ask_for_memory(size_bytes, placement);
        // What is granted is what counts.
        self.memory.discharge(size_bytes);
        let (at, size_bytes, file) = granted?;
        if let Err(failure) = self.memory.charge(size_bytes) {
            let session = self.handle.id;
            self.shared.tell(&FromExecutor::Released { session, address: at });
            return Err(failure);
        }
        Ok((at, size_bytes, file))
    }

    /// Gives memory back that is mapped nowhere any more, by its address or key.
    pub(crate) fn return_to_keeper(&mut self, address: u64, size_bytes: u64) {
        self.memory.discharge(size_bytes);
        self.give_up(FromExecutor::Released { session: self.handle.id, address });
    }

    pub(crate) fn grow(&mut self, wanted: Grow) -> Result<(), Failure> {
        let (at, size_bytes) = match self.take_kept(wanted.size_bytes)? {
            Some(kept) => kept,
            None => self.grow_anew(wanted.size_bytes)?,
        };
        self.memory.grants.insert(at, size_bytes);
        // The keeper gives no overlapping grants.
        let _ = self.memory.addressable.insert(at, size_bytes);
        self.answer(&GrowReply { address: at, size_bytes })
    }

    /// A new grant, mapped: its address and length.
    fn grow_anew(&mut self, size_bytes: u64) -> Result<(u64, u64), Failure> {
        let mut asked = self.ask_keeper(size_bytes, Placement::Window);
        if matches!(asked, Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY)))
            && self.return_all_kept()
        {
            asked = self.ask_keeper(size_bytes, Placement::Window);
        }
        let (at, size_bytes, file) = asked?;
        if let Err(code) = self.map_grant(&file, at, size_bytes) {
            self.return_to_keeper(at, size_bytes);
            return Err(code.into());
        }
        Ok((at, size_bytes))
    }

    /// Takes memory over that a descriptor stands for.
    pub(crate) fn import_memory(
        &self,
        file: BorrowedFd<'_>,
    ) -> Result<CUmemGenericAllocationHandle, CUresult> {
        mapping::import(self.context(), file)
    }

    pub(crate) fn map_grant(
        &self,
        file: &impl AsFd,
        at: u64,
        size_bytes: u64,
    ) -> Result<(), CUresult> {
        self.map_imported(file, at, size_bytes, 0)
    }

    /// Maps memory that a descriptor stands for, from a byte of it on, where this device reaches
    /// it.
    pub(crate) fn map_imported(
        &self,
        file: &impl AsFd,
        at: u64,
        size_bytes: u64,
        offset_bytes: u64,
    ) -> Result<(), CUresult> {
        let context = self.context();
        mapping::bind(context, file, at, size_bytes, offset_bytes)?;
        mapping::open_access(context, at, size_bytes).inspect_err(|_| {
            // SAFETY: just mapped, and nobody has used it.
            let _ = unsafe { self.driver().cuMemUnmap(at, size_bytes as usize) };
        })
    }

    pub(crate) fn release(&mut self, wanted: Release) -> Result<(), Failure> {
        let Release { address: at, size_bytes } = wanted;
        if self.memory.grants.get(&at) != Some(&size_bytes) {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        }
        if self.must_stay(at, size_bytes) {
            // Others have opened memory in it: it goes, and counts, with the session.
            self.memory.addressable.remove(at, size_bytes);
            return Ok(());
        }
        let is_plain = !self.moved.has(at) && !self.peers.shown.contains(&at);
        if is_plain && self.keep(at, size_bytes) {
            self.memory.grants.remove(&at);
            self.memory.addressable.remove(at, size_bytes);
            self.memory.discharge(size_bytes);
            return Ok(());
        }
        if !self.moved.forget(at) {
            // SAFETY: mapped by this session; its client has waited for its work.
            self.check(unsafe { self.driver().cuMemUnmap(at, size_bytes as usize) })?;
        }
        self.memory.grants.remove(&at);
        self.peers.shown.remove(&at);
        self.memory.addressable.remove(at, size_bytes);
        self.return_to_keeper(at, size_bytes);
        Ok(())
    }

    pub(crate) fn memory_info(&mut self) -> Result<(), Failure> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written.
        self.check(unsafe { self.driver().cuMemGetInfo_v2(&mut free, &mut total) })?;
        let allowance = &self.memory.allowance;
        let free = (free as u64).saturating_add(self.shared.kept.bytes());
        let free_bytes = allowance.left_bytes().map_or(free, |left| left.min(free));
        let total_bytes = allowance.total_bytes(total as u64);
        self.answer(&MemoryInfoReply { free_bytes, total_bytes })
    }

    /// Refuses addresses that are not this client's.
    pub(crate) fn check_range(&self, at: u64, size_bytes: u64) -> Result<(), Failure> {
        if self.memory.addressable.contain(at, size_bytes) {
            return Ok(());
        }
        Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE))
    }

    pub(crate) fn stream_write_value(&mut self, wanted: StreamWriteValue) -> Result<(), Failure> {
        let StreamWriteValue { stream, value_bytes, address, value, flags, .. } = wanted;
        self.check_range(address, value_bytes.into())?;
        let stream = self.stream_for_work(stream)?;
        self.touch_variables(Touch::Known);
        let driver = self.driver();
        // SAFETY: a live stream of this session and an address of its client.
        self.check(unsafe {
            match value_bytes {
                4 => driver.cuStreamWriteValue32_v2(stream, address, value as u32, flags),
                8 => driver.cuStreamWriteValue64_v2(stream, address, value, flags),
                _ => CUresult::ERROR_INVALID_VALUE,
            }
        })
    }
}

/// An address of this process as a pointer.
pub(crate) fn address(at: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(at as usize)
}
