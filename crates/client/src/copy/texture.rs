//! Texture and surface objects: the driver's own values, which kernels are given, and what they
//! were made of.

use crate::context::Context;
use crate::result::Result;
use cuda_abi::types::{CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUresult};
use link::wire::array::TextureHandle;
use link::wire::command::Opcode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// What an object was made of.
#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) context: Arc<Context>,
    /// `TEXTURE` or `SURFACE` of the wire.
    pub(crate) object: u32,
    pub(crate) resource: CUDA_RESOURCE_DESC,
    pub(crate) texture: CUDA_TEXTURE_DESC,
    pub(crate) view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

// SAFETY: descriptions: numbers, and handles that are tokens.
unsafe impl Send for Object {}

/// All objects of the process, by the driver's values.
#[derive(Default)]
pub(crate) struct Textures(Mutex<HashMap<u64, Object>>);

impl Textures {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Object>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a new object was made of.
    pub(crate) fn add(&self, handle: u64, object: Object) {
        self.lock().insert(handle, object);
    }

    /// What an object of this kind was made of; CUDA_ERROR_INVALID_VALUE for what is none.
    pub(crate) fn find(&self, handle: u64, object: u32) -> Result<Object> {
        let textures = self.lock();
        let found = textures.get(&handle).filter(|known| known.object == object).cloned();
        found.ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Destroys an object once all work is done.
    pub(crate) fn destroy(&self, handle: u64, object: u32) -> Result {
        let found = self.find(handle, object)?;
        let removed = self.lock().remove(&handle);
        // Two threads that destroy it: the second one's question could be about a new object of
        // that value.
        removed.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let (backend, id) = found.context.backend()?;
        backend.session.wait_all(0)?;
        let body = TextureHandle { handle, object, reserved: 0 };
        backend.session.call(id, Opcode::TextureDestroy, &[body.as_bytes()]).map(drop)
    }

    /// Destroys the objects of a context that is ending.
    pub(crate) fn end_context(&self, context: &Context) {
        let of_context: Vec<_> = self
            .lock()
            .iter()
            .filter(|(_, known)| known.context.token == context.token)
            .map(|(handle, known)| (*handle, known.object))
            .collect();
        for (handle, object) in of_context {
            // A failed session has no objects left.
            let _ = self.destroy(handle, object);
        }
    }
}
