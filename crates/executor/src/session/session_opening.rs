//! How a session begins: its files are mapped, its addresses reserved, and its thread started
//! ([`crate::session`]).
//!
//! A new session and one that another executor served before come the same way ([`Origin`]); the
//! latter brings its journal's entries along, which its thread does again first
//! ([`crate::recovery::replay`]).

use super::allowance::Allowance;
use super::charges::SESSION_BYTES;
use super::session_handle::SessionHandle;
use super::state::State;
use crate::Shared;
use crate::code::guard::Guard;
use crate::code::module::Modules;
use crate::memory::Memory;
use crate::memory::virtual_journal;
use crate::memory::virtual_memory::VirtualMemory;
use crate::objects::claims::Claimed;
use crate::objects::event::PastTimes;
use crate::objects::stream::Streams;
use crate::recovery::recording::Records;
use crate::recovery::relocation::Relocation;
use crate::recovery::repeating::Repeating;
use crate::recovery::replay::Estate;
use crate::session::Session;
use crate::sms::resharing::Mover;
use crate::turns::pacing::Pacing;
use crate::watch::monitor::Monitor;
use cuda_abi::types::CUresult;
use executor_link::journal::Journal;
use executor_link::messages::{OpenSession, Origin};
use executor_link::standing::Standing;
use link::completion::CompletionWords;
use link::ring::Consumer;
use link::session_memory::SessionMemory;
use link::socket::Connection;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// What comes with a session from the keeper, which has all of it, too.
pub(crate) struct SessionFiles(Vec<OwnedFd>);

impl SessionFiles {
    pub(crate) fn new(descriptors: Vec<OwnedFd>) -> Self {
        Self(descriptors)
    }
}

/// Makes a session and starts its thread.
pub(crate) fn open(
    shared: &Arc<Shared>,
    monitor: &Monitor,
    mover: &Arc<Mover>,
    wanted: OpenSession,
    files: SessionFiles,
    estate: Estate,
) -> Result<Arc<SessionHandle>, (CUresult, String)> {
    if let Some(code) = shared.context.lost() {
        return Err((
            CUresult::ERROR_MPS_SERVER_NOT_READY,
            format!("the device's context was lost to {code}"),
        ));
    }
    if shared.closer.is_behind(&wanted.owner) {
        return Err(no_memory(&format!(
            "{} has sent more descriptors than can be closed: their closing blocks",
            wanted.owner
        )));
    }
    // Before anything is taken from the driver, which the thread gives back at its end.
    let (give, take) = sync_channel::<Session>(1);
    let thread = std::thread::Builder::new().name(format!("session {}", wanted.session));
    let run = move || take.recv().map_or((), Session::run);
    thread.spawn(run).map_err(|error| no_memory(&error))?;
    let (session, handle) = prepare(shared, monitor, mover, wanted, files, estate)?;
    monitor.watch(Arc::clone(&handle));
    give.send(session).map_err(|error| no_memory(&error))?;
    Ok(handle)
}

fn no_memory(error: &dyn std::fmt::Display) -> (CUresult, String) {
    (CUresult::ERROR_OUT_OF_MEMORY, error.to_string())
}

