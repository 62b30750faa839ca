//! What functions are asked and told before every launch: what is known takes no command, what is
//! valid no answer.

use super::{PTX, fake};
use crate::exports::*;
use core::ffi::c_void;
use core::ptr::null_mut;
use cuda_abi::types::*;
use std::sync::atomic::Ordering;

const SHARED: CUfunction_attribute = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
const CARVEOUT: CUfunction_attribute = CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT;
const REGISTERS: CUfunction_attribute = CUfunction_attribute::NUM_REGS;
const NON_PORTABLE: CUfunction_attribute = CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED;

/// Commands that calls made.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) posted: u32,
    pub(super) called: u32,
}

const NOTHING: Made = Made { posted: 0, called: 0 };
const POSTED: Made = Made { posted: 1, called: 0 };

/// The commands that reach the executor because of `body`.
pub(super) fn made(body: impl FnOnce()) -> Made {
    let so_far = || {
        let (mut free, mut total) = (0, 0);
        // A call that is answered, so that all before it is done.
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        [&fake::COMMANDS, &fake::CALLS].map(|count| count.load(Ordering::Relaxed))
    };
    let before = so_far();
    body();
    let after = so_far();
    let called = after[1] - before[1] - 1;
    Made { posted: after[0] - before[0] - 1 - called, called }
}

fn get(function: CUfunction, attribute: CUfunction_attribute) -> i32 {
    let mut value = 0;
    ok!(cuFuncGetAttribute(&mut value, attribute, function));
    value
}

fn load() -> (CUmodule, CUfunction) {
    let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
    ok!(cuModuleLoadData(&mut module, PTX.as_ptr().cast()));
    ok!(cuModuleGetFunction(&mut function, module, c"add".as_ptr()));
    (module, function)
}

fn load_library() -> (CUlibrary, CUkernel) {
    let (mut library, mut kernel) = (CUlibrary::NULL, CUkernel::NULL);
    let (code, nothing) = (PTX.as_ptr().cast(), null_mut());
    ok!(cuLibraryLoadData(&mut library, code, nothing, null_mut(), 0, null_mut(), null_mut(), 0));
    ok!(cuLibraryGetKernel(&mut kernel, library, c"add".as_ptr()));
    (library, kernel)
}

pub(super) fn settings_and_questions() {
    let (module, function) = load();
    what_a_function_has_takes_no_command(function);
    what_is_wrong_is_asked_and_refused_each_time(function);
    cache_preferences(function);
    threads_that_set_at_once_leave_what_the_driver_has(function);
    occupancy_is_asked_again_after_a_change(function);
    kernels_of_libraries();
    tensor_maps();
    a_function_that_is_loaded_again_has_the_drivers_values(module, function);
}

fn what_a_function_has_takes_no_command(function: CUfunction) {
    assert_eq!(get(function, SHARED), 4096);
    assert_eq!(made(|| ok!(cuFuncSetAttribute(function, SHARED, 4096))), NOTHING);
    assert_eq!(made(|| ok!(cuFuncSetAttribute(function, CARVEOUT, -1))), NOTHING);
    assert_eq!(made(|| ok!(cuFuncSetAttribute(function, NON_PORTABLE, 0))), NOTHING);
    for value in [fake::DYNAMIC_SHARED_BYTES, 0, 6000] {
        assert_eq!(made(|| ok!(cuFuncSetAttribute(function, SHARED, value))), POSTED);
        assert_eq!(get(function, SHARED), value);
        assert_eq!(fake::MOST_DYNAMIC_SHARED_BYTES.load(Ordering::Relaxed), value);
        let again = || (0..100).for_each(|_| ok!(cuFuncSetAttribute(function, SHARED, value)));
        assert_eq!(made(again), NOTHING);
    }
    for value in [100, 0, 50] {
        assert_eq!(made(|| ok!(cuFuncSetAttribute(function, CARVEOUT, value))), POSTED);
        assert_eq!(made(|| ok!(cuFuncSetAttribute(function, CARVEOUT, value))), NOTHING);
        assert_eq!(get(function, CARVEOUT), value);
    }
    // A device without clusters: what its driver thinks of that is its own to say.
    assert_eq!(made(|| ok!(cuFuncSetAttribute(function, NON_PORTABLE, 1))).posted, 0);
    assert_eq!(made(|| ok!(cuFuncSetAttribute(function, NON_PORTABLE, 1))), NOTHING);
    let mut parameters = [0_u64; 3].map(|_| 0_u64);
    let mut addresses = parameters.each_mut().map(|word| (word as *mut u64).cast::<c_void>());
    let launch = |shared| {
        let nothing = CUstream::NULL;
        let parameters = addresses.as_mut_ptr();
        // SAFETY: the kernel's three parameters, which say that there is nothing to add to.
        unsafe {
            cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, shared, nothing, parameters, null_mut())
        }
    };
    assert_eq!([6000, 6001].map(launch), [CUresult::SUCCESS, CUresult::ERROR_INVALID_VALUE]);
}

