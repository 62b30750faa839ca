//! A session in a test: its thread is the test's, its client posts from there, and its driver does
//! nothing at once.
//!
//! So what the executor does is the same each time: no other thread, no device and no kernel of the
//! system decides anything but the time of day.

mod driver;

pub(crate) use driver::{
    LOADED_VALUE, Takes, Work, graphs, hide_variables, loaded, mapping_calls, observe_words,
    refuse_next_graph, set_work, submitted, take, unloaded,
};

use super::Shared;
use super::context::Context;
use super::session::{Session, Step};
use crate::memory::kept::KeptTotal;
use crate::objects::printing::Console;
use crate::recovery::replay::Estate;
use crate::session::descriptors::Descriptors;
use crate::session::session_opening::{SessionFiles, prepare};
use crate::sms::resharing::Mover;
use crate::submit::batch::Batching;
use crate::watch::monitor::Monitor;
use executor_link::counters::CounterPage;
use executor_link::driver::Driver;
use executor_link::journal;
use executor_link::messages::{FromExecutor, OpenSession, Origin, ShareWish};
use executor_link::standing::Standing;
use link::completion::CompletionWords;
use link::ring::Producer;
use link::session_memory::SessionMemory;
use link::socket::Connection;
use link::wire::attach::Window;
use link::wire::command::{Copy, FunctionGet, Launch, ModuleLoad, NO_CALL, Opcode, Signal};
use link::wire::owner::Owner;
use policy::limits::GuardMode;
use policy::memory::reservations::Reservations;
use policy::turns::fairness::Claim;
use policy::turns::priorities::Class;
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use zerocopy::IntoBytes;

/// A kernel without parameters.
pub(crate) const CODE: &[u8] =
    b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry f() { ret; }\n\0";
/// The same with a variable, which is [`LOADED_VALUE`] when it is loaded.
pub(crate) const CODE_WITH_VARIABLE: &[u8] = b".version 7.0\n.target sm_70\n.address_size 64\n\
    .visible .global .align 8 .u64 x = 5;\n.visible .entry f() { ret; }\n\0";
/// Far from anything of a process.
const WINDOWS: u64 = 0x5000_0000_0000;
const WINDOW_BYTES: u64 = 1 << 30;

/// Sessions of all tests: their windows need to differ.
static SESSIONS: AtomicU64 = AtomicU64::new(0);

/// An executor without a keeper, and without sessions.
pub(crate) struct Bed {
    pub(crate) shared: Arc<Shared>,
    monitor: Monitor,
    mover: Arc<Mover>,
    /// The keeper's end: nobody answers.
    keeper: Connection,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let driver = Driver::of_table(Box::leak(Box::new(driver::table())));
        let context = Context::retain(driver, 0).unwrap();
        let (keeper, other_end) = Connection::pair().unwrap();
        let shared = Arc::new(Shared {
            multiprocessors: context.multiprocessors(),
            own_kernels: crate::submit::own_kernels::OwnKernels::load(&context),
            context,
            counters: CounterPage::create().unwrap().1,
            console: Console::apart().unwrap(),
            reservations: Mutex::new(Reservations::of_first(0, 1)),
            shares: Default::default(),
            group_memory: Default::default(),
            partitions: Default::default(),
            lanes: Default::default(),
            limit_wishes: Default::default(),
            flights: Default::default(),
            batching: Batching::On,
            chain_stock: Default::default(),
            descriptors: Descriptors::of_process(),
            pace: Default::default(),
            spares: Default::default(),
            images: Default::default(),
            kept: KeptTotal::new(0),
            quiescing: AtomicBool::new(false),
            trials: Default::default(),
            trial_turn: Default::default(),
            claims: Default::default(),
            most_saved_bytes: crate::objects::array_contents::most_bytes(),
            closer: Default::default(),
            leavers: Default::default(),
            quarantine: Default::default(),
            discards: Default::default(),
            budgets: crate::session::budgets::Budgets::of_process(),
            keeper,
        });
        let monitor = Monitor::start(Arc::clone(&shared)).unwrap();
        let mover = Arc::new(Mover::start(&shared).unwrap());
        Self { shared, monitor, mover, keeper: other_end }
    }

    /// How many messages the keeper has got since it was last asked.
    pub(crate) fn told_keeper(&self) -> usize {
        let receive = || self.keeper.try_receive::<FromExecutor>().unwrap();
        std::iter::from_fn(receive).count()
    }

    /// A session whose client has loaded a kernel, which is its function 0.
    pub(crate) fn open(&self) -> Client {
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
        let window = |place: u64| Window {
            base: WINDOWS + (2 * session + place) * WINDOW_BYTES,
            size_bytes: WINDOW_BYTES,
        };
        let wanted = OpenSession {
            session,
            label: "a test".into(),
            counter_slot: 0,
            device_window: window(0),
            host_window: window(1),
            memory: policy::limits::MemoryBound::default(),
            share: ShareWish::default(),
            group: None,
            origin: Origin::New,
            claim: Claim::default(),
            class: Class::Throughput,
            guard: GuardMode::default(),
            repeatable: Default::default(),
            owner: Owner::user(0),
            most_pinned_bytes: None,
            event_times: Vec::new(),
        };
        let memory = SessionMemory::create_file().unwrap();
        let posts = Arc::new(SessionMemory::map(memory.as_fd()).unwrap());
        let (socket, client) = Connection::pair().unwrap();
        let files = SessionFiles::new(vec![
            memory,
            CompletionWords::create_file().unwrap(),
            socket.into(),
            Standing::create_file().unwrap(),
            journal::create_file().unwrap(),
        ]);
        let (mut session, _) =
            prepare(&self.shared, &self.monitor, &self.mover, wanted, files, Estate::default())
                .unwrap();
        let state = session.state();
        state.load_image(load_of(0, CODE), CODE.to_vec(), None).unwrap();
        let get = FunctionGet { module: 0, function: 0, name_bytes: 1, reserved: 0 };
        state.function_get(get, b"f").unwrap();
        Client { session, producer: Producer::new(posts), _socket: client, signal: 0 }
    }
}

