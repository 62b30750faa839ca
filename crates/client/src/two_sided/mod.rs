//! Memory that host and device name by one address and that is not shared: managed memory
//! ([`managed`]) and `__managed__` variables ([`mirrors`]). The device gets what the host has
//! written before work is posted; the host gets what the device has written once work was waited
//! for.

mod changes;
pub(crate) mod managed;
mod mirrors;

use crate::result::Result;
use crate::session::Session;
use link::wire::command::Opcode;
use managed::{Managed, Uses};
use mirrors::Mirrors;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The memory of two sides of a session.
#[derive(Default)]
pub(crate) struct TwoSided {
    /// Whether there was any. Spares the others what it costs.
    any: AtomicBool,
    /// Threads that are about to post work.
    posting: AtomicUsize,
    pub(crate) mirrors: Mirrors,
    pub(crate) managed: Managed,
}

/// Work is being posted that may use what the host has written.
#[must_use]
pub(crate) struct Announced<'a>(Option<&'a TwoSided>);

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        if let Some(memory) = self.0 {
            memory.mirrors.note_work();
            // After the note: who finds nobody posting finds it.
            memory.posting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl TwoSided {
    /// From now on there is some.
    pub(crate) fn begin(&self) {
        // Release: with the Acquire in `is_there`, should another thread post work.
        self.any.store(true, Ordering::Release);
    }

    /// How many threads are about to post work.
    fn posting(&self) -> usize {
        self.posting.load(Ordering::SeqCst)
    }

    fn is_there(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }
}

impl Session {
    /// Has the device find what the host has written, before work is posted; what is returned is
    /// kept until it is.
    #[inline]
    pub(crate) fn announce(&self, opcode: Opcode) -> Result<Announced<'_>> {
        let memory = self.two_sided();
        if !memory.is_there() {
            return Ok(Announced(None));
        }
        // SeqCst: see `Managed::flight`.
        memory.posting.fetch_add(1, Ordering::SeqCst);
        let announced = Announced(Some(memory));
        memory.mirrors.push(self)?;
        let uses = if opcode == Opcode::Launch { Uses::Device } else { Uses::All };
        memory.managed.announce(self, uses)?;
        Ok(announced)
    }

    /// Has the host find what the device has written, once work was waited for.
    #[inline]
    pub(crate) fn settle(&self) -> Result {
        let memory = self.two_sided();
        if !memory.is_there() {
            return Ok(());
        }
        memory.mirrors.pull(self)?;
        memory.managed.settle(self)
    }
}
