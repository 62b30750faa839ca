//! One run: good and bad clients under a peer, and what came of it.
//!
//! The good ones are a [`Crew`], the bad ones are made by a [`Scene`]; what their processes say
//! comes as [`Event`]s to the one thread that counts.

use super::belongings::{processes, role};
use super::board::{Count, MOST_GOOD};
use super::crew::{Crew, Event};
use super::kind::Kind;
use super::scene::Scene;
use super::tally::{SCHEMA_VERSION, Tally};
use crate::peer::{Peer, PeerError, Places, Running};
use link::socket::SocketError;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Of starts, and of helpers.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// What is given back late is no leak. An executor more stands by for 20 s after faults in close
/// succession.
const SETTLING: Duration = Duration::from_secs(90);
/// A daemon that was told to end does so, and all its processes with it.
const ENDING: Duration = Duration::from_secs(30);
/// Between two signs of life.
pub(super) const TELLING: Duration = Duration::from_secs(5);
pub(super) const TICK: Duration = Duration::from_millis(100);

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where things lie.
    pub places: Places,
    /// Under which peer.
    pub peer: Peer,
    /// Good clients, PyTorch's not counted.
    pub good: usize,
    /// Good clients of PyTorch.
    pub torch: usize,
    /// Faults, in turn.
    pub kinds: Vec<Kind>,
    /// How many clients make faults at the same time.
    pub side_by_side: usize,
    /// How long faults are made.
    pub duration: Duration,
    /// Faults after which the run ends earlier; 0: none.
    pub most_faults: u64,
    /// Between two faults of one bad client's place.
    pub rest: Duration,
    /// A good client of which nothing is heard for so long hangs; so does a bad one.
    pub patience: Duration,
}

