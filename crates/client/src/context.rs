//! Contexts: a primary one per device, counted, those that programs make, and green ones, which are
//! primary ones on some of the SMs.
//!
//! A context is a handle and a state in this process. The executor is asked when it comes to life
//! (the first retain, or its creation), which is where CUDA reports that no more clients are taken.
//! The primary context keeps its handle when it ends and lives again.

pub(crate) mod backend;
pub(crate) mod device;
pub(crate) mod green;
pub(crate) mod limits;
pub(crate) mod share;

use crate::client::Client;
use crate::context::backend::{Backend, Current};
use crate::context::device::Opened;
use crate::context::limits::Limits;
use crate::context::share::{Share, Wish};
use crate::session::Result;
use crate::stream::stream_id;
use crate::thread::current;
use cuda_abi::context_storage::ContextStorage;
use cuda_abi::types::{CUcontext, CUresult};
use link::wire::command::LEGACY_STREAM;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Values that other libraries keep per context.
pub(crate) static STORAGE: ContextStorage = ContextStorage::new();

/// How a context ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// With the last release; its handle stays.
    Primary,
    /// With `cuCtxDestroy`.
    Created,
    /// With `cuGreenCtxDestroy`, or with its owner.
    Green,
}

/// See the module's description.
pub(crate) struct Context {
    pub(crate) token: usize,
    pub(crate) device: i32,
    pub(crate) lifetime: Lifetime,
    pub(crate) flags: AtomicU32,
    /// `cuCtxGetId`.
    pub(crate) id: u64,
    pub(crate) api_version: u32,
    /// The executor's number for it; 0 while it is not alive.
    wire_id: AtomicU32,
    backend: Current,
    /// The primary context that a green one is part of.
    owner: Option<Arc<Context>>,
    /// The SMs that it runs on, where those are not all of its client's.
    share: Mutex<Option<Share>>,
    /// Slot of its default stream.
    default_stream: AtomicU32,
    /// What `cuStreamGetId` says of its default stream.
    pub(crate) default_stream_id: u64,
    pub(crate) limits: Limits,
    /// Retains of a primary context, attachments of another one.
    count: Mutex<u32>,
}

