//! Code that runs apart from others' ([`policy::faults::suspects`]): a session that is about to get
//! such a function, or has one, goes on in a context for such code, and comes back when the code is
//! cleared. It leaves as for any other context ([`crate::recovery::relocation`]).

use crate::recovery::relocation::{Due, LOOK};
use crate::session::failure::Failure;
use crate::session::session_handle::SessionHandle;
use crate::session::state::State;
use crate::sms::resharing::Mail;
use executor_link::image_hash::image_hash;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, Reason, Verdict};
use policy::faults::suspects::Code;
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The context for such code may have to be made first.
const CONTEXT_TIMEOUT: Duration = Duration::from_secs(10);
/// So long the session's own work is waited for before it leaves to be apart.
const WORK_TIMEOUT: Duration = Duration::from_secs(2);
/// The same before it comes back, for which there is another time.
const RETURN_PAUSE: Duration = Duration::from_millis(50);

/// What is to run apart.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    code: RwLock<Vec<Code>>,
    is_any: AtomicBool,
}

impl Quarantine {
    /// From now on it is this. Sessions look whether they have any of it.
    pub(crate) fn set<'a>(
        &self,
        code: Vec<Code>,
        sessions: impl Iterator<Item = &'a Arc<SessionHandle>>,
    ) {
        let is_any = !code.is_empty();
        *self.code.write().unwrap_or_else(PoisonError::into_inner) = code;
        // SeqCst: who is told below finds what was written.
        self.is_any.store(is_any, Ordering::SeqCst);
        if is_any {
            sessions.for_each(|session| session.deliver(Mail::Quarantine));
        }
    }

    fn has(&self, is_it: impl Fn(&Code) -> bool) -> bool {
        self.is_any.load(Ordering::SeqCst)
            && self.code.read().unwrap_or_else(PoisonError::into_inner).iter().any(is_it)
    }
}

impl State {
    /// Before a function is got: leaves if it is to run elsewhere.
    pub(crate) fn leave_for(&mut self, module: u32, name: &str) -> Result<(), Failure> {
        let Some(code) = self.listed(module, name) else { return Ok(()) };
        if !self.relocation.is_possible || self.hindrance_apart().is_some() {
            // Between this command and the next.
            self.handle.mailbox.put(Mail::Quarantine);
            return Ok(());
        }
        match self.is_sent_apart(code) {
            true => Err(Failure::Elsewhere),
            false => Ok(()),
        }
    }

    /// Between two commands: whether the session leaves, to be apart or to come back.
    pub(crate) fn leaves_for_quarantine(&mut self) -> bool {
        let prepared = match std::mem::take(&mut self.relocation.due) {
            Due::Nothing => return false,
            Due::Return => {
                if self.hindrance().is_some() || !self.ends_work(RETURN_PAUSE) {
                    return false;
                }
                self.prepare_to_leave()
            }
            Due::Look => {
                let listed = self.modules.functions();
                let listed = listed.filter_map(|(module, name)| self.listed(module, name));
                let Some(code) = listed.last() else { return false };
                match self.hindrance_apart() {
                    Some(hindrance) => Err(hindrance),
                    None if !self.is_sent_apart(code) => return false,
                    None => self.prepare_to_leave(),
                }
            }
        };
        if let Err(hindrance) = prepared
            && !std::mem::replace(&mut self.relocation.has_complained, true)
        {
            let label = &self.handle.label;
            log_server!("{label} cannot be moved for code that has faulted: it has {hindrance}");
        }
        prepared.is_ok()
    }

    /// The code of a function, if it is to run apart.
    fn listed(&self, module: u32, name: &str) -> Option<Code> {
        let quarantine = &self.shared.quarantine;
        if !quarantine.has(|_| true) {
            return None;
        }
        let kernel = Code::kernel(self.memory.owner(), name);
        if !quarantine.has(|code| code.kernel == kernel) {
            return None;
        }
        let image = image_hash(self.modules.image(module)?.as_fd()).ok()?;
        let code = Code { kernel, image };
        quarantine.has(|listed| *listed == code).then_some(code)
    }

    /// Asks the keeper for a context apart; says whether there is one and nothing of the session is
    /// in flight.
    fn is_sent_apart(&self, code: Code) -> bool {
        self.tell_stuck(Reason::Quarantine(code));
        let asked = Instant::now();
        let verdict = loop {
            match self.handle.verdict() {
                None if asked.elapsed() < CONTEXT_TIMEOUT && !self.is_given_up() => {
                    std::thread::sleep(LOOK);
                }
                verdict => break verdict,
            }
        };
        self.handle.take_verdict(None);
        if verdict.is_none() {
            self.shared.tell(&FromExecutor::Unstuck { session: self.handle.id });
        }
        verdict == Some(Verdict::Leaves) && self.ends_work(WORK_TIMEOUT)
    }

    /// Waits until nothing of the session is in flight; `false`: something still is.
    pub(crate) fn ends_work(&self, limit: Duration) -> bool {
        let began = Instant::now();
        while self.has_work_in_driver() {
            if began.elapsed() >= limit || self.is_given_up() {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}
