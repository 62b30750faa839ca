//! Sessions as the keeper sees them: a client on a device, its windows and its memory. Who gets
//! memory is in [`super::memory`].

use super::peers::Lending;
use crate::Keeper;
use crate::devices::allocation_properties;
use crate::executors::place::{Place, Side};
use crate::executors::standby::Code;
use cuda_abi::types::*;
use executor_link::counters::{CounterPage, Counts, monotonic_ns};
use executor_link::driver::Driver;
use executor_link::history::{History, Noted};
use executor_link::journal;
use executor_link::log::log_server;
use executor_link::messages::{CodeOptions, EventTime, Origin, ShareWish};
use executor_link::redo::{Redo, Verdict};
use executor_link::standing::Standing;
use link::closer::{Closer, Foreign};
use link::completion::CompletionWords;
use link::session_memory::SessionMemory;
use link::shm::{self, ShmError};
use link::socket::{Connection, SocketError};
use link::wire::owner::Owner;
use policy::domains::Domain;
use policy::memory::grants::Grants;
use policy::memory::windows::WindowPair;
use policy::orders::Orders;
use policy::turns::repeatable::Repeatable;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Who serves a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// An executor is making it; its client waits.
    Opening,
    /// An executor.
    Serving,
    /// The next executor will; [`Origin::New`]: its client still waits for it to begin.
    Waiting(Origin),
    /// Nobody: its executor was killed, and its client is told when that has left the device.
    Losing,
    /// Nobody: it has failed, and its client has been told.
    Ended,
}

/// The files that make a session; they outlive the executors that serve it.
pub(crate) struct SessionFiles {
    memory: OwnedFd,
    completion: OwnedFd,
    executor_socket: Foreign,
    /// Until the client has it.
    client_socket: Option<OwnedFd>,
    standing: OwnedFd,
    pub(crate) journal: OwnedFd,
    /// Of sessions that have declared kernels repeatable.
    redo: Option<OwnedFd>,
}

