//! Worker threads: they run blocks in slices and tasks in pieces. The host thread runs the
//! program's callbacks.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::PoisonError;
use std::time::Duration;

use super::clock::{self, ClockMode};
use super::conditions::Conditions;
use super::engine::{Engine, ReadyTask};
use super::fault::{self, Sticky};
use super::grid::{Grid, Residency};
use super::memory::ranges::Entered;
use super::ops::Step;
use super::placement::{Slice, Stay};
use super::sm::Stage;
use super::textures::TextureUnit;
use crate::exec::{Arena, BlockRun, Fault, Machine, Progress, Textures, WaitingAt};

/// How often values that streams wait for are looked at while nothing else happens.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// Longest sleep of an idle worker.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Block memory that a worker keeps for reuse.
const ARENAS_KEPT: usize = 32;

thread_local! {
    static IN_HOST_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is running a callback of the program, where CUDA calls are not
/// permitted.
pub(crate) fn is_in_host_call() -> bool {
    IN_HOST_CALL.try_with(Cell::get).unwrap_or(false)
}

/// Starts `workers` worker threads and the host thread.
pub(crate) fn start(engine: &Arc<Engine>, workers: usize) -> std::io::Result<()> {
    without_signals(|| {
        for index in 0..workers {
            let engine = engine.clone();
            std::thread::Builder::new()
                .name(format!("softcuda-{index}"))
                .spawn(move || work(&engine))?;
        }
        let engine = engine.clone();
        std::thread::Builder::new()
            .name("softcuda-host".to_owned())
            .spawn(move || host(&engine))
            .map(drop)
    })
}

/// Starts threads on which all signals are blocked: signals belong to the program's own threads,
/// whose handlers must not run on ours.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid places to write to; a new thread inherits the mask, which is put
    // back below.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let started = start();
    // SAFETY: `before` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    started
}

