//! Linear copies, synchronous and asynchronous, for both default streams.

use std::ffi::c_void;

use cuda_abi::types::{CUcontext, CUdeviceptr, CUresult, CUstream};

use super::copy_shapes::Volume;
use crate::api::Answer;
use crate::api::driver::{Driver, current};
use crate::api::graph::NodeKind;
use crate::api::stream::find;
use crate::device::fault::Sticky;
use crate::device::ops::Op;
use crate::device::transfer::{Copy, End, Side, Transfer};

/// Largest pageable source that is staged, so that the call need not wait for its stream; bytes.
const STAGED_BYTES: u64 = 1 << 20;

/// Declares a synchronous function and its per-thread twin.
macro_rules! on_both_defaults {
    ($(fn $name:ident / $twin:ident($($arg:ident: $ty:ty),*) |$stream:ident| $body:expr;)*) => {
        api! {
            $(
                fn $name($($arg: $ty),*) { let $stream = ::cuda_abi::types::CUstream::LEGACY; $body }
                fn $twin($($arg: $ty),*) { let $stream = ::cuda_abi::types::CUstream::PER_THREAD; $body }
            )*
        }
    };
}
pub(crate) use on_both_defaults;

/// Whether a call returns before the transfer is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Synchronous,
    Asynchronous,
}

on_both_defaults! {
    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize)
        |stream| linear(stream, device(dstDevice), host(srcHost), ByteCount, Mode::Synchronous);
    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize)
        |stream| linear(stream, host(dstHost), device(srcDevice), ByteCount, Mode::Synchronous);
    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize)
        |stream| linear(stream, device(dstDevice), device(srcDevice), ByteCount, Mode::Synchronous);
    fn cuMemcpy / cuMemcpy_ptds(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize)
        |stream| linear(stream, any(dst)?, any(src)?, ByteCount, Mode::Synchronous);
    fn cuMemcpyPeer / cuMemcpyPeer_ptds(dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize)
        |stream| { let _ = (dstContext, srcContext); linear(stream, device(dstDevice), device(srcDevice), ByteCount, Mode::Synchronous) };
}

api! {
    fn cuMemcpyHtoDAsync_v2(dstDevice: CUdeviceptr, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) {
        linear(hStream, device(dstDevice), host(srcHost), ByteCount, Mode::Asynchronous)
    }
    fn cuMemcpyDtoHAsync_v2(dstHost: *mut c_void, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) {
        linear(hStream, host(dstHost), device(srcDevice), ByteCount, Mode::Asynchronous)
    }
    fn cuMemcpyDtoDAsync_v2(dstDevice: CUdeviceptr, srcDevice: CUdeviceptr, ByteCount: usize, hStream: CUstream) {
        linear(hStream, device(dstDevice), device(srcDevice), ByteCount, Mode::Asynchronous)
    }
    fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, ByteCount: usize, hStream: CUstream) {
        linear(hStream, any(dst)?, any(src)?, ByteCount, Mode::Asynchronous)
    }
    fn cuMemcpyPeerAsync(dstDevice: CUdeviceptr, dstContext: CUcontext, srcDevice: CUdeviceptr, srcContext: CUcontext, ByteCount: usize, hStream: CUstream) {
        let _ = (dstContext, srcContext);
        linear(hStream, device(dstDevice), device(srcDevice), ByteCount, Mode::Asynchronous)
    }
}

fn device(address: u64) -> End {
    End::linear(address, Side::Device)
}

fn host<T>(pointer: *const T) -> End {
    End::linear(pointer as u64, Side::Host)
}

/// An end of which only the address says what it is.
pub(crate) fn side_of(driver: &Driver, address: u64) -> End {
    let is_known = driver.space.allocation_at(address).is_some();
    End::linear(address, if is_known { Side::Device } else { Side::Host })
}

fn any(address: u64) -> Answer<End> {
    Ok(side_of(current()?.0, address))
}

fn linear(stream: CUstream, to: End, from: End, size_bytes: usize, mode: Mode) -> Answer {
    submit(stream, Copy::linear(from, to, size_bytes as u64), Volume::linear, mode)
}

/// Checks a copy's addresses: CUDA_ERROR_INVALID_VALUE. Returns it with host memory that the driver
/// knows taken as device memory, and which ends it does not know.
pub(crate) fn check(driver: &Driver, mut copy: Copy) -> Answer<(Copy, [bool; 2])> {
    let mut is_pageable = [false; 2];
    for (end, pageable) in [&mut copy.from, &mut copy.to].into_iter().zip(&mut is_pageable) {
        if end.address == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if end.side == Side::Host {
            // Pinned, registered and managed memory is checked like device memory.
            match driver.space.allocation_at(end.address) {
                Some(_) => end.side = Side::Device,
                None => *pageable = true,
            }
        }
    }
    // Memory of a graph is there only while the graph runs.
    let is_fine = copy.is_accessible(&driver.space)
        || [copy.from, copy.to].iter().any(|end| driver.graph_memory.covers(end.address));
    if is_fine { Ok((copy, is_pageable)) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Checks and submits a copy. `describe` gives the descriptor of a node, should the stream be
/// captured.
pub(crate) fn submit(
    stream: CUstream,
    copy: Copy,
    describe: impl FnOnce(&Copy) -> Volume,
    mode: Mode,
) -> Answer {
    let (driver, context, stream) = find(stream)?;
    if mode == Mode::Synchronous {
        driver.graphs.captures.refuse(stream.captured())?;
    }
    if copy.is_empty() {
        return Ok(());
    }
    let asked = copy;
    let (copy, is_pageable) = check(driver, copy)?;
    if driver.is_capturing(&stream) {
        return crate::api::stream::submit::submit(
            driver,
            &stream,
            NodeKind::Memcpy(describe(&asked)),
        );
    }
    let space = driver.space.clone();
    let is_linear = copy.height == 1 && copy.depth == 1;
    match (mode, is_pageable) {
        (Mode::Asynchronous, [false, false]) => {
            Ok(driver.engine.enqueue(stream.id, Op::Task(Box::new(Transfer::copy(space, copy))))?)
        }
        (Mode::Asynchronous, [true, false]) if is_linear && copy.width_bytes <= STAGED_BYTES => {
            // SAFETY: the caller's source, readable for the copy's size, as the API demands.
            let source = unsafe {
                std::slice::from_raw_parts(
                    copy.from.address as *const u8,
                    copy.width_bytes as usize,
                )
            };
            let transfer = Transfer::copy_staged(space, copy, source.into());
            Ok(driver.engine.enqueue(stream.id, Op::Task(Box::new(transfer)))?)
        }
        _ => {
            let done: Result<(), Sticky> =
                driver.engine.run_on_caller(stream.id, || Transfer::copy(space, copy).run())?;
            context.services.flush_console();
            done.map_err(|_| CUresult::ERROR_INVALID_VALUE)
        }
    }
}