/// Why a session's files could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error(transparent)]
    Memory(#[from] ShmError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("a descriptor cannot be copied: {0}")]
    Copy(#[from] std::io::Error),
    #[error("the client has its end of the session's socket already")]
    Taken,
}

impl SessionFiles {
    pub(crate) fn create(
        repeatable: &Repeatable,
        closer: &Closer,
        owner: Owner,
    ) -> Result<(Self, Standing), FilesError> {
        let (executor_socket, client_socket) = Connection::pair()?;
        let files = Self {
            memory: SessionMemory::create_file()?,
            completion: CompletionWords::create_file()?,
            executor_socket: closer.guard(owner, executor_socket),
            client_socket: Some(client_socket.into()),
            standing: Standing::create_file()?,
            journal: journal::create_file()?,
            redo: (!repeatable.is_empty()).then(Redo::create_file).transpose()?,
        };
        let standing = Standing::map(files.standing.as_fd())?;
        Ok((files, standing))
    }

    /// What an executor gets, in this order.
    pub(crate) fn for_executor(&self) -> Vec<BorrowedFd<'_>> {
        let Self { memory, completion, executor_socket, standing, journal, redo, .. } = self;
        let files = [memory.as_fd(), completion.as_fd(), executor_socket.as_fd()];
        let others = [standing, journal].into_iter().chain(redo).map(AsFd::as_fd);
        files.into_iter().chain(others).collect()
    }

    /// From now on another file says where the session stands: the executor that it has left may
    /// write to the one before.
    pub(crate) fn renew_standing(&mut self, standing: &Standing) -> Result<Standing, FilesError> {
        let file = Standing::create_file()?;
        let renewed = Standing::map(file.as_fd())?;
        renewed.go_on_from(standing);
        self.standing = file;
        Ok(renewed)
    }

    /// Whether all that the session has in flight can be done again. Nobody submits anything more.
    pub(crate) fn is_repeatable(&self, standing: &Standing) -> bool {
        let redo = self.redo.as_ref().and_then(|file| Redo::map(file.as_fd()).ok());
        !standing.has_work_apart()
            && redo.is_some_and(|redo| {
                redo.verdict(standing.committed_bytes()) == Verdict::CanBeRepeated
            })
    }

    /// Counts an attempt to do it again; says the how manieth it is.
    pub(crate) fn attempt(&self) -> u32 {
        let redo = self.redo.as_ref().and_then(|file| Redo::map(file.as_fd()).ok());
        redo.map_or(u32::MAX, |redo| redo.attempt())
    }

    /// Whether the next executor has anything of it to do again.
    pub(crate) fn has_unfinished(&self) -> bool {
        let redo = self.redo.as_ref().and_then(|file| Redo::map(file.as_fd()).ok());
        redo.is_some_and(|redo| !redo.unfinished().is_empty())
    }

    /// What its client gets, in this order: it may read the completions only.
    pub(crate) fn for_client(&mut self) -> Result<[OwnedFd; 3], FilesError> {
        let completion = shm::read_only(self.completion.as_fd())?;
        let socket = self.client_socket.take().ok_or(FilesError::Taken)?;
        Ok([self.memory.try_clone()?, completion, socket])
    }

    /// What says how far the session is: its memory, and its completion words to read. `None`:
    /// there is no descriptor left.
    pub(crate) fn signals(&self) -> Option<(BorrowedFd<'_>, OwnedFd)> {
        let words = shm::read_only(self.completion.as_fd()).ok()?;
        Some((self.memory.as_fd(), words))
    }

    /// What must stay open as long as the client lives, which takes its end for the server's.
    pub(crate) fn into_socket(self) -> Foreign {
        self.executor_socket
    }

    /// The session's error, 0 while there is none.
    pub(crate) fn error(&self) -> u32 {
        SessionMemory::map(self.memory.as_fd()).map_or(0, |memory| memory.error())
    }

    /// Tells the client that the session has failed.
    pub(crate) fn fail(&self, code: CUresult) {
        match SessionMemory::map(self.memory.as_fd()) {
            Ok(memory) => memory.fail(code.0),
            Err(error) => log_server!("A client cannot be told of {code}: {error}"),
        }
    }

    /// Leaves what the driver has said, to be told with the session's failure.
    pub(crate) fn leave_last_words(&self, text: &str) {
        if let Ok(memory) = SessionMemory::map(self.memory.as_fd()) {
            memory.leave_last_words(text);
        }
    }

    /// Marks which of the session's last calls have ended, as far as the device has said. All have
    /// if nothing is in flight: of streams that others waited for, no signal of their own says so.
    pub(crate) fn mark_ended(&self, history: &History, standing: &Standing) {
        if let Ok(words) = CompletionWords::map(self.completion.as_fd()) {
            history.mark_ended(|slot| words.completed(slot));
        }
        if !self.in_flight(standing) {
            history.settle();
        }
    }

    /// The session's last launches, and which of them have not ended, as far as the device has
    /// said.
    fn launches(&self, history: &History) -> Vec<Noted> {
        let words = CompletionWords::map(self.completion.as_fd()).ok();
        history.launches(monotonic_ns(), |slot| {
            words.as_ref().map_or(0, |words| words.completed(slot))
        })
    }

    /// Whether work of the session is not known to have ended; when that cannot be found out, some
    /// is.
    pub(crate) fn in_flight(&self, standing: &Standing) -> bool {
        CompletionWords::map(self.completion.as_fd())
            .map_or(true, |words| standing.in_flight(|slot| words.completed(slot)))
    }
}

