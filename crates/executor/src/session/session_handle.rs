//! What other threads know of a session, and what they may ask of it.
//!
//! The main thread, the monitor and the mover hold a [`SessionHandle`]; all else of a session
//! belongs to its own thread ([`crate::session`]), which looks here between two commands. Whatever
//! is left here wakes that thread.

use super::allowance::Allowance;
use crate::memory::kept::Kept;
use crate::residency::moving::MoveOrders;
use crate::sms::partition::Partition;
use crate::sms::resharing::{Mail, Mailbox};
use cuda_abi::types::CUresult;
use executor_link::counters::CounterPage;
use executor_link::messages::{GrantOutcome, MoveOrder, OpenSession, Verdict};
use link::bus_error::{self, Watched};
use link::completion::CompletionWords;
use link::session_memory::SessionMemory;
use link::wire::owner::Owner;
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

/// The keeper's answer, with what it sent.
pub(crate) struct DeliveredGrant {
    pub(crate) outcome: GrantOutcome,
    pub(crate) memory: Option<OwnedFd>,
    /// A session's completion words.
    pub(crate) words: Option<OwnedFd>,
}

/// What a session's thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wish {
    /// What its client asks for.
    Serve,
    /// Nothing more, and say when its work has ended.
    Rest,
    /// The same, and then end.
    Stop,
}

/// What other threads know of a session; in cache lines of its own.
#[repr(align(128))]
pub(crate) struct SessionHandle {
    pub(crate) id: u64,
    pub(crate) label: String,
    /// For whom it counts.
    pub(crate) owner: Owner,
    /// Its place in the counters' page.
    pub(crate) counter_slot: usize,
    pub(crate) memory: Arc<SessionMemory>,
    pub(crate) words: CompletionWords,
    /// The device memory that it may hold.
    pub(crate) allowance: Arc<Allowance>,
    /// What other threads have for the session's.
    pub(crate) mailbox: Mailbox,
    /// Where its work runs; `None`: on the whole device.
    pub(crate) share: Mutex<Option<Arc<Partition>>>,
    /// A [`Wish`], which only grows.
    wish: AtomicU8,
    /// The keeper's answer to a session that is stuck: a [`Verdict`] and one more, 0: none yet.
    verdict: AtomicU8,
    /// The session is another executor's.
    left: AtomicBool,
    /// Code of it that is to be unloaded.
    pub(crate) discarded: Arc<AtomicUsize>,
    /// The `CUresult` that answers everything, 0 while the session serves.
    ended: AtomicU32,
    streams: AtomicU32,
    /// A weight that the client is to have from now on, 0: none that it has not.
    pub(crate) new_weight: Arc<AtomicU32>,
    grants: Sender<DeliveredGrant>,
    pub(crate) moves: MoveOrders,
    pub(crate) kept: Kept,
    /// Where its client's memory is mapped here.
    watched: [Option<Watched>; 2],
}

impl SessionHandle {
    /// A session that serves, and whose thread takes the keeper's answers from the other end of
    /// `grants`.
    pub(crate) fn new(
        wanted: &OpenSession,
        memory: Arc<SessionMemory>,
        words: CompletionWords,
        allowance: Arc<Allowance>,
        grants: Sender<DeliveredGrant>,
    ) -> Self {
        let session_file = memory.range();
        Self {
            id: wanted.session,
            label: wanted.label.clone(),
            owner: wanted.owner.clone(),
            counter_slot: wanted.counter_slot,
            memory,
            words,
            allowance,
            mailbox: Mailbox::default(),
            share: Mutex::default(),
            wish: AtomicU8::new(Wish::Serve as u8),
            verdict: AtomicU8::new(0),
            left: AtomicBool::new(false),
            discarded: Default::default(),
            ended: AtomicU32::new(0),
            streams: AtomicU32::new(0),
            new_weight: Default::default(),
            grants,
            moves: MoveOrders::default(),
            kept: Kept::default(),
            watched: [wanted.host_window, session_file]
                .map(|range| bus_error::watch(range.base, range.size_bytes)),
        }
    }

