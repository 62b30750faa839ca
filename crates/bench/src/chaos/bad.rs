//! A client that makes one fault, or one attack. It tells by lines on standard output: `flying`
//! when what it does must be ended from outside, `n COUNT` of bad inputs that it has made, `r CODE`
//! with what the driver said in the end.

use super::board::Board;
use super::kernels::{self, Faults, THREADS};
use super::kind::Kind;
use super::refused;
use crate::driver::{Driver, DriverError, check};
use crate::hostile::raw_session::{RawError, RawSession, Sent, attach};
use crate::hostile::{Random, commands, images, messages};
use crate::worker::WorkerError;
use cuda_abi::types::*;
use link::wire::DAEMON_SOCKET;
use link::wire::attach::RequestedLimits;
use std::ffi::{CStr, OsString, c_void};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const WORDS: u32 = 4096;
/// Lines of a kernel that prints: more than a megabyte.
const PRINTED_LINES: u32 = 500;
/// Launches of a process that ends among them.
const LAUNCHES: u32 = 200;
/// Images of one that loads damaged ones.
const IMAGES: usize = 20;
/// Sessions of one that writes its rings by hand, and inputs of each, unless it is thrown out
/// before.
const SESSIONS: usize = 8;
const INPUTS: usize = 40;
/// What such a client may have.
const MEMORY_LIMIT: &str = "0=64M";

/// What a bad client is told.
#[derive(Clone, Debug)]
pub struct BadTask {
    /// The driver library to open.
    pub driver: OsString,
    /// The file of the board.
    pub board: PathBuf,
    /// What to do.
    pub kind: Kind,
    /// What is random about it follows from this.
    pub seed: u64,
    /// The daemon's directory, for those that need no driver.
    pub directory: PathBuf,
}

/// Makes the fault.
///
/// # Errors
/// Standard output.
pub fn run(task: &BadTask) -> Result<ExitCode, WorkerError> {
    let board = Board::open(&task.board)?;
    let socket = task.directory.join(DAEMON_SOCKET);
    let mut random = Random(task.seed);
    let answer = match task.kind {
        Kind::HostileRing => {
            board.announce_fault(task.kind);
            attack(&socket, &mut random).map_or_else(|error| error.to_string(), str::to_owned)
        }
        Kind::HostileMessages => {
            board.announce_fault(task.kind);
            match messages::send(&socket, &mut random) {
                Ok(packets) => {
                    tell(&format!("n {packets}"))?;
                    "sent".to_owned()
                }
                Err(error) => error.to_string(),
            }
        }
        Kind::RefusedCalls => {
            let driver = Driver::open(&task.driver)?;
            board.announce_fault(task.kind);
            let (calls, wrong) = refused::make_all(&driver, board.shown_memory())?;
            tell(&format!("n {calls}"))?;
            if wrong.is_empty() { "refused".to_owned() } else { wrong.join(", ") }
        }
        _ => match fault(task, &board) {
            Ok(()) => "0".to_owned(),
            Err(DriverError::Call { code, .. }) => code.0.to_string(),
            Err(error) => return Err(error.into()),
        },
    };
    // What kernels have printed may not have ended its line.
    tell(&format!("\nr {answer}"))?;
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
        board.announce_fault(task.kind);
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
        Kind::CorruptImage => {
            let _ = tell(&format!("n {IMAGES}"));
            load_corrupt(&driver, &mut Random(task.seed))?;
        }
        Kind::RefusedCalls | Kind::HostileRing | Kind::HostileMessages => {}
        Kind::Exit => {
            steps(LAUNCHES)?;
            let _ = tell("r 0");
            std::process::exit(0);
        }
    }
    driver.wait()?;
    check!(driver.table, cuCtxSynchronize())
}

/// Loads images that are none; one may be good code by chance. The last one's result is returned.
fn load_corrupt(driver: &Driver, random: &mut Random) -> Result<(), DriverError> {
    let mut last = Ok(());
    for _ in 0..IMAGES {
        let image = images::image(random, kernels::STEP);
        let mut module = CUmodule::default();
        last = check!(driver.table, cuModuleLoadData(&mut module, image.as_ptr().cast()));
    }
    last
}

/// Writes mutated commands into rings, into the next one when it is thrown out; says what became of
/// the last session.
fn attack(socket: &Path, random: &mut Random) -> Result<&'static str, RawError> {
    let limits = RequestedLimits {
        pinned_device_mem_limit: Some(MEMORY_LIMIT.to_owned()),
        ..RequestedLimits::default()
    };
    let (mut made, mut last) = (0, "heard");
    for number in 0..SESSIONS {
        let mut session = RawSession::open(attach(socket, limits.clone())?)?;
        // The last one says at once that it has written what it has not.
        let mut sent = Sent::Taken;
        for _ in 0..if number + 1 == SESSIONS { 0 } else { INPUTS } {
            session.refill(random)?;
            made += 1;
            sent = session.send(&commands::input(random, session.targets()))?;
            if sent != Sent::Taken {
                break;
            }
        }
        if sent == Sent::Taken {
            made += 1;
            sent = session.lie(random)?;
        }
        last = match sent {
            Sent::Taken => "believed",
            Sent::Ended => "thrown out",
            Sent::Stuck => "not heard",
        };
        if sent != Sent::Ended {
            break;
        }
    }
    let _ = tell(&format!("n {made}"));
    Ok(last)
}
