//! What execution needs from the device that runs it: memory validity, clocks, console, heap,
//! texture fetch.
//!
//! Implemented by `device`; tests implement it over plain allocations.

use std::ops::Range;

/// The device's services, called from the worker that runs a block. All are quick and never block.
pub trait Machine: Sync {
    /// The mapped, device-accessible range that contains `addr`, or `None` when nothing is mapped
    /// there. Every byte of the range must stay readable and writable by the host process until the
    /// current [`BlockRun::run_on`](super::BlockRun::run_on) call returns: results are cached for
    /// that long and accesses go straight to memory.
    fn range_of(&self, addr: u64) -> Option<Range<u64>>;

    /// Index of the SM that runs the block.
    fn smid(&self) -> u32;

    /// Number of SMs of the device.
    fn nsmid(&self) -> u32;

    /// SM clock in cycles (`%clock64`), never decreasing. `executed` is the number of warp
    /// instructions that this `run` call has executed so far; a virtual clock adds it to the
    /// slice's start.
    fn clock(&self, executed: u64) -> u64;

    /// Global timer in nanoseconds (`%globaltimer`), never decreasing.
    fn globaltimer_ns(&self) -> u64;

    /// Device `printf` output: the formatted text of one call by one thread.
    fn printf(&self, text: &[u8]);

    /// Allocates from the device heap; 16-byte aligned. `None` when the heap is exhausted.
    fn malloc(&self, size_bytes: u64) -> Option<u64>;

    /// Frees what [`malloc`](Self::malloc) gave. `false` when `addr` is no live allocation.
    fn free(&self, addr: u64) -> bool;

    /// Whether the kernel has been told to stop. Polled at least every few thousand warp
    /// instructions; `run` then returns [`Progress::Yielded`](super::Progress::Yielded) early.
    fn stop_requested(&self) -> bool;

    /// Textures and surfaces, when the device has them.
    fn textures(&self) -> Option<&dyn Textures> {
        None
    }

    /// `cudaGraphSetConditional`: gives a condition of a graph a value. `false` when there is no
    /// such condition.
    fn set_condition(&self, handle: u64, value: u32) -> bool {
        let _ = (handle, value);
        false
    }
}

/// Geometry of a texture or surface access, as the instruction names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextureGeometry {
    /// `.1d`
    D1,
    /// `.2d`
    D2,
    /// `.3d`
    D3,
    /// `.a1d`: layer, x
    Layered1,
    /// `.a2d`: layer, x, y
    Layered2,
    /// `.cube`
    Cube,
    /// `.acube`: layer, direction
    LayeredCube,
}

/// Coordinates of one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TextureCoordinates {
    /// `.f32` coordinates (x, y, z): filtering and addressing as the texture says.
    Float([f32; 3]),
    /// `.s32` coordinates (x, y, z): unfiltered, unnormalised.
    Integer([i32; 3]),
}

/// Which level of a mipmapped texture, and how it was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TextureLevel {
    /// No level: the base level, or gradients unknown to the device.
    Base,
    /// `.level`
    Level(f32),
}

/// What a surface access outside the surface does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SurfaceBounds {
    /// `.trap`: a fault.
    Trap,
    /// `.clamp`: the nearest element.
    Clamp,
    /// `.zero`: loads give zero, stores are dropped.
    Zero,
}

/// Texture and surface operations of the device, one thread at a time. Handles are the values of
/// `cuTexObjectCreate`/`cuSurfObjectCreate` or the bound address of a texture reference.
/// `None`/`false` means an invalid handle or a trapping access.
pub trait Textures: Sync {
    /// `tex`: four components; integers as their bits (the caller knows the type it asked for).
    /// Float results are requested with `float_result`-typed instructions and arrive as `f32` bits.
    fn fetch(
        &self,
        handle: u64,
        geometry: TextureGeometry,
        layer: u32,
        coordinates: TextureCoordinates,
        level: TextureLevel,
    ) -> Option<[u32; 4]>;

    /// `tld4`: component `component` (0-3) of the four texels around the coordinates.
    fn gather(
        &self,
        handle: u64,
        layer: u32,
        coordinates: TextureCoordinates,
        component: u32,
    ) -> Option<[u32; 4]>;

    /// `suld.b`: reads `data.len()` bytes at byte offset x of row y, slice z (or layer).
    fn surface_read(
        &self,
        handle: u64,
        geometry: TextureGeometry,
        layer: u32,
        at: [i32; 3],
        bounds: SurfaceBounds,
        data: &mut [u8],
    ) -> bool;

    /// `sust.b`: writes `data` at byte offset x of row y, slice z (or layer).
    fn surface_write(
        &self,
        handle: u64,
        geometry: TextureGeometry,
        layer: u32,
        at: [i32; 3],
        bounds: SurfaceBounds,
        data: &[u8],
    ) -> bool;

    /// `txq`/`suq`: one property (`width`, `height`, `depth`, `channel_data_type`, ...) as PTX
    /// names it.
    fn query(&self, handle: u64, property: &str) -> Option<u32>;
}
