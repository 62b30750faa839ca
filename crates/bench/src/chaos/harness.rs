//! One run: good and bad clients under a peer, and what came of it.
//!
//! The good ones are a [`Crew`], the bad ones are made by a [`Scene`]; what their processes say comes as [`Event`]s to the one thread that counts.

use super::belongings::processes;
use super::board::{Count, MOST_GOOD};
use super::crew::{Crew, Event};
use super::kind::Kind;
use super::scene::Scene;
use super::tally::{SCHEMA_VERSION, Tally};
use crate::peer::{Peer, PeerError, Places, Running};
use link::socket::SocketError;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use thiserror::Error;

/// A good client of which nothing is heard for so long hangs; so does a bad one.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// What is given back late is no leak.
pub(super) const SETTLING: Duration = Duration::from_secs(120);
/// Between two signs of life.
const TELLING: Duration = Duration::from_secs(10);
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
    /// The client that looks at the device's memory.
    #[error("a client that looks how much memory the device has left does not work")]
    NoProbe,
    /// More than the board has places for.
    #[error("{0} good clients are too many, at most {MOST_GOOD}")]
    TooMany(usize),
}

pub(super) fn io_error(what: &'static str) -> impl Fn(io::Error) -> ChaosError {
    move |source| ChaosError::Io { what, source }
}

/// Makes faults for as long as planned, and adds what came of it to `tally`.
///
/// # Errors
/// See [`ChaosError`].
pub fn run(
    plan: &Plan,
    tally: &mut Tally,
    mut progress: impl FnMut(&Tally),
) -> Result<(), ChaosError> {
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
    let mut crew = Crew { scene: &scene, clients: Vec::new(), sender: sender.clone() };
    for index in 0..all {
        let client = crew.start(index)?;
        crew.clients.push(client);
    }
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
    let before = crew.steady_belongings(&events, tally)?;
    let (stop, turn) = (AtomicBool::new(false), AtomicU64::new(tally.fault_count()));
    let started = Instant::now();
    std::thread::scope(|threads| {
        for _ in 0..plan.side_by_side {
            let sender = sender.clone();
            threads.spawn(|| scene.make_faults(&stop, &turn, sender));
        }
        let mut told = Instant::now();
        let mut heard = Ok(());
        while heard.is_ok()
            && started.elapsed() < plan.duration
            && (plan.most_faults == 0 || tally.fault_count() < plan.most_faults)
        {
            heard = crew.hear(&events, tally);
            if told.elapsed() > TELLING {
                told = Instant::now();
                progress(tally);
            }
        }
        // Relaxed: a wish; no data travels with it. The threads end with the fault that they are making.
        stop.store(true, Ordering::Relaxed);
        heard
    })?;
    tally.seconds += started.elapsed().as_secs_f64();
    let (mut leaks, served) = crew.settle(&events, tally, &before)?;
    if let Some(served) = served {
        tally.served.get_or_insert_default().add(served);
    }
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
    drop(running);
    let ending = Instant::now();
    while !processes(&directory).is_empty() && ending.elapsed() < SETTLING {
        std::thread::sleep(TICK);
    }
    leaks.processes += processes(&directory).len() as u64;
    tally.leaks.device_bytes += leaks.device_bytes;
    tally.leaks.descriptors += leaks.descriptors;
    tally.leaks.processes += leaks.processes;
    Ok(())
}
