//! The keeper: the server process that a daemon starts for one user.
//!
//! One thread, one loop over the daemon's socket, the executors' and the clients'. It owns the
//! device memory of all clients, which it creates without a CUDA context ([`sessions::session`]),
//! starts an executor per device ([`executors`]), and knows who is attached ([`clients`]). What it
//! tells the daemon is in [`snapshot`]. No client can make it wait: packets to clients are sent at
//! once or never, and what they have a hand in is closed by others ([`link::closer`]).

mod clients;
mod contexts;
mod devices;
mod executors;
mod faults;
mod moves;
pub mod probe;
mod sessions;
mod shares;
mod snapshot;

pub use executor_link::options::Options;

use crate::clients::attach::{Arrival, Membership};
use crate::executors::place::Place;
use crate::sessions::session::Session;
use clients::Client;
use devices::{ComputeMode, Device};
use executor_link::driver::Driver;
use executor_link::log::{log_other, log_server};
use executor_link::messages::Reason;
use executors::Executor;
use link::closer::Closer;
use link::pieces::Piece;
use link::socket::{Connection, Received, SocketError};
use link::wire::daemon::{
    ClientSnapshot, Defaults, ServerStatus, ShutdownMode, ToDaemon, ToServer,
};
use link::wire::shares::{GroupLimits, Reservation};
use policy::domains::{Domains, SHARED};
use policy::faults::fault_settings::FaultSettings;
use policy::memory::memory_settings::{MemoryPolicy, MemorySettings};
use policy::memory::residency::Residency;
use policy::memory::windows::WindowSpace;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use rustix::io::FdFlags;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest wait for a daemon or an executor to take a packet.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// Clients that the daemon is told of at a time, when they have left.
const LEFT_PER_PACKET: usize = 1024;
/// The CUDA version whose protocol clients are told, as the original logs it.
const BINARY_VERSION: u32 = 13000;
/// Longest sleep of the loop.
const LOOP_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The same while there is no standby that a long kernel might ask for.
const STANDBY_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The same while somebody waits for device memory, or for work that must end.
const WAITING_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Runs a server from its command line, program and subcommand left out; see [`Options`].
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match executor_link::options::keeper_options(arguments) {
        Ok(options) => run(&options),
        Err(message) => {
            log_other!("openmps server: {message}");
            ExitCode::from(2)
        }
    }
}

/// Runs a server until the daemon shuts it down.
pub fn run(options: &Options) -> ExitCode {
    link::process_name::show_as_the_original();
    log_other!("Startup");
    // SAFETY: the daemon passed this descriptor for this use, and nothing else in the process has
    // it.
    let socket = unsafe { OwnedFd::from_raw_fd(options.control_fd) };
    let daemon = match Connection::from_socket(socket) {
        Ok(daemon) => daemon,
        Err(error) => {
            log_other!(
                "openmps server: descriptor {} is not the daemon's socket: {error}",
                options.control_fd
            );
            return ExitCode::from(2);
        }
    };
    if let Some(directory) = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY") {
        let socket = std::path::Path::new(&directory).join(link::wire::DAEMON_SOCKET);
        log_other!("Connecting to control daemon on socket: {}", socket.display());
    }
    log_other!("Initializing server process");
    allow_many_descriptors();
    match start(options) {
        Ok((driver, driver_version, devices)) => {
            let mut keeper = Keeper::new(options, daemon, driver, driver_version, devices);
            keeper.faults_device = options.faults_fd.and_then(faults_device);
            keeper.log_start();
            keeper.serve()
        }
        Err(message) => {
            log_other!("MPS server failed to start");
            log_other!("Server could not start: {message}");
            let _ = daemon.send(&ToDaemon::Failed { message }, &[], PEER_TIMEOUT);
            ExitCode::FAILURE
        }
    }
}

/// What the daemon has handed on for managed memory; executors do not inherit it.
fn faults_device(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: the daemon passed this descriptor for this use, and nothing else in the process has
    // it.
    let device = unsafe { OwnedFd::from_raw_fd(descriptor) };
    rustix::io::fcntl_setfd(&device, FdFlags::CLOEXEC).ok().map(|()| device)
}

