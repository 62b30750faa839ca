//! Arrays and mipmapped arrays: made by the executor's driver, described here.

use crate::client::Client;
use crate::context::Context;
use crate::copy::array::{Array, CUBEMAP_OR_LAYERED, MipmappedArray, Owner};
use crate::result::Result;
use crate::thread::current;
use cuda_abi::types::{CUDA_ARRAY3D_DESCRIPTOR, CUresult};
use link::wire::array::{ArrayCreate, ArrayLevel, ArrayMemoryReply, ArrayNumber};
use link::wire::command::Opcode;
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

fn make(context: &Context, descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<u32> {
    let (backend, id) = context.backend()?;
    let number = backend.arrays.take()?;
    let body = ArrayCreate {
        width: descriptor.Width as u64,
        height: descriptor.Height as u64,
        depth: descriptor.Depth as u64,
        format: descriptor.Format.0,
        channels: descriptor.NumChannels,
        flags: descriptor.Flags,
        levels,
        array: number,
        reserved: 0,
    };
    let made = backend.session.call(id, Opcode::ArrayCreate, &[body.as_bytes()]);
    made.inspect_err(|_| backend.arrays.give_back(number))?;
    Ok(number)
}

fn unmake(context: &Context, number: u32) -> Result {
    let (backend, id) = context.backend()?;
    backend.session.wait_all(0)?;
    let body = ArrayNumber { array: number, reserved: 0 };
    backend.session.call(id, Opcode::ArrayDestroy, &[body.as_bytes()])?;
    backend.arrays.give_back(number);
    Ok(())
}

/// The memory that an array needs on a device: its own.
fn memory(
    client: &Client,
    context: &Context,
    number: u32,
    device: i32,
) -> Result<ArrayMemoryReply> {
    let (backend, id) = context.backend()?;
    let body = ArrayNumber { array: number, reserved: 0 };
    // First: who says it of no such array says so whatever the device (an H200's driver, of arrays
    // that have memory).
    let needed = backend.session.call_for(id, Opcode::ArrayMemory, &[body.as_bytes()])?;
    client.device(device)?;
    if device != context.device {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(needed)
}

impl Array {
    /// See [`memory`].
    pub(crate) fn memory(&self, client: &Client, device: i32) -> Result<ArrayMemoryReply> {
        memory(client, &self.context, self.number, device)
    }
}

impl MipmappedArray {
    /// See [`memory`].
    pub(crate) fn memory(&self, client: &Client, device: i32) -> Result<ArrayMemoryReply> {
        memory(client, &self.context, self.number, device)
    }
}

/// Makes an array in the current context.
pub(crate) fn create(client: &Client, descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> Result<Arc<Array>> {
    let context = current::owner()?;
    let number = make(&context, &descriptor, 0)?;
    let owner = Owner::Itself;
    let made =
        client.arrays.insert_with(|token| Array { token, context, number, descriptor, owner });
    made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// An array by handle.
pub(crate) fn get(client: &Client, handle: usize) -> Result<Arc<Array>> {
    client.arrays.get(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Destroys an array, once all work is done that could use it.
pub(crate) fn destroy(client: &Client, handle: usize) -> Result {
    if get(client, handle)?.owner != Owner::Itself {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    let array = client.arrays.remove(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    unmake(&array.context, array.number)
}

/// Makes a mipmapped array in the current context.
pub(crate) fn create_mipmapped(
    client: &Client,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    levels: u32,
) -> Result<Arc<MipmappedArray>> {
    if levels == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = current::owner()?;
    let number = make(&context, &descriptor, levels)?;
    let made = client.mipmapped_arrays.insert_with(|token| MipmappedArray {
        token,
        context,
        number,
        descriptor,
        levels: Mutex::default(),
    });
    made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)
}

/// A mipmapped array by handle.
pub(crate) fn get_mipmapped(client: &Client, handle: usize) -> Result<Arc<MipmappedArray>> {
    client.mipmapped_arrays.get(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Destroys a mipmapped array with its levels.
pub(crate) fn destroy_mipmapped(client: &Client, handle: usize) -> Result {
    let array = client.mipmapped_arrays.remove(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    unmake(&array.context, array.number)?;
    let (backend, _) = array.context.backend()?;
    let levels = std::mem::take(&mut *array.levels.lock().unwrap_or_else(PoisonError::into_inner));
    for level in levels.into_values() {
        client.arrays.remove(level.token);
        backend.arrays.give_back(level.number);
    }
    Ok(())
}

/// Destroys all that a context that is ending has.
pub(crate) fn end_context(client: &Client, context: &Context) {
    for array in client.mipmapped_arrays.select(|array| array.context.token == context.token) {
        // A failed session has no arrays left.
        let _ = destroy_mipmapped(client, array.token);
    }
    for array in client.arrays.select(|array| array.context.token == context.token) {
        let _ = destroy(client, array.token);
    }
}

impl MipmappedArray {
    /// One level, the same array each time.
    pub(crate) fn level(&self, client: &Client, level: u32) -> Result<Arc<Array>> {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(array) = levels.get(&level) {
            return Ok(Arc::clone(array));
        }
        let (backend, id) = self.context.backend()?;
        let number = backend.arrays.take()?;
        let body = ArrayLevel { mipmapped: self.number, level, array: number, reserved: 0 };
        let got = backend.session.call(id, Opcode::ArrayLevel, &[body.as_bytes()]);
        got.inspect_err(|_| backend.arrays.give_back(number))?;
        let half = |side: usize| {
            if side == 0 { 0 } else { side.checked_shr(level).unwrap_or(0).max(1) }
        };
        let whole = self.descriptor;
        // Layers and faces are not halved.
        let is_volume = whole.Flags & CUBEMAP_OR_LAYERED == 0;
        let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            Width: half(whole.Width),
            Height: half(whole.Height),
            Depth: if is_volume { half(whole.Depth) } else { whole.Depth },
            ..whole
        };
        let (context, owner) = (Arc::clone(&self.context), Owner::MipmappedArray);
        let made =
            client.arrays.insert_with(|token| Array { token, context, number, descriptor, owner });
        let made = made.ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        levels.insert(level, Arc::clone(&made));
        Ok(made)
    }
}