/// One client on one device, until all its work there has ended.
pub(crate) struct Session {
    pub(crate) client: u64,
    /// Whom it counts for.
    pub(crate) owner: Owner,
    /// Where it lives.
    pub(crate) device: usize,
    /// What its client takes that for: the device of which it was told everything.
    pub(crate) told_device: u32,
    pub(crate) domain: Domain,
    pub(crate) side: Side,
    /// `{PID: x, Context ID: y}`, for the log.
    pub(crate) label: String,
    pub(crate) service: Service,
    /// Since when its work must end: its client has left, or was terminated.
    pub(crate) doomed_since: Option<Instant>,
    pub(crate) files: SessionFiles,
    pub(crate) standing: Standing,
    /// Files that its executor gave to keep, by their numbers in its journal.
    pub(crate) kept: BTreeMap<u64, OwnedFd>,
    /// Those of them that are code which can be loaded ahead.
    pub(crate) code: BTreeMap<u64, CodeOptions>,
    /// The page of the executor that serves it, or did last, and its slot there.
    pub(crate) counters: CounterPage,
    pub(crate) counter_slot: usize,
    pub(crate) windows: WindowPair,
    pub(crate) grants: Grants,
    /// The SMs that it is to have, and how many it has; 0: it has not said.
    pub(crate) share: Orders<ShareWish>,
    pub(crate) multiprocessors: u32,
    /// Its weight, as its executor was told.
    pub(crate) weight: u32,
    /// First address of a grant, or key of a piece, to its memory; what is moved out to the host is
    /// not here.
    pub(crate) memory: BTreeMap<u64, DeviceMemory>,
    /// What it has asked for and waits for: address or key, length, and where that is to be.
    pub(crate) wanted: Option<(u64, u64)>,
    /// Refusals that the log tells of.
    pub(crate) refusals_logged: u32,
    /// What the client's other sessions have of it, and what it has of theirs.
    pub(crate) lending: Lending,
    /// When its events were recorded that were recorded in another context.
    pub(crate) event_times: Vec<EventTime>,
    /// When it went to another context last.
    pub(crate) relocated: Option<Instant>,
    /// The command, by its position in the ring, for which it last went to another context to find
    /// what others share.
    pub(crate) looked_elsewhere: Option<u64>,
    pub(crate) relocations: u64,
    /// When it was asked to go back to the first context, until it has or need not.
    pub(crate) asked_back: Option<Instant>,
    /// When it was asked last and did not go.
    pub(crate) stayed: Option<Instant>,
    /// What it had launched then.
    pub(crate) kernels_before: u64,
    /// A kernel of it has run for longer than the administrator allows.
    pub(crate) is_overdue: bool,
    /// Where it goes when it leaves next; absent: to the device's other context.
    pub(crate) destination: Option<Place>,
    /// What it had done before it came to its device.
    pub(crate) counted_elsewhere: Counts,
}

impl Session {
    pub(crate) fn new(
        (client, owner, label): (u64, Owner, String),
        (place, told_device): (Place, u32),
        (files, standing): (SessionFiles, Standing),
        (counters, counter_slot): (CounterPage, usize),
        windows: WindowPair,
        grants: Grants,
        (share, weight): (ShareWish, u32),
    ) -> Self {
        let Place { device, domain, side } = place;
        Self {
            client,
            owner,
            device,
            told_device,
            domain,
            side,
            label,
            service: Service::Opening,
            doomed_since: None,
            files,
            standing,
            kept: BTreeMap::new(),
            code: BTreeMap::new(),
            counters,
            counter_slot,
            windows,
            grants,
            share: Orders::new(share),
            multiprocessors: 0,
            weight,
            memory: BTreeMap::new(),
            wanted: None,
            refusals_logged: 0,
            lending: Lending::default(),
            event_times: Vec::new(),
            relocated: None,
            looked_elsewhere: None,
            relocations: 0,
            asked_back: None,
            stayed: None,
            kernels_before: 0,
            is_overdue: false,
            destination: None,
            counted_elsewhere: Counts::default(),
        }
    }

    /// Whether an executor has it.
    pub(crate) fn is_served(&self) -> bool {
        matches!(self.service, Service::Opening | Service::Serving)
    }

    /// Whether work of it is not known to have ended.
    pub(crate) fn has_work(&self) -> bool {
        self.files.in_flight(&self.standing)
    }

    /// Its last launches, and which of them have not ended.
    pub(crate) fn launches(&self) -> Vec<Noted> {
        let mut launches = self.files.launches(self.counters.history(self.counter_slot));
        if self.service == Service::Ended {
            launches.iter_mut().for_each(|noted| noted.in_flight = false);
        }
        launches
    }

