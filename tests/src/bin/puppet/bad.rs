//! Calls that CUDA refuses. Each makes one mistake only.

use std::ffi::c_void;
use std::ptr;

use anyhow::{Result, bail};
use cuda_driver::{Context, DeviceBuffer, LaunchShape};

use crate::work::PTX;

/// Makes the call of that name; `address` is another process's device memory where a name asks for
/// it.
pub(crate) fn call(context: &Context, name: &str, address: u64) -> Result<()> {
    match name {
        "empty-grid" => launch(context, LaunchShape::linear(0, 32)),
        "huge-block" => launch(context, LaunchShape::linear(1, 4096)),
        "tall-grid" => launch(
            context,
            LaunchShape { grid: [1, 70_000, 1], block: [32, 1, 1], shared_bytes: 0 },
        ),
        "huge-shared" => launch(
            context,
            LaunchShape { grid: [1, 1, 1], block: [32, 1, 1], shared_bytes: 1 << 20 },
        ),
        "null-function" => launch_handle(context, ptr::null_mut(), ptr::null_mut()),
        "wild-function" => {
            launch_handle(context, 0x1234_5678_usize as *mut c_void, ptr::null_mut())
        }
        "wild-stream" => {
            // SAFETY: a handle that was never given out; the driver must find that out.
            let code =
                unsafe { (context.api().stream_synchronize)(0x7654_3210_usize as *mut c_void) };
            Ok(context.api().check("cuStreamSynchronize", code)?)
        }
        "absent-kernel" => context.load_ptx(PTX)?.function("absent").map(drop).map_err(Into::into),
        "read-foreign" => {
            let mut bytes = [0u8; 16];
            // SAFETY: the destination has 16 bytes; the source is not ours, which the driver must
            // find out.
            let code = unsafe {
                (context.api().copy_to_host)(bytes.as_mut_ptr().cast(), address, bytes.len())
            };
            Ok(context.api().check("cuMemcpyDtoH", code)?)
        }
        "write-foreign" => {
            let bytes = [0xffu8; 16];
            // SAFETY: the source has 16 bytes; the destination is not ours, which the driver must
            // find out.
            let code = unsafe {
                (context.api().copy_to_device)(address, bytes.as_ptr().cast(), bytes.len())
            };
            Ok(context.api().check("cuMemcpyHtoD", code)?)
        }
        "set-foreign" => {
            // SAFETY: the range is not ours, which the driver must find out.
            let code = unsafe { (context.api().set_bytes)(address, 0xff, 16) };
            Ok(context.api().check("cuMemsetD8", code)?)
        }
        "free-foreign" => {
            // SAFETY: the allocation is not ours, which the driver must find out.
            let code = unsafe { (context.api().memory_free)(address) };
            Ok(context.api().check("cuMemFree", code)?)
        }
        "overrun-copy" => {
            let small = DeviceBuffer::<u8>::new(context, 1024)?;
            let bytes = vec![0u8; 1 << 20];
            // SAFETY: the source is as long as said; the destination is not, which the driver must
            // find out.
            let code = unsafe {
                (context.api().copy_to_device)(
                    small.address() + (1 << 40),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                )
            };
            Ok(context.api().check("cuMemcpyHtoD", code)?)
        }
        "huge-allocation" => Ok(DeviceBuffer::<u8>::new(context, 1 << 50).map(drop)?),
        "cut-ptx" => Ok(context.load_ptx(&PTX[..PTX.len() / 2]).map(drop)?),
        "unknown-instruction" => {
            let module = context.load_ptx(&PTX.replace("mad.lo.u32", "mad.sideways.u32"))?;
            module.function("step").map(drop).map_err(Into::into)
        }
        "good-fatbin" => load_image(context, &fatbin()),
        "cut-fatbin" => load_image(context, &shortened(fatbin())),
        "corrupt-fatbin" => load_image(context, &corrupted(fatbin())),
        "no-image" => load_image(context, &[0xa5; 256]),
        _ => bail!("no such call"),
    }
}

