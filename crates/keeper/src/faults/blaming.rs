//! Finds out whose fault it was and says so: in the log, and to whoever asks
//! ([`link::wire::fault`]). The verdict is [`policy::faults::blame`]'s.

use super::quarantine::Flight;
use crate::Keeper;
use crate::executors::place::Place;
use cuda_abi::types::CUresult;
use executor_link::counters::monotonic_ns;
use executor_link::history::Noted;
use executor_link::log::log_fault;
use link::wire::fault::{ACCUSED_KEPT, Accused, Blame, CALLS_KEPT, FAULTS_KEPT, FaultReport};
use policy::faults::blame::{Loss, Situation, blame};
use std::collections::{BTreeSet, VecDeque};
use std::time::{SystemTime, UNIX_EPOCH};

/// What has happened.
#[derive(Clone, Debug)]
pub(crate) struct Incident {
    /// A `CUresult`.
    pub(crate) code: u32,
    /// Its name, or another reason.
    pub(crate) what: String,
    /// The address that was touched, where it is known: to guarded code.
    pub(crate) address: Option<u64>,
    /// The client whose it is, where that is known: one that is killed, or was inside the driver.
    pub(crate) target: Option<u64>,
    /// Whether anything is known of the reason.
    pub(crate) loss: Loss,
}

/// The latest faults.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    ever: u64,
    latest: VecDeque<FaultReport>,
}

impl Faults {
    pub(crate) fn latest(&self) -> Vec<FaultReport> {
        self.latest.iter().cloned().collect()
    }

    /// The number of the latest that names a client.
    pub(crate) fn of_client(&self, client: u64) -> Option<u64> {
        let names = |fault: &&FaultReport| fault.accused.iter().any(|one| one.client_id == client);
        self.latest.iter().rev().find(names).map(|fault| fault.number)
    }

    fn add(&mut self, mut report: FaultReport) -> &FaultReport {
        self.ever += 1;
        report.number = self.ever;
        if self.latest.len() >= FAULTS_KEPT {
            self.latest.pop_front();
        }
        self.latest.push_back(report);
        &self.latest[self.latest.len() - 1]
    }
}

impl Keeper {
    /// Says in the log who did it, or may have, and with what, and keeps that for whoever asks. To
    /// be called while the sessions and the executor's page are still there. Returns the process of
    /// a culprit.
    pub(crate) fn report_fault(&mut self, place: Place, incident: Incident) -> Option<u32> {
        let now_ns = monotonic_ns();
        let mut clients = Vec::new();
        let mut situations = Vec::new();
        let (mut flights, mut has_overdue) = (Vec::new(), false);
        for (&id, session) in self.sessions.iter().filter(|(_, it)| it.place() == place) {
            let history = session.counters.history(session.counter_slot);
            let calls = history.read(now_ns);
            let noted = calls.iter().filter(|call| call.in_flight).count();
            // What came before the calls that are remembered may be at work still.
            let is_hidden = history.has_forgotten_launches() && session.has_work();
            situations.push(Situation {
                in_flight: noted.max(usize::from(is_hidden)),
                in_command: session.standing.in_hand().is_some(),
                is_target: incident.target == Some(session.client),
            });
            has_overdue |= session.is_overdue && incident.target == Some(session.client);
            flights.push((id, are_kernels_new(&calls)));
            clients.push(self.accuse(session.client, calls));
        }
        let (blame, whom) = blame(incident.loss, &situations);
        let is_fault = incident.loss == Loss::ByWork && incident.target.is_none();
        if is_fault || has_overdue {
            let flight = |index: usize| {
                let (session, is_new) = flights[index];
                Flight { session, kernels: kernels_in_flight(&clients[index]), is_new }
            };
            let accused: Vec<Flight<'_>> = whom.iter().map(|&index| flight(index)).collect();
            self.suspect(&accused);
        }
        let accused: Vec<Accused> = whom.into_iter().map(|index| clients[index].clone()).collect();
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let Incident { code, what, address, .. } = incident;
        let report = FaultReport {
            number: 0,
            unix_time_ms: unix_time.as_millis() as u64,
            device: place.device as u32,
            code,
            what,
            blame,
            address,
            accused,
        };
        let report = self.faults.add(report);
        log_fault!("OpenMPS: {report}");
        report.accused.iter().for_each(|accused| log_accused(report.blame, accused));
        let culprit = (report.blame == Blame::Culprit).then(|| report.accused[0].pid);
        if let Some(kept) = self.faults.latest.back_mut() {
            kept.accused.truncate(ACCUSED_KEPT);
        }
        culprit
    }

    /// A guarded session has ended; nobody else is concerned.
    pub(crate) fn guarded(&mut self, session: u64, address: u64, what: String) {
        let Some(session) = self.sessions.get(&session) else { return };
        let (place, target) = (session.place(), Some(session.client));
        let code = CUresult::ERROR_ILLEGAL_ADDRESS.0;
        self.report_fault(
            place,
            Incident { code, what, address: Some(address), target, loss: Loss::ByWork },
        );
    }

    fn accuse(&self, client_id: u64, calls: Vec<Noted>) -> Accused {
        let left = || self.departed.iter().rev().find(|left| left.client_id == client_id);
        let (pid, uid, command) = match self.clients.get(&client_id) {
            Some(client) => (client.peer.pid, client.peer.uid, client.hello.command.clone()),
            None => left()
                .map_or((0, 0, String::new()), |left| (left.pid, left.uid, left.command.clone())),
        };
        let flying = calls.iter().filter(|call| call.in_flight).take(CALLS_KEPT);
        let in_flight = flying.map(|call| call.record.clone()).collect();
        let skipped = calls.len().saturating_sub(CALLS_KEPT);
        let last_calls = calls.into_iter().skip(skipped).map(|call| call.record).collect();
        Accused { client_id, pid, uid, command, in_flight, last_calls }
    }
}

/// Whether each kernel in flight is the first of its name, as far as is remembered.
fn are_kernels_new(calls: &[Noted]) -> bool {
    let name = |call: &Noted| Some(call.record.launch.as_ref()?.kernel.clone());
    let launched: Vec<String> = calls.iter().filter_map(name).collect();
    let flying = calls.iter().filter(|call| call.in_flight).filter_map(name);
    let counts = flying.map(|name| launched.iter().filter(|it| **it == name).count());
    counts.max() == Some(1)
}

/// What a client had in flight; if none of that is remembered, what it launched last.
fn kernels_in_flight(accused: &Accused) -> BTreeSet<&str> {
    let Accused { in_flight, last_calls, .. } = accused;
    let calls = if in_flight.is_empty() { last_calls } else { in_flight };
    calls.iter().filter_map(|call| Some(call.launch.as_ref()?.kernel.as_str())).collect()
}

fn log_accused(blame: Blame, accused: &Accused) {
    let role = if blame == Blame::Culprit { "culprit" } else { "suspect" };
    let Accused { pid, uid, command, .. } = accused;
    log_fault!("OpenMPS: {role}: client process {pid} ({command}) of user {uid}");
    for call in &accused.in_flight {
        log_fault!("OpenMPS: {role} {pid} had in flight: {call}");
    }
    for call in &accused.last_calls {
        log_fault!("OpenMPS: {role} {pid} called {} us before: {call}", call.age_us);
    }
}