/// Each client costs two descriptors; the usual soft limit of 1024 is for programs that use
/// `select`.
fn allow_many_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        log_other!("The limit of open files stays as it is: {error}");
    }
}

fn start(options: &Options) -> Result<(Driver, i32, Vec<Device>), String> {
    let driver = Driver::open(&options.native_driver).map_err(|error| error.to_string())?;
    let (driver_version, mut devices) =
        devices::query(driver).map_err(|error| error.to_string())?;
    devices::keep_served(&mut devices)?;
    devices::describe_peers(driver, &mut devices);
    let count = devices.len() as u32;
    let place = |device| Place::first(device, SHARED);
    for (index, device) in devices.iter_mut().enumerate() {
        if device.compute_mode(driver) == ComputeMode::Prohibited {
            return Err(format!(
                "device {index} ({}) is in compute mode PROHIBITED and takes no contexts: change that by `nvidia-smi -i {} -c DEFAULT`, or leave the device out by CUDA_VISIBLE_DEVICES",
                device.info.name, device.ordinal
            ));
        }
        device.start_executor(options, place(index), "", count)?;
    }
    for (index, device) in devices.iter_mut().enumerate() {
        device.await_executor(place(index))?;
    }
    Ok((driver, driver_version, devices))
}

fn read_memory_settings() -> MemorySettings {
    let host_memory_bytes = rustix::system::sysinfo();
    let host_memory_bytes =
        (host_memory_bytes.totalram as u64).saturating_mul(host_memory_bytes.mem_unit.into());
    let (settings, complaints) =
        MemorySettings::read(host_memory_bytes, |name| std::env::var(name).ok());
    tell_ignored(&complaints);
    settings
}

fn read_fault_settings() -> FaultSettings {
    let (settings, complaints) = FaultSettings::read(|name| std::env::var(name).ok());
    tell_ignored(&complaints);
    settings
}

fn tell_ignored(complaints: &[String]) {
    complaints.iter().for_each(|complaint| log_server!("{complaint}; ignored"));
}

/// The first number of the version of NVIDIA's kernel driver, if one is loaded.
fn display_driver_version() -> Option<String> {
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    text.trim().split('.').next().map(str::to_owned)
}

/// Whether the loop goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    Serving,
    /// Ends when the last client has left.
    Draining,
    /// Ends now.
    Ending,
}

pub(crate) struct Keeper {
    options: Options,
    daemon: Option<Connection>,
    /// `/dev/userfaultfd`, which clients may have.
    faults_device: Option<OwnedFd>,
    driver: Driver,
    driver_version: i32,
    devices: Vec<Device>,
    windows: WindowSpace,
    memory_settings: MemorySettings,
    /// By device: where sessions' memory is, and who waits for some.
    residencies: Vec<Residency>,
    clients: BTreeMap<u64, Client>,
    sessions: BTreeMap<u64, Session>,
    /// Clients, and the place whose executor each waits for.
    held: Vec<(u64, Place)>,
    /// Closes what clients have a hand in.
    closer: Closer,
    domains: Domains,
    departed: VecDeque<ClientSnapshot>,
    /// Clients that are gone, of which the daemon has not been told.
    untold: Vec<u64>,
    faults: crate::faults::blaming::Faults,
    clients_ever: u64,
    next_session: u64,
    next_context_serial: u64,
    defaults: Defaults,
    groups: Vec<GroupLimits>,
    membership: Membership,
    reservations: Vec<Reservation>,
    changes: Vec<shares::PendingChange>,
    course: Course,
    /// Whose sessions wait for their next executor.
    recovering: BTreeSet<Place>,
    /// Of those, where a first attempt to start an executor has failed.
    started_again: BTreeSet<Place>,
    /// Executors that were killed and still have something on their device.
    leaving: Vec<crate::executors::leaving::Leaving>,
    /// Sessions that have left an executor that still has something of them.
    clearing: BTreeMap<u64, crate::contexts::relocation::Clearing>,
    /// Sessions that wait for another context, which is being made, or for what they have left
    /// there.
    stuck: BTreeMap<u64, Reason>,
    /// Sessions on their way to another device.
    moves: BTreeMap<u64, crate::moves::course::Move>,
    /// Devices that programs that start do not get to.
    drained: BTreeSet<usize>,
    /// By context: whose work has been there for longest.
    running: BTreeMap<Place, crate::faults::overtime::Running>,
    /// Code that runs apart, and where.
    quarantine: crate::faults::quarantine::Quarantine,
    /// Executors that are about to be replaced.
    killings: BTreeMap<Place, crate::faults::killing::Killing>,
    /// What the daemon was told.
    status: ServerStatus,
    fault_settings: FaultSettings,
    /// When what drivers say was last logged.
    heard_drivers: Instant,
}