fn what_is_wrong_is_asked_and_refused_each_time(function: CUfunction) {
    let refused = [
        (SHARED, fake::DYNAMIC_SHARED_BYTES + 1),
        (SHARED, -1),
        (SHARED, i32::MIN),
        (SHARED, i32::MAX),
        (CARVEOUT, -2),
        (CARVEOUT, 101),
        // Nobody can set it, not even to what it is.
        (REGISTERS, get(function, REGISTERS)),
        (CUfunction_attribute(999), 0),
        (CUfunction_attribute(u32::MAX - 1), 0),
    ];
    for (attribute, value) in refused {
        for _ in 0..2 {
            let asked = made(|| {
                fails!(ERROR_INVALID_VALUE, cuFuncSetAttribute(function, attribute, value));
            });
            assert_eq!(asked, Made { posted: 0, called: 1 }, "{attribute:?} {value}");
        }
    }
    assert_eq!([SHARED, CARVEOUT].map(|attribute| get(function, attribute)), [6000, 50]);
    fails!(ERROR_INVALID_HANDLE, cuFuncSetAttribute(CUfunction(0x5555), SHARED, 6000));
    fails!(ERROR_INVALID_HANDLE, cuFuncSetAttribute(CUfunction::NULL, SHARED, 6000));
}

fn cache_preferences(function: CUfunction) {
    let prefer = |config| {
        // SAFETY: a function and a number.
        unsafe { cuFuncSetCacheConfig(function, CUfunc_cache(config)) }
    };
    for config in [1, 0, 3] {
        assert_eq!(prefer(config), CUresult::SUCCESS);
        assert_eq!(made(|| assert_eq!(prefer(config), CUresult::SUCCESS)), NOTHING);
    }
    assert_eq!([4, 4].map(prefer), [CUresult::ERROR_INVALID_VALUE; 2]);
    assert_eq!(made(|| assert_eq!(prefer(3), CUresult::SUCCESS)), NOTHING);
    assert_ne!(made(|| assert_eq!(prefer(1), CUresult::SUCCESS)), NOTHING);
    // Both are about what the same memory is used for: the later one may have changed what the
    // earlier one said.
    ok!(cuFuncSetAttribute(function, CARVEOUT, 70));
    assert_ne!(made(|| assert_eq!(prefer(1), CUresult::SUCCESS)), NOTHING);
    assert_eq!(made(|| ok!(cuFuncSetSharedMemConfig(function, CUsharedconfig(1)))), NOTHING);
}

fn threads_that_set_at_once_leave_what_the_driver_has(function: CUfunction) {
    let mut context = CUcontext::NULL;
    ok!(cuCtxGetCurrent(&mut context));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                ok!(cuCtxSetCurrent(context));
                for round in 0..500 {
                    ok!(cuFuncSetAttribute(function, SHARED, 100 * thread + round % 7));
                }
            });
        }
    });
    // Whatever is done already is counted before it.
    made(|| {});
    let set = fake::MOST_DYNAMIC_SHARED_BYTES.load(Ordering::Relaxed);
    assert_eq!(get(function, SHARED), set);
    ok!(cuFuncSetAttribute(function, SHARED, 6000));
}

fn occupancy_is_asked_again_after_a_change(function: CUfunction) {
    let config = CUlaunchConfig {
        gridDimX: 8,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        ..Default::default()
    };
    let ask = || {
        let (mut blocks, mut clusters, mut most, mut free) = (0, 0, 0, 0);
        ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function, 32, 0));
        ok!(cuOccupancyMaxActiveClusters(&mut clusters, function, &config));
        ok!(cuOccupancyMaxPotentialClusterSize(&mut most, function, &config));
        ok!(cuOccupancyAvailableDynamicSMemPerBlock(&mut free, function, 2, 32));
        assert_eq!((blocks, clusters, most, free), (2, 6, 6, 6));
    };
    assert_eq!(made(ask), Made { posted: 0, called: 4 });
    assert_eq!(made(ask), NOTHING);
    ok!(cuFuncSetAttribute(function, SHARED, 6000));
    assert_eq!(made(ask), NOTHING, "nothing has changed");
    ok!(cuFuncSetAttribute(function, SHARED, 6001));
    assert_eq!(made(ask), Made { posted: 0, called: 4 });
    let other = CUlaunchConfig { gridDimX: 16, ..config };
    let mut clusters = 0;
    let asked = made(|| ok!(cuOccupancyMaxActiveClusters(&mut clusters, function, &other)));
    assert_eq!(asked, Made { posted: 0, called: 1 });
}

