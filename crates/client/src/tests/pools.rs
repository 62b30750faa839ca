//! Memory pools: what they hold on to is used again without a command.

use super::functions::{Made, made};
use crate::exports::*;
use cuda_abi::types::*;

/// More than is kept anyway.
const SIZE_BYTES: usize = 40 << 20;

pub(super) fn what_a_pool_holds_on_to_is_there_again() {
    let mut pool = CUmemoryPool::NULL;
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    let hold = |size_bytes: u64| {
        let mut value = size_bytes;
        let attribute = CUmemPool_attribute::RELEASE_THRESHOLD;
        ok!(cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast()));
    };
    let use_it = || {
        let mut address = 0;
        ok!(cuMemAllocAsync(&mut address, SIZE_BYTES, CUstream::NULL));
        ok!(cuMemFreeAsync(address, CUstream::NULL));
    };
    let called = |body: &dyn Fn()| {
        let Made { called, .. } = made(body);
        called
    };
    use_it();
    assert_eq!(called(&use_it), 2, "got from the server, and given back");
    hold(u64::MAX);
    use_it();
    assert_eq!(called(&use_it), 0);
    // Memory that is no pool's is given back as before.
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, 20 << 20));
    ok!(cuMemFree_v2(address));
    assert_eq!(called(&use_it), 0);
    let trim = || ok!(cuMemPoolTrimTo(pool, 0));
    assert_eq!(called(&trim), 1);
    assert_eq!(called(&trim), 0);
    hold(0);
    use_it();
    assert_eq!(called(&use_it), 2);
}
