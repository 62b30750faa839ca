//! Device memory: whose it is, what counts against a limit, and that no other client's bytes are in
//! it.

use super::fake_client::*;
use cuda_abi::types::{CUarray_format, CUresult};
use link::wire::array::ArrayCreate;
use link::wire::attach::RequestedLimits;
use link::wire::command::{self as wire, Opcode};
use link::wire::virtual_memory as vmm;
use zerocopy::IntoBytes;

/// What a session counts for at its beginning.
const SESSION_BYTES: u64 = 1 << 20;

pub(crate) const ALL: &[super::Test] = &[
    ("memory_limits_hold", memory_limits_hold),
    (
        "modules_streams_arrays_and_local_memory_count",
        modules_streams_arrays_and_local_memory_count,
    ),
    (
        "memory_without_addresses_is_the_clients_own_and_counts",
        memory_without_addresses_is_the_clients_own_and_counts,
    ),
    ("memory_that_another_had_is_zero", memory_that_another_had_is_zero),
];

fn memory_limits_hold() {
    let mut server = Server::start();
    let limits =
        RequestedLimits { pinned_device_mem_limit: Some("0=8M".into()), ..Default::default() };
    let (connection, welcome) = server.attach(std::process::id(), limits).unwrap();
    let mut client = Client::open(connection, welcome);
    let grant = client.grow(6 << 20);
    let info: wire::MemoryInfoReply = client.call(Opcode::MemoryInfo, &[0u8; 0], &[]);
    // The session itself counts, too.
    assert_eq!(info.free_bytes, (8 << 20) - grant.size_bytes - SESSION_BYTES);
    let (status, _) =
        client.try_call(Opcode::Grow, &[wire::Grow { size_bytes: 4 << 20 }.as_bytes()]);
    assert_eq!(status, CUresult::ERROR_OUT_OF_MEMORY.0);
    let release = wire::Release { address: grant.address, size_bytes: grant.size_bytes };
    assert_eq!(client.try_call(Opcode::Release, &[release.as_bytes()]).0, 0);
    client.grow(4 << 20);
}

/// What the driver takes for a client without asking anybody counts as well, and is given back.
fn modules_streams_arrays_and_local_memory_count() {
    const MIB: u64 = 1 << 20;
    let mut server = Server::start();
    let limits =
        RequestedLimits { pinned_device_mem_limit: Some("0=16M".into()), ..Default::default() };
    let (connection, welcome) = server.attach(std::process::id(), limits).unwrap();
    let mut client = Client::open(connection, welcome);
    let free = |client: &mut Client| {
        client.call::<wire::MemoryInfoReply>(Opcode::MemoryInfo, &[0u8; 0], &[]).free_bytes
    };
    let load = |client: &mut Client, module: u32, text: &str| {
        let size_bytes = text.len() as u64 + 1;
        let address = client.pinned(size_bytes.next_multiple_of(4096));
        client.host_bytes(address, text.len()).copy_from_slice(text.as_bytes());
        let load = wire::ModuleLoad {
            module,
            optimization_level: u32::MAX,
            address,
            size_bytes,
            ..Default::default()
        };
        client.try_call(Opcode::ModuleLoad, &[load.as_bytes()]).0
    };
    let with_variable = |bytes: u64| {
        let head = ".version 7.0\n.target sm_50\n.address_size 64\n";
        let kernel = ".visible .entry deep() { .local .align 4 .b8 frame[8192]; .reg .b64 %r; .reg .b32 %v;\n\
            mov.u64 %r, frame; ld.local.u32 %v, [%r]; st.local.u32 [%r+4], %v; ret; }\n";
        format!("{head}.visible .global .align 4 .b8 big[{bytes}];\n{kernel}")
    };
    let out_of_memory = CUresult::ERROR_OUT_OF_MEMORY.0;
    let before = free(&mut client);
    assert_eq!(before, 16 * MIB - SESSION_BYTES);
    assert_eq!(load(&mut client, 0, &with_variable(32 * MIB)), out_of_memory);
    assert_eq!(free(&mut client), before);
    assert_eq!(load(&mut client, 0, &with_variable(8 * MIB)), 0);
    assert!(free(&mut client) <= before - 8 * MIB);
    // Eight KiB for each thread of the device are more than the limit.
    let name = "deep";
    let get = wire::FunctionGet { name_bytes: name.len() as u32, ..Default::default() };
    let (status, _) = client.try_call(Opcode::FunctionGet, &[get.as_bytes(), name.as_bytes()]);
    assert_eq!(status, out_of_memory, "local memory");
    let unload = wire::ModuleUnload { module: 0, reserved: 0 };
    client.post(Opcode::ModuleUnload, &[unload.as_bytes()]);
    assert_eq!(free(&mut client), before);
    let stream = wire::StreamCreate { stream: 1, ..Default::default() };
    client.post(Opcode::StreamCreate, &[stream.as_bytes()]);
    let with_stream = free(&mut client);
    assert!(with_stream < before);
    let array = ArrayCreate {
        array: 1,
        width: 1024,
        height: 1024,
        format: CUarray_format::UNSIGNED_INT32.0,
        channels: 1,
        ..Default::default()
    };
    assert_eq!(client.try_call(Opcode::ArrayCreate, &[array.as_bytes()]).0, 0);
    assert!(free(&mut client) <= with_stream - 4 * MIB);
    let larger = ArrayCreate { array: 2, levels: 2, width: 2048, height: 2048, ..array };
    let (status, _) = client.try_call(Opcode::ArrayCreate, &[larger.as_bytes()]);
    assert_eq!(status, out_of_memory);
    // For this client alone.
    let mut other = server.client();
    assert_eq!(load(&mut other, 0, &with_variable(32 * MIB)), 0);
}

