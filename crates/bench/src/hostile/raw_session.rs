//! A client that speaks the protocol itself, and then writes into its ring whatever it likes.

use super::Random;
use super::commands::{FUNCTION, IDLE, MODULE, REGION_BYTES, Targets, description};
use cuda_abi::types::CUresult;
use link::call::{CallError, CallSlots};
use link::doorbell::Doorbell;
use link::ring::{PostError, Producer};
use link::session_memory::SessionMemory;
use link::shm::{self, ShmError};
use link::socket::{Connection, Received, SocketError};
use link::spin::Spin;
use link::wire::attach::{
    ClientHello, ClientReply, ClientRequest, Hello, HelloReply, RegionFile, RequestedLimits,
};
use link::wire::command::{self as wire, NO_CALL, Opcode, REGION_PINNED};
use link::wire::layout::{RING_BYTES, RING_OFFSET};
use link::wire::version::Versions;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::pwrite;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

/// Longest that the other side may take for an answer or an input.
const PATIENCE: Duration = Duration::from_secs(120);
/// A session that has failed, and takes nothing for so long, is over.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// Why a client could not even begin.
#[derive(Debug, Error)]
pub enum RawError {
    /// A socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Shared memory.
    #[error(transparent)]
    Memory(#[from] ShmError),
    /// The ring.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A call's answer.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The kernel.
    #[error("a shared file cannot be written: {0}")]
    File(#[from] rustix::io::Errno),
    /// The server or the executor said no.
    #[error("{what} was refused: {code}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// Why not.
        code: CUresult,
    },
    /// It said something else.
    #[error("{what} was answered with something else")]
    Strange {
        /// What was asked for.
        what: &'static str,
    },
}

/// What became of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The executor took it, and the session goes on.
    Taken,
    /// The session is over.
    Ended,
    /// Neither within two minutes.
    Stuck,
}

/// An attached client with a context on device 0 and everything in [`Targets`].
#[derive(Debug)]
pub struct RawSession {
    connection: Connection,
    _socket: Connection,
    memory: Arc<SessionMemory>,
    file: OwnedFd,
    region: OwnedFd,
    targets: Targets,
    tail: u64,
}

/// Attaches to the daemon behind `socket` as a program would.
///
/// # Errors
/// See [`RawError`].
pub fn attach(socket: &Path, limits: RequestedLimits) -> Result<Connection, RawError> {
    let connection = Connection::connect(socket, PATIENCE)?;
    let hello = Hello::Client(ClientHello {
        versions: Versions::ours(),
        pid: std::process::id(),
        pid_namespace: 0,
        command: "hostile".to_owned(),
        limits,
    });
    connection.send(&hello, &[], PATIENCE)?;
    match connection.receive::<HelloReply>(PATIENCE)?.message {
        HelloReply::Welcome(_) => Ok(connection),
        HelloReply::Refused(refusal) => {
            Err(RawError::Refused { what: "attachment", code: CUresult(refusal.code) })
        }
        HelloReply::Native => Err(RawError::Strange { what: "attachment" }),
    }
}

impl RawSession {
    /// Makes ready over a connection that was welcomed.
    ///
    /// # Errors
    /// See [`RawError`].
    pub fn open(connection: Connection) -> Result<Self, RawError> {
        let wanted = ClientRequest::OpenContext { device: 0, active_thread_percentage: None };
        connection.send(&wanted, &[], PATIENCE)?;
        let strange = RawError::Strange { what: "a context" };
        let Received { message, descriptors } = connection.receive::<ClientReply>(PATIENCE)?;
        let opened = match message {
            ClientReply::ContextOpened(opened) => opened,
            ClientReply::Refused(refusal) => {
                let code = CUresult(refusal.code);
                return Err(RawError::Refused { what: "a context", code });
            }
            _ => return Err(strange),
        };
        let Ok([file, _completion, socket]) = <[OwnedFd; 3]>::try_from(descriptors) else {
            return Err(strange);
        };
        let memory = Arc::new(SessionMemory::map(file.as_fd())?);
        let socket = Connection::from_socket(socket)?;
        let mut ready = MakingReady {
            connection: &connection,
            producer: Producer::new(Arc::clone(&memory)),
            slots: CallSlots::new(Arc::clone(&memory)),
        };
        let region = shm::create("hostile-region", REGION_BYTES)?;
        let address = opened.host_window.base;
        socket.send(&RegionFile { address }, &[region.as_fd()], PATIENCE)?;
        let device = ready.all(&region, address)?;
        let tail = ready.producer.posted_bytes();
        let targets = Targets { region: address, device };
        Ok(Self { connection, _socket: socket, memory, file, region, targets, tail })
    }

    /// What the commands may name.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Fills the region anew: a graph's description, and code that is damaged half of the time.
    ///
    /// # Errors
    /// The region's file.
    pub fn refill(&self, random: &mut Random) -> Result<(), RawError> {
        let graph = description(random, &self.targets);
        let mut code = IDLE.as_bytes().to_vec();
        let at = random.below(code.len());
        code[at] ^= u8::from(random.below(2) == 0);
        code.push(0);
        pwrite(&self.region, &graph, 0)?;
        pwrite(&self.region, &code, REGION_BYTES / 2)?;
        Ok(())
    }

