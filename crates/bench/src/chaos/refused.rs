//! Calls with one mistake each, all of which CUDA refuses to their caller: shapes of launches,
//! handles, names, sizes, images, and addresses of another process.

use super::kernels::{self, STEP, THREADS};
use crate::driver::{Driver, DriverError, check};
use cuda_abi::types::*;
use std::ffi::c_void;
use std::ptr;

/// Of a grid.
type Shape = ([u32; 3], u32, u32);

/// Shapes that no device takes: an empty grid, a block that is too large, a grid that is too tall,
/// more shared memory than there is.
const SHAPES: [(&str, Shape); 4] = [
    ("an empty grid", ([0, 1, 1], THREADS, 0)),
    ("a huge block", ([1, 1, 1], 4096, 0)),
    ("a tall grid", ([1, 70_000, 1], THREADS, 0)),
    ("huge shared memory", ([1, 1, 1], THREADS, 1 << 20)),
];
/// Far beyond what a client was given.
const BEYOND: u64 = 1 << 40;
const HUGE_BYTES: usize = 1 << 50;

/// Makes all of them; `foreign` is device memory of another process. Returns how many there were,
/// and those that were not refused as they must be.
pub(super) fn make_all(driver: &Driver, foreign: u64) -> Result<(u64, Vec<String>), DriverError> {
    let (mut count, mut wrong) = (0, Vec::new());
    let mut expect = |what: &str, codes: &[CUresult], result: Result<(), DriverError>| {
        count += 1;
        let code = match result {
            Ok(()) => CUresult::SUCCESS,
            Err(DriverError::Call { code, .. }) => code,
            Err(DriverError::Open { .. }) => CUresult::ERROR_UNKNOWN,
        };
        if !codes.contains(&code) {
            wrong.push(format!("{what}: {}", code.0));
        }
    };
    let table = &driver.table;
    const INVALID: &[CUresult] = &[CUresult::ERROR_INVALID_VALUE];
    const HANDLE: &[CUresult] = &[CUresult::ERROR_INVALID_HANDLE];
    const IMAGE: &[CUresult] = &[
        CUresult::ERROR_INVALID_IMAGE,
        CUresult::ERROR_NO_BINARY_FOR_GPU,
        CUresult::ERROR_INVALID_PTX,
        CUresult::ERROR_NOT_SUPPORTED,
    ];
    let step = kernels::step(driver)?;
    let mut memory: CUdeviceptr = 0;
    check!(table, cuMemAlloc_v2(&mut memory, 4 * THREADS as usize))?;
    for (what, shape) in SHAPES {
        let launched =
            launch(driver, step, driver.stream, memory, shape).and_then(|()| driver.wait());
        expect(what, INVALID, launched);
    }
    let plain = ([1, 1, 1], THREADS, 0);
    let no_function = CUfunction::default();
    expect("no function", HANDLE, launch(driver, no_function, driver.stream, memory, plain));
    // Numbers that were never given out as handles.
    let (function, stream) = (CUfunction(0x1234_5678), CUstream(0x7654_3210));
    expect("a wild function", HANDLE, launch(driver, function, driver.stream, memory, plain));
    expect("a wild stream", HANDLE, check!(table, cuStreamSynchronize(stream)));
    let (mut module, mut absent) = (CUmodule::default(), CUfunction::default());
    check!(table, cuModuleLoadData(&mut module, STEP.as_ptr().cast()))?;
    let got = check!(table, cuModuleGetFunction(&mut absent, module, c"absent".as_ptr()));
    expect("an absent kernel", &[CUresult::ERROR_NOT_FOUND], got);
    let mut bytes = [0xffu8; 64];
    for (what, address) in [("beyond", memory + BEYOND), ("another process's", foreign)] {
        let to = check!(table, cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()));
        expect(&format!("a copy to memory {what}"), INVALID, to);
        let from = check!(table, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()));
        expect(&format!("a copy from memory {what}"), INVALID, from);
        let set = check!(table, cuMemsetD8_v2(address, 0xff, bytes.len()));
        expect(&format!("a fill of memory {what}"), INVALID, set);
        expect(&format!("a free of memory {what}"), INVALID, check!(table, cuMemFree_v2(address)));
    }
    let mut huge: CUdeviceptr = 0;
    let got = check!(table, cuMemAlloc_v2(&mut huge, HUGE_BYTES));
    expect("a huge allocation", &[CUresult::ERROR_OUT_OF_MEMORY], got);
    for (what, image) in images() {
        expect(what, IMAGE, load(driver, &image));
    }
    check!(table, cuMemFree_v2(memory))?;
    driver.wait()?;
    Ok((count, wrong))
}

fn launch(
    driver: &Driver,
    function: CUfunction,
    stream: CUstream,
    memory: CUdeviceptr,
    (grid, threads, shared_bytes): Shape,
) -> Result<(), DriverError> {
    // Should it run after all, the count keeps it inside of the memory.
    let (mut memory, mut count) = (memory, THREADS);
    let mut parameters = [(&raw mut memory).cast(), (&raw mut count).cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    let [x, y, z] = grid;
    check!(
        driver.table,
        cuLaunchKernel(
            function,
            x,
            y,
            z,
            threads,
            1,
            1,
            shared_bytes,
            stream,
            parameters,
            ptr::null_mut()
        )
    )
}

/// Loads an image and looks its kernel up, which is when a driver may see what is wrong.
fn load(driver: &Driver, image: &[u8]) -> Result<(), DriverError> {
    let (mut module, mut function) = (CUmodule::default(), CUfunction::default());
    check!(driver.table, cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
    let got = check!(driver.table, cuModuleGetFunction(&mut function, module, c"step".as_ptr()));
    check!(driver.table, cuModuleUnload(module))?;
    got
}

/// Texts that are cut or name no instruction, a container whose entry is longer than it, one whose
/// entry is garbage, and none at all. Zeros follow each.
fn images() -> Vec<(&'static str, Vec<u8>)> {
    let cut = STEP.as_bytes()[..STEP.len() / 2].to_vec();
    let sideways = STEP.replace("mad.lo.u32", "mad.sideways.u32").into_bytes();
    let container = |entry_says: u64| {
        let mut fatbin = 0xba55_ed50u32.to_le_bytes().to_vec();
        fatbin.extend(1u16.to_le_bytes());
        fatbin.extend(16u16.to_le_bytes());
        fatbin.extend(128u64.to_le_bytes());
        let mut entry = vec![0u8; 128];
        entry[..2].copy_from_slice(&1u16.to_le_bytes());
        entry[4..8].copy_from_slice(&64u32.to_le_bytes());
        entry[8..16].copy_from_slice(&entry_says.to_le_bytes());
        entry[64..].fill(0xee);
        fatbin.extend(entry);
        fatbin
    };
    let mut images = vec![
        ("a text that is cut", cut),
        ("an unknown instruction", sideways),
        ("a container that is cut", container(1 << 20)),
        ("a container of garbage", container(64)),
        ("no image", vec![0xa5; 256]),
    ];
    images.iter_mut().for_each(|(_, image)| image.extend([0; 64]));
    images
}
