//! The good clients' processes: started, heard, started again when they have ended, and ended.

use super::Phase;
use super::belongings::Belongings;
use super::board::{Count, now_ns};
use super::harness::{ChaosError, PATIENCE, SETTLING, TICK, io_error};
use super::kind::Kind;
use super::scene::Scene;
use super::served::{Answer, Served};
use super::tally::{Leaks, Tally};
use crate::peer::Peer;
use cuda_abi::types::CUresult;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// What does not change for so long is taken to stay.
const STEADY: Duration = Duration::from_secs(1);
/// An executor that stands by comes by then, if ever.
const STANDBY_COMES: Duration = Duration::from_secs(20);

/// What threads tell the one that counts.
pub(super) enum Event {
    /// A line of a good client's process.
    Said { index: usize, pid: u32, line: String },
    /// It has closed its output.
    Silent { index: usize, pid: u32 },
    /// A bad client has made its fault.
    Fault { kind: Kind, answer: Option<String> },
}

/// Whether an error is that of work that a fault has ended, and not of a context that could not be had.
fn is_of_a_fault(code: &str, call: &str) -> bool {
    const OF_FAULTS: [CUresult; 8] = [
        CUresult::ERROR_ILLEGAL_ADDRESS,
        CUresult::ERROR_ASSERT,
        CUresult::ERROR_HARDWARE_STACK_ERROR,
        CUresult::ERROR_ILLEGAL_INSTRUCTION,
        CUresult::ERROR_MISALIGNED_ADDRESS,
        CUresult::ERROR_INVALID_ADDRESS_SPACE,
        CUresult::ERROR_INVALID_PC,
        CUresult::ERROR_LAUNCH_FAILED,
    ];
    // PyTorch has one name for what a device reports, and says no number.
    call == "AcceleratorError" || code.parse().is_ok_and(|code| OF_FAULTS.contains(&CUresult(code)))
}

/// A good client's process.
pub(super) struct Good {
    child: Child,
    input: Option<ChildStdin>,
    pub(super) ready: bool,
    /// It has told of an error, or is done.
    told: bool,
    started: Instant,
}

impl Drop for Good {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All of them.
pub(super) struct Crew<'a> {
    pub(super) scene: &'a Scene<'a>,
    pub(super) clients: Vec<Good>,
    pub(super) sender: Sender<Event>,
}