impl Context {
    pub(crate) fn new(token: usize, device: i32, lifetime: Lifetime, flags: u32) -> Self {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            token,
            device,
            lifetime,
            flags: AtomicU32::new(flags),
            // Relaxed: only uniqueness matters.
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            api_version: 3020,
            wire_id: AtomicU32::new(0),
            backend: Current::default(),
            owner: None,
            share: Mutex::new(None),
            default_stream: AtomicU32::new(LEGACY_STREAM),
            default_stream_id: stream_id::next(),
            limits: Limits::default(),
            count: Mutex::new(0),
        }
    }

    /// A green context of a primary one.
    pub(crate) fn green(token: usize, owner: &Arc<Context>) -> Self {
        let green = Self::new(token, owner.device, Lifetime::Green, 0);
        Self { owner: Some(Arc::clone(owner)), ..green }
    }

    /// The context that has the memory, code and events of this one: itself, unless it is green.
    pub(crate) fn owner(self: &Arc<Self>) -> &Arc<Self> {
        self.owner.as_ref().unwrap_or(self)
    }

    /// The handle of [`Self::owner`].
    pub(crate) fn owner_token(&self) -> usize {
        self.owner.as_ref().map_or(self.token, |owner| owner.token)
    }

    /// Slot of its default stream.
    pub(crate) fn default_stream(&self) -> u32 {
        // Acquire: with the Release in `set_share`.
        self.default_stream.load(Ordering::Acquire)
    }

    /// The SMs that it runs on, where those are not all of its client's.
    pub(crate) fn share(&self) -> Option<Share> {
        // A share comes with a default stream, so without another one there is nothing to lock.
        if self.default_stream() == LEGACY_STREAM {
            return None;
        }
        *self.lock_share()
    }

    fn lock_share(&self) -> MutexGuard<'_, Option<Share>> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_share(&self, share: Option<Share>) -> Option<Share> {
        let slot = share.map_or(LEGACY_STREAM, |share| share.default_stream);
        // Release: with the Acquire in `default_stream`; its slot was made before.
        self.default_stream.store(slot, Ordering::Release);
        std::mem::replace(&mut *self.lock_share(), share)
    }

    pub(crate) fn handle(&self) -> CUcontext {
        CUcontext(self.token)
    }

    /// The executor's number; 0 while the context is not alive.
    pub(crate) fn wire_id(&self) -> u32 {
        // Acquire: with the Release in `open`, after which the backend is there.
        self.wire_id.load(Ordering::Acquire)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.wire_id() != 0
    }

    /// The backend and the executor's number of a living context; CUDA_ERROR_CONTEXT_IS_DESTROYED
    /// otherwise.
    pub(crate) fn backend(&self) -> Result<(&'static Backend, u32)> {
        match (self.wire_id(), self.backend.get()) {
            (0, _) | (_, None) => Err(CUresult::ERROR_CONTEXT_IS_DESTROYED),
            (id, Some(backend)) => Ok((backend, id)),
        }
    }

    /// Brings the context to life.
    pub(crate) fn open(&self, client: &'static Client) -> Result {
        self.open_on(client, None)
    }

    /// Brings the context to life, with at most so many SMs.
    pub(crate) fn open_on(&self, client: &'static Client, affinity: Option<u32>) -> Result {
        let device = client.device(self.device)?;
        let Opened { backend, id, multiprocessors } = device.open_context(client)?;
        let wish = match (affinity, multiprocessors) {
            (Some(affinity), limit) => {
                Some(Wish::Affinity(affinity.min(limit.unwrap_or(device.multiprocessors()))))
            }
            (None, Some(limit)) => Some(Wish::Percentage(limit)),
            (None, None) => None,
        };
        if let Some(wish) = wish {
            let share = Share::take(backend, id, wish);
            self.set_share(Some(share.inspect_err(|_| device.close_context(client))?));
        }
        self.enliven(backend, id);
        Ok(())
    }

    /// Brings a green context to life, on the SMs of a description.
    pub(crate) fn open_green(&self, description: u32) -> Result {
        // Numbers of contexts come from the server, but it need not know of this one.
        static LAST: AtomicU32 = AtomicU32::new(1 << 31);
        let (backend, _) = self.owner.as_ref().ok_or(CUresult::ERROR_INVALID_CONTEXT)?.backend()?;
        // Relaxed: only uniqueness matters.
        let id = LAST.fetch_add(1, Ordering::Relaxed) | 1 << 31;
        self.set_share(Some(Share::take(backend, id, Wish::Described(description))?));
        self.enliven(backend, id);
        Ok(())
    }

    fn enliven(&self, backend: &'static Backend, id: u32) {
        self.backend.set(backend);
        self.limits.forget();
        // Release: with the Acquire in `wire_id`.
        self.wire_id.store(id, Ordering::Release);
    }

    /// SMs that its work runs on.
    pub(crate) fn multiprocessors(&self, client: &Client) -> Result<u32> {
        let of_device = client.device(self.device)?.multiprocessors();
        Ok(self.share().map_or(of_device, |share| share.multiprocessors.min(of_device)))
    }

    /// Waits for all its work, and that of its green contexts.
    pub(crate) fn synchronize(&self, client: &Client) -> Result {
        let (backend, id) = self.backend()?;
        for green in self.greens(client) {
            if let Ok((backend, id)) = green.backend() {
                backend.session.wait_all(id)?;
            }
        }
        backend.session.wait_all(id)
    }

    fn greens(&self, client: &Client) -> Vec<Arc<Context>> {
        if self.lifetime != Lifetime::Primary {
            return Vec::new();
        }
        client
            .contexts
            .select(|context| context.owner.as_ref().is_some_and(|owner| owner.token == self.token))
    }

    /// `cuDevicePrimaryCtxRetain`.
    pub(crate) fn retain(&self, client: &'static Client) -> Result {
        let mut count = self.count.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match self.backend() {
            Ok((backend, _)) => backend.session.check()?,
            Err(_) => self.open(client)?,
        }
        *count += 1;
        Ok(())
    }

    /// `cuDevicePrimaryCtxRelease`: the last one ends the context.
    pub(crate) fn release(&self, client: &'static Client) -> Result {
        let mut count = self.count.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *count = count.checked_sub(1).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        if *count == 0 {
            drop(count);
            self.end(client);
        }
        Ok(())
    }

    /// `cuCtxAttach`.
    pub(crate) fn attach(&self) -> Result {
        if self.lifetime == Lifetime::Primary {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        *self.count.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) += 1;
        Ok(())
    }

    /// `cuCtxDetach`: undoes an attachment, or else ends the context.
    pub(crate) fn detach(&self, client: &'static Client) -> Result {
        let mut count = self.count.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match (self.lifetime, count.checked_sub(1)) {
            (Lifetime::Created, Some(rest)) => {
                *count = rest;
                Ok(())
            }
            _ => {
                drop(count);
                self.destroy(client)
            }
        }
    }

    /// `cuDevicePrimaryCtxReset`: ends the context however often it is retained.
    pub(crate) fn reset(&self, client: &'static Client) {
        *self.count.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = 0;
        if self.is_alive() {
            self.end(client);
        }
    }

    /// Ends a living context: its work is waited for, what libraries keep for it is told,
    /// everything of it is freed.
    pub(crate) fn end(&self, client: &'static Client) {
        let Ok((backend, id)) = self.backend() else { return };
        for green in self.greens(client) {
            green.end(client);
        }
        // SAFETY: the destructors belong to libraries that keep values for a living context, so
        // they are still loaded.
        unsafe { STORAGE.destroy_context(self.handle()) };
        // A failed session has nothing left to wait for.
        let _ = backend.session.wait_all(id);
        crate::graph::end_context(client, self);
        crate::code::module::end_context(client, self);
        crate::stream::end_context(client, self);
        crate::stream::events::end_context(client, self);
        client.textures.end_context(self);
        crate::copy::array::end_context(client, self);
        client.peers.forget(self.token);
        crate::memory::end_context(client, self);
        if let Some(share) = self.set_share(None) {
            share.drop(backend, id);
        }
        // Release: nothing is published by the end of a context.
        self.wire_id.store(0, Ordering::Release);
        if self.lifetime != Lifetime::Green
            && let Ok(device) = client.device(self.device)
        {
            device.close_context(client);
        }
    }

    /// `cuCtxDestroy`.
    pub(crate) fn destroy(&self, client: &'static Client) -> Result {
        if self.lifetime != Lifetime::Created {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        self.end(client);
        current::remove_if_top(self.token);
        client.contexts.remove(self.token);
        Ok(())
    }
}
