//! What handles stand for: contexts, streams, events. Modules and kernels are in `module_image`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use cuda_abi::graph::capture::{self, LegacyOrder, Point};
use cuda_abi::types::{CUcontext, CUgreenCtx};

use super::answer::Answer;
use super::graph::Graph;
use crate::api::stream::shared_event::SharedEvent;
use crate::api::stream::stream_attributes::StoredValue;
use crate::device::engine::{Engine, StreamKind};
use crate::device::grid::SmMask;
use crate::device::marker::Marker;
use crate::device::ops::Op;
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

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The engine's number.
    pub(crate) id: u64,
    /// Handle of its context.
    pub(crate) context: CUcontext,
    pub(crate) context_id: u64,
    pub(crate) kind: StreamKind,
    priority: AtomicI32,
    pub(crate) mask: SmMask,
    /// What programs have set, by attribute.
    attributes: Mutex<HashMap<u32, StoredValue>>,
}

impl Stream {
    /// A stream of a context, which the engine knows as `id`.
    pub(crate) fn new(
        id: u64,
        (context, context_id): (CUcontext, u64),
        kind: StreamKind,
        priority: i32,
        mask: SmMask,
    ) -> Self {
        Stream {
            id,
            context,
            context_id,
            kind,
            priority: AtomicI32::new(priority),
            mask,
            attributes: Mutex::default(),
        }
    }

    /// Smaller goes first.
    pub(crate) fn priority(&self) -> i32 {
        // Relaxed: a number alone.
        self.priority.load(Ordering::Relaxed)
    }

    pub(crate) fn set_priority(&self, priority: i32) {
        // Relaxed: as in `priority`.
        self.priority.store(priority, Ordering::Relaxed);
    }

    pub(crate) fn attribute(&self, id: u32) -> Option<StoredValue> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).get(&id).copied()
    }

    pub(crate) fn set_attribute(&self, id: u32, value: StoredValue) {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).insert(id, value);
    }

    /// Takes another stream's attributes over.
    pub(crate) fn copy_attributes(&self, from: &Self) {
        let copied = from.attributes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *self.attributes.lock().unwrap_or_else(PoisonError::into_inner) = copied;
    }

    /// What captures know it by.
    pub(crate) fn captured(&self) -> capture::Stream {
        let ordering = match self.kind {
            StreamKind::Legacy => LegacyOrder::Itself,
            StreamKind::Blocking => LegacyOrder::Blocking,
            StreamKind::NonBlocking => LegacyOrder::NonBlocking,
        };
        capture::Stream { id: self.id, context: self.context_id, ordering }
    }
}

/// Flag of events without times.
pub(crate) const NO_TIMING: u32 = 2;
/// Flag of events that other processes see; needs the one before.
pub(crate) const INTERPROCESS: u32 = 4;

/// An event: flags and the point it was last recorded at.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context_id: u64,
    pub(crate) flags: u32,
    recorded: Mutex<Recorded>,
    /// Of events that other processes see.
    shared: Option<Arc<SharedEvent>>,
}

/// Where an event was last recorded.
#[derive(Debug, Clone, Default)]
pub(crate) enum Recorded {
    #[default]
    Never,
    At(Arc<Marker>),
    /// In a capture.
    Captured(Point<Graph>),
}

impl Event {
    /// An event that was never recorded.
    pub(crate) fn new(context: &Context, flags: u32) -> Self {
        Event { context_id: context.id, flags, recorded: Mutex::default(), shared: None }
    }

    /// An event that several processes record and wait for.
    pub(crate) fn new_shared(context: &Context, shared: Arc<SharedEvent>) -> Self {
        Event { shared: Some(shared), ..Event::new(context, INTERPROCESS | NO_TIMING) }
    }

    /// What other processes see of it.
    pub(crate) fn shared(&self) -> Option<&Arc<SharedEvent>> {
        self.shared.as_ref()
    }

    /// The operation that waits for the last record, if there is something to wait for.
    pub(crate) fn wait_op(&self) -> Option<Op> {
        match &self.shared {
            Some(shared) => shared.wait_op(),
            None => self.marker().map(Op::Wait),
        }
    }

    /// The operations of a record whose marker this is.
    pub(crate) fn record_ops(&self, marker: Arc<Marker>) -> Vec<Op> {
        let raise = self.shared.as_ref().map(SharedEvent::record_op);
        std::iter::once(Op::Record(marker)).chain(raise).collect()
    }

    /// Where it was last recorded.
    pub(crate) fn recorded(&self) -> Recorded {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, as captures see it.
    pub(crate) fn captured(&self) -> capture::Recorded<Graph> {
        match self.recorded() {
            Recorded::Never => capture::Recorded::Never,
            Recorded::At(_) => capture::Recorded::Outside,
            Recorded::Captured(point) => capture::Recorded::Captured(point),
        }
    }

    /// The marker of the last record, if there was one outside captures.
    pub(crate) fn marker(&self) -> Option<Arc<Marker>> {
        match self.recorded() {
            Recorded::At(marker) => Some(marker),
            _ => None,
        }
    }

    pub(crate) fn set_recorded(&self, recorded: Recorded) {
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = recorded;
    }

    /// Records it where `enqueue` puts the marker; two records do not overtake each other.
    pub(crate) fn record(&self, enqueue: impl FnOnce(Arc<Marker>) -> Answer) -> Answer {
        let marker = Arc::new(Marker::default());
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        enqueue(marker.clone())?;
        *recorded = Recorded::At(marker);
        Ok(())
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
}
