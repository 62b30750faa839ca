//! Images: which code of what the program hands over runs on the device, and the options that come
//! with it.

use crate::context::device::Device;
use crate::result::Result;
use core::ffi::c_void;
use cuda_abi::image::elf::Elf;
use cuda_abi::image::{Accepts, Code, Image, ImageError, Target};
use cuda_abi::types::{CUdevice_attribute, CUjit_option, CUresult};
use link::wire::attach::DeviceCode;
use link::wire::command::LINKED_TEXTS;

/// What a device executes, as its server says.
pub(crate) fn target_of(device: &Device) -> Target {
    Target {
        major: device.limit(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR, 5),
        minor: device.limit(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR, 0),
        accepts: match device.info.code {
            DeviceCode::PtxOnly => Accepts::PtxOnly,
            DeviceCode::MachineCode => Accepts::MachineCode,
        },
    }
}

fn refused(error: &ImageError) -> CUresult {
    crate::warn!("image refused: {error}");
    error.result()
}

/// The code in the image at an address, copied.
///
/// # Safety
/// `image` points to an image of any kind, as for `cuModuleLoadData`.
pub(crate) unsafe fn code_at(image: *const c_void, target: Target) -> Result<Code<'static>> {
    if image.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let image = unsafe { Image::from_pointer(image) }.map_err(|error| refused(&error))?;
    choose_to_load(&image, target)
}

/// The code to load: as [`choose`], but text keeps the options that nvcc gave the driver's compiler
/// (`-fmad=false`) where one will read them.
fn choose_to_load(image: &Image<'_>, target: Target) -> Result<Code<'static>> {
    let code = choose(image, target)?;
    refuse_dynamic_parallelism(&code)?;
    if target.accepts == Accepts::PtxOnly {
        return Ok(code);
    }
    let with_options = image.text_with_options(target).map_err(|error| refused(&error))?;
    Ok(with_options.unwrap_or(code))
}

/// Launches from the device, in the names of CUDA 12 and later, and of before.
const DEVICE_LAUNCHES: [&[u8]; 2] = [b"__cudaCDP2LaunchDevice", b"cudaLaunchDevice"];

/// Code that launches kernels itself is refused, as by every MPS (MPS guide, 2.3.2): what it starts
/// belongs to no stream of its client.
fn refuse_dynamic_parallelism(code: &Code<'_>) -> Result {
    let launches = |text: &[u8]| {
        DEVICE_LAUNCHES.iter().any(|&name| text.windows(name.len()).any(|found| found == name))
    };
    let found = match code {
        Code::Ptx(text) | Code::Fatbin(text) => launches(text),
        // Only its names are of interest, and it may be large.
        Code::Elf(bytes) => {
            let elf = Elf::parse(bytes).map_err(|error| refused(&error))?;
            elf.sections().flatten().any(|s| s.name == SYMBOL_NAMES && launches(s.contents))
        }
    };
    if !found {
        return Ok(());
    }
    crate::error!("a module is refused: it uses dynamic parallelism, which MPS does not support");
    Err(CUresult::ERROR_NOT_SUPPORTED)
}

/// The section of a cubin with the names of its functions, also of those that are to be linked.
const SYMBOL_NAMES: &[u8] = b".strtab";

/// The code for a device: one entry; or, of a program whose device code was compiled apart
/// (`nvcc -rdc=true`) and that has only PTX for this device, all its PTX, to be linked by the
/// executor.
fn choose(image: &Image<'_>, target: Target) -> Result<Code<'static>> {
    let error = match image.choose(target) {
        Ok(code) => return Ok(code.into_owned()),
        Err(error) => error,
    };
    let texts = image.relocatable_ptx(target).map_err(|error| refused(&error))?;
    if texts.is_empty() {
        return Err(refused(&error));
    }
    // A NUL would end the text before its other parts.
    let until_nul = |text: &'_ Code<'_>| {
        text.bytes().split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
    };
    let texts: Vec<Vec<u8>> = texts.iter().map(until_nul).collect();
    Ok(Code::Ptx(texts.join(LINKED_TEXTS.as_bytes()).into()))
}

/// The code to load in a file's contents.
pub(crate) fn code_in(bytes: &[u8], target: Target) -> Result<Code<'static>> {
    let image = Image::parse(bytes).map_err(|error| refused(&error))?;
    choose_to_load(&image, target)
}

/// The code in an input of the linker.
pub(crate) fn code_to_link(bytes: &[u8], target: Target) -> Result<Code<'static>> {
    let image = Image::parse(bytes).map_err(|error| refused(&error))?;
    choose(&image, target)
}

