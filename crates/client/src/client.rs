//! The state of an attached process.
//!
//! Made once, by the choice, and never freed: programs call until their last instruction, from exit
//! handlers and from threads that outlive `main`.

pub(crate) mod starting;

use crate::attach::health::Health;
use crate::code::function::Function;
use crate::code::library::{Kernel, Library};
use crate::code::link_state::LinkState;
use crate::code::module::Module;
use crate::context::Context;
use crate::context::device::Device;
use crate::context::green::{Descriptions, Green};
use crate::copy::array::{Array, MipmappedArray};
use crate::copy::texture::Textures;
use crate::graph::Graphs;
use crate::handles::Table;
use crate::memory::memory_map::MemoryMap;
use crate::memory::peers::Peers;
use crate::memory::pool::Pool;
use crate::memory::virtual_ranges::{MemoryHandle, VirtualRanges};
use crate::recorder::tracer;
use crate::result::Result;
use crate::stream::Stream;
use crate::stream::attributes::StreamAttributes;
use crate::stream::event::Event;
use crate::thread::callback;
use cuda_abi::managed_advice::Advices;
use cuda_abi::types::CUresult;
use link::socket::{Connection, SocketError};
use link::wire::attach::{ClientReply, ClientRequest};
use rustix::fd::{OwnedFd, RawFd};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest wait for the server's answer to a request on the control socket: an executor may have to
/// be started.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

const STARTED: u8 = 0;
const INITIALISED: u8 = 1;
const FORKED: u8 = 2;

/// See the module's description.
pub(crate) struct Client {
    /// What `cuDriverGetVersion` tells.
    pub(crate) driver_version: i32,
    /// Visible devices, by ordinal.
    pub(crate) devices: Vec<Device>,
    /// `CUDA_LAUNCH_BLOCKING`.
    pub(crate) launches: Launches,
    pub(crate) health: Health,
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) libraries: Table<Library>,
    pub(crate) kernels: Table<Kernel>,
    pub(crate) links: Table<LinkState>,
    pub(crate) pools: Table<Pool>,
    pub(crate) memories: Table<MemoryHandle>,
    pub(crate) virtual_ranges: VirtualRanges,
    pub(crate) arrays: Table<Array>,
    pub(crate) mipmapped_arrays: Table<MipmappedArray>,
    pub(crate) textures: Textures,
    pub(crate) graphs: Graphs,
    pub(crate) greens: Table<Green>,
    pub(crate) descriptions: Descriptions,
    pub(crate) memory: MemoryMap,
    pub(crate) advices: Advices,
    pub(crate) peers: Peers,
    /// First addresses of allocations that others may have been told of.
    pub(crate) shared: Mutex<HashSet<u64>>,
    /// How often other clients' memory was opened, by its first address.
    pub(crate) opened: Mutex<HashMap<u64, u32>>,
    /// The server's name for this process.
    pub(crate) client_id: u64,
    pub(crate) stream_attributes: StreamAttributes,
    control: Mutex<Connection>,
    /// The descriptor in `control`, for those who must not wait for the lock.
    control_descriptor: RawFd,
    state: AtomicU8,
}

/// Whether a launch returns before the kernel has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Launches {
    Asynchronous,
    Blocking,
}

/// Never freed once it is there; null again only in the child of a fork.
static CLIENT: AtomicPtr<Client> = AtomicPtr::new(core::ptr::null_mut());

/// The state, if this process is attached; of any use only after `cuInit`.
#[inline(always)]
pub(crate) fn started() -> Option<&'static Client> {
    // SAFETY: null, or a box that is never freed; Acquire: with the Release in `start`.
    unsafe { CLIENT.load(Ordering::Acquire).as_ref() }
}

