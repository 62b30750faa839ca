//! Kernel launches: everything that is refused at the call, then one operation in a stream.

use std::ffi::c_void;

use cuda_abi::types::{CUfunction, CUlaunchConfig, CUstream};

use super::kernel_work::{KernelWork, Shape};
use super::loading::resolve;
use crate::api::answer::Answer;
use crate::api::graph::NodeKind;
use crate::api::out;
use crate::api::stream::find;
use crate::api::stream::submit::submit;
use crate::device::config::LaunchMode;
use crate::device::grid::Residency;

api! {
    fn cuLaunchKernel(
        f: CUfunction,
        gridDimX: u32, gridDimY: u32, gridDimZ: u32,
        blockDimX: u32, blockDimY: u32, blockDimZ: u32,
        sharedMemBytes: u32,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let shape = Shape::plain([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ], sharedMemBytes);
        // SAFETY: the caller's parameters.
        unsafe { launch(f, hStream, &shape, kernelParams, extra) }
    }

    fn cuLaunchCooperativeKernel(
        f: CUfunction,
        gridDimX: u32, gridDimY: u32, gridDimZ: u32,
        blockDimX: u32, blockDimY: u32, blockDimZ: u32,
        sharedMemBytes: u32,
        hStream: CUstream,
        kernelParams: *mut *mut c_void,
    ) {
        let mut shape = Shape::plain([gridDimX, gridDimY, gridDimZ], [blockDimX, blockDimY, blockDimZ], sharedMemBytes);
        shape.residency = Residency::Cooperative;
        // SAFETY: the caller's parameters.
        unsafe { launch(f, hStream, &shape, kernelParams, std::ptr::null_mut()) }
    }

    fn cuLaunchKernelEx(config: *const CUlaunchConfig, f: CUfunction, kernelParams: *mut *mut c_void, extra: *mut *mut c_void) {
        // SAFETY: the caller's structure and parameters.
        unsafe {
            let config = out::read(config)?;
            launch(f, config.hStream, &Shape::from_config(&config)?, kernelParams, extra)
        }
    }
}

/// # Safety
/// `params` and `extra` are as `cuLaunchKernel` demands for this function.
unsafe fn launch(
    handle: CUfunction,
    stream: CUstream,
    shape: &Shape,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let (driver, context, stream) = find(stream)?;
    let owner = if stream.context == context.handle {
        context.clone()
    } else {
        driver.context(stream.context)?
    };
    let work = resolve(driver, &owner, handle).and_then(|function| {
        // SAFETY: by the caller's promise.
        unsafe { KernelWork::prepare(function, &owner, shape, stream.mask, params, extra) }
    });
    let work = work.inspect_err(|_| driver.graphs.captures.invalidate(stream.captured()))?;
    submit(driver, &stream, NodeKind::Kernel(work))?;
    if driver.config.launch_mode == LaunchMode::Blocking && !driver.is_capturing(&stream) {
        driver.engine.synchronize_stream(stream.id)?;
        owner.services.flush_console();
    }
    Ok(())
}
