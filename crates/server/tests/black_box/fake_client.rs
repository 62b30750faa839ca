//! A client that speaks the wire and nothing else, and the daemon that starts its server.

use link::call::CallSlots;
use link::completion::{self, CompletionError, CompletionWords};
use link::ring::Producer;
use link::session_memory::SessionMemory;
use link::shm::{self, Access, Reservation};
use link::socket::Connection;
use link::spin::Spin;
use link::wire::attach::*;
use link::wire::command::{self as wire, NO_CALL, Opcode, REGION_PINNED};
use link::wire::daemon::*;
use link::wire::version::Versions;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) const SOON: Duration = Duration::from_secs(30);

/// A server process and the test in the daemon's place.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) daemon: Connection,
    requests: u64,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(variables: &[(&str, &str)]) -> Self {
        let (daemon, theirs) = Connection::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["server", "--control-fd", "0", "--native-driver"])
            .arg(super::native_driver())
            .env("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")
            // Faults by the same kernel again and again are to be among others here.
            .env("OPENMPS_QUARANTINE", "0")
            .envs(variables.iter().copied())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stderr(super::server_log::file())
            .spawn()
            .unwrap();
        let mut server = Self { child, daemon, requests: 0 };
        // The first that a daemon says.
        server.set_defaults(Defaults {
            active_thread_percentage: Some(100.0),
            client_priority: Some(0),
            ..Default::default()
        });
        assert!(matches!(server.hear(), ToDaemon::Ready));
        assert!(matches!(server.hear(), ToDaemon::Status(ServerStatus::Active)));
        server
    }

    pub(crate) fn set_defaults(&mut self, defaults: Defaults) {
        self.daemon.send(&ToServer::SetDefaults(defaults), &[], SOON).unwrap();
    }

    /// What it says next; that clients have left comes whenever they do.
    pub(crate) fn hear(&mut self) -> ToDaemon {
        loop {
            match self.daemon.receive(SOON).unwrap().message {
                ToDaemon::Left { .. } => {}
                message => return message,
            }
        }
    }

    pub(crate) fn snapshot(&mut self) -> ServerSnapshot {
        self.requests += 1;
        let id = self.requests;
        self.daemon.send(&ToServer::Snapshot { id }, &[], SOON).unwrap();
        loop {
            if let ToDaemon::Snapshot { id: got, snapshot } = self.hear() {
                assert_eq!(got, id);
                return snapshot;
            }
        }
    }

    /// Looks until the snapshot is as wanted.
    pub(crate) fn await_snapshot(
        &mut self,
        what: &str,
        wanted: impl Fn(&ServerSnapshot) -> bool,
    ) -> ServerSnapshot {
        let deadline = std::time::Instant::now() + SOON;
        loop {
            let snapshot = self.snapshot();
            if wanted(&snapshot) {
                return snapshot;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "{what} did not come about: {snapshot:?}"
            );
            std::thread::yield_now();
        }
    }

    /// A connection as the daemon would hand it over; `pid` is the process whose end is the
    /// client's.
    pub(crate) fn attach(
        &mut self,
        pid: u32,
        limits: RequestedLimits,
    ) -> Result<(Connection, Welcome), Refusal> {
        let (ours, theirs) = Connection::pair().unwrap();
        let hello = ClientHello {
            versions: Versions::ours(),
            pid,
            pid_namespace: 0,
            command: "fake".into(),
            limits,
        };
        self.hand_over(hello, theirs.as_fd());
        match ours.receive::<HelloReply>(SOON).unwrap().message {
            HelloReply::Welcome(welcome) => Ok((ours, welcome)),
            HelloReply::Refused(refusal) => Err(refusal),
            HelloReply::Native => panic!("a server's answer is not for debugged clients"),
        }
    }

    /// Hands over a client that has said this.
    pub(crate) fn hand_over(&mut self, hello: ClientHello, socket: BorrowedFd<'_>) {
        self.requests += 1;
        let attach = ToServer::Attach {
            client_id: self.requests,
            peer: Peer { pid: hello.pid, uid: 0, gid: 0, ..Peer::default() },
            hello: Box::new(hello),
            admission: None,
            origin: Default::default(),
        };
        self.daemon.send(&attach, &[socket], SOON).unwrap();
    }

    pub(crate) fn client(&mut self) -> Client {
        let (connection, welcome) =
            self.attach(std::process::id(), RequestedLimits::default()).unwrap();
        Client::open(connection, welcome)
    }

    pub(crate) fn shut_down(mut self, mode: ShutdownMode) -> ExitStatus {
        self.daemon.send(&ToServer::Shutdown(mode), &[], SOON).unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn open_context(
    connection: &Connection,
) -> Result<(ContextOpened, Vec<OwnedFd>), Refusal> {
    let wanted = ClientRequest::OpenContext { device: 0, active_thread_percentage: None };
    connection.send(&wanted, &[], SOON).unwrap();
    let reply = connection.receive::<ClientReply>(SOON).unwrap();
    match reply.message {
        ClientReply::ContextOpened(opened) => Ok((opened, reply.descriptors)),
        ClientReply::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

/// One client with one context on device 0.
pub(crate) struct Client {
    pub(crate) connection: Connection,
    pub(crate) welcome: Welcome,
    #[allow(dead_code)]
    pub(crate) opened: ContextOpened,
    pub(crate) memory: Arc<SessionMemory>,
    pub(crate) words: CompletionWords,
    socket: Connection,
    producer: Producer,
    slots: CallSlots,
    host: Reservation,
    next_region: u64,
    signal: u64,
}

impl Client {
    pub(crate) fn open(connection: Connection, welcome: Welcome) -> Self {
        let (opened, descriptors) = open_context(&connection).unwrap();
        let [session, completion, socket]: [OwnedFd; 3] = descriptors.try_into().unwrap();
        let memory = Arc::new(SessionMemory::map(session.as_fd()).unwrap());
        Self {
            words: CompletionWords::map(completion.as_fd()).unwrap(),
            socket: Connection::from_socket(socket).unwrap(),
            producer: Producer::new(Arc::clone(&memory)),
            slots: CallSlots::new(Arc::clone(&memory)),
            host: Reservation::new(opened.host_window).unwrap(),
            next_region: opened.host_window.base,
            signal: 0,
            memory,
            opened,
            welcome,
            connection,
        }
    }

    pub(crate) fn post(&mut self, opcode: Opcode, parts: &[&[u8]]) {
        let connection = &self.connection;
        self.producer.post(opcode, NO_CALL, 1, parts, &mut || !connection.is_closed()).unwrap();
    }

    /// Posts a called command; status and reply.
    pub(crate) fn try_call(&mut self, opcode: Opcode, parts: &[&[u8]]) -> (u32, Vec<u8>) {
        let connection = &self.connection;
        let mut alive = || !connection.is_closed();
        let call = self.slots.claim().unwrap();
        self.producer.post(opcode, call.slot(), 1, parts, &mut alive).unwrap();
        let mut reply = Vec::new();
        let status = call.wait(&mut Spin::default(), &mut reply, &mut alive).unwrap();
        (status, reply)
    }

    /// Posts a called command and `meanwhile` behind it; its status.
    pub(crate) fn call_before(
        &mut self,
        opcode: Opcode,
        body: &[u8],
        meanwhile: &[(Opcode, &[u8])],
    ) -> u32 {
        let connection = &self.connection;
        let mut alive = || !connection.is_closed();
        let call = self.slots.claim().unwrap();
        self.producer.post(opcode, call.slot(), 1, &[body], &mut alive).unwrap();
        for (opcode, body) in meanwhile {
            self.producer.post(*opcode, NO_CALL, 1, &[body], &mut alive).unwrap();
        }
        call.wait(&mut Spin::default(), &mut Vec::new(), &mut alive).unwrap()
    }

    pub(crate) fn call<T: FromBytes>(
        &mut self,
        opcode: Opcode,
        body: &(impl IntoBytes + Immutable),
        rest: &[u8],
    ) -> T {
        let (status, reply) = self.try_call(opcode, &[body.as_bytes(), rest]);
        assert_eq!(status, 0, "{opcode:?} {}", String::from_utf8_lossy(&reply));
        T::read_from_prefix(&reply).unwrap().0
    }

    /// A pinned region; its address, which holds for this process as well.
    pub(crate) fn pinned(&mut self, size_bytes: u64) -> u64 {
        let file = shm::create("fake-region", size_bytes).unwrap();
        let address = self.next_region;
        self.next_region += size_bytes.next_multiple_of(1 << 21);
        self.host.map(file.as_fd(), address, size_bytes, Access::ReadWrite).unwrap();
        self.socket.send(&RegionFile { address }, &[file.as_fd()], SOON).unwrap();
        let map = wire::RegionMap { address, size_bytes, kind: REGION_PINNED, reserved: 0 };
        assert_eq!(self.try_call(Opcode::RegionMap, &[map.as_bytes()]).0, 0);
        address
    }

    /// Takes the latest region back.
    pub(crate) fn unpin(&mut self, address: u64, size_bytes: u64) {
        let unmap = wire::RegionUnmap { address, size_bytes };
        assert_eq!(self.try_call(Opcode::RegionUnmap, &[unmap.as_bytes()]).0, 0);
        self.host.unmap(address, size_bytes).unwrap();
        self.next_region = address;
    }

    pub(crate) fn host_bytes(&mut self, address: u64, length: usize) -> &mut [u8] {
        // SAFETY: a region of `pinned`, which stays mapped; the device is done with it when a test
        // looks.
        unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length) }
    }

    pub(crate) fn grow(&mut self, size_bytes: u64) -> wire::GrowReply {
        self.call(Opcode::Grow, &wire::Grow { size_bytes }, &[])
    }

    pub(crate) fn copy(&mut self, stream: u32, destination: u64, source: u64, size_bytes: u64) {
        let copy = wire::Copy { stream, reserved: 0, destination, source, size_bytes };
        self.post(Opcode::Copy, &[copy.as_bytes()]);
    }

    /// Records an event behind all work of a stream.
    pub(crate) fn record(&mut self, event: u32, stream: u32) {
        self.signal += 1;
        let record = wire::EventRecord { event, stream, value: self.signal };
        self.post(Opcode::EventRecord, &[record.as_bytes()]);
    }

    /// Waits until all work of a stream is done, by its completion word.
    pub(crate) fn finish(&mut self, stream: u32) -> Result<(), CompletionError> {
        self.signal += 1;
        let signal = wire::Signal { stream, reserved: 0, value: self.signal };
        self.post(Opcode::Signal, &[signal.as_bytes()]);
        let connection = &self.connection;
        let mut alive = || !connection.is_closed();
        completion::wait(
            &self.memory,
            &self.words,
            stream,
            self.signal,
            Some(SOON),
            &mut Spin::default(),
            &mut alive,
        )
    }

    /// Loads PTX as module `module` and gets function `name` as number `function`.
    pub(crate) fn function(
        &mut self,
        module: u32,
        ptx: &str,
        function: u32,
        name: &str,
    ) -> wire::FunctionGetReply {
        let region = self.pinned((ptx.len() as u64 + 1).next_multiple_of(4096));
        self.host_bytes(region, ptx.len()).copy_from_slice(ptx.as_bytes());
        let load = wire::ModuleLoad {
            module,
            optimization_level: u32::MAX,
            max_registers: 0,
            log_bytes: 1024,
            address: region,
            size_bytes: ptx.len() as u64 + 1,
        };
        let _: wire::ModuleLoadReply = self.call(Opcode::ModuleLoad, &load, &[]);
        let get =
            wire::FunctionGet { module, function, name_bytes: name.len() as u32, reserved: 0 };
        self.call(Opcode::FunctionGet, &get, name.as_bytes())
    }

    pub(crate) fn launch(
        &mut self,
        function: u32,
        stream: u32,
        blocks: u32,
        threads: u32,
        parameters: &[u8],
    ) {
        let launch = wire::Launch {
            function,
            stream,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            parameter_bytes: parameters.len() as u32,
            ..Default::default()
        };
        self.post(Opcode::Launch, &[launch.as_bytes(), parameters]);
    }
}
