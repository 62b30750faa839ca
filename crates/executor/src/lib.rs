//! The executor: one process per device, owner of the device's primary context.
//!
//! The main thread talks to the keeper ([`executor_link::messages`]); each client has a session
//! thread ([`session`]) that takes commands off its ring, checks them and submits them; one monitor
//! thread ([`watch::monitor`]) watches completions for clients that sleep. The keeper's end of the
//! socket closing ends the process: without a keeper nobody could reclaim anything.

mod code;
mod context;
mod context_limits;
#[cfg(all(test, target_arch = "x86_64"))]
mod instructions;
mod memory;
mod objects;
mod recovery;
mod residency;
mod session;
mod sms;
mod standby;
mod submit;
#[cfg(test)]
mod testbed;
mod turns;
mod watch;

use crate::objects::printing::Console;
use crate::recovery::replay::Estate;
use crate::session::descriptors::Descriptors;
use crate::session::session_handle::SessionHandle;
use crate::session::session_opening::SessionFiles;
use crate::sms::resharing::Mail;
use crate::standby::ahead::Ahead;
use crate::standby::warming::{Order, Warming};
use context::Context;
use cuda_abi::types::CUresult;
use executor_link::counters::CounterPage;
use executor_link::driver::Driver;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, Keeping, OpenSession, ToExecutor};
use link::bus_error;
use link::closer::Closer;
use link::socket::{Connection, Received, SocketError};
use policy::memory::reservations::Reservations;
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::collections::HashMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest that one message to the keeper may wait for room.
pub(crate) const KEEPER_TIMEOUT: Duration = Duration::from_secs(10);

pub use executor_link::options::ExecutorOptions as Options;

/// A setting of the environment; what is wrong with it is logged.
pub(crate) fn setting<T>(read: impl FnOnce(&mut settings::Environment) -> T) -> T {
    let mut variables = settings::Variables::of_environment();
    let value = read(&mut variables);
    variables.complaints.iter().for_each(|complaint| log_server!("{complaint}; ignored"));
    value
}

/// Runs an executor from its command line, program and subcommand left out:
/// `--control-fd N --native-driver PATH`.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match executor_link::options::executor_options(arguments) {
        Ok(options) => run(&options),
        Err(message) => {
            log_server!("openmps executor: {message}");
            ExitCode::from(2)
        }
    }
}

