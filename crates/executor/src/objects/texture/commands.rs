//! What clients ask of textures and surfaces, and how these are made again.

use super::*;
use crate::objects::claims::{LONGEST_WAIT, MOST_OBJECTS_TRIED, group_of, make_until};
use crate::recovery::replay::ReplayError;
use crate::session::failure::{Failure, INVALID};
use crate::session::state::State;
use link::wire::command::Opcode;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Texture and surface objects that a session may have at a time.
const MAX_OBJECTS: usize = 1 << 20;

impl State {
    pub(crate) fn texture_create(&mut self, wanted: TextureCreate) -> Result<(), Failure> {
        if self.objects.made.len() >= MAX_OBJECTS {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        let object = wanted.object;
        if !matches!(object, TEXTURE | SURFACE) {
            return Err(Failure::Protocol(format!("object {object} does not exist")));
        }
        let resource = self.resource(&wanted)?;
        let shared = Arc::clone(&self.shared);
        shared.claims.await_lower(u64::MAX, LONGEST_WAIT);
        let claims = shared.claims.lock();
        let is_free = |handle| {
            let kinds = [TEXTURE, SURFACE].map(Kind::Object);
            kinds.iter().all(|&kind| !claims.contains(&(kind, handle)))
        };
        let mut fillers = Vec::new();
        let made = make_until(MOST_OBJECTS_TRIED, is_free, &mut fillers, || {
            self.make_object(&wanted, &resource)
        });
        for handle in fillers {
            // What cannot be destroyed in a living context is lost to it.
            let _ = self.destroy_object(object, handle);
        }
        drop(claims);
        let handle = made?.ok_or(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY))?;
        self.objects.insert((Kind::Object(object), handle), Made::Live(written_array(&wanted)));
        let reply = TextureHandle { handle, object, reserved: 0 };
        self.answer(&reply)
    }

    /// Makes objects again that another executor had made.
    pub(crate) fn remake_objects(
        &mut self,
        mut objects: Vec<(TextureCreate, TextureHandle)>,
    ) -> Result<(), ReplayError> {
        if objects.is_empty() {
            return Ok(());
        }
        objects.sort_by_key(|(_, object)| object.handle);
        let mut fillers = Vec::new();
        let mut result = Ok(());
        for group in
            objects.chunk_by(|(_, one), (_, next)| group_of(one.handle) == group_of(next.handle))
        {
            result = self.remake_group(group, &mut fillers);
            if result.is_err() {
                break;
            }
        }
        self.destroy_fillers(fillers);
        result
    }

    /// Makes those of one group of values again. What was made in vain of lower groups, which
    /// nobody wants any more, stays in `fillers`.
    fn remake_group(
        &mut self,
        objects: &[(TextureCreate, TextureHandle)],
        fillers: &mut Vec<(u32, u64)>,
    ) -> Result<(), ReplayError> {
        let Some((_, first)) = objects.first() else { return Ok(()) };
        let group = group_of(first.handle);
        let shared = Arc::clone(&self.shared);
        shared.await_turn(group);
        let mut claims = shared.claims.lock();
        let mut result = Ok(());
        for (wanted, object) in objects {
            let kind = object.object;
            let Ok(resource) = self.resource(wanted) else {
                self.objects.insert(value(*object), Made::Gone);
                self.claimed.pass_over(value(*object));
                continue;
            };
            if let Some(at) = fillers.iter().position(|(_, handle)| *handle == object.handle) {
                let (kind, handle) = fillers.swap_remove(at);
                let _ = self.destroy_object(kind, handle);
            }
            let mut others = Vec::new();
            let made = make_until(
                MOST_OBJECTS_TRIED,
                |handle| handle == object.handle,
                &mut others,
                || self.make_object(wanted, &resource),
            );
            fillers.extend(others.into_iter().map(|handle| (kind, handle)));
            result = match made {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err(ReplayError::Different("the value of a texture or surface")),
                Err(failure) => Err(ReplayError::Failed { opcode: Opcode::TextureCreate, failure }),
            };
            if result.is_err() {
                break;
            }
            self.objects.insert(value(*object), Made::Live(written_array(wanted)));
            self.claimed.settle(&mut claims, value(*object));
        }
        // Others may want these.
        let of_others = fillers.extract_if(.., |(_, handle)| group_of(*handle) >= group);
        self.destroy_fillers(of_others.collect());
        result
    }

    fn destroy_fillers(&self, fillers: Vec<(u32, u64)>) {
        for (kind, handle) in fillers {
            // What cannot be destroyed in a living context is lost to it.
            let _ = self.destroy_object(kind, handle);
        }
    }