impl Crew<'_> {
    pub(super) fn start(&self, index: usize) -> Result<Good, ChaosError> {
        let mut command = self.scene.good(index);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io_error("start a good client"))?;
        let (pid, sender) = (child.id(), self.sender.clone());
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = sender.send(Event::Said { index, pid, line });
                }
                let _ = sender.send(Event::Silent { index, pid });
            });
        }
        self.scene.board.count(index, Count::ProgressNs).store(now_ns(), Ordering::Relaxed);
        let input = child.stdin.take();
        Ok(Good { child, input, ready: false, told: false, started: Instant::now() })
    }

    /// Hears what there is, and sees to clients that have ended or hang.
    pub(super) fn hear(
        &mut self,
        events: &Receiver<Event>,
        tally: &mut Tally,
    ) -> Result<(), ChaosError> {
        let mut event = events.recv_timeout(TICK).ok();
        while let Some(heard) = event {
            self.note(heard, tally)?;
            event = events.try_recv().ok();
        }
        for index in 0..self.clients.len() {
            let heard_ns = self.scene.board.count(index, Count::ProgressNs).load(Ordering::Relaxed);
            let silent = Duration::from_nanos(now_ns().saturating_sub(heard_ns));
            if silent > PATIENCE && self.clients[index].started.elapsed() > PATIENCE {
                tally.hangs += 1;
                self.clients[index] = self.start(index)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, event: Event, tally: &mut Tally) -> Result<(), ChaosError> {
        match event {
            Event::Fault { kind, answer } => {
                let kind = tally.faults.entry(kind).or_default();
                kind.count += 1;
                match answer {
                    Some(answer) => *kind.answers.entry(answer).or_default() += 1,
                    None => kind.stuck += 1,
                }
            }
            Event::Said { index, pid, line } => {
                let client = &mut self.clients[index];
                let is_current = client.child.id() == pid;
                let words: Vec<&str> = line.split_whitespace().collect();
                match words.as_slice() {
                    ["ready"] if is_current => client.ready = true,
                    ["p", _, gap_ns, phase] => {
                        let phase = Phase::from_name(phase).unwrap_or_default();
                        tally.survived.add(phase);
                        if phase == Phase::Busy {
                            tally.pauses_us.push(gap_ns.parse::<u64>().unwrap_or(0) / 1000);
                        }
                    }
                    ["e", code, phase, call] => {
                        if is_current {
                            client.told = true;
                        }
                        let was_ready = is_current && client.ready;
                        if was_ready {
                            tally.lost.add(Phase::from_name(phase).unwrap_or_default());
                        } else if is_of_a_fault(code, call) {
                            tally.lost_starting += 1;
                        } else {
                            tally.refused_starts += 1;
                        }
                        let when = if was_ready { *phase } else { "starting" };
                        *tally.errors.entry(format!("{call}: {code} ({when})")).or_default() += 1;
                    }
                    _ => {}
                }
            }
            Event::Silent { index, pid } => {
                if self.clients[index].child.id() == pid {
                    if !self.clients[index].told {
                        // It ended without a word: it crashed.
                        tally.lost.add(Phase::Busy);
                        *tally.errors.entry("the process crashed".to_owned()).or_default() += 1;
                    }
                    self.clients[index] = self.start(index)?;
                }
            }
        }
        Ok(())
    }

    /// What is held once that stays as it is: a peer may still be making ready what it will need, such as an executor that stands by.
    pub(super) fn steady_belongings(
        &mut self,
        events: &Receiver<Event>,
        tally: &mut Tally,
    ) -> Result<Belongings, ChaosError> {
        let (began, mut since) = (Instant::now(), Instant::now());
        let mut last = self.belongings();
        while began.elapsed() < SETTLING {
            self.hear(events, tally)?;
            let now = self.belongings();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            let may_come = began.elapsed() < STANDBY_COMES;
            let is_missed = may_come && self.ask()?.is_some_and(|answer| !answer.stands_by);
            if since.elapsed() >= STEADY && !is_missed {
                break;
            }
        }
        last.free_device_bytes = self.scene.free_device_bytes().ok_or(ChaosError::NoProbe)?;
        Ok(last)
    }

    /// Waits until nothing is missing of what there was before the faults and no more than that is held, but not for ever. Returns what is left over,
    /// and the server's counts.
    pub(super) fn settle(
        &mut self,
        events: &Receiver<Event>,
        tally: &mut Tally,
        before: &Belongings,
    ) -> Result<(Leaks, Option<Served>), ChaosError> {
        let began = Instant::now();
        loop {
            self.hear(events, tally)?;
            let mut now = self.belongings();
            // A look at the memory is a client more, so it comes last.
            now.free_device_bytes = before.free_device_bytes;
            if now.since(before) == Leaks::default() || began.elapsed() > SETTLING {
                now.free_device_bytes = self.scene.free_device_bytes().unwrap_or(0);
            }
            let leaks = now.since(before);
            let served = self.ask()?.map(|answer| answer.served);
            let all = self.clients.len() as u64;
            let is_whole = self.clients.iter().all(|client| client.ready && !client.told)
                && served.is_none_or(|served| served.good_clients == all);
            if leaks == Leaks::default() && is_whole || began.elapsed() > SETTLING {
                return Ok((leaks, served));
            }
        }
    }

    /// What the server says, where there is one that can be asked.
    fn ask(&self) -> Result<Option<Answer>, ChaosError> {
        if self.scene.plan.peer != Peer::Openmps {
            return Ok(None);
        }
        let pids: Vec<u32> = self.pids();
        Ok(Some(Served::ask(self.scene.running.directory(), &pids)?))
    }

    fn pids(&self) -> Vec<u32> {
        self.clients.iter().map(|client| client.child.id()).collect()
    }

    /// Without the device's memory.
    fn belongings(&self) -> Belongings {
        Belongings::of(self.scene.running.directory(), &self.pids())
    }

    /// Lets all end by themselves.
    pub(super) fn end(&mut self, events: &Receiver<Event>, tally: &mut Tally) {
        let mut waited_for: Vec<u32> = Vec::new();
        for client in &mut self.clients {
            drop(client.input.take());
            client.told = true;
            waited_for.push(client.child.id());
        }
        let deadline = Instant::now() + PATIENCE;
        while !waited_for.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            match events.recv_timeout(left) {
                Ok(Event::Silent { pid, .. }) => waited_for.retain(|&other| other != pid),
                Ok(event) => drop(self.note(event, tally)),
                Err(_) => {
                    tally.hangs += waited_for.len() as u64;
                    break;
                }
            }
        }
        for pid in waited_for.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
