//! Single calls of the driver, and how many instructions of its library each takes.

use std::ffi::c_void;
use std::ptr;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_abi::table::DriverTable;
use cuda_abi::types::{
    CUcontext, CUevent, CUfunction, CUfunction_attribute, CUpointer_attribute, CUresult, CUstream,
    CUstreamCaptureStatus,
};
use cuda_driver::{Context, DeviceBuffer};
use instruction_counts::{Code, count};
use openmps_tests::puppet::COUNTED_ROUNDS;

use crate::work::PTX;

const MOST_SHARED: CUfunction_attribute = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;

/// Makes the call of that name [`COUNTED_ROUNDS`] times: the instructions of the round with the
/// fewest, since others may have woken a sleeper.
pub(crate) fn call(context: &Context, name: &str) -> Result<u64> {
    let (driver, code) = driver()?;
    let rounds = |call: &mut dyn FnMut() -> CUresult| rounds(&code, call);
    let module = context.load_ptx(PTX)?;
    let function = CUfunction(module.function("step")?.handle() as usize);
    let memory: DeviceBuffer<u32> = DeviceBuffer::new(context, 1024)?;
    let (mut values, mut count) = (memory.address(), 0_u32);
    let mut parameters: [*mut c_void; 2] = [(&raw mut values).cast(), (&raw mut count).cast()];
    let (mut stream, mut event) = (CUstream::NULL, CUevent::NULL);
    // SAFETY: handles of this very driver, and pointers to live variables of the types that its
    // prototypes name; also below.
    unsafe {
        driver.cuStreamCreate(&mut stream, 1).ok()?;
        driver.cuEventCreate(&mut event, 2).ok()?;
        let fewest = match name {
            "nothing" => rounds(&mut || CUresult::SUCCESS),
            "context" => {
                let mut current = CUcontext::NULL;
                rounds(&mut || driver.cuCtxGetCurrent(&mut current))
            }
            "pointer" => {
                let mut kind = 0_u32;
                let (place, asked) = ((&raw mut kind).cast(), CUpointer_attribute::MEMORY_TYPE);
                rounds(&mut || driver.cuPointerGetAttribute(place, asked, values))
            }
            "capturing" => {
                let mut status = CUstreamCaptureStatus::default();
                rounds(&mut || driver.cuStreamIsCapturing(stream, &mut status))
            }
            "launch" => {
                let parameters = parameters.as_mut_ptr();
                let nothing = ptr::null_mut();
                rounds(&mut || {
                    driver
                        .cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nothing)
                })
            }
            "record" => rounds(&mut || driver.cuEventRecord(event, stream)),
            "wait-event" => {
                driver.cuEventRecord(event, stream).ok()?;
                rounds(&mut || driver.cuStreamWaitEvent(CUstream::NULL, event, 0))
            }
            "settings" => {
                // Once new, then what it is already.
                rounds(&mut || driver.cuFuncSetAttribute(function, MOST_SHARED, 4096))
            }
            "new-settings" => {
                let mut value = 4096;
                let fewest = rounds(&mut || {
                    value += 16;
                    driver.cuFuncSetAttribute(function, MOST_SHARED, value)
                })?;
                let mut known = 0;
                driver.cuFuncGetAttribute(&mut known, MOST_SHARED, function).ok()?;
                ensure!(known == value, "set to {value}, it is {known}");
                Ok(fewest)
            }
            "fill" => rounds(&mut || driver.cuMemsetD32Async(values, 7, 16, stream)),
            _ => bail!("no such call: {name}"),
        }?;
        driver.cuStreamSynchronize(stream).ok()?;
        driver.cuEventDestroy_v2(event).ok()?;
        driver.cuStreamDestroy_v2(stream).ok()?;
        Ok(fewest)
    }
}

fn rounds(code: &Code, call: &mut dyn FnMut() -> CUresult) -> Result<u64> {
    let mut fewest = u64::MAX;
    for _ in 0..COUNTED_ROUNDS {
        let (instructions, result) = count(code, &mut *call)?;
        result.ok()?;
        fewest = fewest.min(instructions);
    }
    Ok(fewest)
}

/// The driver that the puppet has open, and the code of its library.
fn driver() -> Result<(Box<DriverTable>, Code)> {
    // SAFETY: opened before, so no initialiser runs.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    ptr::NonNull::new(library).context("libcuda.so.1 cannot be opened")?;
    // SAFETY: an open library, and a name.
    let code = Code::around(unsafe { libc::dlsym(library, c"cuLaunchKernel".as_ptr()) }.cast())?;
    // SAFETY: a driver's symbols, which have the prototypes of its API.
    let table =
        unsafe { DriverTable::load(|symbol| libc::dlsym(library, symbol.as_ptr()).cast_const()) };
    Ok((Box::new(table), code))
}
