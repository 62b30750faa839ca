//! Launches.

use crate::client::run;
use crate::code::configuration::Configuration;
use crate::code::launch::{cooperative, launch};
use crate::entry::arguments::not_null;
use core::ffi::c_void;
use cuda_abi::types::*;
use link::wire::command::LaunchAttribute;
use zerocopy::FromBytes;

/// No launch has more attributes than there are ids.
const MOST_ATTRIBUTES: u32 = 64;
const EVENT_ATTRIBUTES: [u32; 2] = [7, 12];

pub(crate) unsafe fn cuLaunchKernel(
    f: CUfunction,
    gridDimX: u32,
    gridDimY: u32,
    gridDimZ: u32,
    blockDimX: u32,
    blockDimY: u32,
    blockDimZ: u32,
    sharedMemBytes: u32,
    hStream: CUstream,
    kernelParams: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    let configuration = Configuration {
        grid: [gridDimX, gridDimY, gridDimZ],
        block: [blockDimX, blockDimY, blockDimZ],
        dynamic_shared_bytes: sharedMemBytes,
        stream: hStream,
        attributes: &[],
    };
    // SAFETY: the caller's parameters.
    run(|client| unsafe { launch(client, f.0, &configuration, kernelParams, extra) })
}

pub(crate) unsafe fn cuLaunchCooperativeKernel(
    f: CUfunction,
    gridDimX: u32,
    gridDimY: u32,
    gridDimZ: u32,
    blockDimX: u32,
    blockDimY: u32,
    blockDimZ: u32,
    sharedMemBytes: u32,
    hStream: CUstream,
    kernelParams: *mut *mut c_void,
) -> CUresult {
    let configuration = Configuration {
        grid: [gridDimX, gridDimY, gridDimZ],
        block: [blockDimX, blockDimY, blockDimZ],
        dynamic_shared_bytes: sharedMemBytes,
        stream: hStream,
        attributes: &[cooperative()],
    };
    let extra = core::ptr::null_mut();
    // SAFETY: the caller's parameters.
    run(|client| unsafe { launch(client, f.0, &configuration, kernelParams, extra) })
}

pub(crate) unsafe fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    f: CUfunction,
    kernelParams: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    run(|client| {
        not_null(config)?;
        // SAFETY: not null; the caller's structure.
        let c = unsafe { config.read() };
        // SAFETY: the caller's array.
        let attributes = unsafe { attributes(c.attrs, c.numAttrs) }?;
        let configuration = Configuration {
            grid: [c.gridDimX, c.gridDimY, c.gridDimZ],
            block: [c.blockDimX, c.blockDimY, c.blockDimZ],
            dynamic_shared_bytes: c.sharedMemBytes,
            stream: c.hStream,
            attributes: &attributes,
        };
        // SAFETY: the caller's parameters.
        unsafe { launch(client, f.0, &configuration, kernelParams, extra) }
    })
}

/// A launch attribute as a graph's kernel node takes it.
pub(in crate::entry) fn node_attribute(
    attribute: LaunchAttribute,
) -> crate::result::Result<LaunchAttribute> {
    match attribute.id {
        id if EVENT_ATTRIBUTES.contains(&id) => Err(CUresult::ERROR_NOT_SUPPORTED),
        id if id == 0 || id >= CUlaunchAttributeID::MAX.0 => Err(CUresult::ERROR_INVALID_VALUE),
        _ => Ok(attribute),
    }
}

/// Copies launch attributes; those that name events are refused, since the executor knows events by
/// other numbers.
///
/// # Safety
/// `attrs` is null or has `count` elements.
pub(in crate::entry) unsafe fn attributes(
    attrs: *const CUlaunchAttribute,
    count: u32,
) -> crate::result::Result<Vec<LaunchAttribute>> {
    const { assert!(size_of::<CUlaunchAttribute>() == size_of::<LaunchAttribute>()) };
    if count == 0 {
        return Ok(Vec::new());
    }
    not_null(attrs)?;
    if count > MOST_ATTRIBUTES {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut copied = Vec::with_capacity(count as usize);
    for i in 0..count as usize {
        // SAFETY: inside the caller's array; an attribute is 72 bytes, which need not all be
        // initialised by a careless program, but are mapped.
        let bytes = unsafe { attrs.add(i).cast::<[u8; size_of::<LaunchAttribute>()]>().read() };
        let mut attribute =
            LaunchAttribute::read_from_bytes(&bytes).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        attribute.reserved = 0;
        match attribute.id {
            // CU_LAUNCH_ATTRIBUTE_IGNORE
            0 => {}
            id if EVENT_ATTRIBUTES.contains(&id) => return Err(CUresult::ERROR_NOT_SUPPORTED),
            _ => copied.push(attribute),
        }
    }
    Ok(copied)
}
