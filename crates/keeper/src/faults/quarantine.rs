//! Code that has faulted, or may have, runs in contexts apart from others' for a while
//! ([`policy::faults::suspects`] says which code). A fault then costs those alone who run it.
//!
//! Executors know what code that is. A session that is about to get a function of it, or has one
//! when it is made again, is stuck ([`Reason::Quarantine`]) and goes to a trust domain of the
//! code's party, as to a second context ([`crate::contexts::relocation`]). Sessions whose code is
//! cleared come back. The number of contexts apart is bounded: where all are taken, those who have
//! faulted share one, and suspects run among others.

use crate::Keeper;
use crate::contexts::relocation::UNUSED;
use crate::devices::ComputeMode;
use crate::executors::ExecutorProcess;
use crate::executors::place::{Place, Stage};
use crate::executors::standby::Code as CodeIs;
use crate::sessions::session::{Service, Session};
use executor_link::image_hash::image_hash;
use executor_link::journal;
use executor_link::log::{log_fault, log_server};
use executor_link::messages::{Reason, ToExecutor};
use link::wire::command::{FunctionGet, ModuleLoad, Opcode};
use policy::domains::{Domain, Key, SHARED};
use policy::faults::suspects::{Accused, Code, Party, Suspects};
use rustix::fd::AsFd;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Between two attempts to have a session come back: it may have work in flight, or cannot leave.
const ASKS_AGAIN: Duration = Duration::from_secs(5);

/// Between two lines that say that there is no context apart.
const COMPLAINS_AGAIN: Duration = Duration::from_secs(60);

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    suspects: Suspects,
    /// Domains for such code.
    apart: BTreeMap<Domain, Apart>,
    /// When it was last said that there was none.
    complained: Option<Instant>,
}

/// What a session had in flight when a context was lost.
pub(crate) struct Flight<'a> {
    pub(crate) session: u64,
    pub(crate) kernels: BTreeSet<&'a str>,
    /// It had launched none of them before, as far as is known.
    pub(crate) is_new: bool,
}

#[derive(Debug)]
struct Apart {
    party: Party,
    /// When somebody was there last, or was awaited.
    used: Instant,
    /// When its sessions were last told that they may come back.
    told: Option<Instant>,
}

impl Quarantine {
    /// Whether a domain is for such code.
    pub(crate) fn is_apart(&self, domain: Domain) -> bool {
        self.apart.contains_key(&domain)
    }

    /// There is no such domain any more.
    pub(crate) fn forget(&mut self, domain: Domain) {
        self.apart.remove(&domain);
    }
}

impl Keeper {
    fn quarantine_time(&self) -> Duration {
        Duration::from_millis(self.fault_settings.quarantine_ms)
    }

