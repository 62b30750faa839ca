//! Opening contexts on a device: the first one brings the session with its executor.

use crate::client::Client;
use crate::context::backend::Backend;
use crate::context::device::Device;
use crate::memory::device_heap::DeviceHeap;
use crate::memory::host_heap::HostHeap;
use crate::numbers::Numbers;
use crate::recorder::tracer;
use crate::result::Result;
use crate::session::Session;
use crate::session::expected_wait::CopyRate;
use crate::session::staging::Staging;
use crate::stream::callbacks::Callbacks;
use crate::stream::late::Late;
use crate::stream::spare_events::SpareEvents;
use cuda_abi::types::CUresult;
use link::pages::Pages;
use link::shm::{Reservation, ShmError};
use link::socket::Connection;
use link::wire::array::MAX_ARRAYS;
use link::wire::attach::{ClientReply, ClientRequest, ContextOpened};
use link::wire::command::{MAX_EVENTS, MAX_FUNCTIONS, MAX_MODULES};
use link::wire::graph::MAX_GRAPHS;
use link::wire::partition::MAX_PARTITIONS;
use link::wire::virtual_memory::MAX_MEMORIES;
use rustix::fd::OwnedFd;
use std::sync::Mutex;

impl Device {
    /// The backend, for what belongs to the device and to no context: opened if none has been.
    pub(crate) fn session(&self, client: &'static Client) -> Result<&'static Backend> {
        if let Some(backend) = self.opened() {
            return Ok(backend);
        }
        let opened = self.open_context(client)?;
        self.close_context(client);
        Ok(opened.backend)
    }

    /// Has the server open a context; returns its number, and its SMs where it asked for fewer than
    /// the client has.
    pub(crate) fn open_context(&self, client: &'static Client) -> Result<Opened> {
        let _one = self.opening.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let wanted = ClientRequest::OpenContext {
            device: self.index,
            active_thread_percentage: crate::attach::context_percentage(),
        };
        let (reply, files) = client.request(&wanted)?;
        let ClientReply::ContextOpened(opened) = reply else {
            return Err(CUresult::ERROR_MPS_RPC_FAILURE);
        };
        // Descriptors come with a session: with the first context, and with the first after the
        // session has failed.
        if let Some(backend) = self.opened().filter(|_| files.is_empty()) {
            return Ok(Opened::new(backend, &opened));
        }
        let backend = make_backend(client, &opened, files).map_err(|error| {
            crate::error!("the session with device {} cannot be opened: {error}", self.ordinal);
            CUresult::ERROR_MPS_RPC_FAILURE
        })?;
        let backend: &'static Backend = Box::leak(Box::new(backend));
        let watched = client.health.watch(backend.session.executor(), || client.wake_waiters());
        watched.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        self.backend.set(backend);
        tracer::begin_session(self);
        Ok(Opened::new(backend, &opened))
    }

    /// Tells the server that a context has ended.
    pub(crate) fn close_context(&self, client: &'static Client) {
        // The server also notices by itself when the process ends.
        let _ = client.request(&ClientRequest::CloseContext { device: self.index });
    }
}

/// A context that the server has opened.
#[derive(Clone, Copy)]
pub(crate) struct Opened {
    pub(crate) backend: &'static Backend,
    /// The executor's number for it.
    pub(crate) id: u32,
    /// Its SMs, if those are fewer than the client has.
    pub(crate) multiprocessors: Option<u32>,
}

impl Opened {
    fn new(backend: &'static Backend, opened: &ContextOpened) -> Self {
        Self { backend, id: opened.context_id, multiprocessors: opened.multiprocessors }
    }
}

/// Why a session cannot be used.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("{0} descriptors came instead of 3")]
    Descriptors(usize),
    #[error(transparent)]
    Memory(#[from] ShmError),
    #[error(transparent)]
    Socket(#[from] link::socket::SocketError),
}

fn make_backend(
    client: &'static Client,
    opened: &ContextOpened,
    files: Vec<OwnedFd>,
) -> core::result::Result<Backend, OpenError> {
    let [session, completion, executor] =
        <[OwnedFd; 3]>::try_from(files).map_err(|files| OpenError::Descriptors(files.len()))?;
    let executor = Connection::from_socket(executor)?;
    let device_window = Reservation::new(opened.device_window)
        .inspect_err(|error| {
            crate::warn!("addresses of device memory are also used by the program: {error}")
        })
        .ok();
    Ok(Backend {
        session: Session::open([session, completion], executor, client.health.clone())?,
        device_heap: DeviceHeap::default(),
        managed_heap: DeviceHeap::default(),
        host_heap: HostHeap::new(opened.host_window, Pages::of_system())?,
        staging: Staging::default(),
        copy_rate: CopyRate::default(),
        events: Numbers::below(MAX_EVENTS),
        spare_events: SpareEvents::default(),
        late: Late::default(),
        modules: Numbers::below(MAX_MODULES),
        functions: Numbers::below(MAX_FUNCTIONS),
        graphs: Numbers::below(MAX_GRAPHS),
        memories: Numbers::below(MAX_MEMORIES),
        arrays: Numbers::below(MAX_ARRAYS),
        partitions: Numbers::below(MAX_PARTITIONS),
        callbacks: Callbacks::default(),
        lent: Mutex::default(),
        device_window,
    })
}
