//! How contexts come to life and end.

use crate::client::Client;
use crate::context::backend::Backend;
use crate::context::device::opening::Opened;
use crate::context::share::{Share, Wish};
use crate::context::{Context, Lifetime, STORAGE};
use crate::result::Result;
use crate::thread::current;
use cuda_abi::types::CUresult;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

impl Context {
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
        crate::graph::making::end_context(client, self);
        crate::code::modules::end_context(client, self);
        crate::stream::life::end_context(client, self);
        crate::stream::events::end_context(client, self);
        client.textures.end_context(self);
        crate::copy::arrays::end_context(client, self);
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