/// Makes a session for a thread that is there.
pub(crate) fn prepare(
    shared: &Arc<Shared>,
    monitor: &Monitor,
    mover: &Arc<Mover>,
    wanted: OpenSession,
    files: SessionFiles,
    estate: Estate,
) -> Result<(Session, Arc<SessionHandle>), (CUresult, String)> {
    let mut files = files.0;
    let redo_file = (!wanted.repeatable.is_empty()).then(|| files.pop()).flatten();
    let Ok([session_file, completion_file, socket, standing_file, journal_file]) =
        <[OwnedFd; 5]>::try_from(files)
    else {
        return Err(no_memory(&"the files of a session did not all come"));
    };
    let memory =
        Arc::new(SessionMemory::map(session_file.as_fd()).map_err(|error| no_memory(&error))?);
    let words = CompletionWords::map_writable(completion_file.as_fd())
        .map_err(|error| no_memory(&error))?;
    let socket = Connection::from_socket(socket).map_err(|error| no_memory(&error))?;
    // The keeper has it, too, and what becomes of it is the keeper's affair.
    let socket = shared.closer.guard(wanted.owner.clone(), socket).shared();
    let standing = Standing::map(standing_file.as_fd()).map_err(|error| no_memory(&error))?;
    let committed = standing.committed_bytes();
    let (journal, entries) =
        Journal::open(journal_file.as_fd(), committed).map_err(|error| no_memory(&error))?;
    let Estate { grants: inherited, files, window } = estate;
    let ahead = window.filter(|_| wanted.origin == Origin::Inherited);
    let (sender, grants) = channel();
    let group = wanted.group.as_ref();
    let group = group.map(|group| shared.group_memory.join(&group.name, group.memory_limit_bytes));
    let allowance = Arc::new(Allowance::new(wanted.memory, group));
    let handle = Arc::new(SessionHandle::new(
        &wanted,
        Arc::clone(&memory),
        words,
        Arc::clone(&allowance),
        sender,
    ));
    let holding = shared.budgets.open(&wanted.owner, wanted.most_pinned_bytes);
    let limits = (allowance, holding);
    let (context, words) = (&shared.context, &handle.words);
    let memory = Memory::reserve(context, &wanted, ahead, words, socket, grants, limits)?;
    let repeating = Repeating::open(shared, wanted.repeatable, redo_file)?;
    handle.allowance.hold(SESSION_BYTES);
    let streams = Streams::new(standing.clone(), shared.lanes.take());
    // Now, as nobody takes commands before all sessions are here that come from another executor.
    let mut reservations = shared.reservations.lock().unwrap_or_else(PoisonError::into_inner);
    let of_journal = entries.iter().map(|(_, entry)| (entry.opcode, entry.body.as_slice()));
    let claimed = virtual_journal::claim(&mut reservations, &wanted.owner, of_journal.clone());
    drop(reservations);
    let virtual_memory = VirtualMemory::claiming(claimed);
    let claimed = Claimed::new(shared, of_journal);
    shared.context.gate.join(streams.turnstile());
    let state = State {
        shared: Arc::clone(shared),
        handle: Arc::clone(&handle),
        flight: shared.flights.open(Arc::clone(&handle.memory), wanted.class),
        counter_slot: wanted.counter_slot,
        streams,
        events: Default::default(),
        graphs: Default::default(),
        retired: Default::default(),
        batches: Default::default(),
        memory,
        modules: Modules::default(),
        virtual_memory,
        watched: Default::default(),
        arrays: Default::default(),
        contents: Default::default(),
        objects: Default::default(),
        claimed,
        sharing: Default::default(),
        peers: Default::default(),
        partitions: Default::default(),
        resharing: Default::default(),
        mover: Arc::clone(mover),
        holding: Default::default(),
        moved: Default::default(),
        default_stack_bytes: shared.context.default_stack_bytes(),
        local_bytes: 0,
        limit_refusal_is_said: false,
        side_stream: None,
        printing: Default::default(),
        meter: Default::default(),
        tracing: None,
        guard: Guard::new(wanted.guard),
        pacing: Pacing::new(
            wanted.claim,
            wanted.class,
            Arc::clone(&handle.new_weight),
            shared.multiprocessors,
        ),
        repeating,
        standing,
        records: Records::new(journal, committed, files),
        unloaded_in_use: None,
        last_function: None,
        reply: Vec::new(),
        relocation: Relocation {
            arrived: (wanted.origin == Origin::Inherited).then(Instant::now),
            ..Relocation::default()
        },
        past_times: PastTimes::new(wanted.event_times),
    };
    let consumer = Consumer::resume(Arc::clone(&handle.memory), committed);
    let past = (wanted.origin == Origin::Inherited).then_some((entries, inherited));
    let session = Session::new(consumer, state, wanted.share, past, monitor.waker());
    Ok((session, handle))
}
