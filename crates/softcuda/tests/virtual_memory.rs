//! Allocations shared with another process by descriptor, at the same addresses.

mod support;

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::Command;

use cuda_abi::types::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use support::{PTX, context, function, launch, read};

const SIZE: usize = 32 << 20;
const WANTED: u64 = 0x6000_0000_0000;
const CHILD_FD: &str = "SOFTCUDA_TEST_FD";

fn location() -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::DEVICE, id: 0 }
}

/// Maps an allocation at the wanted address, accessible.
fn map(handle: u64) {
    let mut base = 0u64;
    assert_eq!(
        cu!(cuMemAddressReserve(&mut base => *mut u64, SIZE => usize, 0 => usize, WANTED => u64, 0 => u64)),
        0
    );
    assert_eq!(base, WANTED);
    assert_eq!(cu!(cuMemMap(base => u64, SIZE => usize, 0 => usize, handle => u64, 0 => u64)), 0);
    let access = CUmemAccessDesc { location: location(), flags: CUmemAccess_flags(3) };
    assert_eq!(
        cu!(cuMemSetAccess(base => u64, SIZE => usize, &access => *const CUmemAccessDesc, 1 => usize)),
        0
    );
}

#[test]
fn memory_made_without_a_context_is_written_by_another_process() {
    if let Ok(fd) = std::env::var(CHILD_FD) {
        return child(fd.parse().expect("a number"));
    }
    assert_eq!(cu!(cuInit(0 => u32)), 0);
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
        location: location(),
        ..CUmemAllocationProp::default()
    };
    let (mut handle, mut fd) = (0u64, -1 as RawFd);
    assert_eq!(
        cu!(cuMemCreate(&mut handle => *mut u64, SIZE => usize, &properties => *const CUmemAllocationProp, 0 => u64)),
        0
    );
    assert_eq!(
        cu!(cuMemExportToShareableHandle(&mut fd => *mut RawFd, handle => u64, 1 => u32, 0 => u64)),
        0
    );
    // SAFETY: the driver gave us this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // The child inherits a copy without close-on-exec.
    // SAFETY: plain system calls on an open descriptor.
    let inherited = unsafe { libc::dup(fd.as_raw_fd()) };
    let name = "memory_made_without_a_context_is_written_by_another_process";
    let status = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", name])
        .env(CHILD_FD, inherited.to_string())
        .status()
        .expect("starts");
    assert!(status.success());
    context();
    map(handle);
    assert_eq!(read(WANTED + 4, 2), [1, 0], "what the child's kernel wrote");
    assert_eq!(cu!(cuMemUnmap(WANTED => u64, SIZE => usize)), 0);
    assert_eq!(cu!(cuMemAddressFree(WANTED => u64, SIZE => usize)), 0);
    assert_eq!(cu!(cuMemRelease(handle => u64)), 0);
    assert_eq!(cu!(cuMemRelease(handle => u64)), 1);
}

fn child(fd: RawFd) {
    context();
    let mut handle = 0u64;
    assert_eq!(
        cu!(cuMemImportFromShareableHandle(&mut handle => *mut u64, fd as usize as *mut c_void => *mut c_void, 1 => u32)),
        0
    );
    map(handle);
    let poke = function(PTX, "poke");
    assert_eq!(launch(poke, 1, 1, 0, &[WANTED + 4]), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
}

#[test]
fn registered_host_memory_is_reached_by_kernels_at_its_own_address() {
    context();
    let mut words = vec![1u32; 1024];
    let address = words.as_mut_ptr() as u64;
    let add = function(PTX, "add");
    assert_eq!(cu!(cuMemHostRegister_v2(address => u64, 4096 => usize, 2 => u32)), 0);
    let mut device = 0u64;
    assert_eq!(
        cu!(cuMemHostGetDevicePointer_v2(&mut device => *mut u64, address => u64, 0 => u32)),
        0
    );
    assert_eq!(device, address);
    assert_eq!(launch(add, 8, 128, 0, &[device, 6]), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    assert_eq!(cu!(cuMemHostUnregister(address => u64)), 0);
    assert!(words.iter().all(|word| *word == 7));
    assert_eq!(cu!(cuMemHostUnregister(address => u64)), 713);
}

#[test]
fn pools_count_what_they_give_and_remember_attributes() {
    context();
    let (mut pool, mut address, mut value) = (0usize, 0u64, 12345u64);
    assert_eq!(cu!(cuDeviceGetDefaultMemPool(&mut pool => *mut usize, 0 => i32)), 0);
    assert_eq!(cu!(cuMemPoolSetAttribute(pool => usize, 4 => u32, &mut value => *mut u64)), 0);
    value = 0;
    assert_eq!(cu!(cuMemPoolGetAttribute(pool => usize, 4 => u32, &mut value => *mut u64)), 0);
    assert_eq!(value, 12345);
    assert_eq!(cu!(cuMemAllocAsync(&mut address => *mut u64, 5000 => usize, 0 => usize)), 0);
    assert_eq!(cu!(cuMemPoolGetAttribute(pool => usize, 7 => u32, &mut value => *mut u64)), 0);
    assert_eq!(value, 5000);
    assert_eq!(cu!(cuMemFreeAsync(address => u64, 0 => usize)), 0);
    assert_eq!(cu!(cuMemPoolGetAttribute(pool => usize, 7 => u32, &mut value => *mut u64)), 0);
    assert_eq!(value, 0, "counted by the call, before its turn");
    assert_eq!(cu!(cuCtxSynchronize()), 0);
}