fn launch(context: &Context, shape: LaunchShape) -> Result<()> {
    let module = context.load_ptx(PTX)?;
    let memory = DeviceBuffer::<u32>::new(context, 32)?;
    // SAFETY: should the launch run after all, `count` keeps it inside of the memory.
    unsafe { module.function("step")?.launch(shape, None, &[&memory, &32u32])? };
    Ok(context.synchronize()?)
}

fn launch_handle(context: &Context, function: *mut c_void, stream: *mut c_void) -> Result<()> {
    // SAFETY: the handle was never given out; the driver must find that out.
    let code = unsafe {
        (context.api().launch_kernel)(
            function,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            stream,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    Ok(context.api().check("cuLaunchKernel", code)?)
}

fn load_image(context: &Context, image: &[u8]) -> Result<()> {
    let mut module = ptr::null_mut();
    // SAFETY: the image names a length that lies inside of the slice, or none at all.
    let code = unsafe { (context.api().module_load_data)(&raw mut module, image.as_ptr().cast()) };
    context.api().check("cuModuleLoadData", code)?;
    // SAFETY: the module was loaded just now.
    let code = unsafe { (context.api().module_unload)(module) };
    Ok(context.api().check("cuModuleUnload", code)?)
}

const FATBIN_HEADER_BYTES: usize = 16;
const ENTRY_HEADER_BYTES: usize = 64;

/// A fatbin with one uncompressed PTX entry, as the compiler lays it out.
fn fatbin() -> Vec<u8> {
    let mut ptx = PTX.as_bytes().to_vec();
    ptx.resize((ptx.len() + 1).next_multiple_of(8), 0);
    let entry_bytes = ENTRY_HEADER_BYTES + ptx.len();
    let mut image = Vec::new();
    image.extend(0xba55_ed50_u32.to_le_bytes());
    image.extend(1u16.to_le_bytes());
    image.extend((FATBIN_HEADER_BYTES as u16).to_le_bytes());
    image.extend((entry_bytes as u64).to_le_bytes());

    let mut entry = vec![0u8; ENTRY_HEADER_BYTES];
    entry[0..2].copy_from_slice(&1u16.to_le_bytes()); // kind: PTX
    entry[2..4].copy_from_slice(&0x0101_u16.to_le_bytes());
    entry[4..8].copy_from_slice(&(ENTRY_HEADER_BYTES as u32).to_le_bytes());
    entry[8..16].copy_from_slice(&(ptx.len() as u64).to_le_bytes());
    entry[24..28].copy_from_slice(&0x0006_0000_u32.to_le_bytes()); // PTX version 6.0
    entry[28..32].copy_from_slice(&50u32.to_le_bytes()); // architecture
    entry[40..48].copy_from_slice(&0x11_u64.to_le_bytes()); // 64-bit, Linux
    image.extend(entry);
    image.extend(ptx);
    image
}

/// Its entry says that it is longer than the image.
fn shortened(mut image: Vec<u8>) -> Vec<u8> {
    let entry_bytes = (ENTRY_HEADER_BYTES + 40) as u64;
    image[8..16].copy_from_slice(&entry_bytes.to_le_bytes());
    image.truncate(FATBIN_HEADER_BYTES + ENTRY_HEADER_BYTES + 40);
    image
}

/// Its entry says that it is compressed, and is not.
fn corrupted(mut image: Vec<u8>) -> Vec<u8> {
    let flags = FATBIN_HEADER_BYTES + 40;
    image[flags..flags + 8].copy_from_slice(&0x8011_u64.to_le_bytes());
    image[FATBIN_HEADER_BYTES + 16..FATBIN_HEADER_BYTES + 20]
        .copy_from_slice(&100u32.to_le_bytes());
    image[FATBIN_HEADER_BYTES + 56..FATBIN_HEADER_BYTES + 64]
        .copy_from_slice(&(1u64 << 40).to_le_bytes());
    image
}