fn memory_without_addresses_is_the_clients_own_and_counts() {
    const MIB: u64 = 1 << 20;
    let mut server = Server::start();
    let limits = RequestedLimits {
        pinned_device_mem_limit: Some("0=17M".into()),
        ..RequestedLimits::default()
    };
    let (connection, welcome) = server.attach(std::process::id(), limits).unwrap();
    let mut client = Client::open(connection, welcome);
    let region = client.pinned(4096);
    let reserve = vmm::AddressReserve { size_bytes: 16 * MIB, alignment_bytes: 0 };
    let range: vmm::AddressReply = client.call(Opcode::AddressReserve, &reserve, &[]);
    let create =
        |memory: u32, size_bytes: u64| vmm::MemoryCreate { size_bytes, memory, sharing: 0 };
    let mut status = |opcode: Opcode, body: &[u8]| client.try_call(opcode, &[body]).0;
    let (ok, invalid) = (CUresult::SUCCESS.0, CUresult::ERROR_INVALID_VALUE.0);
    assert_eq!(status(Opcode::MemoryCreate, create(1, 12 * MIB).as_bytes()), ok);
    let too_much = status(Opcode::MemoryCreate, create(2, 6 * MIB).as_bytes());
    assert_eq!(too_much, CUresult::ERROR_OUT_OF_MEMORY.0);
    let map = |address: u64, size_bytes: u64, offset_bytes: u64| vmm::MemoryMap {
        address,
        size_bytes,
        offset_bytes,
        memory: 1,
        reserved: 0,
    };
    for wrong in [
        map(range.address + 8 * MIB, 12 * MIB, 0),
        map(range.address - 2 * MIB, 2 * MIB, 0),
        map(range.address, 2 * MIB, 11 * MIB),
        map(range.address, 2 * MIB, u64::MAX),
        map(u64::MAX - MIB, 2 * MIB, 0),
    ] {
        assert_eq!(status(Opcode::MemoryMap, wrong.as_bytes()), invalid, "{wrong:x?}");
    }
    assert_eq!(status(Opcode::MemoryMap, map(range.address, 4 * MIB, 0).as_bytes()), ok);
    assert_eq!(
        status(Opcode::MemoryMap, map(range.address + 2 * MIB, 2 * MIB, 0).as_bytes()),
        invalid
    );
    let free = vmm::AddressFree { address: range.address, size_bytes: 16 * MIB };
    assert_eq!(status(Opcode::AddressFree, free.as_bytes()), invalid, "something is mapped there");
    let mut access = vmm::MemorySetAccess {
        address: range.address,
        size_bytes: 2 * MIB,
        access: vmm::ACCESS_READ_WRITE,
        reserved: 0,
    };
    assert_eq!(status(Opcode::MemorySetAccess, access.as_bytes()), invalid, "half a mapping");
    access.size_bytes = 4 * MIB;
    assert_eq!(status(Opcode::MemorySetAccess, access.as_bytes()), ok);
    let number = vmm::MemoryNumber { memory: 1, reserved: 0 };
    assert_eq!(status(Opcode::MemoryExport, number.as_bytes()), invalid, "it may not be shared");
    client.host_bytes(region, 8).copy_from_slice(&7u64.to_ne_bytes());
    client.copy(0, range.address + 4 * MIB - 8, region, 8);
    client.copy(0, region, range.address, 8);
    client.finish(0).unwrap();
    assert_eq!(client.host_bytes(region, 8), [0; 8], "new memory is zero");
    // Another client's addresses are refused, and unmapped ones are nobody's.
    let mut other = server.client();
    let theirs = other.pinned(4096);
    other.copy(0, range.address, theirs, 8);
    assert!(other.finish(0).is_err());
    let unmap = vmm::MemoryUnmap { address: range.address, size_bytes: 4 * MIB };
    assert_eq!(client.try_call(Opcode::MemoryUnmap, &[unmap.as_bytes()]).0, ok);
    assert_eq!(client.try_call(Opcode::MemoryRelease, &[number.as_bytes()]).0, ok);
    assert_eq!(client.try_call(Opcode::MemoryCreate, &[create(1, 16 * MIB).as_bytes()]).0, ok);
    client.copy(0, range.address, region, 8);
    assert!(client.finish(0).is_err());
    drop((client, other));
    server.await_snapshot("the memory's return", |snapshot| snapshot.devices[0].granted_bytes == 0);
}

fn memory_that_another_had_is_zero() {
    let mut server = Server::start();
    let size_bytes = 64 << 20;
    for _ in 0..3 {
        let mut client = server.client();
        let grant = client.grow(size_bytes);
        let region = client.pinned(size_bytes);
        client.host_bytes(region, size_bytes as usize).fill(0x55);
        client.copy(0, region, grant.address, size_bytes);
        client.finish(0).unwrap();
        assert!(
            client.host_bytes(region, size_bytes as usize).iter().all(|&byte| byte == 0),
            "a secret came through"
        );
        let fill = wire::Fill {
            element_bytes: 4,
            destination: grant.address,
            width: size_bytes / 4,
            height: 1,
            value: 0xabad_cafe,
            ..Default::default()
        };
        client.post(Opcode::Fill, &[fill.as_bytes()]);
        client.finish(0).unwrap();
        drop(client);
        server.await_snapshot("the end of the session", |snapshot| {
            snapshot.devices[0].granted_bytes == 0
        });
    }
}