    /// What it has done so far.
    pub(crate) fn counts(&self) -> Counts {
        self.counters.read(self.counter_slot)
    }

    /// For how long it has been in its context, if it has launched anything there.
    pub(crate) fn has_worked_for(&self) -> Option<Duration> {
        let has_worked = self.is_served() && self.counts().kernels > self.kernels_before;
        self.relocated.filter(|_| has_worked).map(|relocated| relocated.elapsed())
    }

    /// Where its executor is.
    pub(crate) fn place(&self) -> Place {
        Place { device: self.device, domain: self.domain, side: self.side }
    }
}

/// What is left of a session that has ended.
struct Ended {
    client: u64,
    told_device: u32,
    windows: WindowPair,
    files: SessionFiles,
}

impl Keeper {
    /// Gives back all that a session had; its executor has nothing of it any more.
    pub(crate) fn forget_session(&mut self, id: u64) {
        let Some(session) = self.end_session(id) else { return };
        match self.clearing.get_mut(&id) {
            // They are still mapped where it was before.
            Some(clearing) => clearing.windows = Some(session.windows),
            None => self.windows.give_back(session.windows),
        }
    }

    /// A client begins anew on a device where its session has failed: gives back what that had,
    /// except what its process still has of it.
    pub(crate) fn retire_session(&mut self, id: u64) {
        let Some(Ended { client, told_device, windows, files }) = self.end_session(id) else {
            return;
        };
        let Some(client) = self.clients.get_mut(&client) else {
            return self.windows.give_back(windows);
        };
        client.sessions.remove(&told_device);
        client.retired.push((windows, files.into_socket()));
    }

    fn end_session(&mut self, id: u64) -> Option<Ended> {
        let code: Vec<u64> = self.sessions.get(&id)?.code.keys().copied().collect();
        code.into_iter().for_each(|file| self.tell_standbys_of_code(id, file, Code::Gone));
        self.forget_ahead(id);
        self.end_move(id, Err("its client has left, or begun again".into()));
        let mut session = self.sessions.remove(&id)?;
        self.forget_changes_of(id);
        for (owner, key) in session.lending.borrowed() {
            self.take_back(owner, key);
        }
        for memory in std::mem::take(&mut session.memory).into_values() {
            memory.release(self.driver);
        }
        let device = &mut self.devices[session.device];
        let counts = session.counters.read(session.counter_slot);
        device.departed.add(&counts.since(&session.counted_elsewhere));
        if let Some(executor) = device.executors.get_mut(&session.place().seat())
            && session.is_served()
        {
            executor.process.free_slot(session.counter_slot);
        }
        self.add_final_counts(session.client, counts);
        self.residencies[session.device].close(id);
        self.serve_waiting(session.device);
        let Session { client, told_device, windows, files, .. } = session;
        Some(Ended { client, told_device, windows, files })
    }
}

impl Keeper {
    /// Keeps a file of a session for its next executor.
    pub(crate) fn keep_file(
        &mut self,
        id: u64,
        number: u64,
        code: Option<CodeOptions>,
        descriptors: Vec<OwnedFd>,
    ) {
        // Without it the session cannot go on elsewhere: that costs nobody but who has so many.
        let file = descriptors.into_iter().next().filter(leaves_descriptors);
        if let Some((session, file)) = self.sessions.get_mut(&id).zip(file) {
            session.kept.insert(number, file);
            session.code.extend(code.map(|code| (number, code)));
        }
        if code.is_some() {
            self.tell_standbys_of_code(id, number, Code::Here);
        }
    }

    pub(crate) fn let_go_files(&mut self, id: u64, numbers: &[u64]) {
        numbers.iter().for_each(|&number| self.tell_standbys_of_code(id, number, Code::Gone));
        if let Some(session) = self.sessions.get_mut(&id) {
            for number in numbers {
                session.kept.remove(number);
                session.code.remove(number);
            }
        }
    }

    /// A session's journal goes on in another file.
    pub(crate) fn follow_journal(&mut self, id: u64, descriptors: Vec<OwnedFd>) {
        let file = descriptors.into_iter().next();
        if let Some((session, file)) = self.sessions.get_mut(&id).zip(file) {
            session.files.journal = file;
        }
    }
}

