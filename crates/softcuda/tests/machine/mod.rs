//! A device for tests: one block of memory, a console, and a loop over all blocks of a grid.

#![allow(dead_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use softcuda::exec::{
    Arena, BlockRun, Fault, Kernel, Launch, LoadEnv, Machine, Program, Progress, SimdLevel,
    WaitingAt,
};

/// Bytes of device memory.
const MEMORY_BYTES: usize = 64 << 20;

/// The machine. Memory is handed out from the front and never freed.
pub(crate) struct TestMachine {
    memory: Vec<u64>,
    used: Mutex<usize>,
    pub(crate) console: Mutex<Vec<u8>>,
    ticks: AtomicU64,
}

impl TestMachine {
    pub(crate) fn new() -> Self {
        Self {
            memory: vec![0; MEMORY_BYTES / 8],
            used: Mutex::new(0),
            console: Mutex::default(),
            ticks: AtomicU64::new(0),
        }
    }

    fn start(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Address of `size` fresh zero bytes.
    pub(crate) fn alloc(&self, size: usize) -> u64 {
        let mut used = self.used.lock().unwrap();
        let at = used.next_multiple_of(256);
        assert!(at + size <= MEMORY_BYTES, "test memory is used up");
        *used = at + size;
        self.start() + at as u64
    }

    /// Copies values to fresh memory.
    pub(crate) fn upload<T: Copy>(&self, values: &[T]) -> u64 {
        let addr = self.alloc(std::mem::size_of_val(values));
        self.write(addr, values);
        addr
    }

    pub(crate) fn write<T: Copy>(&self, addr: u64, values: &[T]) {
        // SAFETY: tests write only to what `alloc` gave, while no kernel runs.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), addr as *mut T, values.len()) }
    }

    pub(crate) fn read<T: Copy>(&self, addr: u64, count: usize) -> Vec<T> {
        // SAFETY: tests read only what `alloc` gave, while no kernel runs.
        (0..count).map(|i| unsafe { (addr as *const T).add(i).read() }).collect()
    }

    /// Loads a program and places its globals.
    pub(crate) fn load(&self, text: &str, level: SimdLevel) -> Program {
        let env = LoadEnv { simd: level, ..LoadEnv::default() };
        let mut program = Program::load(text, &env).expect("the program loads");
        let sizes: Vec<u64> = program.globals().iter().map(|g| g.size_bytes).collect();
        let addresses: Vec<u64> = sizes.iter().map(|&size| self.alloc(size as usize)).collect();
        assert!(program.bind(&addresses));
        for (index, &address) in addresses.iter().enumerate() {
            self.write(address, &program.initial_bytes(index).unwrap());
        }
        program
    }

    /// Runs all blocks of a launch, one slice each in turn.
    pub(crate) fn run(&self, launch: Launch, fuel: u64) -> Result<u64, Stop> {
        self.run_for(launch, fuel, 200_000)
    }

    /// As [`run`](Self::run), for so many slices that end with nothing finished.
    pub(crate) fn run_for(&self, launch: Launch, fuel: u64, most: u64) -> Result<u64, Stop> {
        let launch = Arc::new(launch);
        let [gx, gy, gz] = launch.grid;
        let mut executed = 0;
        let mut waiting: Vec<[u32; 3]> = Vec::new();
        for z in 0..gz {
            for y in 0..gy {
                for x in 0..gx {
                    waiting.push([x, y, z]);
                }
            }
        }
        waiting.reverse();
        let mut arenas: Vec<Arena> = Vec::new();
        let mut running: Vec<BlockRun> = Vec::new();
        let mut slices = 0;
        while !(waiting.is_empty() && running.is_empty()) {
            while running.len() < 4 {
                let Some(index) = waiting.pop() else { break };
                running.push(BlockRun::new(&launch, index, arenas.pop().unwrap_or_default()));
            }
            let mut index = 0;
            while index < running.len() {
                slices += 1;
                match running[index].run(self, fuel) {
                    Progress::Yielded { executed: n } | Progress::Blocked { executed: n } => {
                        executed += n;
                        index += 1;
                        if slices > most {
                            return Err(Stop::Endless);
                        }
                    }
                    Progress::Finished { executed: n } => {
                        executed += n;
                        arenas.push(running.swap_remove(index).into_arena());
                    }
                    Progress::Fault(fault) => return Err(Stop::Fault(*fault)),
                    Progress::Deadlock(at) => return Err(Stop::Deadlock(at)),
                }
            }
        }
        Ok(executed)
    }
}

/// Why a launch ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    Fault(Fault),
    Deadlock(Vec<WaitingAt>),
    Endless,
}

impl Machine for TestMachine {
    fn range_of(&self, addr: u64) -> Option<Range<u64>> {
        let end = self.start() + *self.used.lock().unwrap() as u64;
        (self.start()..end).contains(&addr).then(|| self.start()..end)
    }

    fn smid(&self) -> u32 {
        0
    }

    fn nsmid(&self) -> u32 {
        1
    }

    fn clock(&self, executed: u64) -> u64 {
        executed
    }

    fn globaltimer_ns(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed)
    }

    fn printf(&self, text: &[u8]) {
        self.console.lock().unwrap().extend_from_slice(text);
    }

    fn malloc(&self, size_bytes: u64) -> Option<u64> {
        Some(self.alloc(size_bytes as usize))
    }

    fn free(&self, addr: u64) -> bool {
        addr >= self.start()
    }

    fn stop_requested(&self) -> bool {
        false
    }
}

/// A parameter buffer: values aligned to their sizes.
#[derive(Default)]
pub(crate) struct Params(Vec<u8>);

impl Params {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn push<T: Copy>(mut self, value: T) -> Self {
        let size = std::mem::size_of::<T>();
        self.0.resize(self.0.len().next_multiple_of(std::mem::align_of::<T>()), 0);
        // SAFETY: any value's bytes may be read here; test parameters have no padding.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size) };
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn boxed(self) -> Box<[u8]> {
        self.0.into()
    }
}

/// A launch of `kernel` with grids and blocks of one to three dimensions.
pub(crate) fn launch(
    kernel: &Arc<Kernel>,
    grid: [u32; 3],
    block: [u32; 3],
    params: Params,
) -> Launch {
    Launch::new(Arc::clone(kernel), grid, block, params.boxed())
}

/// All instruction sets that this CPU has.
pub(crate) fn levels() -> Vec<SimdLevel> {
    let all = [SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512];
    all.into_iter().filter(|level| level.min_available() == *level).collect()
}