    /// Has the driver make an object; returns its value.
    fn make_object(
        &self,
        wanted: &TextureCreate,
        resource: &CUDA_RESOURCE_DESC,
    ) -> Result<u64, Failure> {
        let (driver, mut handle) = (self.driver(), 0);
        if wanted.object == SURFACE {
            // SAFETY: a complete description of this client's array; the result is written.
            let make = || unsafe { driver.cuSurfObjectCreate(&mut handle, resource) };
            self.check(self.context().gate.between(make))?;
            return Ok(handle);
        }
        let texture: CUDA_TEXTURE_DESC = plain(wanted.texture.as_bytes());
        let view: CUDA_RESOURCE_VIEW_DESC = plain(wanted.view.as_bytes());
        let view = if wanted.has_view == 0 { std::ptr::null() } else { &raw const view };
        // SAFETY: complete descriptions of this client's memory or arrays; the result is written.
        let make = || unsafe { driver.cuTexObjectCreate(&mut handle, resource, &texture, view) };
        self.check(self.context().gate.between(make))?;
        Ok(handle)
    }

    fn destroy_object(&self, object: u32, handle: u64) -> Result<(), Failure> {
        let driver = self.driver();
        // SAFETY: an object of this session; its client has waited for its work.
        let end = || unsafe {
            match object {
                TEXTURE => driver.cuTexObjectDestroy(handle),
                _ => driver.cuSurfObjectDestroy(handle),
            }
        };
        self.check(self.context().gate.between(end))
    }

    fn resource(&self, wanted: &TextureCreate) -> Result<CUDA_RESOURCE_DESC, Failure> {
        let mut resource =
            CUDA_RESOURCE_DESC { resType: CUresourcetype(wanted.resource), ..Default::default() };
        match resource.resType {
            CUresourcetype::ARRAY => {
                resource.res.array.hArray = self.arrays.array(wanted.array)?;
            }
            CUresourcetype::MIPMAPPED_ARRAY => {
                resource.res.mipmap.hMipmappedArray = self.arrays.mipmapped(wanted.array)?;
            }
            CUresourcetype::LINEAR => {
                resource.res.linear = CUDA_RESOURCE_DESC_v1_res_linear {
                    devPtr: self.reach(wanted.address, wanted.size_bytes)?,
                    format: CUarray_format(wanted.format),
                    numChannels: wanted.channels,
                    sizeInBytes: wanted.size_bytes as usize,
                };
            }
            CUresourcetype::PITCH2D => {
                let size_bytes = pitched_bytes(wanted).ok_or(INVALID)?;
                resource.res.pitch2D = CUDA_RESOURCE_DESC_v1_res_pitch2D {
                    devPtr: self.reach(wanted.address, size_bytes)?,
                    format: CUarray_format(wanted.format),
                    numChannels: wanted.channels,
                    width: wanted.width as usize,
                    height: wanted.height as usize,
                    pitchInBytes: wanted.pitch_bytes as usize,
                };
            }
            _ => return Err(INVALID),
        }
        Ok(resource)
    }

    pub(crate) fn texture_destroy(&mut self, wanted: TextureHandle) -> Result<(), Failure> {
        // What kernels have written through it is still to be saved.
        self.settle_surfaces();
        match self.objects.remove(value(wanted)).ok_or(INVALID)? {
            Made::Live(_) => self.destroy_object(wanted.object, wanted.handle),
            Made::Gone => {
                let shared = Arc::clone(&self.shared);
                self.claimed.settle(&mut shared.claims.lock(), value(wanted));
                Ok(())
            }
        }
    }

    /// Destroys everything; nobody uses it any more.
    pub(crate) fn clear_objects(&mut self) {
        for ((kind, handle), made) in std::mem::take(&mut self.objects).made {
            if let (Kind::Object(object), Made::Live(_)) = (kind, made) {
                // What cannot be destroyed in a living context is lost to it.
                let _ = self.destroy_object(object, handle);
            }
        }
    }
}

/// The array that kernels write to through it.
fn written_array(wanted: &TextureCreate) -> Option<u32> {
    (wanted.object == SURFACE).then_some(wanted.array)
}

/// A structure of plain numbers from its bytes; what is missing is zero.
fn plain<T: Copy + Default + PlainNumbers>(bytes: &[u8]) -> T {
    let mut value = T::default();
    let length = bytes.len().min(size_of::<T>());
    // SAFETY: any bytes are a value of such a structure, and no more are written than it has.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast::<u8>(), length);
    }
    value
}
