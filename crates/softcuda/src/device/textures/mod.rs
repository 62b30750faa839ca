//! Texture and surface units: what handles name, and how texels are read, filtered and written.
//!
//! | file | concept |
//! |---|---|
//! | [`format`] | channels of a texel and their numbers |
//! | [`image`] | where the texels of an array, a plane or a buffer lie |
//! | [`sample`] | coordinates to texels: addressing modes, filtering, levels, faces of cubes |
//! | this one | tables of handles; the units as [`exec`] sees them |
//!
//! Filtering follows the CUDA programming guide: weights have 8 fractional bits. Arrays are stored
//! row by row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::device::memory::ranges::Entered;
use crate::device::memory::touch;
use crate::device::numbers::Numbers;
use crate::exec::{SurfaceBounds, TextureCoordinates, TextureGeometry, TextureLevel, Textures};

pub(crate) mod format;
pub(crate) mod image;
pub(crate) mod sample;

use image::Image;
use sample::Texture;

/// Handles are numbers from here on; 0 is none.
const FIRST: u64 = 1;

/// Textures and surfaces of the process, by handle. No texture has the handle of a surface.
#[derive(Debug, Default)]
pub(crate) struct TextureTable {
    numbers: Mutex<Numbers>,
    textures: RwLock<HashMap<u64, Arc<Texture>>>,
    surfaces: RwLock<HashMap<u64, Arc<Image>>>,
}

impl TextureTable {
    /// Adds a texture; returns its handle.
    pub(crate) fn add_texture(&self, texture: Texture) -> u64 {
        let handle = self.take_handle();
        let mut textures = self.textures.write().unwrap_or_else(PoisonError::into_inner);
        textures.insert(handle, Arc::new(texture));
        handle
    }

    /// Adds a surface; returns its handle.
    pub(crate) fn add_surface(&self, image: Image) -> u64 {
        let handle = self.take_handle();
        let mut surfaces = self.surfaces.write().unwrap_or_else(PoisonError::into_inner);
        surfaces.insert(handle, Arc::new(image));
        handle
    }

    fn take_handle(&self) -> u64 {
        FIRST + self.numbers.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends a texture or surface; its handle is free again.
    pub(crate) fn remove(&self, handle: u64) {
        let texture = self.textures.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        let surface = self.surfaces.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        if texture.is_some() || surface.is_some() {
            let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            numbers.give_back(handle - FIRST);
        }
    }

    fn texture(&self, handle: u64) -> Option<Arc<Texture>> {
        self.textures.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    fn surface(&self, handle: u64) -> Option<Arc<Image>> {
        self.surfaces.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }
}

/// The units during one slice: memory stays as it is that long.
pub(crate) struct TextureUnit<'a> {
    pub(crate) table: &'a TextureTable,
    pub(crate) memory: &'a Entered<'a>,
}

impl Textures for TextureUnit<'_> {
    fn fetch(
        &self,
        handle: u64,
        geometry: TextureGeometry,
        layer: u32,
        coordinates: TextureCoordinates,
        level: TextureLevel,
    ) -> Option<[u32; 4]> {
        self.table.texture(handle)?.fetch(self.memory, geometry, layer, coordinates, level)
    }

    fn gather(
        &self,
        handle: u64,
        layer: u32,
        coordinates: TextureCoordinates,
        component: u32,
    ) -> Option<[u32; 4]> {
        self.table.texture(handle)?.gather(self.memory, layer, coordinates, component)
    }

    fn surface_read(
        &self,
        handle: u64,
        geometry: TextureGeometry,
        layer: u32,
        at: [i32; 3],
        bounds: SurfaceBounds,
        data: &mut [u8],
    ) -> bool {
        let Some(image) = self.table.surface(handle) else { return false };
        match image.place(geometry, layer, at, data.len(), bounds) {
            image::Place::Outside => {
                data.fill(0);
                bounds != SurfaceBounds::Trap
            }
            image::Place::At(address) => {
                let is_there = self.memory.covers(address, data.len() as u64);
                if is_there {
                    // SAFETY: covered while the slice holds `memory`; the buffer is the caller's.
                    unsafe { touch::copy(address, data.as_mut_ptr() as u64, data.len()) };
                }
                is_there
            }
        }
    }

    fn surface_write(
        &self,
        handle: u64,
        geometry: TextureGeometry,
        layer: u32,
        at: [i32; 3],
        bounds: SurfaceBounds,
        data: &[u8],
    ) -> bool {
        let Some(image) = self.table.surface(handle) else { return false };
        match image.place(geometry, layer, at, data.len(), bounds) {
            image::Place::Outside => bounds != SurfaceBounds::Trap,
            image::Place::At(address) => {
                let is_there = self.memory.covers(address, data.len() as u64);
                if is_there {
                    // SAFETY: covered while the slice holds `memory`; the buffer is the caller's.
                    unsafe { touch::copy(data.as_ptr() as u64, address, data.len()) };
                }
                is_there
            }
        }
    }

    fn query(&self, handle: u64, property: &str) -> Option<u32> {
        match (self.table.texture(handle), self.table.surface(handle)) {
            (Some(texture), _) => texture.query(property),
            (None, Some(image)) => image.query(property),
            (None, None) => None,
        }
    }
}