    /// A fault was made by one of these sessions, by the launches that are named with them.
    pub(crate) fn suspect(&mut self, accused: &[Flight<'_>]) {
        if self.fault_settings.quarantine_contexts == 0 {
            return;
        }
        let accused = accused.iter().filter_map(|flight| {
            let session = self.sessions.get(&flight.session)?;
            let (owner, is_new) = (session.owner.clone(), flight.is_new);
            let code = code_of(session, &flight.kernels);
            (!code.is_empty()).then_some(Accused { owner, code, is_new })
        });
        let accused: Vec<Accused> = accused.collect();
        if accused.is_empty() {
            return;
        }
        let lasts = self.quarantine_time();
        self.quarantine.suspects.note(&accused, Instant::now(), lasts);
        log_fault!(
            "Code that may have faulted runs apart from others' for {} s: {} kernel(s) so far",
            lasts.as_secs_f64(),
            self.quarantine.suspects.code().len()
        );
        self.tell_all_of_quarantine();
    }

    /// Tells an executor what is to run apart, before it has sessions.
    pub(crate) fn tell_of_quarantine(&self, executor: &ExecutorProcess) {
        if !self.quarantine.suspects.is_empty() {
            executor.tell(&ToExecutor::Quarantine(self.quarantine.suspects.code()), &[]);
        }
    }

    fn tell_all_of_quarantine(&self) {
        let code = ToExecutor::Quarantine(self.quarantine.suspects.code());
        self.places().for_each(|(_, executor)| executor.process.tell(&code, &[]));
    }

    /// Where a session that has such code is to go on; `None`: it stays.
    pub(crate) fn place_apart(&mut self, from: Place, code: Code) -> Option<Place> {
        let party = self.quarantine.suspects.party(code)?;
        let rank = |party: Party| self.quarantine.suspects.rank(party);
        let here = self.quarantine.apart.get(&from.domain).map(|apart| rank(apart.party));
        if from.domain != SHARED && here.is_none_or(|here| here >= rank(party)) {
            return None;
        }
        let mut known = self.quarantine.apart.iter();
        let known = known.find(|(_, apart)| apart.party == party).map(|(&domain, _)| domain);
        let there = self.devices[from.device].executors.keys();
        let contexts = there.filter(|(domain, _)| self.quarantine.is_apart(*domain)).count();
        let is_there = known.is_some_and(|domain| {
            self.devices[from.device].executors.contains_key(&Place::first(0, domain).seat())
        });
        if !is_there && contexts >= self.fault_settings.quarantine_contexts {
            if here.is_some_and(|(is_proven, _)| is_proven) {
                return None;
            }
            let mut of_proven = self.devices[from.device].executors.keys().filter(|(domain, _)| {
                self.quarantine.apart.get(domain).is_some_and(|apart| rank(apart.party).0)
            });
            if rank(party).0
                && let Some(&(domain, _)) = of_proven.next()
            {
                return Some(Place::first(from.device, domain));
            }
            self.complain(&format!("all {contexts} contexts apart are taken"));
            return None;
        }
        let domain = known.unwrap_or_else(|| {
            let group = Some(format!("quarantine {}", party.0));
            let domain = self.domains.find(Key { group, named: None });
            let apart = Apart { party, used: Instant::now(), told: None };
            self.quarantine.apart.insert(domain, apart);
            domain
        });
        Some(Place::first(from.device, domain))
    }

    /// Sees to an executor in such a place; `None`: there can be none.
    pub(crate) fn context_apart(&mut self, place: Place) -> Option<Stage> {
        if let Some(apart) = self.quarantine.apart.get_mut(&place.domain) {
            apart.used = Instant::now();
        }
        if self.is_recovering(place) {
            return Some(Stage::Starting);
        }
        let device = &self.devices[place.device];
        if let Some(executor) = device.executors.get(&place.seat()) {
            return Some(executor.stage);
        }
        if self.residencies[place.device].is_waited_for()
            || device.compute_mode(self.driver) != ComputeMode::Default
            || !self.has_room_for_contexts(place.device, 1)
        {
            self.complain(&format!("device {} has no room for a context apart", place.device));
            return None;
        }
        self.ensure_executor(place).ok()
    }

    /// Says why code is not apart; a client that asks again and again must not fill the log.
    fn complain(&mut self, why: &str) {
        if self.quarantine.complained.is_none_or(|then| then.elapsed() >= COMPLAINS_AGAIN) {
            self.quarantine.complained = Some(Instant::now());
            log_server!("Code that may have faulted runs among others: {why}");
        }
    }

    /// A session goes from one trust domain to another: standbys prepare for those alone that
    /// nothing sets apart.
    pub(crate) fn change_domain(&mut self, id: u64, to: Domain) {
        let Some(session) = self.sessions.get(&id).filter(|session| session.domain != to) else {
            return;
        };
        let files: Vec<u64> = session.code.keys().copied().collect();
        files.iter().for_each(|&file| self.tell_standbys_of_code(id, file, CodeIs::Gone));
        self.forget_ahead(id);
        if let Some(session) = self.sessions.get_mut(&id) {
            session.domain = to;
        }
        files.iter().for_each(|&file| self.tell_standbys_of_code(id, file, CodeIs::Here));
    }

    /// From time to time: clears who has worked, has sessions come back, and ends contexts apart
    /// that nobody is in.
    pub(crate) fn see_to_quarantine(&mut self) {
        let (now, lasts) = (Instant::now(), self.quarantine_time());
        let mut is_changed = self.quarantine.suspects.expire(now);
        let domains: Vec<Domain> = self.quarantine.apart.keys().copied().collect();
        for &domain in &domains {
            let Some(party) = self.quarantine.apart.get(&domain).map(|apart| apart.party) else {
                continue;
            };
            let there = self.sessions.values().filter(|session| session.domain == domain);
            let worked = there.filter_map(Session::has_worked_for).max().unwrap_or_default();
            if self.quarantine.suspects.has_worked(party, worked, lasts) {
                log_server!(
                    "{} is over: its code has worked for {} s",
                    self.domains.label(domain),
                    worked.as_secs()
                );
                is_changed = true;
            }
            if !self.quarantine.suspects.has(party) {
                self.have_come_back(domain);
            }
        }
        if is_changed {
            self.tell_all_of_quarantine();
        }
        domains.into_iter().for_each(|domain| self.end_unused(domain));
    }

    fn have_come_back(&mut self, domain: Domain) {
        let Some(apart) = self.quarantine.apart.get_mut(&domain) else { return };
        if apart.told.is_some_and(|told| told.elapsed() < ASKS_AGAIN) {
            return;
        }
        apart.told = Some(Instant::now());
        let is_there =
            |session: &Session| session.domain == domain && session.service == Service::Serving;
        let there = self.sessions.iter().filter(|(_, session)| is_there(session));
        let there: Vec<u64> = there.map(|(&id, _)| id).collect();
        for id in there {
            if self.clearing.contains_key(&id) {
                continue;
            }
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            session.destination = Some(Place::first(session.device, SHARED));
            if let Some(executor) = self.executor_of(id) {
                executor.tell(&ToExecutor::ComeBack { session: id }, &[]);
            }
        }
    }

    /// Whether a session waits for such a context.
    pub(crate) fn is_quarantine_awaited(&self) -> bool {
        self.stuck.values().any(|reason| matches!(reason, Reason::Quarantine(_)))
    }

    fn end_unused(&mut self, domain: Domain) {
        let places: Vec<Place> =
            (0..self.devices.len()).map(|device| Place::first(device, domain)).collect();
        let is_used = self.is_quarantine_awaited()
            || places.iter().any(|&place| {
                self.is_in_use(place)
                    || self.is_recovering(place)
                    || self.devices[place.device]
                        .executors
                        .get(&place.seat())
                        .is_some_and(|executor| executor.stage == Stage::Starting)
            });
        let Some(apart) = self.quarantine.apart.get_mut(&domain) else { return };
        if is_used {
            apart.used = Instant::now();
        } else if apart.used.elapsed() >= UNUSED {
            self.leave_domain(domain);
        }
    }
}

/// The code of these kernels, of a session that no executor has any more.
fn code_of(session: &Session, kernels: &BTreeSet<&str>) -> Vec<Code> {
    let wanted: BTreeSet<u64> =
        kernels.iter().map(|name| Code::kernel(&session.owner, name)).collect();
    let committed = session.standing.committed_bytes();
    let Ok(entries) = journal::read(session.files.journal.as_fd(), committed) else {
        return Vec::new();
    };
    let (mut images, mut found) = (BTreeMap::new(), BTreeSet::new());
    for entry in entries {
        match Opcode::from_number(entry.opcode) {
            Some(Opcode::ModuleLoad) => {
                if let Ok((load, _)) = ModuleLoad::read_from_prefix(&entry.body) {
                    images.insert(load.module, entry.file);
                }
            }
            Some(Opcode::FunctionGet) => {
                let Ok((get, name)) = FunctionGet::read_from_prefix(&entry.body) else { continue };
                let name = name.get(..get.name_bytes as usize).unwrap_or_default();
                let kernel = Code::kernel(&session.owner, &String::from_utf8_lossy(name));
                if wanted.contains(&kernel)
                    && let Some(file) = images.get(&get.module)
                {
                    found.insert((kernel, *file));
                }
            }
            _ => {}
        }
    }
    let code = found.into_iter().filter_map(|(kernel, file)| {
        let image = image_hash(session.kept.get(&file)?.as_fd()).ok()?;
        Some(Code { kernel, image })
    });
    code.collect()
}
