//! Moving a session's work to other SMs, between two of its kernels.
//!
//! What takes long happens beside the session's thread: a partition is made by the [`Mover`], which
//! waits for running kernels where the driver does (others' launches do not, measured on an H200);
//! executable graphs are made anew by a thread of their own ([`crate::objects::graph`]) while the
//! old ones are launched. The session's thread only replaces its streams, each of which waits for
//! the one before. An order is in force when what was submitted before it has ended.

mod following;

use super::partition::{Partition, Placed, Reserved};
use crate::Shared;
use crate::session::failure::Failure;
use crate::session::session_handle::SessionHandle;
use cuda_abi::types::*;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, ShareWish};
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
    /// It is to go to another device: see [`crate::recovery::moving_away`].
    Away,
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

    /// Whether there is any that changes what the session has. A wish that it goes does not, nor a
    /// wish that it looks for code that has faulted: it does when it arrives.
    pub(crate) fn has_changes(&self) -> bool {
        let is_change = |mail: &Mail| !matches!(mail, Mail::Away | Mail::Quarantine);
        self.has_mail()
            && self.mail.lock().unwrap_or_else(PoisonError::into_inner).iter().any(is_change)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_nobody_where_it_is_is_no_change() {
        let mailbox = Mailbox::default();
        [Mail::Away, Mail::Quarantine].into_iter().for_each(|mail| mailbox.put(mail));
        assert!(mailbox.has_mail() && !mailbox.has_changes());
        mailbox.put(Mail::Contexts { made: Vec::new() });
        assert!(mailbox.has_changes());
    }
}
