//! The good clients' processes: started, heard, started again when they have ended, and ended.

use super::Phase;
use super::board::{Count, now_ns};
use super::harness::{ChaosError, TICK, io_error};
use super::kind::Kind;
use super::scene::{Made, Scene};
use super::served::{Answer, Served};
use super::tally::Tally;
use crate::peer::Peer;
use cuda_abi::types::CUresult;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// What threads tell the one that counts.
pub(super) enum Event {
    /// A line of a good client's process.
    Said { index: usize, pid: u32, line: String },
    /// It has closed its output.
    Silent { index: usize, pid: u32 },
    /// A bad client has made its fault.
    Fault { kind: Kind, made: Made },
}

/// Whether an error is that of work that a fault has ended, and not of a context that could not be
/// had.
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
    pub(super) child: Child,
    input: Option<ChildStdin>,
    pub(super) ready: bool,
    /// It is idle, and stays so until the board has it work.
    pub(super) rests: bool,
    /// It has told of an error, or is done.
    pub(super) told: bool,
    pub(super) started: Instant,
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
    /// Told of what is waited for.
    pub(super) tell: &'a dyn Fn(&str),
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
        Ok(Good { child, input, ready: false, rests: false, told: false, started: Instant::now() })
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
        let patience = self.scene.plan.patience;
        for index in 0..self.clients.len() {
            let heard_ns = self.scene.board.count(index, Count::ProgressNs).load(Ordering::Relaxed);
            let silent = Duration::from_nanos(now_ns().saturating_sub(heard_ns));
            if silent > patience && self.clients[index].started.elapsed() > patience {
                tally.hangs += 1;
                self.clients[index] = self.start(index)?;
            }
        }
        Ok(())
    }

    pub(super) fn note(&mut self, event: Event, tally: &mut Tally) -> Result<(), ChaosError> {
        match event {
            Event::Fault { kind, made } => {
                let kind = tally.faults.entry(kind).or_default();
                kind.count += 1;
                kind.inputs += made.inputs;
                match made.answer {
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
                    ["rests"] if is_current => client.rests = true,
                    ["p", _, gap_ns, phase, kind] => {
                        let phase = Phase::from_name(phase).unwrap_or_default();
                        tally.survived.add(phase);
                        if phase == Phase::Busy {
                            let pause_us = gap_ns.parse::<u64>().unwrap_or(0) / 1000;
                            tally.pauses_us.push(pause_us);
                            let kind = kind.parse().ok().and_then(Kind::from_code);
                            if let Some(kind) = kind {
                                tally.faults.entry(kind).or_default().pauses_us.push(pause_us);
                            }
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

    /// What the server says, where there is one that can be asked.
    pub(super) fn ask(&self) -> Result<Option<Answer>, ChaosError> {
        if self.scene.plan.peer != Peer::Openmps {
            return Ok(None);
        }
        let pids: Vec<u32> = self.pids();
        Ok(Some(Served::ask(self.scene.running.directory(), &pids)?))
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.clients.iter().map(|client| client.child.id()).collect()
    }

    /// Lets all end by themselves.
    pub(super) fn end(&mut self, events: &Receiver<Event>, tally: &mut Tally) {
        let mut waited_for: Vec<u32> = Vec::new();
        for client in &mut self.clients {
            drop(client.input.take());
            client.told = true;
            waited_for.push(client.child.id());
        }
        let deadline = Instant::now() + self.scene.plan.patience;
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
