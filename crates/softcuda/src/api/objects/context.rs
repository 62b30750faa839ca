//! Contexts: what their handles stand for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use cuda_abi::types::{CUcontext, CUgreenCtx};

use super::stream::Stream;
use crate::api::answer::Answer;
use crate::device::engine::{Engine, StreamKind};
use crate::device::grid::SmMask;
use crate::device::services::ContextServices;

/// How a context came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContextKind {
    Primary,
    Created,
    /// The device's primary context on some SMs.
    Green(CUgreenCtx),
    /// Created with a number of SMs.
    Affinity,
}

/// A context while it exists. A primary context gets a new one of these, under the same handle,
/// after a reset.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: CUcontext,
    /// The engine's number; a green context has its primary context's.
    pub(crate) id: u64,
    /// The number that programs see.
    pub(crate) number: u64,
    pub(crate) device: u32,
    pub(crate) kind: ContextKind,
    pub(crate) services: Arc<ContextServices>,
    /// SMs that its launches may use.
    pub(crate) mask: SmMask,
    pub(crate) api_version: u32,
    settings: Arc<Mutex<ContextSettings>>,
    legacy: Arc<Stream>,
    per_thread: Mutex<HashMap<ThreadId, Arc<Stream>>>,
    is_alive: AtomicBool,
    /// Uses beside the creator's, by `cuCtxAttach`.
    attachments: AtomicU32,
}

/// What programs can set on a context and read back.
#[derive(Debug, Clone)]
pub(crate) struct ContextSettings {
    pub(crate) flags: u32,
    pub(crate) stack_bytes: u64,
    pub(crate) printf_bytes: u64,
    pub(crate) sync_depth: u64,
    pub(crate) pending_launches: u64,
    pub(crate) l2_fetch_bytes: u64,
    pub(crate) persisting_l2_bytes: u64,
    pub(crate) cache_config: u32,
    pub(crate) shared_config: u32,
}

impl Default for ContextSettings {
    fn default() -> Self {
        ContextSettings {
            flags: 0,
            stack_bytes: 1024,
            printf_bytes: 1 << 20,
            sync_depth: 2,
            pending_launches: 2048,
            l2_fetch_bytes: 64,
            persisting_l2_bytes: 0,
            cache_config: 0,
            shared_config: 0,
        }
    }
}

impl Context {
    /// A context that was just opened in the engine: its number and its legacy stream's.
    #[allow(clippy::too_many_arguments)] // Each is stored as it is; a structure would repeat this one.
    pub(crate) fn new(
        handle: CUcontext,
        (id, legacy): (u64, u64),
        device: u32,
        kind: ContextKind,
        services: Arc<ContextServices>,
        mask: SmMask,
        api_version: u32,
        settings: ContextSettings,
    ) -> Self {
        let legacy = Stream::new(legacy, (handle, id), StreamKind::Legacy, 0, mask);
        Context {
            handle,
            id,
            number: id,
            device,
            kind,
            services,
            mask,
            api_version,
            settings: Arc::new(Mutex::new(settings)),
            legacy: Arc::new(legacy),
            per_thread: Mutex::default(),
            is_alive: AtomicBool::new(true),
            attachments: AtomicU32::new(0),
        }
    }

    /// The same context as a green one: its work runs on the SMs of `mask` only.
    pub(crate) fn green(
        &self,
        handle: CUcontext,
        green: CUgreenCtx,
        number: u64,
        mask: SmMask,
    ) -> Self {
        let legacy = Stream::new(self.legacy.id, (handle, self.id), StreamKind::Legacy, 0, mask);
        Context {
            handle,
            id: self.id,
            number,
            device: self.device,
            kind: ContextKind::Green(green),
            services: self.services.clone(),
            mask,
            api_version: self.api_version,
            settings: self.settings.clone(),
            legacy: Arc::new(legacy),
            per_thread: Mutex::default(),
            is_alive: AtomicBool::new(true),
            attachments: AtomicU32::new(0),
        }
    }

    /// Counts a use beside the creator's.
    pub(crate) fn attach(&self) {
        // Relaxed: a count that orders nothing; also below.
        self.attachments.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes an [`attach`](Self::attach); false when there is none left.
    pub(crate) fn detach(&self) -> bool {
        let less_one = |count: u32| count.checked_sub(1);
        self.attachments.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less_one).is_ok()
    }

    /// Default streams of threads that have used theirs.
    pub(crate) fn per_thread_streams(&self) -> Vec<Arc<Stream>> {
        let streams = self.per_thread.lock().unwrap_or_else(PoisonError::into_inner);
        streams.values().cloned().collect()
    }

    /// The legacy default stream.
    pub(crate) fn legacy_stream(&self) -> Arc<Stream> {
        self.legacy.clone()
    }

    /// The calling thread's default stream, made on first use.
    pub(crate) fn per_thread_stream(&self, engine: &Engine) -> Answer<Arc<Stream>> {
        let mut streams = self.per_thread.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = std::thread::current().id();
        if let Some(stream) = streams.get(&thread) {
            return Ok(stream.clone());
        }
        let id = engine.create_stream(self.id, StreamKind::Blocking)?;
        let owner = (self.handle, self.id);
        let stream = Arc::new(Stream::new(id, owner, StreamKind::Blocking, 0, self.mask));
        streams.insert(thread, stream.clone());
        Ok(stream)
    }

    pub(crate) fn is_alive(&self) -> bool {
        // Acquire: partner of the Release in `end`.
        self.is_alive.load(Ordering::Acquire)
    }

    /// Marks the context destroyed; `false` when it was already.
    pub(crate) fn end(&self) -> bool {
        // AcqRel: partner of `is_alive` and of a second `end`.
        self.is_alive.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn settings(&self) -> ContextSettings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes settings under their lock.
    pub(crate) fn set<T>(&self, change: impl FnOnce(&mut ContextSettings) -> T) -> T {
        change(&mut self.settings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it is a green one.
    pub(crate) fn is_green(&self) -> bool {
        matches!(self.kind, ContextKind::Green(_))
    }

    /// Whether it has some of the SMs only: what clusters fit then depends on which ones.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_green() && self.mask.count() < self.services.sm_count
    }
}
