//! Contexts: a primary one per device, counted, and those that programs make.
//!
//! A context is a handle and a state in this process. The executor is asked when it comes to life (the first retain, or its creation), which is where CUDA
//! reports that no more clients are taken. The primary context keeps its handle when it ends and lives again.

use crate::backend::Backend;
use crate::client::Client;
use crate::current;
use crate::export::STORAGE;
use crate::session::Result;
use cuda_abi::types::{CUcontext, CUresult};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// How a context ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// With the last release; its handle stays.
    Primary,
    /// With `cuCtxDestroy`.
    Created,
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
    backend: OnceLock<&'static Backend>,
    /// Retains of a primary context.
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
            backend: OnceLock::new(),
            count: Mutex::new(0),
        }
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

    /// The backend and the executor's number of a living context; CUDA_ERROR_CONTEXT_IS_DESTROYED otherwise.
    pub(crate) fn backend(&self) -> Result<(&'static Backend, u32)> {
        match (self.wire_id(), self.backend.get()) {
            (0, _) | (_, None) => Err(CUresult::ERROR_CONTEXT_IS_DESTROYED),
            (id, Some(backend)) => Ok((backend, id)),
        }
    }

    /// Brings the context to life.
    pub(crate) fn open(&self, client: &'static Client) -> Result {
        let (backend, id) = client.device(self.device)?.open_context(client)?;
        self.backend.get_or_init(|| backend);
        // Release: with the Acquire in `wire_id`.
        self.wire_id.store(id, Ordering::Release);
        Ok(())
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

    /// `cuDevicePrimaryCtxReset`: ends the context however often it is retained.
    pub(crate) fn reset(&self, client: &'static Client) {
        *self.count.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = 0;
        if self.is_alive() {
            self.end(client);
        }
    }

    /// Ends a living context: its work is waited for, what libraries keep for it is told, everything of it is freed.
    pub(crate) fn end(&self, client: &'static Client) {
        let Ok((backend, id)) = self.backend() else { return };
        // SAFETY: the destructors belong to libraries that keep values for a living context, so they are still loaded.
        unsafe { STORAGE.destroy_context(self.handle()) };
        // A failed session has nothing left to wait for.
        let _ = backend.session.wait_all(id);
        crate::graph::end_context(client, self);
        crate::module::end_context(client, self);
        crate::stream::end_context(client, self);
        crate::events::end_context(client, self);
        crate::entry::end_textures(client, self);
        crate::array::end_context(client, self);
        crate::memory::end_context(client, self);
        // Release: nothing is published by the end of a context.
        self.wire_id.store(0, Ordering::Release);
        if let Ok(device) = client.device(self.device) {
            device.close_context(client);
        }
    }

    /// `cuCtxDestroy`.
    pub(crate) fn destroy(&self, client: &'static Client) -> Result {
        if self.lifetime == Lifetime::Primary {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        self.end(client);
        current::remove_if_top(self.token);
        client.contexts.remove(self.token);
        Ok(())
    }
}