/// A log buffer of the caller's, and where its length is to be written.
#[derive(Clone, Copy, Debug)]
struct Log {
    buffer: *mut u8,
    size_bytes: usize,
    /// The option's value, which becomes the length written.
    length: *mut *mut c_void,
}

impl Default for Log {
    fn default() -> Self {
        Self { buffer: core::ptr::null_mut(), size_bytes: 0, length: core::ptr::null_mut() }
    }
}

/// The JIT options that matter here.
#[derive(Debug)]
pub(crate) struct JitOptions {
    pub(crate) optimization_level: u32,
    pub(crate) max_registers: u32,
    info: Log,
    error: Log,
}

impl Default for JitOptions {
    fn default() -> Self {
        Self {
            optimization_level: u32::MAX,
            max_registers: 0,
            info: Log::default(),
            error: Log::default(),
        }
    }
}

impl JitOptions {
    /// Options without log buffers.
    pub(crate) fn without_logs(optimization_level: u32, max_registers: u32) -> Self {
        Self { optimization_level, max_registers, ..Self::default() }
    }

    /// Reads an option list; what is unknown is ignored.
    ///
    /// # Safety
    /// `options` and `values` are null or have `count` elements; log buffers are as long as they
    /// say, and outlive `self`.
    pub(crate) unsafe fn read(
        count: u32,
        options: *const CUjit_option,
        values: *mut *mut c_void,
    ) -> Result<Self> {
        let mut read = Self::default();
        if count == 0 {
            return Ok(read);
        }
        if options.is_null() || values.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        for i in 0..count as usize {
            // SAFETY: inside both arrays.
            let (option, place) = unsafe { (options.add(i).read(), values.add(i)) };
            // SAFETY: as above.
            let value = unsafe { place.read() };
            match option {
                CUjit_option::MAX_REGISTERS => read.max_registers = value as usize as u32,
                CUjit_option::OPTIMIZATION_LEVEL => read.optimization_level = value as usize as u32,
                CUjit_option::INFO_LOG_BUFFER => read.info.buffer = value.cast(),
                CUjit_option::ERROR_LOG_BUFFER => read.error.buffer = value.cast(),
                CUjit_option::INFO_LOG_BUFFER_SIZE_BYTES => {
                    (read.info.size_bytes, read.info.length) =
                        (value as usize as u32 as usize, place);
                }
                CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES => {
                    (read.error.size_bytes, read.error.length) =
                        (value as usize as u32 as usize, place);
                }
                _ => {}
            }
        }
        Ok(read)
    }

    /// Room for both logs.
    pub(crate) fn log_bytes(&self) -> u32 {
        let room = |log: &Log| if log.buffer.is_null() { 0 } else { log.size_bytes };
        u32::try_from(room(&self.info).max(room(&self.error))).unwrap_or(u32::MAX)
    }

    /// Hands the logs to the caller, cut to its buffers and ended by NUL.
    ///
    /// # Safety
    /// The buffers that [`Self::read`] found are still valid.
    pub(crate) unsafe fn write_logs(&self, info: &[u8], error: &[u8]) {
        for (log, text) in [(&self.info, info), (&self.error, error)] {
            let written = if log.buffer.is_null() || log.size_bytes == 0 {
                0
            } else {
                let length = text.len().min(log.size_bytes - 1);
                // SAFETY: the buffer has `size_bytes`, of which `length + 1` at most are written.
                unsafe {
                    core::ptr::copy_nonoverlapping(text.as_ptr(), log.buffer, length);
                    log.buffer.add(length).write(0);
                }
                length
            };
            if !log.length.is_null() {
                // SAFETY: an element of the caller's array of values.
                unsafe { log.length.write(core::ptr::without_provenance_mut(written)) };
            }
        }
    }
}
