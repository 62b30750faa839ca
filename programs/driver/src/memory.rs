//! Device memory and pinned host memory.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::slice;

use crate::Error;
use crate::api::DevicePointer;
use crate::context::{Context, Stream};

/// Plain numbers: any bit pattern is a value, no padding.
///
/// # Safety
/// Implementors are valid for every bit pattern.
pub unsafe trait Element: Copy + Default {}

macro_rules! elements {
    ($($number:ty),*) => { $(
        // SAFETY: a primitive number (or an array of them) takes every bit pattern.
        unsafe impl Element for $number {}
    )* };
}
elements!(u8, i32, u32, i64, u64, f32, f64, [f32; 4]);

/// What a kernel can be given: a number, or memory for a pointer parameter.
pub trait Parameter {
    /// Where the value lies that the driver shall copy.
    fn location(&self) -> *const c_void;
}

impl<T: Element> Parameter for T {
    fn location(&self) -> *const c_void {
        ptr::from_ref(self).cast()
    }
}

impl<T> Parameter for DeviceBuffer<T> {
    fn location(&self) -> *const c_void {
        ptr::from_ref(&self.address).cast()
    }
}

/// Device memory for a number of elements.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    context: Context,
    address: DevicePointer,
    length: usize,
    element: PhantomData<T>,
}

impl<T: Element> DeviceBuffer<T> {
    /// Allocates without initialising.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context, length: usize) -> Result<Self, Error> {
        let mut address = 0;
        // SAFETY: the pointer is valid for the call.
        let code =
            unsafe { (context.api().memory_alloc)(&raw mut address, length * size_of::<T>()) };
        context.api().check("cuMemAlloc", code)?;
        Ok(Self { context: context.clone(), address, length, element: PhantomData })
    }

    /// Allocates and copies.
    ///
    /// # Errors
    /// The driver's.
    pub fn from_host(context: &Context, values: &[T]) -> Result<Self, Error> {
        let buffer = Self::new(context, values.len())?;
        buffer.write(values)?;
        Ok(buffer)
    }

    /// The device pointer.
    pub fn address(&self) -> DevicePointer {
        self.address
    }

    /// Length in bytes.
    pub fn size_bytes(&self) -> usize {
        self.length * size_of::<T>()
    }

    /// Sets every byte to zero.
    ///
    /// # Errors
    /// The driver's.
    pub fn zero(&self) -> Result<(), Error> {
        // SAFETY: the range is this buffer's own.
        let code = unsafe { (self.context.api().set_bytes)(self.address, 0, self.size_bytes()) };
        self.context.api().check("cuMemsetD8", code)
    }

    /// Copies all elements to the device, and waits.
    ///
    /// # Errors
    /// [`Error::Length`], or the driver's.
    pub fn write(&self, values: &[T]) -> Result<(), Error> {
        self.same_length(values.len())?;
        // SAFETY: both ranges have `size_bytes` bytes.
        let code = unsafe {
            (self.context.api().copy_to_device)(
                self.address,
                values.as_ptr().cast::<c_void>(),
                self.size_bytes(),
            )
        };
        self.context.api().check("cuMemcpyHtoD", code)?;
        self.context.counters().add_copied(self.size_bytes());
        Ok(())
    }

    /// Copies all elements back, and waits.
    ///
    /// # Errors
    /// The driver's.
    pub fn read(&self) -> Result<Vec<T>, Error> {
        let mut values = vec![T::default(); self.length];
        // SAFETY: both ranges have `size_bytes` bytes, and every bit pattern is a value of T.
        let code = unsafe {
            (self.context.api().copy_to_host)(
                values.as_mut_ptr().cast::<c_void>(),
                self.address,
                self.size_bytes(),
            )
        };
        self.context.api().check("cuMemcpyDtoH", code)?;
        self.context.counters().add_copied(self.size_bytes());
        Ok(values)
    }

    /// Posts a copy from pinned memory into a stream.
    ///
    /// # Safety
    /// `values` is neither freed nor written before the stream has done the copy.
    ///
    /// # Errors
    /// [`Error::Length`], or the driver's.
    pub unsafe fn write_async(
        &self,
        values: &PinnedBuffer<T>,
        stream: &Stream,
    ) -> Result<(), Error> {
        self.same_length(values.len())?;
        // SAFETY: both ranges have `size_bytes` bytes; the caller keeps them.
        let code = unsafe {
            (self.context.api().copy_to_device_async)(
                self.address,
                values.as_ptr().cast::<c_void>(),
                self.size_bytes(),
                stream.handle(),
            )
        };
        self.context.api().check("cuMemcpyHtoDAsync", code)?;
        self.context.counters().add_copied(self.size_bytes());
        Ok(())
    }

    /// Posts a copy to pinned memory into a stream.
    ///
    /// # Safety
    /// `values` is neither freed, read nor written before the stream has done the copy.
    ///
    /// # Errors
    /// [`Error::Length`], or the driver's.
    pub unsafe fn read_async(
        &self,
        values: &mut PinnedBuffer<T>,
        stream: &Stream,
    ) -> Result<(), Error> {
        self.same_length(values.len())?;
        // SAFETY: both ranges have `size_bytes` bytes; the caller keeps them.
        let code = unsafe {
            (self.context.api().copy_to_host_async)(
                values.as_mut_ptr().cast::<c_void>(),
                self.address,
                self.size_bytes(),
                stream.handle(),
            )
        };
        self.context.api().check("cuMemcpyDtoHAsync", code)?;
        self.context.counters().add_copied(self.size_bytes());
        Ok(())
    }

    fn same_length(&self, given: usize) -> Result<(), Error> {
        if given == self.length {
            return Ok(());
        }
        Err(Error::Length { given, expected: self.length })
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: made by cuMemAlloc and freed only here; the driver waits for work that uses it.
        unsafe { (self.context.api().memory_free)(self.address) };
    }
}

/// Page-locked host memory.
#[derive(Debug)]
pub struct PinnedBuffer<T> {
    context: Context,
    pointer: *mut T,
    length: usize,
}

impl<T: Element> PinnedBuffer<T> {
    /// Allocates and sets every element to its default.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context, length: usize) -> Result<Self, Error> {
        let mut pointer = ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        let code = unsafe {
            (context.api().memory_host_alloc)(&raw mut pointer, length * size_of::<T>(), 0)
        };
        context.api().check("cuMemHostAlloc", code)?;
        let mut buffer = Self { context: context.clone(), pointer: pointer.cast::<T>(), length };
        buffer.fill(T::default());
        Ok(buffer)
    }
}

impl<T: Element> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the driver gave page-aligned memory of this length, and every bit pattern is a
        // value of T.
        unsafe { slice::from_raw_parts(self.pointer, self.length) }
    }
}

impl<T: Element> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed alone.
        unsafe { slice::from_raw_parts_mut(self.pointer, self.length) }
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: made by cuMemHostAlloc and freed only here.
        unsafe { (self.context.api().memory_free_host)(self.pointer.cast::<c_void>()) };
    }
}