fn host(engine: &Engine) {
    IN_HOST_CALL.with(|flag| flag.set(true));
    let mut state = engine.lock();
    while !state.is_shut_down {
        match state.host_calls.pop_front() {
            Some((stream, call, failed)) => {
                drop(state);
                call(failed);
                state = engine.lock();
                engine.complete(&mut state, stream);
            }
            None => {
                state = engine
                    .host_work
                    .wait_timeout(state, IDLE_INTERVAL)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    }
}

fn work(engine: &Engine) {
    let mut arenas: Vec<Arena> = Vec::new();
    let mut state = engine.lock();
    let mut next_device = 0;
    while !state.is_shut_down {
        if !state.polls.is_empty() {
            engine.poll(&mut state);
        }
        if let Some(ready) = state.tasks.pop_front() {
            drop(state);
            let (ready, step) = step(ready);
            state = engine.lock();
            finish_step(engine, &mut state, ready, step);
            continue;
        }
        let devices = state.devices.len();
        let slice = (0..devices).find_map(|offset| {
            let device = (next_device + offset) % devices;
            state.devices.get_mut(device)?.take(device)
        });
        if let Some(slice) = slice {
            next_device = (slice.device + 1) % devices;
            drop(state);
            let (device, sm, grid) = (slice.device, slice.sm, slice.grid.clone());
            let ended = run_slice(engine, slice, &mut arenas);
            state = engine.lock();
            if !ended.unstarted.is_empty() {
                // With the engine's lock: whoever finds nothing to do is asleep before, or sees
                // these.
                grid.give_back(ended.unstarted);
                engine.work.notify_all();
            }
            if let Some(placement) = state.devices.get_mut(device) {
                placement.put_back(sm, ended.executed, ended.stay);
            }
            if let Some(sticky) = ended.failed {
                engine.fail_context(&mut state, grid.services.context, sticky);
            }
            engine.settle_grid(&mut state, &grid);
            continue;
        }
        let interval = if state.polls.is_empty() { IDLE_INTERVAL } else { POLL_INTERVAL };
        state = engine.work.wait_timeout(state, interval).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn step(mut ready: ReadyTask) -> (ReadyTask, Step) {
    let step = ready.task.step();
    (ready, step)
}

fn finish_step(engine: &Engine, state: &mut super::engine::State, ready: ReadyTask, step: Step) {
    let context = state.context_of(ready.stream);
    let is_failed = context.is_some_and(|context| state.is_failed(context));
    match step {
        Step::More if !is_failed => state.tasks.push_back(ready),
        Step::Then(plan) if !is_failed => engine.continue_with(state, ready.stream, plan),
        Step::Fault(sticky) => {
            if let Some(context) = context {
                engine.fail_context(state, context, sticky);
            }
            engine.complete(state, ready.stream);
        }
        _ => engine.complete(state, ready.stream),
    }
}

/// What a slice came to.
struct Ended {
    executed: u64,
    stay: Stay,
    failed: Option<Sticky>,
    /// Blocks that were claimed and not started.
    unstarted: Range<u64>,
}

impl Ended {
    /// A slice that has run nothing.
    fn new() -> Self {
        Self { executed: 0, stay: Stay::Gone, failed: None, unstarted: 0..0 }
    }
}

/// Runs a block, and further blocks of the same grid, until the slice's fuel is spent.
fn run_slice(engine: &Engine, slice: Slice, arenas: &mut Vec<Arena>) -> Ended {
    let grid = slice.grid;
    let memory = engine.space.accessible().enter_on(slice.device);
    let textures = TextureUnit { table: &engine.textures, memory: &memory };
    let machine = SliceMachine {
        memory: &memory,
        textures,
        conditions: &engine.conditions,
        grid: &grid,
        sm: slice.sm,
        clock: engine.clock,
        begun_cycles: slice.start_cycles,
    };
    let mut run = match slice.stage {
        Stage::Fresh(unit) => BlockRun::new(&grid.launch, unit, arenas.pop().unwrap_or_default()),
        Stage::Begun(run) => run,
        Stage::Running => {
            return Ended::new();
        }
    };
    // Blocks of one grid follow each other without going back to the engine, for a slice.
    let follows = grid.residency == Residency::Independent && grid.unit_blocks() == 1;
    let mut finished_blocks = 0;
    let mut ahead = 0..0;
    let progress = run.run_on(&machine, slice.fuel_warp_instructions, &mut |executed| {
        finished_blocks += 1;
        let fuel_left = slice.fuel_warp_instructions.saturating_sub(executed);
        if !follows || fuel_left == 0 {
            return None;
        }
        if ahead.is_empty() {
            let turn_left = grid.turn_blocks().saturating_sub(finished_blocks);
            let fuel_for = fuel_left / (executed / finished_blocks).max(1) / 2;
            let most = grid.most_claimed_at_once().min(fuel_for.max(1)).min(turn_left);
            ahead = grid.claim_run(most);
        }
        ahead.next().map(|unit| grid.unit_index(unit))
    });
    grid.finish_blocks(finished_blocks);
    let mut ended = Ended { unstarted: ahead, ..Ended::new() };
    match progress {
        Progress::Yielded { executed } => {
            ended.executed = executed;
            match report_overrun(engine, &grid) {
                Some(sticky) => ended.failed = Some(sticky),
                None => ended.stay = Stay::Resident(run),
            }
        }
        Progress::Blocked { executed } => {
            ended.executed = executed;
            match report_overrun(engine, &grid) {
                Some(sticky) => ended.failed = Some(sticky),
                None => ended.stay = Stay::Blocked(run),
            }
        }
        Progress::Finished { executed } => {
            ended.executed = executed.max(1);
            keep(arenas, run.into_arena());
        }
        Progress::Fault(found) => ended.failed = Some(report_fault(engine, &grid, &found)),
        Progress::Deadlock(waiting) => {
            ended.failed = Some(report_deadlock(engine, &grid, &waiting));
        }
    }
    ended
}

fn report_fault(engine: &Engine, grid: &Grid, found: &Fault) -> Sticky {
    grid.services.flush_console();
    fault::log_fault(engine.log, &grid.launch.kernel.name, found);
    Sticky::from(found.kind)
}

fn report_deadlock(engine: &Engine, grid: &Grid, waiting: &[WaitingAt]) -> Sticky {
    fault::log_deadlock(engine.log, &grid.launch.kernel.name, waiting);
    Sticky::LaunchTimeout
}

/// What becomes of a kernel that runs for longer than it may.
fn report_overrun(engine: &Engine, grid: &Grid) -> Option<Sticky> {
    let limit = engine.kernel_limit.filter(|limit| grid.runs_for() > *limit)?;
    grid.services.flush_console();
    fault::log_overrun(engine.log, &grid.launch.kernel.name, limit);
    Some(Sticky::LaunchTimeout)
}

fn keep(arenas: &mut Vec<Arena>, arena: Arena) {
    if arenas.len() < ARENAS_KEPT {
        arenas.push(arena);
    }
}

/// The machine as one slice sees it.
struct SliceMachine<'a> {
    memory: &'a Entered<'a>,
    textures: TextureUnit<'a>,
    conditions: &'a Conditions,
    grid: &'a Grid,
    sm: u32,
    clock: ClockMode,
    /// The SM's virtual time when the slice began.
    begun_cycles: u64,
}

impl Machine for SliceMachine<'_> {
    fn range_of(&self, addr: u64) -> Option<Range<u64>> {
        self.memory.find(addr)
    }

    fn smid(&self) -> u32 {
        self.sm
    }

    fn nsmid(&self) -> u32 {
        self.grid.services.sm_count
    }

    fn clock(&self, executed: u64) -> u64 {
        match self.clock {
            ClockMode::Host => clock::now_cycles(),
            ClockMode::Virtual => self.begun_cycles + executed,
        }
    }

    fn globaltimer_ns(&self) -> u64 {
        match self.clock {
            ClockMode::Host => clock::now_ns(),
            ClockMode::Virtual => clock::cycles_to_ns(self.begun_cycles),
        }
    }

    fn printf(&self, text: &[u8]) {
        self.grid.services.print(text);
    }

    fn malloc(&self, size_bytes: u64) -> Option<u64> {
        self.grid.services.malloc(size_bytes)
    }

    fn free(&self, addr: u64) -> bool {
        self.grid.services.free(addr)
    }

    fn textures(&self) -> Option<&dyn Textures> {
        Some(&self.textures)
    }

    fn set_condition(&self, handle: u64, value: u32) -> bool {
        self.conditions.set(handle, value)
    }

    fn stop_requested(&self) -> bool {
        self.grid.is_stopped()
    }
}