/// The state for a call of the API: CUDA_ERROR_NOT_INITIALIZED before `cuInit` and in the child of
/// a fork, CUDA_ERROR_NOT_PERMITTED in a host function.
#[inline(always)]
pub(crate) fn get() -> Result<&'static Client> {
    let client = started().ok_or(CUresult::ERROR_NOT_INITIALIZED)?;
    // Acquire: with the Release in `initialise`; the child of a fork has one thread only.
    if client.state.load(Ordering::Acquire) != INITIALISED {
        return Err(CUresult::ERROR_NOT_INITIALIZED);
    }
    if callback::is_running() {
        return Err(CUresult::ERROR_NOT_PERMITTED);
    }
    Ok(client)
}

/// Runs an API function's body and gives its result the C form.
#[inline(always)]
pub(crate) fn run(body: impl FnOnce(&'static Client) -> Result) -> CUresult {
    get().and_then(body).into()
}

impl Client {
    /// `cuInit` has succeeded.
    pub(crate) fn initialise(&self) {
        // Release: with the Acquire in `get`. A forked process stays forked.
        let _ =
            self.state.compare_exchange(STARTED, INITIALISED, Ordering::Release, Ordering::Relaxed);
    }

    /// Whether `cuInit` has succeeded in this very process.
    pub(crate) fn is_initialised(&self) -> bool {
        self.state.load(Ordering::Acquire) == INITIALISED
    }

    /// Whether this is the child of a process that was attached.
    pub(crate) fn is_forked(&self) -> bool {
        self.state.load(Ordering::Acquire) == FORKED
    }

    /// A device by ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device> {
        let index = usize::try_from(ordinal).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
        self.devices.get(index).ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    /// A context by handle: CUDA_ERROR_INVALID_CONTEXT for what is none.
    pub(crate) fn context(&self, token: usize) -> Result<Arc<Context>> {
        self.contexts.get(token).ok_or(CUresult::ERROR_INVALID_CONTEXT)
    }

    fn lock_control(&self) -> std::sync::MutexGuard<'_, Connection> {
        self.control.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Asks the server on the control socket.
    pub(crate) fn request(
        &'static self,
        request: &ClientRequest,
    ) -> Result<(ClientReply, Vec<OwnedFd>)> {
        if self.health.is_lost() {
            return Err(CUresult::ERROR_MPS_RPC_FAILURE);
        }
        let control = self.lock_control();
        let failed = |error: SocketError| {
            crate::error!("the server did not answer {request:?}: {error}");
            CUresult::ERROR_MPS_RPC_FAILURE
        };
        control.send(request, &[], SEND_TIMEOUT).map_err(failed)?;
        let mut tracer = None;
        let received = loop {
            let received = control.receive::<ClientReply>(REPLY_TIMEOUT).map_err(failed)?;
            match received.message {
                ClientReply::Trace => tracer = received.descriptors.into_iter().next(),
                _ => break received,
            }
        };
        drop(control);
        if let Some(tracer) = tracer {
            self.be_traced(tracer);
        }
        match received.message {
            ClientReply::Refused(refusal) => {
                crate::error!(
                    "the server refused {request:?}: {} ({})",
                    refusal.message,
                    refusal.code
                );
                Err(CUresult(refusal.code))
            }
            reply => Ok((reply, received.descriptors)),
        }
    }

    /// Takes what the server sends unasked.
    fn hear_server(&'static self) {
        // Who waits for an answer has the lock, and takes it.
        let received = self.lock_control().try_receive::<ClientReply>();
        if let Ok(Some(received)) = received
            && let (ClientReply::Trace, Some(tracer)) =
                (received.message, received.descriptors.into_iter().next())
        {
            self.be_traced(tracer);
        }
    }

    /// A tracer was passed on. Not on this thread, which may be one that a session waits for.
    fn be_traced(&'static self, tracer: OwnedFd) {
        let Ok(connection) = Connection::from_socket(tracer) else { return };
        let begun = crate::thread::spawn("openmps-trace", move || tracer::begin(connection, self));
        if let Err(error) = begun {
            crate::warn!("this process cannot be traced: {error}");
        }
    }

    /// Makes all waiting threads look at the server's health.
    pub(crate) fn wake_waiters(&self) {
        for backend in self.devices.iter().filter_map(Device::opened) {
            backend.session.wake_waiters();
        }
    }
}
