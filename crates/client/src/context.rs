//! Contexts: a primary one per device, counted, those that programs make, and green ones, which are
//! primary ones on some of the SMs.
//!
//! A context is a handle and a state in this process. The executor is asked when it comes to life
//! (the first retain, or its creation), which is where CUDA reports that no more clients are taken.
//! The primary context keeps its handle when it ends and lives again.

pub(crate) mod backend;
pub(crate) mod device;
pub(crate) mod green;
mod life;
pub(crate) mod limits;
pub(crate) mod share;

use crate::context::backend::{Backend, Current};
use crate::context::limits::Limits;
use crate::context::share::Share;
use crate::result::Result;
use crate::stream::stream_id;
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
}
