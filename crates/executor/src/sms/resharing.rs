//! Moving a session's work to other SMs, between two of its kernels.
//!
//! What takes long happens beside the session's thread: a partition is made by the [`Mover`], which
//! waits for running kernels where the driver does (others' launches do not, measured on an H200);
//! executable graphs are made anew by a thread of their own ([`crate::objects::graph`]) while the
//! old ones are launched. The session's thread only replaces its streams, each of which waits for
//! the one before. An order is in force when what was submitted before it has ended.

use super::partition::{Partition, Placed, Reserved};
use super::session_partitions::Target;
use crate::Shared;
use crate::code::quarantine::Due;
use crate::session::failure::Failure;
use crate::session::session_handle::SessionHandle;
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, ShareWish};
use link::wire::partition::OWN_SHARE;
use policy::sms::partitions::ShareSize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What other threads have for a session's thread.
#[derive(Debug)]
pub(crate) enum Mail {
    /// Where its work is to run.
    Share { order: u64, placed: Result<Placed, String> },
    /// Where its contexts' work is to run, by the numbers of their partitions.
    Contexts { made: Vec<(u32, Result<Arc<Partition>, String>)> },
    /// An executable graph that was made anew.
    Graph { graph: u32, serial: u64, made: Result<CUgraphExec, CUresult> },
    /// It may have code that is to run apart: see [`crate::code::quarantine`].
    Quarantine,
    /// It may come back from there.
    Return,
}

/// A session's mail.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<VecDeque<Mail>>,
    came: Condvar,
    is_there: AtomicBool,
}