/// What a client says that loads this image, apart from where it is.
pub(crate) fn load_of(module: u32, image: &[u8]) -> ModuleLoad {
    ModuleLoad {
        module,
        optimization_level: u32::MAX,
        max_registers: 0,
        log_bytes: 0,
        address: 0,
        size_bytes: image.len() as u64,
    }
}

/// A session, and its client's end of it.
pub(crate) struct Client {
    pub(crate) session: Session,
    producer: Producer,
    _socket: Connection,
    /// The last that [`Self::post_next_signal`] asked for.
    signal: u64,
}

impl Client {
    /// Posts a launch of the kernel on the default stream.
    pub(crate) fn post_launch(&mut self) {
        let launch = Launch {
            function: 0,
            stream: 0,
            grid: [1; 3],
            block: [32, 1, 1],
            dynamic_shared_bytes: 0,
            parameter_bytes: 0,
            attributes: 0,
            reserved: 0,
        };
        self.post(Opcode::Launch, launch.as_bytes());
    }

    /// Addresses of device memory and of pinned memory that the session may name, 2 MiB each.
    /// Nothing is there: this driver reads and writes neither.
    pub(crate) fn some_memory(&mut self) -> [u64; 2] {
        let memory = &mut self.session.state().memory;
        let ends = memory.window_bases();
        assert!(ends.iter().all(|&base| memory.addressable.insert(base, 2 << 20)));
        ends
    }

    /// Posts a copy on the default stream.
    pub(crate) fn post_copy(&mut self, destination: u64, source: u64, size_bytes: u64) {
        let copy = Copy { stream: 0, reserved: 0, destination, source, size_bytes };
        self.post(Opcode::Copy, copy.as_bytes());
    }

    /// Posts a signal of the default stream.
    pub(crate) fn post_signal(&mut self, value: u64) {
        self.post(Opcode::Signal, Signal { stream: 0, reserved: 0, value }.as_bytes());
    }

    /// Posts the next one, where the test has no numbers of its own.
    pub(crate) fn post_next_signal(&mut self) {
        self.signal += 1;
        self.post_signal(self.signal);
    }

    pub(crate) fn post(&mut self, opcode: Opcode, body: &[u8]) {
        self.post_call(opcode, NO_CALL, body);
    }

    /// Posts a command whose answer goes to this slot.
    pub(crate) fn post_call(&mut self, opcode: Opcode, slot: u16, body: &[u8]) {
        self.producer.post(opcode, slot, 0, &[body], &mut || true).unwrap();
    }

    /// Does what has been posted, until there is nothing or it must wait; says which.
    pub(crate) fn serve(&mut self) -> Step {
        loop {
            match self.session.step().unwrap() {
                Step::Done => {}
                other => return other,
            }
        }
    }
}
