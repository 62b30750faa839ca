//! The extent of an image of which only the address is known.
//!
//! The driver API gives no sizes: the image says itself how long it is. A damaged one can say
//! anything, so before a part is used the kernel is asked whether its memory is readable, and a
//! refusal is an error instead of a crash. A size beyond [`LIMIT_BYTES`] is refused.

use core::ffi::{c_int, c_ulong, c_void};
use core::slice;

use super::elf::{self, Elf, Tables};
use super::fatbin::{self, Fatbin};
use super::{Image, ImageError, WRAPPER_MAGIC, is_text};

/// The largest image that is looked at.
const LIMIT_BYTES: u64 = 8 << 30;
/// The smallest page size; readability changes at its multiples only.
const PAGE_BYTES: usize = 4096;
/// How many relocatable fatbins a wrapper may list.
const CONSTITUENTS_LIMIT: usize = 1 << 16;

/// What nvcc places in `.nvFatBinSegment`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Wrapper {
    magic: u32,
    version: u32,
    data: *const u8,
    /// Version 1: a file name or null. Version 2: a null-terminated array of fatbins.
    constituents: *const *const u8,
}

impl<'a> Image<'a> {
    /// Finds the extent of the image at an address: wrapper, fatbin, ELF, or text up to its NUL.
    ///
    /// # Safety
    /// What is readable at the address, as far as the image says that it extends, stays unchanged
    /// and mapped for `'a`. It need not be a valid image.
    pub unsafe fn from_pointer(image: *const c_void) -> Result<Self, ImageError> {
        let start: *const u8 = image.cast();
        // SAFETY: the caller's promise, here and below.
        let magic = unsafe { bytes(start, 4)? };
        let magic = u32::from_le_bytes([magic[0], magic[1], magic[2], magic[3]]);
        // SAFETY: as above.
        unsafe {
            match magic {
                WRAPPER_MAGIC => wrapper(start),
                fatbin::MAGIC => {
                    Ok(Image::Fatbin { fatbin: fatbin_at(start)?, constituents: Vec::new() })
                }
                elf::MAGIC => elf_at(start).map(Image::Elf),
                _ if is_text(magic as u8) => text(start).map(Image::Ptx),
                _ => Err(ImageError::UnknownMagic(magic)),
            }
        }
    }
}

/// The bytes at an address, if they are readable.
///
/// # Safety
/// Readable bytes there stay unchanged and mapped for `'a`.
unsafe fn bytes<'a>(start: *const u8, size_bytes: u64) -> Result<&'a [u8], ImageError> {
    if size_bytes > LIMIT_BYTES {
        return Err(ImageError::TooLarge { size_bytes, limit_bytes: LIMIT_BYTES });
    }
    let size_bytes = size_bytes as usize;
    if start.is_null() || (start as usize).checked_add(size_bytes).is_none() {
        return Err(ImageError::Unreadable { address: start as u64 });
    }
    check_readable(start, size_bytes)?;
    // SAFETY: readable, below isize::MAX, and unchanged by the caller's promise.
    Ok(unsafe { slice::from_raw_parts(start, size_bytes) })
}

/// # Safety
/// As for [`bytes`].
unsafe fn wrapper<'a>(start: *const u8) -> Result<Image<'a>, ImageError> {
    // SAFETY: the caller's promise, here and below.
    unsafe { bytes(start, size_of::<Wrapper>() as u64)? };
    // SAFETY: just checked to be readable; any alignment.
    let wrapper = unsafe { start.cast::<Wrapper>().read_unaligned() };
    // SAFETY: as above.
    let fatbin = unsafe { fatbin_at(wrapper.data)? };
    let mut constituents = Vec::new();
    if wrapper.version == 2 && !wrapper.constituents.is_null() {
        for index in 0..CONSTITUENTS_LIMIT {
            let slot = wrapper.constituents.wrapping_add(index);
            // SAFETY: as above.
            unsafe { bytes(slot.cast(), size_of::<usize>() as u64)? };
            // SAFETY: just checked to be readable; any alignment.
            let data = unsafe { slot.read_unaligned() };
            if data.is_null() {
                break;
            }
            // SAFETY: as above.
            constituents.push(unsafe { fatbin_at(data)? });
        }
    }
    Ok(Image::Fatbin { fatbin, constituents })
}