    /// Writes an input into the ring and waits until it is taken, or the session is over.
    ///
    /// # Errors
    /// The ring's file.
    pub fn send(&mut self, input: &[u8]) -> Result<Sent, RawError> {
        let (mut at, mut rest) = (self.tail, input);
        while !rest.is_empty() {
            let place = at as usize % RING_BYTES;
            let (piece, behind) = rest.split_at(rest.len().min(RING_BYTES - place));
            let written = pwrite(&self.file, piece, (RING_OFFSET + place) as u64)?;
            at += written as u64;
            rest = match written == piece.len() {
                true => behind,
                false => &rest[written..],
            };
        }
        self.tail = at;
        self.claim_and_wait(at)
    }

    /// Says that it has written what it cannot have written, and waits likewise.
    ///
    /// # Errors
    /// The ring's file.
    pub fn lie(&mut self, random: &mut Random) -> Result<Sent, RawError> {
        let noise: Vec<u8> = (0..4096).map(|_| random.bits() as u8).collect();
        let place = self.tail as usize % RING_BYTES;
        let room = noise.len().min(RING_BYTES - place);
        pwrite(&self.file, &noise[..room], (RING_OFFSET + place) as u64)?;
        let lies = [
            u64::MAX - 15,
            self.tail + 2 * RING_BYTES as u64,
            self.tail + 7,
            self.tail + room as u64 / 16 * 16,
            self.tail.wrapping_sub(16),
        ];
        self.claim_and_wait(random.pick(&lies))
    }

    fn claim_and_wait(&self, tail: u64) -> Result<Sent, RawError> {
        self.claim(tail);
        let shared = self.memory.shared();
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            // One that has failed is still served, unless its executor is gone.
            let is_over = self.memory.error() != 0 && began.elapsed() > FAILED_FOR;
            if self.connection.is_closed() || is_over {
                return Ok(Sent::Ended);
            }
            // Acquire: pairs with the release of the ring's consumer.
            if shared.head.0.load(Ordering::Acquire) == tail {
                return Ok(Sent::Taken);
            }
            std::thread::yield_now();
        }
        Ok(Sent::Stuck)
    }

    /// Says that so much was written since the session began, true or not.
    pub fn claim(&self, tail: u64) {
        let shared = self.memory.shared();
        // Release: pairs with the acquire in the ring's consumer.
        shared.tail.0.store(tail, Ordering::Release);
        Doorbell::new(&shared.consumer_asleep.0).ring();
    }
}

/// A session by the rules, until it has what it needs.
struct MakingReady<'a> {
    connection: &'a Connection,
    producer: Producer,
    slots: CallSlots,
}

impl MakingReady<'_> {
    fn call(
        &mut self,
        what: &'static str,
        opcode: Opcode,
        parts: &[&[u8]],
    ) -> Result<Vec<u8>, RawError> {
        let connection = self.connection;
        let mut alive = || !connection.is_closed();
        let call = self.slots.claim()?;
        self.producer.post(opcode, call.slot(), 1, parts, &mut alive)?;
        let mut reply = Vec::new();
        match call.wait(&mut Spin::default(), &mut reply, &mut alive)? {
            0 => Ok(reply),
            code => Err(RawError::Refused { what, code: CUresult(code) }),
        }
    }

    /// Everything that the targets are; the address of the device memory.
    fn all(&mut self, region: &OwnedFd, address: u64) -> Result<u64, RawError> {
        let map =
            wire::RegionMap { address, size_bytes: REGION_BYTES, kind: REGION_PINNED, reserved: 0 };
        self.call("a region", Opcode::RegionMap, &[map.as_bytes()])?;
        let grow = wire::Grow { size_bytes: REGION_BYTES };
        let reply = self.call("memory", Opcode::Grow, &[grow.as_bytes()])?;
        let Ok((grown, _)) = wire::GrowReply::read_from_prefix(&reply) else {
            return Err(RawError::Strange { what: "memory" });
        };
        pwrite(region, IDLE.as_bytes(), REGION_BYTES / 2)?;
        let load = wire::ModuleLoad {
            module: MODULE,
            optimization_level: u32::MAX,
            max_registers: 0,
            log_bytes: 0,
            address: address + REGION_BYTES / 2,
            size_bytes: IDLE.len() as u64 + 1,
        };
        self.call("code", Opcode::ModuleLoad, &[load.as_bytes()])?;
        let name = b"idle";
        let name_bytes = name.len() as u32;
        let get = wire::FunctionGet { module: MODULE, function: FUNCTION, name_bytes, reserved: 0 };
        self.call("a function", Opcode::FunctionGet, &[get.as_bytes(), name])?;
        let connection = self.connection;
        let mut alive = || !connection.is_closed();
        for stream in 1..4 {
            let stream = wire::StreamCreate { stream, flags: 1, ..Default::default() };
            self.producer.post(
                Opcode::StreamCreate,
                NO_CALL,
                1,
                &[stream.as_bytes()],
                &mut alive,
            )?;
        }
        for event in 0..4 {
            let event = wire::EventCreate { event, flags: 0 };
            self.producer.post(Opcode::EventCreate, NO_CALL, 1, &[event.as_bytes()], &mut alive)?;
        }
        Ok(grown.address)
    }
}