impl Mailbox {
    pub(crate) fn put(&self, mail: Mail) {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner).push_back(mail);
        // SeqCst: the session's thread announces its sleep and then looks here; one of the two sees
        // the other.
        self.is_there.store(true, Ordering::SeqCst);
        self.came.notify_all();
    }

    /// Whether there is any; cheap.
    pub(crate) fn has_mail(&self) -> bool {
        self.is_there.load(Ordering::SeqCst)
    }

    fn take(&self) -> VecDeque<Mail> {
        let mut mail = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_there.store(false, Ordering::SeqCst);
        std::mem::take(&mut mail)
    }

    /// Takes the first that `is_it` is about, when it comes; other mail stays.
    pub(crate) fn await_one(&self, limit: Duration, is_it: impl Fn(&Mail) -> bool) -> Option<Mail> {
        let deadline = Instant::now() + limit;
        let mut mail = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(place) = mail.iter().position(&is_it) {
                return mail.remove(place);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            mail = self.came.wait_timeout(mail, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

enum Job {
    Share { session: Arc<SessionHandle>, order: u64, wish: ShareWish },
    Contexts { session: Arc<SessionHandle>, outer: Option<Arc<Partition>>, wanted: Vec<(u32, u32)> },
    Reserve { change: u64, reservations: Vec<(String, u32)> },
}

/// The thread that makes partitions while others submit work.
pub(crate) struct Mover(Sender<Job>);

impl Mover {
    /// Starts it.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self, String> {
        let (sender, jobs) = channel();
        let shared = Arc::clone(shared);
        let run = move || {
            if let Err(code) = shared.context.make_current() {
                log_server!("Partitions cannot be made: {code}");
            }
            for job in jobs {
                carry_out(&shared, job);
            }
        };
        let thread = std::thread::Builder::new().name("partitions".into());
        thread.spawn(run).map_err(|error| error.to_string())?;
        Ok(Self(sender))
    }

    /// Gives a session another share.
    pub(crate) fn reshare(&self, session: &Arc<SessionHandle>, order: u64, wish: ShareWish) {
        let session = Arc::clone(session);
        self.send(Job::Share { session, order, wish });
    }

    /// Makes these reservations the only ones.
    pub(crate) fn reserve(&self, change: u64, reservations: Vec<(String, u32)>) {
        self.send(Job::Reserve { change, reservations });
    }

    fn send(&self, job: Job) {
        // The thread ends with the process.
        let _ = self.0.send(job);
    }
}

fn carry_out(shared: &Shared, job: Job) {
    let (context, partitions) = (&shared.context, &shared.partitions);
    match job {
        Job::Share { session, order, wish } => {
            let current = session.share.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let placed = partitions.place(context, &wish, current.as_ref()).map_err(refusal);
            session.deliver(Mail::Share { order, placed });
        }
        Job::Contexts { session, outer, wanted } => {
            let made = wanted.into_iter().map(|(number, count)| {
                let size = ShareSize::AtMost(count);
                (number, partitions.take(context, size, outer.as_deref()).map_err(refusal))
            });
            session.deliver(Mail::Contexts { made: made.collect() });
        }
        Job::Reserve { change, reservations } => {
            let reserved = partitions.reserve(context, &reservations);
            partitions.announced.settle();
            let failed =
                |failure| Reserved { refused: vec![refusal(failure)], ..Default::default() };
            let Reserved { made, refused } = reserved.unwrap_or_else(failed);
            shared.tell(&FromExecutor::Reserved { change, made, refused });
        }
    }
}

fn refusal(failure: Failure) -> String {
    match failure {
        Failure::Cuda(code) => format!("the native driver makes no such set of SMs: {code}"),
        Failure::Protocol(message) => message,
        Failure::Elsewhere => "the session goes on in another context".into(),
    }
}

/// How far a session is on its way.
#[derive(Debug, Default)]
pub(crate) struct Resharing {
    /// Those that are not yet in force.
    orders: Vec<u64>,
    /// Questions that the mover has not answered.
    asked: usize,
    refused: Option<String>,
    /// Recorded when all was moved; the orders are in force once they are reached.
    fence: Option<Vec<CUevent>>,
}

impl Resharing {
    /// Whether there is something to look after.
    pub(crate) fn is_active(&self) -> bool {
        !self.orders.is_empty()
    }
}

impl State {
    /// Takes its share of the SMs, before the session's first command.
    pub(crate) fn take_share(&mut self, wish: &ShareWish) -> Result<(), Failure> {
        self.shared.partitions.announced.wait();
        let placed = self.shared.partitions.place(&self.shared.context, wish, None)?;
        if let (Some(given), Some(wanted)) = (placed.multiprocessors(), wish.multiprocessors)
            && given != wanted
        {
            log_server!("{} has {given} SMs instead of {wanted}", self.handle.label);
        }
        self.note_share(placed);
        self.tell_share(0, None);
        Ok(())
    }

    /// Makes a share the session's, and returns what must move.
    fn note_share(&mut self, placed: Placed) -> Vec<(u32, Target)> {
        let count = placed.multiprocessors().unwrap_or(self.shared.multiprocessors);
        *self.handle.share.lock().unwrap_or_else(PoisonError::into_inner) = placed.share.clone();
        let moves = self.partitions.set_own(placed);
        self.handle.memory.set_multiprocessors(count);
        moves
    }

    fn tell_share(&self, order: u64, refused: Option<String>) {
        let own = self.partitions.own().map(|own| own.multiprocessors());
        let multiprocessors = own.unwrap_or(self.shared.multiprocessors);
        let session = self.handle.id;
        self.shared.tell(&FromExecutor::Reshared { session, order, multiprocessors, refused });
    }

    /// Between two commands: takes the mail, and says when an order is in force.
    pub(crate) fn see_to_shares(&mut self) {
        if self.handle.mailbox.has_mail() {
            for mail in self.handle.mailbox.take() {
                self.take_mail(mail);
            }
        }
        if self.resharing.is_active() && self.resharing.asked == 0 && !self.is_remaking() {
            self.finish_move();
        }
    }

    fn take_mail(&mut self, mail: Mail) {
        match mail {
            Mail::Share { order, placed } => {
                self.forget_fence();
                self.resharing.orders.push(order);
                match placed {
                    Ok(placed) => self.begin_move(placed),
                    Err(message) => self.resharing.refused = Some(message),
                }
            }
            Mail::Contexts { made } => {
                self.resharing.asked = self.resharing.asked.saturating_sub(1);
                let mut moved = Vec::new();
                for (number, made) in made {
                    match made {
                        Ok(partition) => {
                            self.move_streams(number, Some(Arc::clone(&partition)));
                            if self.partitions.set_current(number, partition) {
                                moved.push(number);
                            }
                        }
                        Err(message) => self.resharing.refused = Some(message),
                    }
                }
                self.remake_graphs(&moved);
            }
            Mail::Graph { graph, serial, made } => self.graph_remade(graph, serial, made),
            Mail::Quarantine => self.relocation.due = Due::Look,
            Mail::Return => self.relocation.due = Due::Return,
        }
    }

    fn begin_move(&mut self, placed: Placed) {
        let moves = self.note_share(placed);
        let own = self.partitions.own();
        self.move_streams(OWN_SHARE, own.clone());
        let (mut moved, mut wanted) = (vec![OWN_SHARE], Vec::new());
        for (number, target) in moves {
            match target {
                Target::Known(partition) => {
                    self.move_streams(number, Some(Arc::clone(&partition)));
                    self.partitions.set_current(number, partition);
                    moved.push(number);
                }
                Target::Taken(count) => wanted.push((number, count)),
            }
        }
        if !wanted.is_empty() {
            self.resharing.asked += 1;
            let session = Arc::clone(&self.handle);
            self.mover.send(Job::Contexts { session, outer: own, wanted });
        }
        self.remake_graphs(&moved);
    }

    fn move_streams(&mut self, number: u32, to: Option<Arc<Partition>>) {
        let turnstile = Arc::clone(self.streams.turnstile());
        let _pass = self.shared.gate.enter(&turnstile, None);
        if let Err(failure) = self.streams.move_to(&self.shared.context, number, to) {
            self.resharing.refused = Some(refusal(failure));
        }
    }

    /// All has been moved: waits for what was submitted before, then says so.
    fn finish_move(&mut self) {
        if self.resharing.fence.is_none() {
            let words = &self.handle.words;
            let fence = self.streams.fence(&self.shared.context, |slot| words.completed(slot));
            self.resharing.fence = Some(fence);
        }
        let (driver, shared) = (self.driver(), Arc::clone(&self.shared));
        let Some(fence) = &mut self.resharing.fence else { return };
        while let Some(&event) = fence.last() {
            // SAFETY: a live event of this session, which nothing names once it was reached.
            unsafe {
                let reached = driver.cuEventQuery(event);
                if reached == CUresult::ERROR_NOT_READY {
                    return;
                }
                let _ = shared.context.check(reached);
                let _ = driver.cuEventDestroy_v2(event);
            }
            fence.pop();
        }
        self.resharing.fence = None;
        let refused = self.resharing.refused.take();
        for order in std::mem::take(&mut self.resharing.orders) {
            self.tell_share(order, refused.clone());
        }
    }

    /// At the session's end, or when another order comes first.
    pub(crate) fn forget_fence(&mut self) {
        let fence = self.resharing.fence.take();
        self.context().end_events(fence.into_iter().flatten());
    }
}
