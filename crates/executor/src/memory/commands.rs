//! What clients ask of their memory.

use super::*;
use crate::session::state::State;
use executor_link::messages::{FromExecutor, Placement};
use link::wire::command::{Grow, GrowReply, MemoryInfoReply, Release, StreamWriteValue};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

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

    pub(crate) fn stream_write_value(&mut self, wanted: StreamWriteValue) -> Result<(), Failure> {
        let StreamWriteValue { stream, value_bytes, address, value, flags, .. } = wanted;
        let size_bytes = u64::from(value_bytes);
        let written = address;
        let address = self.reach(address, size_bytes)?;
        let stream = self.stream_for_work(stream)?;
        self.touch_written(written, size_bytes);
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
