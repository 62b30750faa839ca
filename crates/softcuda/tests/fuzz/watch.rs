//! What an input may cost: no panic, bounded time, bounded memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Processor time that one input may take, all threads together.
const CPU_SECONDS: f64 = 20.0;
/// A wait that never ends uses no processor time.
const WALL: Duration = Duration::from_secs(300);
/// Heap that one input may use on top of what was used before it.
const BASE_BYTES: usize = 64 << 20;
const PER_INPUT_BYTE: usize = 1000;

/// The system's allocator with the sum of what is allocated, and its peak.
struct Counting;

static CURRENT: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grew(bytes: usize) {
    // Relaxed, here and below: statistics; the thread that reads them does so after the work that
    // it waited for.
    let now = CURRENT.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: everything is the system allocator's; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grew(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CURRENT.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tests of this file share the allocator's counters: one at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static GATE: Mutex<()> = Mutex::new(());
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The input at work.
struct Current {
    number: u64,
    input: Vec<u8>,
    since: Instant,
    cpu_since: f64,
}

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Watches over one target.
pub(crate) struct Watch {
    target: String,
    current: Arc<Mutex<Option<Current>>>,
}

impl Watch {
    /// Starts the thread that ends the process when an input hangs.
    pub(crate) fn start(target: &str) -> Self {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with(|panics| panics.set(panics.get() + 1));
            previous(info);
        }));
        let watch = Self { target: target.to_owned(), current: Arc::default() };
        let (current, target) = (Arc::downgrade(&watch.current), target.to_owned());
        std::thread::spawn(move || {
            while let Some(current) = current.upgrade() {
                if let Some(at) = lock(&current).as_ref()
                    && (cpu_seconds() - at.cpu_since > CPU_SECONDS || at.since.elapsed() > WALL)
                {
                    let path = save(&target, at.number, &at.input);
                    eprintln!("fuzz {target}: input {} hangs: {}", at.number, path.display());
                    std::process::abort();
                }
                drop(current);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        watch
    }

    /// Runs one input.
    pub(crate) fn run(&self, number: u64, input: &[u8], work: impl FnOnce()) {
        let cpu_since = cpu_seconds();
        let current = Current { number, input: input.to_vec(), since: Instant::now(), cpu_since };
        *lock(&self.current) = Some(current);
        let before = CURRENT.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let panics = PANICS.with(Cell::get);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before);
        *lock(&self.current) = None;
        let problem = if result.is_err() || PANICS.with(Cell::get) > panics {
            "panics".to_owned()
        } else if peak > BASE_BYTES + PER_INPUT_BYTE * input.len() {
            format!("of {} bytes takes {peak} bytes of memory", input.len())
        } else {
            return;
        };
        let path = save(&self.target, number, input);
        panic!("fuzz {}: input {number} {problem}: {}", self.target, path.display());
    }
}

fn lock(current: &Mutex<Option<Current>>) -> MutexGuard<'_, Option<Current>> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

fn save(target: &str, number: u64, input: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{target}-{number}"));
    if let Err(error) = fs::write(&path, input) {
        eprintln!("cannot write {}: {error}", path.display());
    }
    path
}
