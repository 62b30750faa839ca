//! Reserves addresses for a session, and gives them back.

use super::MAX_MAPPINGS;
use crate::memory::virtual_journal::Thing;
use crate::session::failure::{Failure, INVALID};
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::log::log_server;
use link::wire::attach::Window;
use link::wire::command::Opcode;
use link::wire::virtual_memory::{AddressFree, AddressReply, AddressReserve};
use policy::memory::reservations::{Reservations, UNIT_BYTES};
use std::sync::{MutexGuard, PoisonError};

/// Ranges that are tried where the driver reserves others.
const PLACES_TRIED: usize = 16;

impl State {
    pub(crate) fn address_reserve(&mut self, wanted: AddressReserve) -> Result<(), Failure> {
        if self.virtual_memory.reservations.len() >= MAX_MAPPINGS {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        let AddressReserve { size_bytes, alignment_bytes } = wanted;
        let (mut passed_over, mut fillers) = (Vec::new(), Vec::new());
        let reserved = loop {
            // A driver prefers a gap of just that length that it has to the address that it is
            // asked for: a longer range finds fewer such gaps.
            let longer_bytes = passed_over.len() as u64 * UNIT_BYTES;
            let Some(window) = size_bytes.checked_add(longer_bytes).and_then(|size_bytes| {
                self.reservations().take(self.memory.owner(), size_bytes, alignment_bytes)
            }) else {
                break Err(CUresult::ERROR_OUT_OF_MEMORY);
            };
            match self.reserve_at(window) {
                Ok(None) => break Ok(window),
                Ok(Some(elsewhere)) => {
                    // Kept for the moment, so that the gap is filled.
                    fillers.push((elsewhere, window.size_bytes as usize));
                    passed_over.push(window);
                    if passed_over.len() == PLACES_TRIED {
                        log_server!(
                            "The driver reserves {:#x} bytes at {elsewhere:#x}, and not at {:#x}, where it is asked; nor did it {} times before",
                            window.size_bytes,
                            window.base,
                            PLACES_TRIED - 1
                        );
                        break Err(CUresult::ERROR_OUT_OF_MEMORY);
                    }
                }
                Err(code) => {
                    passed_over.push(window);
                    break Err(code);
                }
            }
        };
        for (at, length) in fillers {
            // SAFETY: reserved above, nothing mapped.
            let _ = unsafe { self.driver().cuMemAddressFree(at, length) };
        }
        for window in passed_over {
            self.reservations().give_back(self.memory.owner(), window);
        }
        let window = reserved?;
        let Window { base, size_bytes: reserved_bytes } = window;
        self.virtual_memory.reservations.insert(base, (size_bytes, window));
        self.note_thing(Thing::Reservation { base, size_bytes, reserved_bytes })?;
        self.answer(&AddressReply { address: window.base })
    }

    /// Reserves a range with the driver; an address if it has reserved that instead.
    pub(crate) fn reserve_at(&self, window: Window) -> Result<Option<u64>, CUresult> {
        let (driver, mut got, length) = (self.driver(), 0, window.size_bytes as usize);
        // SAFETY: the result is written.
        let result = unsafe { driver.cuMemAddressReserve(&mut got, length, 0, window.base, 0) };
        self.context().check(result)?;
        Ok((got != window.base).then_some(got))
    }

    pub(crate) fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.shared.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn address_free(&mut self, wanted: AddressFree) -> Result<(), Failure> {
        let AddressFree { address, size_bytes } = wanted;
        let Some(&(length, window)) = self.virtual_memory.reservations.get(&address) else {
            return Err(INVALID);
        };
        if length != size_bytes || self.virtual_memory.is_mapped(address, size_bytes) {
            return Err(INVALID);
        }
        // SAFETY: reserved by this session, nothing is mapped there.
        self.check(unsafe { self.driver().cuMemAddressFree(address, window.size_bytes as usize) })?;
        self.virtual_memory.reservations.remove(&address);
        self.reservations().give_back(self.memory.owner(), window);
        self.note_ended(&[Opcode::AddressReserve], address);
        Ok(())
    }
}