/// Why there is no result.
#[derive(Debug, Error)]
pub enum ChaosError {
    /// The peer.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A process or a file.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was to be done.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The daemon does not say what it counted.
    #[error("the daemon's state: {0}")]
    State(#[from] SocketError),
    /// The good clients do not even work undisturbed.
    #[error("good client {index} was not ready before the first fault: {said}")]
    NotReady {
        /// Which.
        index: usize,
        /// What it said last.
        said: String,
    },
    /// More than the board has places for.
    #[error("{0} good clients are too many, at most {MOST_GOOD}")]
    TooMany(usize),
}

pub(super) fn io_error(what: &'static str) -> impl Fn(io::Error) -> ChaosError {
    move |source| ChaosError::Io { what, source }
}

/// Makes faults for as long as planned, and adds what came of it to `tally`. `tell` hears how far
/// it is, and what it waits for.
///
/// # Errors
/// See [`ChaosError`].
pub fn run(plan: &Plan, tally: &mut Tally, tell: &dyn Fn(&str)) -> Result<(), ChaosError> {
    let all = plan.good + plan.torch;
    if all > MOST_GOOD {
        return Err(ChaosError::TooMany(all));
    }
    tally.schema = SCHEMA_VERSION;
    tally.peer = plan.peer.name().to_owned();
    (tally.good_clients, tally.torch_clients) = (all, plan.torch);
    let running = Running::start(plan.peer, &plan.places)?;
    let scene = Scene::new(plan, &running)?;
    let (sender, events) = channel();
    let mut crew = Crew { scene: &scene, clients: Vec::new(), sender, tell };
    for index in 0..all {
        let client = crew.start(index)?;
        crew.clients.push(client);
    }
    await_ready(&mut crew, &events)?;
    let settling = if plan.peer == Peer::Openmps { SETTLING } else { plan.patience };
    tell("all good clients work; first a fault of each kind");
    let began = Instant::now();
    crew.warm_up(&events, tally, began + plan.duration)?;
    let warmed_up = began.elapsed();
    let (before, mut odd) = crew.take_stock(&events, tally, Instant::now() + settling)?;
    tell(&format!("before further faults: {before}"));
    let duration = plan.duration.saturating_sub(warmed_up);
    tally.seconds += (warmed_up + make_faults(&mut crew, &events, tally, duration)?).as_secs_f64();
    tell("no further faults; what is held is to become what it was");
    let (leaks, found) = crew.find_leaks(&events, tally, &before, Instant::now() + settling)?;
    odd.extend(found);
    if let Some(answer) = crew.ask()? {
        tally.served.get_or_insert_default().add(answer.served);
    }
    tell("the good clients end");
    crew.end(&events, tally);
    for index in 0..all {
        let count = |count| scene.board.count(index, count).load(Ordering::Relaxed);
        tally.kernels += count(Count::Kernels);
        tally.words += count(Count::Words);
        tally.wrong_words += count(Count::Wrong);
    }
    let directory = running.directory().to_owned();
    drop(crew);
    drop(scene);
    tell("the daemon ends");
    drop(running);
    let stayed = end_processes(&directory, tell);
    tally.leaks.device_bytes += leaks.device_bytes;
    tally.leaks.descriptors += leaks.descriptors;
    tally.leaks.processes += leaks.processes + stayed.len() as u64;
    tally.left_over.extend(odd);
    tally.left_over.extend(stayed.into_iter().map(|role| format!("{role} outlived its daemon")));
    Ok(())
}

/// Waits until all good clients work, for the first time.
fn await_ready(crew: &mut Crew<'_>, events: &Receiver<Event>) -> Result<(), ChaosError> {
    let began = Instant::now();
    while let Some(index) = crew.clients.iter().position(|client| !client.ready) {
        let said = match events.recv_timeout(TICK) {
            Ok(Event::Said { index, line, .. }) if line == "ready" => {
                crew.clients[index].ready = true;
                continue;
            }
            Ok(Event::Said { line, .. }) => line,
            Ok(Event::Silent { .. }) => "it ended".to_owned(),
            _ if began.elapsed() > PATIENCE => "nothing".to_owned(),
            _ => continue,
        };
        return Err(ChaosError::NotReady { index, said });
    }
    Ok(())
}

/// Makes faults for so long, or until there are as many as planned. Returns how long that took.
fn make_faults(
    crew: &mut Crew<'_>,
    events: &Receiver<Event>,
    tally: &mut Tally,
    duration: Duration,
) -> Result<Duration, ChaosError> {
    let scene = crew.scene;
    let plan = scene.plan;
    let (stop, turn) = (AtomicBool::new(false), AtomicU64::new(tally.fault_count()));
    let started = Instant::now();
    let is_over = |tally: &Tally| {
        started.elapsed() >= duration
            || plan.most_faults != 0 && tally.fault_count() >= plan.most_faults
    };
    if is_over(tally) {
        return Ok(Duration::ZERO);
    }
    std::thread::scope(|threads| {
        let makers = (0..plan.side_by_side).map(|_| {
            let (sender, stop, turn) = (crew.sender.clone(), &stop, &turn);
            threads.spawn(move || scene.make_faults(stop, turn, sender))
        });
        let makers: Vec<_> = makers.collect();
        let mut told = Instant::now();
        let mut heard = Ok(());
        while heard.is_ok() && !is_over(tally) {
            heard = crew.hear(events, tally);
            if told.elapsed() > TELLING {
                told = Instant::now();
                let (faults, underway) = (tally.fault_count(), scene.underway());
                (crew.tell)(&format!("{faults} faults; {underway}"));
            }
        }
        // Relaxed: a wish; no data travels with it. The threads end with the fault that they are
        // making.
        stop.store(true, Ordering::Relaxed);
        heard?;
        crew.await_makers(events, tally, || makers.iter().all(|maker| maker.is_finished()))
    })?;
    Ok(started.elapsed())
}

/// Waits for the end of all processes of a daemon that has ended, and ends those that stay. Returns
/// what they were.
fn end_processes(directory: &Path, tell: &dyn Fn(&str)) -> Vec<String> {
    let (ending, mut told) = (Instant::now(), Instant::now());
    loop {
        let left = processes(directory);
        let roles = left.iter().filter_map(|&pid| Some(format!("{} ({pid})", role(pid)?)));
        let roles: Vec<String> = roles.collect();
        if roles.is_empty() {
            return roles;
        }
        if ending.elapsed() > ENDING {
            for pid in left.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
                let _ = kill_process(pid, Signal::KILL);
            }
            return roles;
        }
        if told.elapsed() > TELLING {
            told = Instant::now();
            tell(&format!("waits for the end of {}", roles.join(", ")));
        }
        std::thread::sleep(TICK);
    }
}