fn kernels_of_libraries() {
    let (library, kernel) = load_library();
    let set = |attribute, value, device| {
        // SAFETY: a kernel and numbers.
        unsafe { cuKernelSetAttribute(attribute, value, kernel, device) }
    };
    assert_eq!(made(|| assert_eq!(set(SHARED, 4096, 0), CUresult::SUCCESS)), NOTHING);
    assert_eq!(made(|| assert_eq!(set(SHARED, 5000, 0), CUresult::SUCCESS)), POSTED);
    assert_eq!(made(|| assert_eq!(set(SHARED, 5000, 0), CUresult::SUCCESS)), NOTHING);
    let mut value = 0;
    ok!(cuKernelGetAttribute(&mut value, SHARED, kernel, 0));
    assert_eq!(value, 5000);
    // The same function by its other handle.
    let mut function = CUfunction::NULL;
    ok!(cuKernelGetFunction(&mut function, kernel));
    assert_eq!(made(|| ok!(cuFuncSetAttribute(function, SHARED, 5000))), NOTHING);
    let of_kernel = CUfunction(kernel.0);
    assert_eq!(made(|| ok!(cuFuncSetAttribute(of_kernel, SHARED, 5000))), NOTHING);
    ok!(cuKernelSetCacheConfig(kernel, CUfunc_cache(2), 0));
    assert_eq!(made(|| ok!(cuKernelSetCacheConfig(kernel, CUfunc_cache(2), 0))), NOTHING);
    for _ in 0..2 {
        assert_eq!(set(SHARED, 5000, 1), CUresult::ERROR_INVALID_DEVICE);
        assert_eq!(set(SHARED, 5000, -1), CUresult::ERROR_INVALID_DEVICE);
        assert_eq!(set(SHARED, fake::DYNAMIC_SHARED_BYTES + 1, 0), CUresult::ERROR_INVALID_VALUE);
    }
    ok!(cuLibraryUnload(library));
    assert_eq!(set(SHARED, 5000, 0), CUresult::ERROR_INVALID_HANDLE);
    fails!(ERROR_INVALID_HANDLE, cuFuncSetAttribute(function, SHARED, 5000));
}

/// The map of a tensor of so many elements, or what was wrong with it.
fn map(data_type: u32, address: usize, elements: u64) -> Result<[u64; 16], CUresult> {
    let mut map = CUtensorMap::default();
    let (box_elements, step) = (16, 1);
    // SAFETY: one dimension: one number for each, and no stride.
    let result = unsafe {
        cuTensorMapEncodeTiled(
            &mut map,
            CUtensorMapDataType(data_type),
            1,
            core::ptr::without_provenance_mut(address),
            &elements,
            core::ptr::null(),
            &box_elements,
            &step,
            CUtensorMapInterleave::NONE,
            CUtensorMapSwizzle::NONE,
            CUtensorMapL2promotion(0),
            CUtensorMapFloatOOBfill(0),
        )
    };
    if result == CUresult::SUCCESS { Ok(map.opaque) } else { Err(result) }
}

fn tensor_maps() {
    let expected = |word: usize, elements| {
        let mut words = [0; 16];
        (words[3], words[4]) = (word as u64, elements);
        Ok(words)
    };
    let encode_many = |elements| {
        for address in (0x10_0000..0x20_0000).step_by(0x1000) {
            assert_eq!(map(7, address, elements), expected(address, elements));
        }
    };
    for elements in [100, 200] {
        assert_eq!(made(|| encode_many(elements)), Made { posted: 0, called: 2 });
        assert_eq!(made(|| encode_many(elements)), NOTHING);
    }
    let wrong = made(|| {
        for _ in 0..2 {
            assert_eq!(map(7, 0x10_0008, 100), Err(CUresult::ERROR_INVALID_VALUE));
        }
    });
    assert_eq!(wrong, Made { posted: 0, called: 2 });
    let hidden = || {
        for address in [0x1000, 0x2000, 0x3000, 0x2000] {
            assert_eq!(map(1, address, 100), expected(!address, 100));
        }
    };
    assert_eq!(made(hidden), Made { posted: 0, called: 3 });
    assert_eq!(made(hidden), NOTHING);
}

fn a_function_that_is_loaded_again_has_the_drivers_values(module: CUmodule, former: CUfunction) {
    ok!(cuFuncSetAttribute(former, SHARED, 6000));
    ok!(cuModuleUnload(module));
    fails!(ERROR_INVALID_HANDLE, cuFuncSetAttribute(former, SHARED, 6000));
    let (module, function) = load();
    assert_eq!(get(function, SHARED), 4096);
    assert_eq!(made(|| ok!(cuFuncSetAttribute(function, SHARED, 6000))), POSTED);
    ok!(cuModuleUnload(module));
    // A library's kernel in a context that ended and lives again: code that is loaded anew there.
    let (library, kernel) = load_library();
    ok!(cuKernelSetAttribute(SHARED, 6000, kernel, 0));
    ok!(cuDevicePrimaryCtxReset_v2(0));
    let mut context = CUcontext::NULL;
    fails!(ERROR_CONTEXT_IS_DESTROYED, cuKernelSetAttribute(SHARED, 6000, kernel, 0));
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
    let set = || ok!(cuKernelSetAttribute(SHARED, 6000, kernel, 0));
    assert_eq!(made(set).posted, 1, "the new function has the driver's value");
    assert_eq!(made(set), NOTHING);
    ok!(cuLibraryUnload(library));
}