/// # Safety
/// As for [`bytes`].
unsafe fn fatbin_at<'a>(start: *const u8) -> Result<Fatbin<'a>, ImageError> {
    // SAFETY: the caller's promise.
    let whole = unsafe {
        let total_bytes = fatbin::total_bytes(bytes(start, fatbin::HEADER_BYTES)?)?;
        bytes(start, total_bytes)?
    };
    Fatbin::parse(whole)
}

/// # Safety
/// As for [`bytes`].
unsafe fn elf_at<'a>(start: *const u8) -> Result<Elf<'a>, ImageError> {
    // SAFETY: the caller's promise.
    let header = unsafe { bytes(start, elf::HEADER_BYTES)? };
    let tables = Tables::parse(header)?;
    let part = |(offset, size_bytes): (u64, u64)| match size_bytes {
        0 => Ok(&[][..]),
        _ if offset > LIMIT_BYTES => {
            Err(ImageError::TooLarge { size_bytes: offset, limit_bytes: LIMIT_BYTES })
        }
        // SAFETY: the caller's promise.
        _ => unsafe { bytes(start.wrapping_add(offset as usize), size_bytes) },
    };
    let total_bytes =
        tables.total_bytes(part(tables.program_headers())?, part(tables.section_headers())?)?;
    // SAFETY: the caller's promise.
    Elf::parse(unsafe { bytes(start, total_bytes)? })
}

/// # Safety
/// As for [`bytes`].
unsafe fn text<'a>(start: *const u8) -> Result<&'a [u8], ImageError> {
    let mut size_bytes = 0;
    loop {
        // SAFETY: the caller's promise; a page at a time, so that the end is found before what is
        // not readable is touched.
        let page = unsafe {
            let at = start.wrapping_add(size_bytes);
            bytes(at, (PAGE_BYTES - at as usize % PAGE_BYTES) as u64)?
        };
        if let Some(end) = page.iter().position(|byte| *byte == 0) {
            // SAFETY: every page up to here was readable.
            return unsafe { bytes(start, (size_bytes + end) as u64) };
        }
        size_bytes += page.len();
        if size_bytes as u64 > LIMIT_BYTES {
            let size_bytes = size_bytes as u64;
            return Err(ImageError::TooLarge { size_bytes, limit_bytes: LIMIT_BYTES });
        }
    }
}

#[repr(C)]
struct IoVector {
    base: *mut c_void,
    size_bytes: usize,
}

unsafe extern "C" {
    fn process_vm_readv(
        pid: c_int,
        local: *const IoVector,
        local_count: c_ulong,
        remote: *const IoVector,
        remote_count: c_ulong,
        flags: c_ulong,
    ) -> isize;
}

const ERROR_FAULT: i32 = 14;
/// How many pages one request asks about.
const PAGES_PER_REQUEST: usize = 512;

/// Asks the kernel to read one byte of each page. Where it refuses to look at all (a sandbox),
/// memory counts as readable.
fn check_readable(start: *const u8, size_bytes: usize) -> Result<(), ImageError> {
    let first = start as usize;
    let pages = (first - first % PAGE_BYTES..first + size_bytes).step_by(PAGE_BYTES);
    let mut addresses = pages.map(|page| page.max(first)).peekable();
    let mut bytes = [0u8; PAGES_PER_REQUEST];
    while addresses.peek().is_some() {
        let remote: Vec<IoVector> = addresses
            .by_ref()
            .take(PAGES_PER_REQUEST)
            .map(|address| IoVector { base: address as *mut c_void, size_bytes: 1 })
            .collect();
        let local = IoVector { base: bytes.as_mut_ptr().cast(), size_bytes: remote.len() };
        // SAFETY: writes at most `remote.len()` bytes into `bytes`, which has room for them; the
        // kernel checks the remote addresses.
        let read = unsafe {
            process_vm_readv(
                std::process::id() as c_int,
                &local,
                1,
                remote.as_ptr(),
                remote.len() as c_ulong,
                0,
            )
        };
        if read < 0 && std::io::Error::last_os_error().raw_os_error() != Some(ERROR_FAULT) {
            return Ok(());
        }
        if let Some(refused) = remote.get(read.max(0) as usize) {
            return Err(ImageError::Unreadable { address: refused.base as u64 });
        }
    }
    Ok(())
}
