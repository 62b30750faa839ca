//! Copies between the begin of one-dimensional arrays and memory.

use std::ffi::c_void;

use cuda_abi::types::{CUarray, CUdeviceptr, CUstream};

use super::copy::{Mode, on_both_defaults};
use super::copy_shapes::submit_volume;
use super::volume::Corner;

on_both_defaults! {
    fn cuMemcpyHtoA_v2 / cuMemcpyHtoA_v2_ptds(dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize)
        |stream| submit_volume(stream, Corner::host(srcHost), Corner::array(dstArray, dstOffset), ByteCount, Mode::Synchronous);
    fn cuMemcpyAtoH_v2 / cuMemcpyAtoH_v2_ptds(dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize)
        |stream| submit_volume(stream, Corner::array(srcArray, srcOffset), Corner::host(dstHost), ByteCount, Mode::Synchronous);
    fn cuMemcpyDtoA_v2 / cuMemcpyDtoA_v2_ptds(dstArray: CUarray, dstOffset: usize, srcDevice: CUdeviceptr, ByteCount: usize)
        |stream| submit_volume(stream, Corner::device(srcDevice), Corner::array(dstArray, dstOffset), ByteCount, Mode::Synchronous);
    fn cuMemcpyAtoD_v2 / cuMemcpyAtoD_v2_ptds(dstDevice: CUdeviceptr, srcArray: CUarray, srcOffset: usize, ByteCount: usize)
        |stream| submit_volume(stream, Corner::array(srcArray, srcOffset), Corner::device(dstDevice), ByteCount, Mode::Synchronous);
    fn cuMemcpyAtoA_v2 / cuMemcpyAtoA_v2_ptds(dstArray: CUarray, dstOffset: usize, srcArray: CUarray, srcOffset: usize, ByteCount: usize)
        |stream| submit_volume(stream, Corner::array(srcArray, srcOffset), Corner::array(dstArray, dstOffset), ByteCount, Mode::Synchronous);
}

api! {
    fn cuMemcpyHtoAAsync_v2(dstArray: CUarray, dstOffset: usize, srcHost: *const c_void, ByteCount: usize, hStream: CUstream) {
        submit_volume(hStream, Corner::host(srcHost), Corner::array(dstArray, dstOffset), ByteCount, Mode::Asynchronous)
    }
    fn cuMemcpyAtoHAsync_v2(dstHost: *mut c_void, srcArray: CUarray, srcOffset: usize, ByteCount: usize, hStream: CUstream) {
        submit_volume(hStream, Corner::array(srcArray, srcOffset), Corner::host(dstHost), ByteCount, Mode::Asynchronous)
    }
}
