//! Memory, pools and events of one process in another one, and handles of allocations.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use cuda_abi::types::{CUipcEventHandle, CUipcMemHandle, CUmemPoolProps, CUmemPoolPtrExportData};
use support::{PTX, allocate, context, function, launch, read, stream};

const CHILD: &str = "SOFTCUDA_TEST_IPC";

fn hex(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> [u8; 64] {
    std::array::from_fn(|place| {
        u8::from_str_radix(&hex[2 * place..2 * place + 2], 16).expect("hex digits")
    })
}

fn memory_handle(address: u64) -> (u32, CUipcMemHandle) {
    let mut handle = CUipcMemHandle::default();
    (cu!(cuIpcGetMemHandle(&mut handle => *mut CUipcMemHandle, address => u64)), handle)
}

fn open(handle: CUipcMemHandle, flags: u32) -> (u32, u64) {
    let mut address = 0u64;
    let code = cu!(cuIpcOpenMemHandle_v2(&mut address => *mut u64, handle => CUipcMemHandle, flags => u32));
    (code, address)
}

/// The other process: adds 1 to 128 words of the memory, waits for the event, adds 10, records, and
/// so on by its standard input.
fn child(arguments: &str) {
    context();
    let mut parts = arguments.split(' ').map(bytes);
    let mut next = || parts.next().expect("three handles");
    let memory = CUipcMemHandle { reserved: next().map(|byte| byte as _) };
    let event = CUipcEventHandle { reserved: next().map(|byte| byte as _) };
    assert_eq!(open(memory, 0).0, 1, "the flag is required");
    let (code, address) = open(memory, 1);
    assert_eq!(code, 0);
    assert_eq!(open(memory, 1), (0, address), "again");
    let mut theirs = 0usize;
    assert_eq!(cu!(cuIpcOpenEventHandle(&mut theirs => *mut usize, event => CUipcEventHandle)), 0);
    let add = function(PTX, "add");
    let stream = stream();
    // The other process's event was recorded and is not done.
    assert_eq!(cu!(cuEventQuery(theirs => usize)), 600);
    assert_eq!(cu!(cuStreamWaitEvent(stream => usize, theirs => usize, 0 => u32)), 0);
    assert_eq!(launch(add, 1, 128, stream, &[address, 10]), 0);
    println!("queued");
    std::io::stdout().flush().expect("written");
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
    assert_eq!(cu!(cuEventSynchronize(theirs => usize)), 0);
    assert_eq!(read(address, 128), vec![52; 128], "after the other's work");
    assert_eq!(cu!(cuIpcCloseMemHandle(address => u64)), 0);
    assert_eq!(launch(add, 1, 128, stream, &[address, 1000]), 0, "still open once");
    assert_eq!(cu!(cuStreamSynchronize(stream => usize)), 0);
    assert_eq!(cu!(cuIpcCloseMemHandle(address => u64)), 0);
    assert_eq!(cu!(cuIpcCloseMemHandle(address => u64)), 1);
}

#[test]
fn another_process_uses_memory_and_waits_for_an_event() {
    if let Ok(arguments) = std::env::var(CHILD) {
        return child(&arguments);
    }
    context();
    let memory = allocate(512);
    let flag = allocate(4);
    assert_eq!(cu!(cuMemsetD32_v2(flag => u64, 0 => u32, 1 => usize)), 0);
    assert_eq!(cu!(cuMemsetD32_v2(memory => u64, 0 => u32, 128 => usize)), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    let (code, handle) = memory_handle(memory + 4);
    assert_eq!(code, 0);
    assert_eq!(open(handle, 1).0, 201, "in the same process");
    let mut event = 0usize;
    assert_eq!(
        cu!(cuEventCreate(&mut event => *mut usize, 4 => u32)),
        1,
        "no times across processes"
    );
    assert_eq!(cu!(cuEventCreate(&mut event => *mut usize, 6 => u32)), 0);
    let mut shared = CUipcEventHandle::default();
    assert_eq!(cu!(cuIpcGetEventHandle(&mut shared => *mut CUipcEventHandle, event => usize)), 0);
    // The event waits for a value that is written when the child has queued its work.
    let stream = stream();
    assert_eq!(cu!(cuStreamWaitValue32_v2(stream => usize, flag => u64, 1 => u32, 0 => u32)), 0);
    assert_eq!(cu!(cuMemsetD32Async(memory => u64, 42 => u32, 128 => usize, stream => usize)), 0);
    assert_eq!(cu!(cuEventRecord(event => usize, stream => usize)), 0);
    let text = format!(
        "{} {}",
        hex(handle.reserved.map(|byte| byte as u8)),
        hex(shared.reserved.map(|byte| byte as u8))
    );
    let name = "another_process_uses_memory_and_waits_for_an_event";
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, text)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("text").ends_with("queued")), "the child failed before");
    let other = support::stream();
    assert_eq!(cu!(cuStreamWriteValue32_v2(other => usize, flag => u64, 1 => u32, 0 => u32)), 0);
    lines.for_each(drop);
    assert!(child.wait().expect("waits").success());
    assert_eq!(read(memory, 128), vec![1052; 128]);
    assert_eq!(cu!(cuEventQuery(event => usize)), 0);
}