/// Runs an executor until its keeper closes the socket.
pub fn run(options: &Options) -> ExitCode {
    link::process_name::show_as_the_product();
    // SAFETY: the keeper passed this descriptor for this use, and nothing else in the process has
    // it.
    let socket = unsafe { OwnedFd::from_raw_fd(options.control_fd) };
    let keeper = match Connection::from_socket(socket) {
        Ok(keeper) => keeper,
        Err(error) => {
            log_server!(
                "openmps executor: descriptor {} is not the keeper's socket: {error}",
                options.control_fd
            );
            return ExitCode::from(2);
        }
    };
    match start(options, keeper) {
        Ok(executor) => executor.serve(),
        Err(message) => {
            log_server!("Executor could not start: {message}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: &Options, keeper: Connection) -> Result<Executor, String> {
    let Received { message, descriptors } =
        keeper.receive::<ToExecutor>(KEEPER_TIMEOUT).map_err(|error| error.to_string())?;
    let files = <[OwnedFd; 2]>::try_from(descriptors);
    let (ToExecutor::Start { device, index, devices }, Ok([page, log])) = (message, files) else {
        return Err("the keeper's first message is not Start with a counter page and a log".into());
    };
    executor_link::log::write_to(log);
    std::panic::set_hook(Box::new(|panic| log_server!("{panic}")));
    let began = Instant::now();
    let prepare = || -> Result<(Context, CounterPage, Console), String> {
        let console = Console::capture()
            .map_err(|error| format!("standard output cannot be captured: {error}"))?;
        let counters = CounterPage::map(page.as_fd()).map_err(|error| error.to_string())?;
        let driver = Driver::open(&options.native_driver).map_err(|error| error.to_string())?;
        // Behind the driver, which may have a handler of its own.
        bus_error::survive();
        let context = Context::retain(driver, device).map_err(|error| error.to_string())?;
        Ok((context, counters, console))
    };
    match prepare() {
        Ok((context, counters, console)) => {
            let ready = FromExecutor::Ready { stream_priorities: context.stream_priorities() };
            keeper.send(&ready, &[], KEEPER_TIMEOUT).map_err(|error| error.to_string())?;
            let context_ms = began.elapsed().as_millis();
            let reservations = Mutex::new(Reservations::of_first(index, devices));
            let multiprocessors = context.multiprocessors();
            let device_bytes = context.memory_bytes();
            let own_kernels = crate::submit::own_kernels::OwnKernels::load(&context);
            let partitions =
                crate::sms::partition::Partitions::of_device(&context, own_kernels.as_ref());
            let lanes = crate::sms::lanes::Lanes::of_device(&context);
            let shared = Arc::new(Shared {
                context,
                multiprocessors,
                counters,
                console,
                reservations,
                shares: Default::default(),
                group_memory: Default::default(),
                partitions,
                lanes,
                limit_wishes: Default::default(),
                flights: crate::turns::flight::Flights::from_environment(),
                batching: crate::submit::batch::Batching::from_environment(),
                own_kernels,
                chain_stock: Default::default(),
                descriptors: Descriptors::of_process(),
                pace: Default::default(),
                spares: Default::default(),
                images: Default::default(),
                kept: crate::memory::kept::KeptTotal::new(device_bytes),
                quiescing: AtomicBool::new(false),
                trials: Default::default(),
                trial_turn: Default::default(),
                claims: Default::default(),
                most_saved_bytes: crate::objects::array_contents::most_bytes(),
                closer: Closer::default(),
                leavers: Default::default(),
                quarantine: Default::default(),
                discards: Default::default(),
                budgets: crate::session::budgets::Budgets::of_process(),
                keeper,
            });
            let monitor = crate::watch::monitor::Monitor::start(Arc::clone(&shared))?;
            let mover = Arc::new(crate::sms::resharing::Mover::start(&shared)?);
            let warming = Warming::start(&shared)?;
            crate::submit::chain_stock::start_maker(&shared)?;
            crate::code::discarding::start(&shared)?;
            let (sessions, estates) = (HashMap::new(), HashMap::new());
            let ahead = Ahead::default();
            let area = (index, devices);
            log_server!(
                "Executor {} has made its context in {context_ms} ms, and is ready after {} ms",
                std::process::id(),
                began.elapsed().as_millis()
            );
            Ok(Executor { shared, monitor, mover, warming, ahead, sessions, estates, area })
        }
        Err(message) => {
            let failed = FromExecutor::Failed { message: message.clone() };
            let _ = keeper.send(&failed, &[], KEEPER_TIMEOUT);
            Err(message)
        }
    }
}

/// What all threads of an executor share.
pub(crate) struct Shared {
    pub(crate) context: Context,
    /// SMs of the device.
    pub(crate) multiprocessors: u32,
    pub(crate) counters: CounterPage,
    pub(crate) console: Console,
    /// Addresses that clients have reserved.
    pub(crate) reservations: Mutex<Reservations>,
    /// What sessions share with each other.
    pub(crate) shares: crate::objects::sharing::Shares,
    /// What groups of sessions hold together.
    pub(crate) group_memory: crate::session::allowance::GroupMeters,
    /// Shares of the SMs.
    pub(crate) partitions: crate::sms::partition::Partitions,
    /// Where sessions without a share are.
    pub(crate) lanes: crate::sms::lanes::Lanes,
    /// Limits of the context that sessions have asked for.
    pub(crate) limit_wishes: context_limits::Wishes,
    /// Who has work on the device.
    pub(crate) flights: crate::turns::flight::Flights,
    /// Whether launches are submitted together.
    pub(crate) batching: crate::submit::batch::Batching,
    /// What chains are made of; without them there are none.
    pub(crate) own_kernels: Option<crate::submit::own_kernels::OwnKernels>,
    /// Chains for whoever needs one next.
    pub(crate) chain_stock: crate::submit::chain_stock::ChainStock,
    /// Open files of clients' memory.
    pub(crate) descriptors: Arc<Descriptors>,
    /// Whose turn it is.
    pub(crate) pace: crate::turns::pace::Pace,
    /// Code for whoever loads the same next.
    pub(crate) spares: crate::code::spares::Spares,
    /// Whether sessions take no commands, because the keeper is about to end the process.
    pub(crate) quiescing: AtomicBool,
    /// Sessions whose work is still to be done again ([`recovery::repeating`]), and whose turn it
    /// is.
    pub(crate) trials: AtomicUsize,
    pub(crate) trial_turn: Mutex<()>,
    /// Values that sessions are to have again.
    pub(crate) claims: crate::objects::claims::Claims,
    /// How much of its arrays a session has saved at most.
    pub(crate) most_saved_bytes: u64,
    /// Code for the next executor.
    pub(crate) images: crate::code::images::Images,
    /// What sessions keep of what their clients have given up.
    pub(crate) kept: crate::memory::kept::KeptTotal,
    /// Closes what clients have sent.
    pub(crate) closer: Closer,
    /// Gives back what nobody needs any more.
    pub(crate) discards: crate::code::discarding::Discards,
    /// Sessions that are another executor's now.
    pub(crate) leavers: crate::recovery::relocation::Leavers,
    /// Code that is to run elsewhere.
    pub(crate) quarantine: crate::code::quarantine::Quarantine,
    /// What sessions may have of the host.
    pub(crate) budgets: Arc<crate::session::budgets::Budgets>,
    keeper: Connection,
}

impl Shared {
    /// Tells the keeper something. When that is impossible the keeper is gone, and the main thread
    /// sees it too.
    pub(crate) fn tell(&self, message: &FromExecutor) {
        self.send(message, &[]);
    }

    /// The same, with a descriptor.
    pub(crate) fn tell_with(&self, message: &FromExecutor, file: BorrowedFd<'_>) {
        self.send(message, &[file]);
    }

    fn send(&self, message: &FromExecutor, files: &[BorrowedFd<'_>]) {
        self.tell_unless_left(message, || {
            if let Err(error) = self.keeper.send(message, files, KEEPER_TIMEOUT) {
                log_server!("The keeper cannot be told {message:?}: {error}");
            }
        });
    }
}

struct Executor {
    shared: Arc<Shared>,
    monitor: crate::watch::monitor::Monitor,
    mover: Arc<crate::sms::resharing::Mover>,
    warming: Warming,
    ahead: Ahead,
    sessions: HashMap<u64, Arc<SessionHandle>>,
    /// What sessions have that are announced next.
    estates: HashMap<u64, Estate>,
    /// Its device's place among those that the server serves, and how many those are.
    area: (u32, u32),
}

impl Executor {
    fn serve(mut self) -> ExitCode {
        let mut swept = Instant::now();
        loop {
            if swept.elapsed() >= crate::memory::kept::SWEEP_INTERVAL {
                swept = Instant::now();
                self.shared.sweep_old(self.sessions.values());
            }
            let patience = self.ahead.patience().unwrap_or(crate::memory::kept::SWEEP_INTERVAL);
            match self.shared.keeper.receive::<ToExecutor>(patience) {
                Ok(Received { message, descriptors }) => self.handle(message, descriptors),
                Err(SocketError::TimedOut(_)) => self.ahead.drop_some(),
                Err(SocketError::Closed) => {
                    // Session threads may be inside the driver, whose own clean-up would meet them;
                    // there is nothing to save here that the keeper does not have, and the kernel
                    // frees what the device has of us. SAFETY: ends the process at once; no
                    // destructor is owed to anybody.
                    unsafe { libc::_exit(0) };
                }
                Err(error) => {
                    log_server!("The keeper cannot be understood: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }

    fn handle(&mut self, message: ToExecutor, descriptors: Vec<OwnedFd>) {
        match message {
            ToExecutor::Start { .. } => log_server!("The keeper sent Start twice"),
            ToExecutor::OpenSession(wanted) => {
                self.warming.end();
                self.open_session(*wanted, descriptors);
            }
            ToExecutor::Warm(options) => {
                self.warming.order(Order::Load, options, descriptors.into_iter().next());
            }
            ToExecutor::Cool(options) => {
                self.warming.order(Order::Unload, options, descriptors.into_iter().next());
            }
            ToExecutor::MapAhead { session, window, grants } => {
                let failed =
                    self.ahead.map(&self.shared.context, session, window, grants, descriptors);
                self.shared.tell(&FromExecutor::MappedAhead { session, failed });
            }
            ToExecutor::UnmapAhead { session, address } => self.ahead.unmap(session, address),
            ToExecutor::ForgetAhead { session } => drop(self.ahead.take(session)),
            ToExecutor::BeSecond => {
                let (index, devices) = self.area;
                let second = Reservations::of_second(index, devices);
                let reservations = self.shared.reservations.lock();
                *reservations.unwrap_or_else(PoisonError::into_inner) = second;
            }
            ToExecutor::Relocate { session, verdict } => {
                if let Some(handle) = self.sessions.get(&session) {
                    handle.take_verdict(Some(verdict));
                }
            }
            ToExecutor::ComeBack { session } => {
                if let Some(handle) = self.sessions.get(&session) {
                    handle.deliver(Mail::Return);
                }
            }
            ToExecutor::MoveAway { session } => {
                if let Some(handle) = self.sessions.get(&session) {
                    handle.deliver(Mail::Away);
                }
            }
            ToExecutor::Quarantine(code) => {
                self.shared.quarantine.set(code, self.sessions.values());
            }
            // Relaxed, here and where it is read: nothing is published by it.
            ToExecutor::Quiesce => self.shared.quiescing.store(true, Ordering::Relaxed),
            ToExecutor::Resume => {
                self.ahead.end();
                self.shared.quiescing.store(false, Ordering::Relaxed);
            }
            ToExecutor::Inherit { session, heirlooms } => {
                self.estates.entry(session).or_default().add(heirlooms, descriptors);
            }
            ToExecutor::CloseSession { session } => {
                if let Some(handle) = self.sessions.remove(&session) {
                    handle.stop();
                }
            }
            ToExecutor::EndSession { session, code } => {
                if let Some(handle) = self.sessions.get(&session) {
                    handle.end(code);
                }
            }
            ToExecutor::Move { session, order } => {
                if let Some(handle) = self.sessions.get(&session) {
                    handle.order_move(order);
                }
            }
            ToExecutor::Reshare { session, order, share } => {
                if let Some(handle) = self.sessions.get(&session) {
                    self.mover.reshare(handle, order, share);
                }
            }
            ToExecutor::Reserve { change, reservations } => {
                self.shared.partitions.announced.add();
                self.mover.reserve(change, reservations);
            }
            ToExecutor::BoundMemory { session, bound } => {
                if let Some(handle) = self.sessions.get(&session) {
                    handle.allowance.set_bound(bound);
                }
            }
            ToExecutor::GroupMemoryLimit { group, limit_bytes } => {
                self.shared.group_memory.set_limit(&group, limit_bytes);
            }
            ToExecutor::SetKeeping(keeping) => {
                if keeping == Keeping::Forbidden {
                    self.ahead.clear();
                }
                self.shared.obey_keeping(keeping, self.sessions.values());
            }
            ToExecutor::Weigh { session, weight } => {
                if let Some(handle) = self.sessions.get(&session) {
                    handle.weigh(weight);
                }
            }
            ToExecutor::Granted { session, grant } => {
                if let Some(handle) = self.sessions.get(&session) {
                    handle.deliver_grant(grant, descriptors);
                }
            }
        }
    }

    fn open_session(&mut self, wanted: OpenSession, descriptors: Vec<OwnedFd>) {
        let id = wanted.session;
        let mut estate = self.estates.remove(&id).unwrap_or_default();
        estate.window = self.ahead.take(id);
        self.ahead.make_way(wanted.device_window);
        let files = SessionFiles::new(descriptors);
        match crate::session::session_opening::open(
            &self.shared,
            &self.monitor,
            &self.mover,
            wanted,
            files,
            estate,
        ) {
            Ok(handle) => {
                self.sessions.insert(id, handle);
                self.shared.tell(&FromExecutor::SessionOpened { session: id });
            }
            Err((code, message)) => {
                // Whatever failed in a lost context failed because of that.
                let code = match self.shared.context.lost() {
                    Some(_) => CUresult::ERROR_MPS_SERVER_NOT_READY,
                    None => code,
                };
                let refused = FromExecutor::SessionRefused { session: id, code: code.0, message };
                self.shared.tell(&refused);
                self.monitor.waker().wake();
            }
        }
    }
}
