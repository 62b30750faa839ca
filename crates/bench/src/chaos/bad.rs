//! A client that makes one fault. It tells by lines on standard output: `flying` when what it does must be ended from outside, `r CODE` with
//! what the driver said in the end.

use super::board::Board;
use super::kernels::{self, Faults, THREADS};
use super::kind::Kind;
use crate::driver::{Driver, DriverError, check};
use crate::worker::WorkerError;
use cuda_abi::types::*;
use std::ffi::{CStr, OsString, c_void};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const WORDS: u32 = 4096;
/// Lines of a kernel that prints: more than a megabyte.
const PRINTED_LINES: u32 = 2000;
/// Launches of a process that ends among them.
const LAUNCHES: u32 = 200;

/// What a bad client is told.
#[derive(Clone, Debug)]
pub struct BadTask {
    /// The driver library to open.
    pub driver: OsString,
    /// The file of the board.
    pub board: PathBuf,
    /// What to do.
    pub kind: Kind,
}

/// Makes the fault.
///
/// # Errors
/// Standard output.
pub fn run(task: &BadTask) -> Result<ExitCode, WorkerError> {
    let board = Board::open(&task.board)?;
    let code = match fault(task, &board) {
        Ok(()) => 0,
        Err(DriverError::Call { code, .. }) => code.0,
        Err(error) => return Err(error.into()),
    };
    tell(&format!("r {code}"))?;
    Ok(ExitCode::SUCCESS)
}

fn tell(line: &str) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

fn fault(task: &BadTask, board: &Board) -> Result<(), DriverError> {
    let driver = Driver::open(&task.driver)?;
    let (faults, step) = (Faults::load(&driver)?, kernels::step(&driver)?);
    let mut memory: CUdeviceptr = 0;
    check!(driver.table, cuMemAlloc_v2(&mut memory, WORDS as usize * 4))?;
    check!(driver.table, cuMemsetD32_v2(memory, 0, WORDS as usize))?;
    driver.wait()?;
    let launch = |name: &CStr, blocks: u32, threads: u32, mut value: u64| {
        let function = faults.function(&driver, name)?;
        let mut parameters = [(&raw mut value).cast::<c_void>()];
        driver.launch_function(function, blocks, threads, &mut parameters)
    };
    let steps = |launches: u32| {
        let (mut address, mut count) = (memory, WORDS);
        let mut parameters = [(&raw mut address).cast(), (&raw mut count).cast::<c_void>()];
        (0..launches).try_for_each(|_| {
            driver.launch_function(step, WORDS / THREADS, THREADS, &mut parameters)
        })
    };
    // Whatever the kernel is that begins here, its code is there already.
    if !task.kind.ends_from_outside() {
        board.announce_fault();
    }
    match task.kind {
        Kind::IllegalAddress => launch(c"poke", 1, 1, 0x10)?,
        Kind::Misaligned => launch(c"poke", 1, 1, memory + 2)?,
        Kind::Trap => launch(c"trapping", 1, 32, 0)?,
        Kind::Assert => launch(c"asserting", 1, 1, 0)?,
        Kind::StackOverflow => launch(c"recursing", 1, 1, memory)?,
        Kind::SharedOutOfRange => launch(c"beyond_shared", 1, 1, 1 << 24)?,
        Kind::Endless | Kind::Terminated => {
            launch(c"endless", 1, 32, memory)?;
            let _ = tell("flying");
        }
        Kind::Killed => {
            let _ = tell("flying");
            loop {
                steps(LAUNCHES)?;
                driver.wait()?;
            }
        }
        Kind::Printf => launch(c"printing", 8, 32, PRINTED_LINES.into())?,
        Kind::CorruptImage => load_corrupt(&driver)?,
        Kind::Exit => {
            steps(LAUNCHES)?;
            let _ = tell("r 0");
            std::process::exit(0);
        }
    }
    driver.wait()?;
    check!(driver.table, cuCtxSynchronize())
}

/// An ELF file for a GPU whose section headers lead nowhere, and a fatbin with an entry of garbage.
fn load_corrupt(driver: &Driver) -> Result<(), DriverError> {
    let mut elf = vec![0u8; 4096];
    elf[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\x33\x07\0\0\0\0\0\0\0");
    elf[16..18].copy_from_slice(&2u16.to_le_bytes());
    elf[18..20].copy_from_slice(&190u16.to_le_bytes());
    elf[40..48].copy_from_slice(&64u64.to_le_bytes());
    elf[52..54].copy_from_slice(&64u16.to_le_bytes());
    elf[58..60].copy_from_slice(&64u16.to_le_bytes());
    elf[60..62].copy_from_slice(&8u16.to_le_bytes());
    elf[64..576].fill(0xee);
    let mut fatbin = vec![0xa5u8; 4096];
    fatbin[..4].copy_from_slice(&0xba55_ed50u32.to_le_bytes());
    fatbin[4..6].copy_from_slice(&1u16.to_le_bytes());
    fatbin[6..8].copy_from_slice(&16u16.to_le_bytes());
    fatbin[8..16].copy_from_slice(&2048u64.to_le_bytes());
    let mut last = Ok(());
    for image in [elf, fatbin] {
        let mut module = CUmodule::default();
        last = check!(driver.table, cuModuleLoadData(&mut module, image.as_ptr().cast()));
    }
    last
}