fn send_in_pieces(daemon: &Connection, message: &ToDaemon) -> Result<(), SocketError> {
    let text = serde_json::to_string(message)?;
    Piece::all(&text).try_for_each(|piece| daemon.send(&ToDaemon::Piece(piece), &[], PEER_TIMEOUT))
}

/// Who has something to say.
#[derive(Clone, Copy, Debug)]
enum Source {
    Daemon,
    Executor(Place),
    /// A standby of this device, by its process.
    Standby(usize, u32),
    Client(u64),
    ClientProcess(u64),
}

impl Keeper {
    fn new(
        options: &Options,
        daemon: Connection,
        driver: Driver,
        driver_version: i32,
        devices: Vec<Device>,
    ) -> Self {
        let largest =
            devices.iter().map(|device| device.info.total_memory_bytes).max().unwrap_or(0);
        let memory_settings = read_memory_settings();
        let residencies = devices.iter().map(|_| Residency::new(memory_settings)).collect();
        Self {
            options: options.clone(),
            memory_settings,
            residencies,
            daemon: Some(daemon),
            faults_device: None,
            driver,
            driver_version,
            devices,
            windows: WindowSpace::new(largest),
            clients: BTreeMap::new(),
            sessions: BTreeMap::new(),
            held: Vec::new(),
            closer: Closer::default(),
            domains: Domains::default(),
            departed: VecDeque::new(),
            untold: Vec::new(),
            faults: Default::default(),
            clients_ever: 0,
            next_session: 1,
            next_context_serial: 1,
            defaults: Defaults::default(),
            groups: Vec::new(),
            membership: Membership::from_environment(),
            reservations: Vec::new(),
            changes: Vec::new(),
            course: Course::Serving,
            recovering: BTreeSet::new(),
            started_again: BTreeSet::new(),
            leaving: Vec::new(),
            clearing: BTreeMap::new(),
            stuck: BTreeMap::new(),
            moves: BTreeMap::new(),
            drained: BTreeSet::new(),
            running: BTreeMap::new(),
            quarantine: Default::default(),
            killings: BTreeMap::new(),
            status: ServerStatus::Active,
            fault_settings: read_fault_settings(),
            heard_drivers: Instant::now(),
        }
    }

    fn serve(mut self) -> ExitCode {
        self.tell_daemon(&ToDaemon::Ready);
        self.tell_daemon(&ToDaemon::Status(ServerStatus::Active));
        while !self.finished() {
            for source in self.wait() {
                match source {
                    Source::Daemon => self.hear_daemon(),
                    Source::Executor(place) => self.hear_executor(place),
                    Source::Standby(device, pid) => self.hear_standby(device, pid),
                    Source::Client(client) => self.hear_client(client),
                    Source::ClientProcess(client) => self.client_left(client),
                }
            }
            self.check_starting();
            self.see_to_leaving();
            self.see_to_overtime();
            self.see_to_doomed();
            self.hear_drivers();
            self.see_to_standbys();
            self.see_to_second_contexts();
            self.see_to_reunions();
            self.see_to_moves();
            self.see_to_quarantine();
            self.see_to_ahead();
            self.see_to_waiting();
            self.see_to_headroom();
            self.finish_changes();
            self.tell_left();
        }
        self.end()
    }

