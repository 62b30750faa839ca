//! A well-behaved client: it has work in flight half of the time, is idle for the rest, and
//! compares every word of its results with what the processor computes.
//!
//! What it has (memory, a stream, an event, a module, an executable graph) it makes once and uses
//! to its end. It tells by lines on standard output: `ready`; `p FAULT GAP_NS PHASE KIND`, once for
//! every fault that it has survived, with the longest that one of its waits took after that;
//! `rests` when it is idle because the board says that all shall be, and stays so;
//! `e CODE PHASE CALL` when a call fails, and ends then. It ends well when its standard input does.

use super::Phase;
use super::board::{Board, Count, now_ns};
use super::kernels::{self, THREADS};
use crate::driver::{Driver, DriverError, check};
use crate::worker::WorkerError;
use cuda_abi::types::*;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Words of its results.
const WORDS: u32 = 4096;
/// Launches between two comparisons while it is busy.
const LAUNCHES: u32 = 20;
/// How long a phase lasts: between this and twice as long.
const PHASE_MS: u64 = 150;
/// Between two looks while it is idle.
const IDLE_LOOK: Duration = Duration::from_millis(10);

/// What a good client is told.
#[derive(Clone, Debug)]
pub struct GoodTask {
    /// The driver library to open.
    pub driver: OsString,
    /// The file of the board.
    pub board: PathBuf,
    /// Its number.
    pub index: usize,
}

/// Works until standard input ends.
///
/// # Errors
/// Standard output. What the driver refuses is told there, and the program ends with 3.
pub fn run(task: &GoodTask) -> Result<std::process::ExitCode, WorkerError> {
    let ends = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&ends);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // Relaxed: a wish; no data travels with it.
        told.store(true, Ordering::Relaxed);
    });
    let board = Board::open(&task.board)?;
    let mut client = None;
    let mut phase = Phase::Busy;
    let outcome = Client::open(task, &board).and_then(|opened| {
        println!("ready");
        let client = client.insert(opened);
        client.work(&ends, &mut phase)
    });
    let Err(error) = outcome else { return Ok(std::process::ExitCode::SUCCESS) };
    let (code, call) = match &error {
        DriverError::Call { call, code } => (code.0, *call),
        DriverError::Open { .. } => (0, "dlopen"),
    };
    writeln!(std::io::stdout(), "e {code} {} {call}", phase.name())?;
    std::io::stdout().flush()?;
    // What it has is lost; its end must not depend on it.
    std::process::exit(3);
}

/// What it remembers of the latest fault.
#[derive(Debug, Default)]
struct Survived {
    number: u64,
    time_ns: u64,
    kind: u64,
    gap_ns: u64,
    phase: Phase,
}

struct Client<'a> {
    driver: Driver,
    step: CUfunction,
    board: &'a Board,
    index: usize,
    memory: CUdeviceptr,
    expected: Vec<u32>,
    event: CUevent,
    graph: Option<CUgraphExec>,
    survived: Survived,
    random: u64,
}

impl<'a> Client<'a> {
    fn open(task: &GoodTask, board: &'a Board) -> Result<Self, DriverError> {
        let driver = Driver::open(&task.driver)?;
        let step = kernels::step(&driver)?;
        let mut memory = 0;
        check!(driver.table, cuMemAlloc_v2(&mut memory, WORDS as usize * 4))?;
        let seed = (task.index as u32).wrapping_mul(0x9e37_79b9);
        let expected: Vec<u32> =
            (0..WORDS).map(|at| at.wrapping_mul(2_654_435_761) ^ seed).collect();
        check!(
            driver.table,
            cuMemcpyHtoD_v2(memory, expected.as_ptr().cast(), expected.len() * 4)
        )?;
        // Of a copy from pageable memory CUDA promises that its bytes are taken when it returns,
        // and nothing orders the client's stream, which is a non-blocking one, behind it.
        check!(driver.table, cuCtxSynchronize())?;
        let mut event = CUevent::default();
        check!(driver.table, cuEventCreate(&mut event, 0))?;
        check!(driver.table, cuEventRecord(event, driver.stream))?;
        driver.wait()?;
        board.show_memory(memory);
        let (number, time_ns, kind) = board.fault();
        let survived = Survived { number, time_ns, kind, ..Survived::default() };
        let mut client = Self {
            driver,
            step,
            board,
            index: task.index,
            memory,
            expected,
            event,
            graph: None,
            survived,
            random: 0x2545_f491_4f6c_dd1d ^ (task.index as u64 + 1) << 7,
        };
        client.graph = client.make_graph().ok();
        client.round(Phase::Busy)?;
        Ok(client)
    }

