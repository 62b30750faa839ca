//! What is waited for when no faults are made, and the stock of what is held then.
//!
//! Executors that took over hold other things than the first one, and what a client has in one
//! depends on whether it began there or was taken over with. So stock is taken in one and the same
//! situation, before and after: all good clients are there and idle, then one fault of another
//! client has an executor that stood by take over, then another one stands by. What grows with
//! faults is more the second time; what an executor holds more than another one is not.

use super::belongings::{Belongings, processes, role};
use super::board::Rest;
use super::crew::{Crew, Event};
use super::harness::{ChaosError, TELLING, TICK, io_error};
use super::kind::Kind;
use super::tally::{Leaks, Tally};
use crate::peer::Peer;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// What does not change for so long is taken to stay.
const STEADY: Duration = Duration::from_secs(1);
/// Another executor comes by then after a fault, unless something is wrong.
const STANDBY_COMES: Duration = Duration::from_secs(10);
/// Faults after which a leak is still there, while nothing else is done, is one.
const STOCKTAKINGS: u32 = 3;
/// Processes that are there all the time.
const STAYING: [&str; 2] = ["openmps control", "nvidia-cuda-mps-server"];
/// How the fault of a stocktaking is made.
const CLOSING_FAULT: Kind = Kind::IllegalAddress;

/// What is to be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    /// That all are there.
    Ready,
    /// That all are there, and idle until they are told otherwise.
    Resting,
}