    /// The lines with which the original's server says that it is there.
    fn log_start(&mut self) {
        log_server!("OpenMPS server {}", env!("CARGO_PKG_VERSION"));
        log_server!("CUDA MPS Server for Linux/Unix. Binary version: {BINARY_VERSION}");
        log_server!(
            "Native driver {} of CUDA version {}",
            self.options.native_driver.display(),
            self.driver_version
        );
        if let Some(version) = display_driver_version() {
            log_server!("Display Driver version: {version}");
        }
        // The daemon has said them before anything else.
        self.hear_daemon();
        let MemorySettings { policy, wait_ms, host_limit_bytes, .. } = self.memory_settings;
        match policy {
            MemoryPolicy::Fail => {}
            MemoryPolicy::Queue => log_server!("Memory policy queue: waits end after {wait_ms} ms"),
            MemoryPolicy::Spill => log_server!(
                "Memory policy spill: up to {} MiB of host memory, waits end after {wait_ms} ms",
                host_limit_bytes >> 20
            ),
        }
        log_server!("Server has started");
    }

    /// Takes new limits, and names those that have changed.
    fn set_defaults(&mut self, new: Defaults) {
        let percentage = new.active_thread_percentage.unwrap_or(100.0);
        if self.defaults.active_thread_percentage != new.active_thread_percentage {
            log_server!("Active Threads Percentage set to {percentage:.1}");
        }
        if self.defaults.client_priority != new.client_priority {
            log_server!("Server Priority set to {}", new.client_priority.unwrap_or(0));
        }
        self.defaults = new;
    }

    fn finished(&self) -> bool {
        match self.course {
            Course::Serving => false,
            Course::Draining => self.clients.is_empty() && self.sessions.is_empty(),
            Course::Ending => true,
        }
    }

    /// Those that can be heard, or nobody after a while.
    fn wait(&self) -> Vec<Source> {
        let mut sources = Vec::new();
        let mut polled = Vec::new();
        let mut add = |source, descriptor| {
            sources.push(source);
            polled.push(PollFd::from_borrowed_fd(descriptor, PollFlags::IN | PollFlags::RDHUP));
        };
        if let Some(daemon) = &self.daemon {
            add(Source::Daemon, daemon.as_fd());
        }
        for (place, executor) in self.places() {
            add(Source::Executor(place), executor.process.connection().as_fd());
        }
        for (number, device) in self.devices.iter().enumerate() {
            for Executor { process, .. } in &device.standby.executors {
                add(Source::Standby(number, process.pid()), process.connection().as_fd());
            }
        }
        for (&id, client) in &self.clients {
            add(Source::Client(id), client.connection.as_fd());
            if let Some(process) = &client.process {
                add(Source::ClientProcess(id), process.as_fd());
            }
        }
        // An interrupted or failed wait is an empty one: the loop comes back.
        let looks = self.is_memory_waited_for()
            || self.is_anybody_doomed()
            || !self.leaving.is_empty()
            || self.is_move_wanted()
            || self.is_anything_due_ahead();
        let timeout = match () {
            () if looks => WAITING_TIMEOUT,
            () if self.may_need_standby_soon() => STANDBY_TIMEOUT,
            () => LOOP_TIMEOUT,
        };
        let _ = rustix::event::poll(&mut polled, Some(&timeout));
        let ready = polled.iter().map(|polled| !polled.revents().is_empty()).collect::<Vec<_>>();
        sources
            .into_iter()
            .zip(ready)
            .filter_map(|(source, ready)| ready.then_some(source))
            .collect()
    }