    fn work(&mut self, ends: &AtomicBool, phase: &mut Phase) -> Result<(), DriverError> {
        loop {
            *phase = Phase::Busy;
            let until = now_ns() + self.phase_ns();
            while now_ns() < until {
                self.round(*phase)?;
            }
            *phase = Phase::Idle;
            let until = now_ns() + self.phase_ns();
            let mut told = false;
            // Relaxed: a wish; no data travels with it.
            while now_ns() < until || self.board.rests() && !ends.load(Ordering::Relaxed) {
                if self.board.rests() && !std::mem::replace(&mut told, true) {
                    println!("rests");
                }
                std::thread::sleep(IDLE_LOOK);
                self.notice(*phase, now_ns());
                // Nothing is in flight: whatever is wrong now went wrong meanwhile.
                check!(self.driver.table, cuStreamQuery(self.driver.stream))?;
                check!(self.driver.table, cuEventQuery(self.event))?;
            }
            if ends.load(Ordering::Relaxed) {
                self.tell_survived();
                return Ok(());
            }
        }
    }

    fn phase_ns(&mut self) -> u64 {
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (PHASE_MS + self.random % PHASE_MS) * 1_000_000
    }

    /// Launches, waits, and compares all words.
    fn round(&mut self, phase: Phase) -> Result<(), DriverError> {
        let began_ns = now_ns();
        let launched = match self.graph {
            Some(graph) if self.random & 1 == 0 => {
                check!(self.driver.table, cuGraphLaunch(graph, self.driver.stream))?;
                1
            }
            _ => {
                for _ in 0..LAUNCHES {
                    self.launch()?;
                }
                LAUNCHES
            }
        };
        self.driver.wait()?;
        let mut got = vec![0u32; WORDS as usize];
        check!(
            self.driver.table,
            cuMemcpyDtoH_v2(got.as_mut_ptr().cast(), self.memory, got.len() * 4)
        )?;
        self.waited(phase, began_ns, now_ns());
        for (at, word) in (0..).zip(&mut self.expected) {
            for _ in 0..launched {
                *word = word.wrapping_mul(3).wrapping_add(at);
            }
        }
        let wrong = got.iter().zip(&self.expected).filter(|(got, wanted)| got != wanted).count();
        let add = |count, value: u64| {
            self.board.count(self.index, count).fetch_add(value, Ordering::Relaxed)
        };
        add(Count::Kernels, launched.into());
        add(Count::Words, WORDS.into());
        add(Count::Wrong, wrong as u64);
        if wrong > 0 {
            // Each mistake counts once.
            self.expected = got;
        }
        Ok(())
    }

    fn launch(&self) -> Result<(), DriverError> {
        let (mut memory, mut count) = (self.memory, WORDS);
        let mut parameters = [(&raw mut memory).cast(), (&raw mut count).cast()];
        self.driver.launch_function(self.step, WORDS / THREADS, THREADS, &mut parameters)
    }

    /// One launch, as an executable graph; a peer may have none.
    fn make_graph(&self) -> Result<CUgraphExec, DriverError> {
        let table = &self.driver.table;
        let mode = CUstreamCaptureMode::THREAD_LOCAL;
        check!(table, cuStreamBeginCapture_v2(self.driver.stream, mode))?;
        let launched = self.launch();
        let (mut graph, mut executable) = (CUgraph::default(), CUgraphExec::default());
        check!(table, cuStreamEndCapture(self.driver.stream, &mut graph))?;
        launched?;
        check!(table, cuGraphInstantiateWithFlags(&mut executable, graph, 0))?;
        Ok(executable)
    }

    /// A wait has ended.
    fn waited(&mut self, phase: Phase, began_ns: u64, ended_ns: u64) {
        self.notice(phase, ended_ns);
        let from_ns = began_ns.max(self.survived.time_ns);
        self.survived.gap_ns = self.survived.gap_ns.max(ended_ns.saturating_sub(from_ns));
    }

    fn notice(&mut self, phase: Phase, now_ns: u64) {
        self.board.count(self.index, Count::ProgressNs).store(now_ns, Ordering::Relaxed);
        let (number, time_ns, kind) = self.board.fault();
        if number != self.survived.number {
            self.tell_survived();
            self.survived = Survived { number, time_ns, kind, gap_ns: 0, phase };
        }
    }

    fn tell_survived(&self) {
        let Survived { number, kind, gap_ns, phase, .. } = self.survived;
        if number > 0 {
            // Whoever listened may be gone.
            let _ = writeln!(std::io::stdout(), "p {number} {gap_ns} {} {kind}", phase.name());
        }
    }
}