impl Crew<'_> {
    /// What is held, in the situation in which it can be compared, and what could not be waited for
    /// on the way there.
    pub(super) fn take_stock(
        &mut self,
        events: &Receiver<Event>,
        tally: &mut Tally,
        deadline: Instant,
    ) -> Result<(Belongings, Vec<String>), ChaosError> {
        let (mut stock, mut missing) = self.settle(events, tally, Clients::Ready, deadline)?;
        if self.scene.plan.peer == Peer::Openmps {
            self.scene.board.set_rest(Rest::Idle);
            missing.extend(self.settle(events, tally, Clients::Resting, deadline)?.1);
            self.make_fault(CLOSING_FAULT, tally)?;
            let (settled, not_yet) = self.settle(events, tally, Clients::Resting, deadline)?;
            stock = settled;
            missing.extend(not_yet);
        }
        // The probe is a client more, so it comes last.
        stock.free_device_bytes = self.scene.free_device_bytes();
        if stock.free_device_bytes.is_none() {
            missing.push("a client that looks at the device's memory does not work".to_owned());
        }
        self.scene.board.set_rest(Rest::Work);
        self.clients.iter_mut().for_each(|client| client.rests = false);
        Ok((stock, missing))
    }

    /// Takes stock after all faults. More than `before` counts if it is still there after further
    /// faults. Returns what is left over, and all of that in words.
    pub(super) fn find_leaks(
        &mut self,
        events: &Receiver<Event>,
        tally: &mut Tally,
        before: &Belongings,
        deadline: Instant,
    ) -> Result<(Leaks, Vec<String>), ChaosError> {
        let mut number = 1;
        loop {
            let (stock, mut missing) = self.take_stock(events, tally, deadline)?;
            let (leaks, named) = (stock.since(before), stock.named_since(before));
            (self.tell)(&format!("after the faults: {stock}"));
            if leaks != Leaks::default() && number < STOCKTAKINGS && Instant::now() < deadline {
                (self.tell)(&format!("more than before, looked at again: {}", named.join("; ")));
                number += 1;
                continue;
            }
            missing.extend(named);
            return Ok((leaks, missing));
        }
    }

    /// Makes a fault of each kind, one when the server is prepared for it after the other, so that
    /// the clients, the server and its executors have met all of them. Where each takes long, not
    /// all.
    pub(super) fn warm_up(
        &mut self,
        events: &Receiver<Event>,
        tally: &mut Tally,
        deadline: Instant,
    ) -> Result<(), ChaosError> {
        for kind in self.scene.plan.kinds.clone() {
            let began = Instant::now();
            while self.ask()?.is_some_and(|answer| !answer.stands_by)
                && began.elapsed() < STANDBY_COMES
            {
                self.hear(events, tally)?;
            }
            let most = self.scene.plan.most_faults;
            if most != 0 && tally.fault_count() >= most || Instant::now() >= deadline {
                return Ok(());
            }
            self.make_fault(kind, tally)?;
            self.hear(events, tally)?;
        }
        Ok(())
    }

    /// Makes a fault while nobody else does.
    fn make_fault(&mut self, kind: Kind, tally: &mut Tally) -> Result<(), ChaosError> {
        let made = self.scene.make_fault(kind, tally.fault_count());
        let made = made.map_err(io_error("start a bad client"))?;
        self.note(Event::Fault { kind, made }, tally)
    }

    /// Waits until all is as it shall be and stays so, but not for ever. Returns what was held all
    /// that time, and what is not as it shall be. What is held is looked at before the daemon is
    /// asked, so that it has no connection with a question that was answered just now.
    fn settle(
        &mut self,
        events: &Receiver<Event>,
        tally: &mut Tally,
        clients: Clients,
        deadline: Instant,
    ) -> Result<(Belongings, Vec<String>), ChaosError> {
        let began = Instant::now();
        let (mut told, mut since) = (began, began);
        let mut last = self.belongings();
        loop {
            self.hear(events, tally)?;
            let now = self.belongings();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            let mut missing = self.missing(clients)?;
            if since.elapsed() < STEADY {
                missing.push("what is held changes".to_owned());
            }
            if missing.is_empty() || Instant::now() >= deadline {
                return Ok((last, missing));
            }
            if told.elapsed() > TELLING {
                told = Instant::now();
                let seconds = began.elapsed().as_secs();
                (self.tell)(&format!("waits for {seconds} s: {}", missing.join("; ")));
            }
        }
    }

    /// What is not as it shall be.
    fn missing(&self, wanted: Clients) -> Result<Vec<String>, ChaosError> {
        let mut missing = Vec::new();
        for (index, client) in self.clients.iter().enumerate() {
            let (pid, seconds) = (client.child.id(), client.started.elapsed().as_secs());
            if client.told || !client.ready {
                missing.push(format!(
                    "good client {index} ({pid}, started {seconds} s ago) is not ready"
                ));
            } else if wanted == Clients::Resting && !client.rests {
                missing.push(format!("good client {index} ({pid}) does not rest"));
            }
        }
        let Some(answer) = self.ask()? else { return Ok(missing) };
        let (attached, all) = (answer.served.good_clients, self.clients.len());
        if attached != all as u64 {
            missing.push(format!("{attached} of {all} good clients are attached and have worked"));
        }
        if !answer.stands_by {
            missing.push("nobody stands by".to_owned());
        }
        for pid in self.others().into_iter().filter(|pid| !answer.executors.contains(pid)) {
            let Some(role) = role(pid).filter(|role| !STAYING.contains(&role.as_str())) else {
                continue;
            };
            missing.push(format!("{role} ({pid}) neither serves nor stands by, and has not left"));
        }
        Ok(missing)
    }

    /// Processes of the peer, and those of clients that are not good ones.
    fn others(&self) -> Vec<u32> {
        let known = self.pids();
        let mut found = processes(self.scene.running.directory());
        found.retain(|pid| !known.contains(pid));
        found
    }

    /// Without the device's memory.
    fn belongings(&self) -> Belongings {
        Belongings::of(self.scene.running.directory(), &self.pids())
    }

    /// Hears until threads that make faults are done.
    pub(super) fn await_makers(
        &mut self,
        events: &Receiver<Event>,
        tally: &mut Tally,
        done: impl Fn() -> bool,
    ) -> Result<(), ChaosError> {
        let mut told = Instant::now();
        while !done() {
            self.hear(events, tally)?;
            if told.elapsed() > TELLING {
                told = Instant::now();
                (self.tell)(&format!("waits for the last faults: {}", self.scene.underway()));
            }
        }
        Ok(())
    }
}

const _: () = assert!(STEADY.as_millis() > 2 * TICK.as_millis());
