use super::*;

fn space() -> (AddressSpace, Arc<Account>) {
    (AddressSpace::new(Precision::Mapping), Arc::new(Account::new(64 << 20)))
}

#[test]
fn allocations_are_usable_apart_and_given_back() {
    let (space, account) = space();
    let a = space.allocate(0, &account, 1, 1000).expect("allocates");
    let b = space.allocate(0, &account, 1, 5 << 20).expect("allocates");
    assert!(space.accessible().enter().covers(a, 1000));
    assert!(space.accessible().enter().covers(b, 5 << 20));
    assert_eq!(account.free_bytes(), (64 - 2 - 6) << 20);
    // SAFETY: both were just allocated and are covered.
    unsafe {
        std::ptr::write_bytes(a as *mut u8, 7, 1000);
        assert_eq!(*(b as *const u8), 0, "fresh memory is zero");
    }
    assert_eq!(space.allocation_at(a + 999).map(|found| found.base), Some(a));
    assert!(space.allocation_at(a + 1000).is_none());
    for address in [a, b] {
        space.free(address, |kind| kind == AllocationKind::Device).expect("frees");
        assert!(space.free(address, |_| true).is_err(), "freed twice");
        assert!(!space.accessible().enter().covers(address, 1));
    }
    assert_eq!(account.free_bytes(), 64 << 20);
    assert_eq!(space.allocate(0, &account, 1, 65 << 20), Err(DeviceError::OutOfMemory));
}

#[test]
fn a_wanted_address_is_taken_exactly_and_mapped_memory_keeps_its_contents() {
    let (space, account) = space();
    let wanted = 0x5100_0000_0000;
    assert_eq!(space.reserve(64 << 20, 0, wanted), Ok(wanted));
    let physical = Arc::new(Physical::on_device(0, &account, 4 << 20).expect("allocates"));
    space.map(wanted, 4 << 20, physical.clone(), 0).expect("maps");
    assert_eq!(
        space.map(wanted + (2 << 20), 2 << 20, physical.clone(), 0),
        Err(DeviceError::WrongState)
    );
    assert!(!space.accessible().enter().covers(wanted, 1), "no access yet");
    space.set_access(wanted, 4 << 20, 1, Access::ReadWrite).expect("gives access");
    // SAFETY: mapped and accessible.
    unsafe { *((wanted + 8) as *mut u64) = 0x1234 };
    assert!(space.unreserve(wanted, 64 << 20).is_err(), "still mapped");
    assert!(space.unmap(wanted, 2 << 20).is_err(), "not a whole mapping");
    space.unmap(wanted, 4 << 20).expect("unmaps");
    assert!(!space.accessible().enter().covers(wanted, 1));
    space.map(wanted + (32 << 20), 4 << 20, physical, 0).expect("maps elsewhere");
    // SAFETY: mapped readable.
    assert_eq!(unsafe { *((wanted + (32 << 20) + 8) as *const u64) }, 0x1234);
    space.unmap(wanted + (32 << 20), 4 << 20).expect("unmaps");
    space.unreserve(wanted, 64 << 20).expect("frees the reservation");
    assert_eq!(account.free_bytes(), 64 << 20);
}

#[test]
fn registered_host_memory_is_accessible_until_unregistered() {
    let (space, _) = space();
    let buffer = vec![0u8; 10_000];
    let base = buffer.as_ptr() as u64;
    space.register(base, 10_000, 0, 0, 1).expect("registers");
    assert_eq!(space.register(base + 5000, 100, 0, 0, 1), Err(DeviceError::AlreadyRegistered));
    assert!(space.accessible().enter().covers(base, 10_000));
    assert_eq!(space.unregister(base + 1), Err(DeviceError::NotRegistered));
    space.unregister(base).expect("unregisters");
    assert!(!space.accessible().enter().covers(base, 1));
}

#[test]
fn exact_precision_finds_the_byte_behind_an_allocation() {
    let space = AddressSpace::new(Precision::Exact);
    let account = Arc::new(Account::new(64 << 20));
    let a = space.allocate(0, &account, 1, 1000).expect("allocates");
    let b = space.allocate(0, &account, 1, 1000).expect("allocates");
    assert!(b > a);
    assert_eq!(space.accessible().enter().find(a), Some(a..a + 1000));
    assert_eq!(space.accessible().enter().find(a + 1000), None);
}

#[test]
fn graphs_map_parts_of_a_block_one_after_the_other() {
    const MIB: u64 = 1 << 20;
    let (space, account) = space();
    let physical = Arc::new(Physical::on_device(0, &account, 6 * MIB).expect("allocates"));
    let block = space.reserve(6 * MIB, 0, 0).expect("reserves");
    let map = |from: u64, end: u64| {
        let range = block + from * MIB..block + end * MIB;
        space.map_graph(range, physical.clone(), from * MIB, 1)
    };
    map(0, 5).expect("maps");
    assert_eq!(map(0, 1), Err(DeviceError::WrongState), "is mapped");
    assert_eq!(map(4, 6), Err(DeviceError::WrongState), "a part of it is mapped");
    // SAFETY: mapped and accessible.
    unsafe { *((block + 4 * MIB) as *mut u32) = 77 };
    space.unmap_graph(block).expect("unmaps");
    map(0, 1).expect("maps");
    map(4, 6).expect("maps");
    assert_eq!(map(2, 8), Err(DeviceError::WrongState), "longer than the block");
    let found = space.allocation_at(block + 5 * MIB).expect("is known");
    assert_eq!((found.base, found.size_bytes), (block + 4 * MIB, 2 * MIB));
    // SAFETY: mapped and accessible.
    assert_eq!(unsafe { *((block + 4 * MIB) as *const u32) }, 77, "the same memory");
    for base in [block, block + 4 * MIB] {
        space.unmap_graph(base).expect("unmaps");
    }
    space.unreserve(block, 6 * MIB).expect("frees the reservation");
}
