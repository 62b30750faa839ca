//! How a session goes to another device of the server.
//!
//! The keeper asks for it (`Mail::Away`). Between two commands, when nothing of the session is in
//! flight, its thread asks the keeper for memory of the other device, piece by piece of what it
//! has. It maps each piece here and copies. Then it leaves as for another context
//! ([`super::relocation`]): the executor of the other device has the copies at the addresses that
//! the session knows. What it had here is unchanged until it has left. So whatever fails before,
//! the session goes on here.

use crate::memory::mapping;
use crate::session::session_handle::DeliveredGrant;
use crate::session::state::State;
use cuda_abi::types::CUresult;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, GrantOutcome};
use policy::faults::hindrance::Hindrance;
use rustix::fd::OwnedFd;

/// Bytes copied between two looks at whether the client has gone.
const COPY_BYTES: u64 = 256 << 20;

/// Why a session that was to go to another device stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StayReason {
    #[error("it has {0}")]
    Hindrance(Hindrance),
    #[error("it has {what}: {why}", what = Hindrance::Variables)]
    Variables { why: String },
    #[error("it has asked which SMs there are, of which the other device may have others")]
    Multiprocessors,
    #[error("the other device has no memory for it")]
    NoMemory,
    #[error("its memory cannot be copied to the other device: {0}")]
    Copy(CUresult),
    #[error("it ends")]
    Ends,
}

impl State {
    /// The reason that is this hindrance.
    pub(crate) fn reason_to_stay(&self, hindrance: Hindrance) -> StayReason {
        match hindrance {
            Hindrance::Variables => StayReason::Variables { why: self.modules.kept_addresses() },
            other => StayReason::Hindrance(other),
        }
    }

    /// Tells the keeper that the session goes on here.
    pub(crate) fn stay(&mut self, reason: &StayReason) {
        self.relocation.away = None;
        let why = reason.to_string();
        log_server!("{} stays on its device: {why}", self.handle.label);
        self.shared.tell(&FromExecutor::Stays { session: self.handle.id, why });
    }

    /// Copies all device memory of the session to the other device. Nothing of the session is in
    /// flight.
    pub(crate) fn copy_away(&mut self) -> Result<(), StayReason> {
        // It takes long, and nothing of it is on the device.
        self.stop_contending();
        self.return_all_kept();
        let grants: Vec<(u64, u64)> =
            self.memory.grants.iter().map(|(&at, &size_bytes)| (at, size_bytes)).collect();
        for (at, size_bytes) in grants {
            let twin = self.ask_twin(at)?;
            self.copy_grant_away(at, size_bytes, &twin)?;
        }
        Ok(())
    }

    fn ask_twin(&mut self, address: u64) -> Result<OwnedFd, StayReason> {
        if self.handle.gives_up() {
            return Err(StayReason::Ends);
        }
        self.ask(&FromExecutor::Twin { session: self.handle.id, address });
        let answer = self.memory.await_answer().map_err(StayReason::Copy)?;
        match answer {
            DeliveredGrant { outcome: GrantOutcome::Memory { .. }, memory: Some(twin), .. } => {
                Ok(twin)
            }
            DeliveredGrant { outcome: GrantOutcome::Refused(code), .. }
                if CUresult(code) == CUresult::ERROR_OUT_OF_MEMORY =>
            {
                Err(StayReason::NoMemory)
            }
            DeliveredGrant { outcome: GrantOutcome::Refused(code), .. } => {
                Err(StayReason::Copy(CUresult(code)))
            }
            _ => Err(StayReason::Copy(CUresult::ERROR_MPS_RPC_FAILURE)),
        }
    }

    /// Copies a grant to memory of the other device, which is mapped here only for that.
    fn copy_grant_away(
        &mut self,
        from: u64,
        size_bytes: u64,
        twin: &OwnedFd,
    ) -> Result<(), StayReason> {
        let (driver, mut to) = (self.driver(), 0);
        // SAFETY: the result is written.
        let reserved = unsafe { driver.cuMemAddressReserve(&mut to, size_bytes as usize, 0, 0, 0) };
        self.context().check(reserved).map_err(StayReason::Copy)?;
        let bound = mapping::bind(self.context(), twin, to, size_bytes, 0);
        let copied = bound.map_err(StayReason::Copy).and_then(|()| {
            let opened = mapping::open_access(self.context(), to, size_bytes);
            let copied = opened
                .map_err(StayReason::Copy)
                .and_then(|()| self.copy_and_wait(from, to, size_bytes));
            // SAFETY: mapped above; the copies have been waited for.
            let _ = unsafe { driver.cuMemUnmap(to, size_bytes as usize) };
            copied
        });
        // SAFETY: reserved above, nothing is mapped there.
        let _ = unsafe { driver.cuMemAddressFree(to, size_bytes as usize) };
        copied
    }

    fn copy_and_wait(&mut self, from: u64, to: u64, size_bytes: u64) -> Result<(), StayReason> {
        let stream = self.moving_stream().map_err(StayReason::Copy)?;
        let driver = self.driver();
        let mut offset = 0;
        while offset < size_bytes {
            if self.handle.gives_up() {
                return Err(StayReason::Ends);
            }
            let length = COPY_BYTES.min(size_bytes - offset);
            let (to, from) = (to + offset, from + offset);
            // SAFETY: both ranges are mapped, that long, and stay so until the wait below.
            let waited = unsafe {
                let submitted = driver.cuMemcpyDtoDAsync_v2(to, from, length as usize, stream);
                let waited = driver.cuStreamSynchronize(stream);
                self.context().check(submitted).and_then(|()| self.context().check(waited))
            };
            waited.map_err(StayReason::Copy)?;
            offset += length;
        }
        Ok(())
    }
}