#[test]
fn only_device_allocations_have_handles() {
    context();
    let mut host = 0u64;
    assert_eq!(cu!(cuMemHostAlloc(&mut host => *mut u64, 4096 => usize, 0 => u32)), 0);
    let mut managed = 0u64;
    assert_eq!(cu!(cuMemAllocManaged(&mut managed => *mut u64, 4096 => usize, 1 => u32)), 0);
    for address in [host, managed, 0x1000] {
        assert_eq!(memory_handle(address).0, 1);
    }
    let mut event = 0usize;
    let mut handle = CUipcEventHandle::default();
    assert_eq!(cu!(cuEventCreate(&mut event => *mut usize, 2 => u32)), 0);
    assert_eq!(cu!(cuIpcGetEventHandle(&mut handle => *mut CUipcEventHandle, event => usize)), 400);
    assert_eq!(open(CUipcMemHandle::default(), 1).0, 1, "no handle at all");
    assert_eq!(cu!(cuIpcCloseMemHandle(allocate(64) => u64)), 1);
}

#[test]
fn a_pool_that_asks_for_it_is_exported_pointer_by_pointer() {
    context();
    let mut properties = CUmemPoolProps::default();
    properties.allocType.0 = 1;
    properties.location.type_.0 = 1;
    let (mut pool, mut fd) = (0usize, -1i32);
    let export = |pool: usize, fd: &mut i32| cu!(cuMemPoolExportToShareableHandle(fd => *mut i32, pool => usize, 1 => u32, 0 => u64));
    assert_eq!(
        cu!(cuMemPoolCreate(&mut pool => *mut usize, &properties => *const CUmemPoolProps)),
        0
    );
    assert_eq!(export(pool, &mut fd), 1, "it did not ask");
    properties.handleTypes.0 = 1;
    assert_eq!(
        cu!(cuMemPoolCreate(&mut pool => *mut usize, &properties => *const CUmemPoolProps)),
        0
    );
    assert_eq!(export(pool, &mut fd), 0);
    let (mut address, mut there, mut imported) = (0u64, 0u64, 0usize);
    assert_eq!(
        cu!(cuMemAllocFromPoolAsync(&mut address => *mut u64, 512 => usize, pool => usize, 0 => usize)),
        0
    );
    let mut data = CUmemPoolPtrExportData::default();
    assert_eq!(
        cu!(cuMemPoolExportPointer(&mut data => *mut CUmemPoolPtrExportData, address => u64)),
        0
    );
    let import = |pool: usize, there: &mut u64, data: &mut CUmemPoolPtrExportData| cu!(cuMemPoolImportPointer(there => *mut u64, pool => usize, data => *mut CUmemPoolPtrExportData));
    assert_eq!(import(pool, &mut there, &mut data), 1, "not an imported pool");
    assert_eq!(
        cu!(cuMemPoolImportFromShareableHandle(&mut imported => *mut usize, fd as usize => usize, 1 => u32, 0 => u64)),
        0
    );
    assert_eq!(import(imported, &mut there, &mut data), 0);
    assert_ne!(there, address);
    assert_eq!(cu!(cuMemsetD32_v2(address => u64, 9 => u32, 128 => usize)), 0);
    assert_eq!(cu!(cuCtxSynchronize()), 0);
    assert_eq!(read(there, 128), vec![9; 128], "the same memory");
}