    /// Ends the session thread, after the command in its hands.
    pub(crate) fn stop(&self) {
        self.wish(Wish::Stop);
    }

    /// From now on every command gets `code` for an answer and nothing is done. The thread asks the
    /// driver until it says that what was submitted before has ended.
    pub(crate) fn end(&self, code: u32) {
        self.ended.store(code, Ordering::SeqCst);
        self.memory.fail(code);
        self.wish(Wish::Rest);
    }

    fn wish(&self, wish: Wish) {
        self.wish.fetch_max(wish as u8, Ordering::SeqCst);
        self.memory.wake_consumer();
    }

    /// What the session's thread is to do.
    pub(crate) fn wished(&self) -> Wish {
        match self.wish.load(Ordering::SeqCst) {
            0 => Wish::Serve,
            1 => Wish::Rest,
            _ => Wish::Stop,
        }
    }

    /// The keeper has answered, or is about to be asked.
    pub(crate) fn take_verdict(&self, verdict: Option<Verdict>) {
        self.verdict.store(verdict.map_or(0, |verdict| verdict as u8 + 1), Ordering::SeqCst);
    }

    /// What the keeper has answered since it was asked.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self.verdict.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(Verdict::Stays),
            _ => Some(Verdict::Leaves),
        }
    }

    /// From now on the session is another executor's.
    pub(crate) fn note_left(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// See [`Self::note_left`].
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    /// From now on the client's share of a device that others want goes by this weight.
    pub(crate) fn weigh(&self, weight: u32) {
        // Relaxed: the number is all that there is.
        self.new_weight.store(weight, Ordering::Relaxed);
    }

    /// Whether memory of its client's could not be touched.
    pub(crate) fn has_lost_memory(&self) -> bool {
        self.watched.iter().flatten().any(Watched::has_failed)
    }

    pub(crate) fn ended(&self) -> Option<CUresult> {
        match self.ended.load(Ordering::SeqCst) {
            0 => None,
            code => Some(CUresult(code)),
        }
    }

    pub(crate) fn stopped(&self) -> bool {
        self.wished() == Wish::Stop
    }

    /// Whether the session's thread is to wait for nothing any more, as nothing will be done for
    /// the client.
    pub(crate) fn gives_up(&self) -> bool {
        self.wished() != Wish::Serve
    }

    /// Hands the keeper's answer to the session thread; one that nobody waits for is dropped,
    /// descriptor and all.
    pub(crate) fn deliver_grant(&self, outcome: GrantOutcome, descriptors: Vec<OwnedFd>) {
        let mut descriptors = descriptors.into_iter();
        let (memory, words) = (descriptors.next(), descriptors.next());
        let _ = self.grants.send(DeliveredGrant { outcome, memory, words });
    }

    /// Tells the session thread what to move out, when it comes to it.
    pub(crate) fn order_move(&self, order: MoveOrder) {
        self.moves.give(order);
        self.memory.wake_consumer();
    }

    /// Puts something into the session's mailbox.
    pub(crate) fn deliver(&self, mail: Mail) {
        self.mailbox.put(mail);
        self.memory.wake_consumer();
    }

    /// Marks which of its last calls have ended, as far as the device has said.
    pub(crate) fn mark_ended(&self, counters: &CounterPage) {
        counters.history(self.counter_slot).mark_ended(|slot| self.words.completed(slot));
    }

    /// Says how many stream slots are in use, for the monitor.
    pub(crate) fn note_streams(&self, slots: usize) {
        // The session's thread alone writes it: the first launches do, and no later ones.
        if self.streams.load(Ordering::Relaxed) < slots as u32 {
            self.streams.store(slots as u32, Ordering::Relaxed);
        }
    }

    /// A number that changes when any completion word does: the words only grow.
    pub(crate) fn progress(&self) -> u64 {
        let slots = self.streams.load(Ordering::Relaxed);
        (0..slots).fold(0, |sum: u64, slot| sum.wrapping_add(self.words.completed(slot)))
    }
}