/// Device memory of a session, and the descriptor by which executors get it.
pub(crate) struct DeviceMemory {
    handle: CUmemGenericAllocationHandle,
    /// Kept, as to make one costs more than the next executor's whole import; `None`: descriptors
    /// are short.
    file: Option<OwnedFd>,
}

impl DeviceMemory {
    /// Memory of a device.
    pub(crate) fn make(
        driver: Driver,
        device: CUdevice,
        size_bytes: u64,
    ) -> Result<Self, CUresult> {
        let mut handle = CUmemGenericAllocationHandle::default();
        let properties = allocation_properties(device);
        // SAFETY: the properties are complete; `handle` is written.
        unsafe { driver.cuMemCreate(&mut handle, size_bytes as usize, &properties, 0) }.ok()?;
        match export(driver, handle) {
            Ok(file) => Ok(Self { handle, file: Some(file) }),
            Err(code) => {
                Self { handle, file: None }.release(driver);
                Err(code)
            }
        }
    }

    /// A descriptor of it.
    pub(crate) fn descriptor(&self, driver: Driver) -> Result<OwnedFd, CUresult> {
        let copy = self.file.as_ref().and_then(|file| file.try_clone().ok());
        copy.map_or_else(|| export(driver, self.handle), Ok)
    }

    /// Sends it to who has asked for it, and keeps the descriptor while the process has no more
    /// than half of those that it may have.
    pub(crate) fn sent(mut self, send: impl FnOnce(BorrowedFd<'_>)) -> Self {
        if let Some(file) = &self.file {
            send(file.as_fd());
        }
        self.file = self.file.filter(leaves_descriptors);
        self
    }

    /// Gives it back; nobody uses it any more.
    pub(crate) fn release(self, driver: Driver) {
        let Self { handle, file } = self;
        drop(file);
        // SAFETY: a live handle that is used no more.
        let released = unsafe { driver.cuMemRelease(handle) };
        if !released.is_success() {
            log_server!("Device memory was not released: {released}");
        }
    }
}

/// Whether a file may be kept: the process has no more than half of the descriptors that it may
/// have.
fn leaves_descriptors(file: &OwnedFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (file.as_raw_fd() as u64) < limit / 2
}

fn export(driver: Driver, memory: CUmemGenericAllocationHandle) -> Result<OwnedFd, CUresult> {
    let mut descriptor: i32 = -1;
    let kind = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;
    // SAFETY: a live handle; a descriptor is written.
    unsafe { driver.cuMemExportToShareableHandle((&raw mut descriptor).cast(), memory, kind, 0) }
        .ok()?;
    // SAFETY: the driver made this descriptor for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_link::history::NotedLaunch;
    use link::wire::command::Opcode;

    #[test]
    fn launches_have_ended_where_nothing_is_in_flight() {
        let (files, standing) =
            SessionFiles::create(&Repeatable::default(), &Closer::default(), Owner::user(0))
                .unwrap();
        let page = CounterPage::create().unwrap().1;
        let history = page.history(0);
        let launch = NotedLaunch { kernel: "f", grid: [1; 3], block: [1; 3], shared_bytes: 0 };
        history.launch(Opcode::Launch, 1, &launch);
        standing.note_submitted(1);
        let flies = || history.read(0).iter().any(|noted| noted.in_flight);
        files.mark_ended(history, &standing);
        assert!(flies());
        // Another stream's signal came after it, and was reached.
        standing.note_before(1, 0, 0);
        files.mark_ended(history, &standing);
        assert!(!flies());
    }

    #[test]
    fn half_of_the_descriptors_are_left_for_clients_that_come() {
        let file =
            rustix::fs::memfd_create("openmps-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(leaves_descriptors(&file));
        let limit = getrlimit(Resource::Nofile).current.unwrap();
        let high = rustix::io::fcntl_dupfd_cloexec(&file, (limit / 2) as i32).unwrap();
        assert!(!leaves_descriptors(&high));
    }
}
