//! Streams: what their handles stand for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_abi::graph::capture::{self, LegacyOrder};
use cuda_abi::types::CUcontext;

use crate::device::engine::StreamKind;
use crate::device::grid::SmMask;

/// Priority of most streams.
pub(crate) const LEAST_PRIORITY: i32 = 0;
/// Priority that goes first.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// An attribute's value without its pointer type, so that threads can share it.
pub(crate) type StoredValue = [u64; 8];

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