    fn hear_daemon(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        match daemon.try_receive::<ToServer>() {
            Ok(None) => {}
            Ok(Some(Received { message, descriptors })) => self.obey(message, descriptors),
            Err(SocketError::Closed) => {
                log_server!("The control daemon is gone; waiting for current clients to finish");
                self.daemon = None;
                self.course = Course::Draining;
            }
            Err(error) => log_server!("The control daemon cannot be understood: {error}"),
        }
    }

    fn obey(&mut self, message: ToServer, descriptors: Vec<OwnedFd>) {
        match message {
            ToServer::Attach { client_id, hello, peer, admission, origin } => {
                let mut descriptors = descriptors.into_iter();
                let socket = descriptors.next();
                let process = descriptors.next();
                let arrival = Arrival { hello: *hello, peer, process, origin, admission };
                match socket {
                    Some(socket) => self.attach(client_id, arrival, socket),
                    None => {
                        log_server!(
                            "The control daemon announced client {} without its socket",
                            peer.pid
                        );
                        self.has_left(client_id);
                    }
                }
            }
            ToServer::Snapshot { id } => {
                let snapshot = self.snapshot();
                self.tell_daemon(&ToDaemon::Snapshot { id, snapshot });
            }
            ToServer::Terminate { id, pid } => {
                let code = self.terminate(pid);
                self.tell_daemon(&ToDaemon::Terminated { id, code });
            }
            ToServer::Trace { pid, peer } => {
                descriptors.into_iter().for_each(|tracer| self.trace(pid, peer, tracer));
            }
            ToServer::Change { id, change } => self.change(id, change),
            ToServer::SetDefaults(defaults) => self.set_defaults(defaults),
            ToServer::Resume { id } => {
                if self.course == Course::Draining {
                    log_server!("Server has been notified to go on");
                    self.course = Course::Serving;
                }
                self.tell_daemon(&ToDaemon::Resumed { id });
            }
            ToServer::Shutdown(mode) => {
                log_server!("Server has been notified to shutdown");
                self.course = match mode {
                    ShutdownMode::WhenIdle => {
                        log_server!("Waiting for current clients to finish");
                        Course::Draining
                    }
                    ShutdownMode::Now => Course::Ending,
                };
            }
        }
    }

    fn tell_daemon(&mut self, message: &ToDaemon) {
        let Some(daemon) = &self.daemon else { return };
        let mut sent = daemon.send(message, &[], PEER_TIMEOUT);
        if matches!(sent, Err(SocketError::TooLong)) {
            sent = send_in_pieces(daemon, message);
        }
        if let Err(error) = sent {
            log_server!("The control daemon cannot be told: {error}");
        }
    }

    fn has_left(&mut self, client: u64) {
        self.untold.push(client);
    }

    /// Tells the daemon who has left. One that does not listen at the moment is told in the next
    /// round: clients come and go without it.
    fn tell_left(&mut self) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| !self.untold.is_empty()) else {
            return self.untold.clear();
        };
        let most = self.untold.len().min(LEFT_PER_PACKET);
        let client_ids = self.untold[..most].to_vec();
        match daemon.send(&ToDaemon::Left { client_ids }, &[], Duration::ZERO) {
            Err(SocketError::TimedOut(_)) => {}
            // A daemon that is gone is seen to where it is heard.
            _ => drop(self.untold.drain(..most)),
        }
    }

    fn tell_status(&mut self) {
        let status = match self.recovering.is_empty() {
            true => ServerStatus::Active,
            false => ServerStatus::Fault,
        };
        if std::mem::replace(&mut self.status, status) != status {
            self.tell_daemon(&ToDaemon::Status(status));
        }
    }

    fn end(mut self) -> ExitCode {
        // Clients see their sockets close.
        self.clients.clear();
        for (index, device) in self.devices.iter_mut().enumerate() {
            for standby in std::mem::take(&mut device.standby.executors) {
                standby.process.stop();
            }
            for executor in std::mem::take(&mut device.executors).into_values() {
                log_server!("Destroy server context on device {index} ({})", device.info.name);
                executor.process.stop();
            }
        }
        self.await_leaving();
        log_server!("Exiting");
        ExitCode::SUCCESS
    }
}
