//! A process that is traced (`openmps trace`): its driver calls and NVTX ranges go into a ring that
//! the tracer reads; the executors of its sessions are told to do the same with their work.
//!
//! A process finds its tracer in its environment, or the server hands it one while it runs. Then
//! the jump table leads through [`call`]; who is not traced pays nothing for a call, and one look
//! at a flag for a command that is posted. The messages are `link::wire::trace`, the records
//! `link::trace`. [`nvtx`] is what NVTX loads.

mod nvtx;

use crate::client::{self, Client};
use crate::context::device::Device;
use crate::exports;
use crate::{info, warn};
use core::cell::Cell;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};
use cuda_abi::functions::FUNCTION_NUMBERS;
use cuda_abi::types::CUresult;
use link::socket::{Connection, SocketError};
use link::trace::{Record, TraceRing, Words};
use link::wire::trace::{FromTraced, SOCKET_VARIABLE, ToTraced};
use link::wire::version::Versions;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks whether the tracer has made room.
const ROOM_INTERVAL: Duration = Duration::from_micros(50);
/// A tracer that makes no room for so long is taken for stuck, and what it does not take is counted
/// as lost.
const ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// Texts that are known by number; others are sent anew each time.
const MAX_KNOWN_TEXTS: usize = 1 << 16;

/// A trace that is being made. Never freed: a thread may be in the middle of a record.
struct Recorder {
    ring: TraceRing,
    connection: Arc<Connection>,
    texts: Mutex<Texts>,
    /// How much the tracer had read, and 1, when it was last waited for in vain; 0 if it never was.
    stuck_at: AtomicU64,
}

#[derive(Default)]
struct Texts {
    known: HashMap<Box<str>, u64>,
    last: u64,
}

/// Null while nothing is recorded.
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(core::ptr::null_mut());
/// The descriptor of its connection, for the child of a fork; -1 if there is none.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// What the present call of a thread has posted.
#[derive(Clone, Copy, Default)]
struct Posted {
    /// Ordinal and 1.
    device: u32,
    first: u64,
    last: u64,
}

thread_local! {
    static POSTED: Cell<Posted> = const { Cell::new(Posted { device: 0, first: 0, last: 0 }) };
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

fn recorder() -> Option<&'static Recorder> {
    // SAFETY: null, or a box that is never freed; Acquire: with the Release in `publish`.
    unsafe { RECORDER.load(Ordering::Acquire).as_ref() }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The calling thread's number in the system.
fn thread_number() -> u32 {
    let known = THREAD.try_with(Cell::get).unwrap_or(0);
    if known != 0 {
        return known;
    }
    let number = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let _ = THREAD.try_with(|cell| cell.set(number));
    number
}

/// Runs a driver call and records it.
#[inline]
pub(crate) fn call(index: usize, body: impl FnOnce() -> CUresult) -> CUresult {
    let start_ns = now_ns();
    let _ = POSTED.try_with(|posted| posted.set(Posted::default()));
    let result = body();
    if let Some(recorder) = recorder() {
        let Posted { device, first, last } = POSTED.try_with(Cell::get).unwrap_or_default();
        recorder.push(&Record::Call {
            thread: thread_number(),
            function: FUNCTION_NUMBERS[index],
            result: result.0,
            device: device.saturating_sub(1),
            start_ns,
            end_ns: now_ns(),
            first,
            last,
        });
    }
    result
}

/// Whether anything is recorded.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    // Relaxed: who sees an old value records one command's place more or less.
    !RECORDER.load(Ordering::Relaxed).is_null()
}

/// A command of the present call ends at `position` of the ring of device `ordinal - 1`'s session.
#[cold]
pub(crate) fn posted(device: u32, position: u64) {
    let _ = POSTED.try_with(|cell| {
        let mut posted = cell.get();
        if posted.first == 0 {
            posted = Posted { device, first: position, last: position };
        } else if posted.device == device {
            posted.last = position;
        }
        cell.set(posted);
    });
}

impl Recorder {
    fn push(&self, record: &Record) {
        let words = record.to_words();
        if self.ring.try_push(&words) {
            return;
        }
        self.push_when_there_is_room(&words);
    }

    #[cold]
    fn push_when_there_is_room(&self, words: &Words) {
        let read = self.ring.read().wrapping_add(1);
        // Relaxed: a number alone. A tracer that was waited for once and has read nothing since is
        // not waited for again: every call of the program would take that long.
        if self.stuck_at.load(Ordering::Relaxed) == read {
            return self.ring.count_lost(1);
        }
        let started = Instant::now();
        let is_there = self.ring.push(words, || {
            std::thread::sleep(ROOM_INTERVAL);
            is_on() && started.elapsed() < ROOM_PATIENCE
        });
        if !is_there {
            self.stuck_at.store(self.ring.read().wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The number of a text, which the reader is told.
    fn text(&self, text: &str) -> u64 {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = texts.known.get(text) {
            return known;
        }
        texts.last += 1;
        let id = texts.last;
        if texts.known.len() < MAX_KNOWN_TEXTS {
            texts.known.insert(text.into(), id);
        }
        // Told under the lock: nobody else may name it before.
        Record::texts(id, text).for_each(|record| self.push(&record));
        id
    }

    fn tell(&self, message: &FromTraced, file: Option<&OwnedFd>) {
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        if let Err(error) = self.connection.send(message, &files, TIMEOUT) {
            warn!("the tracer cannot be told {message:?}: {error}");
        }
    }
}

/// Connects to the tracer that the environment names, unless that was done.
pub(crate) fn open_from_environment() {
    let Some(path) = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) else {
        return;
    };
    if is_on() {
        return;
    }
    match Connection::connect(Path::new(&path), TIMEOUT) {
        Ok(connection) => drop(publish(connection)),
        // A child that has outlived the tracer.
        Err(error) => info!("nothing is traced: {error}"),
    }
}

/// The choice of this process is the native driver.
pub(crate) fn note_native() {
    open_from_environment();
    if let Some(recorder) = recorder() {
        recorder.tell(&FromTraced::Native, None);
    }
}

/// The choice of this process is a server: its calls are to be made ready. Says whether they are
/// traced.
pub(crate) fn begin_attached() {
    open_from_environment();
    match recorder() {
        Some(recorder) => {
            recorder.tell(&FromTraced::Attached, None);
            exports::attach_recorded();
        }
        None => exports::attach(),
    }
}

/// Somebody wants to trace this process, which runs.
pub(crate) fn begin(connection: Connection, client: &'static Client) {
    if is_on() {
        // Closing the connection says so.
        return info!("a second tracer is turned away");
    }
    if publish(connection).is_none() {
        return;
    }
    if let Some(recorder) = recorder() {
        recorder.tell(&FromTraced::Attached, None);
    }
    exports::attach_recorded();
    client.devices.iter().for_each(begin_session);
}

/// A device has a session, or nothing happens.
pub(crate) fn begin_session(device: &Device) {
    let (Some(recorder), Some(backend)) = (recorder(), device.opened()) else { return };
    let ring = match TraceRing::create() {
        Ok((file, _)) => file,
        Err(error) => return warn!("the work of device {} is not traced: {error}", device.ordinal),
    };
    let ordinal = device.ordinal.unsigned_abs();
    match backend.session.start_trace(ring.as_fd(), ordinal + 1) {
        Ok(()) => {
            let message = FromTraced::Session { device: ordinal, name: device.info.name.clone() };
            recorder.tell(&message, Some(&ring));
        }
        Err(error) => warn!("the work of device {ordinal} is not traced: {error}"),
    }
}

/// Makes the connection the one trace of this process; `None` if that was not possible.
fn publish(connection: Connection) -> Option<()> {
    let (file, ring) = match TraceRing::create() {
        Ok(made) => made,
        Err(error) => {
            warn!("nothing is traced: {error}");
            return None;
        }
    };
    let words: Vec<_> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let hello = FromTraced::Hello {
        versions: Versions::ours(),
        pid: std::process::id(),
        command: words.join(" "),
    };
    connection.send(&hello, &[file.as_fd()], TIMEOUT).ok()?;
    let connection = Arc::new(connection);
    let descriptor = connection.as_fd().as_raw_fd();
    let made = Recorder {
        ring,
        connection: Arc::clone(&connection),
        texts: Mutex::default(),
        stuck_at: AtomicU64::new(0),
    };
    let made = Box::into_raw(Box::new(made));
    // Release: with the Acquire in `recorder`. A thread that was faster has its own.
    let null = core::ptr::null_mut();
    if RECORDER.compare_exchange(null, made, Ordering::Release, Ordering::Relaxed).is_err() {
        // SAFETY: made above, known to nobody.
        drop(unsafe { Box::from_raw(made) });
        return None;
    }
    // Relaxed: read by the child of a fork, which has one thread.
    DESCRIPTOR.store(descriptor, Ordering::Relaxed);
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: the handler only stores to atomics and closes a descriptor, which is allowed in
        // the child of a fork.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let listening = crate::thread::spawn("openmps-trace", move || {
        await_end(&connection);
        end(&connection);
    });
    if let Err(error) = listening {
        warn!("the tracer cannot be listened to: {error}");
    }
    Some(())
}

/// The parent is traced, not the child.
extern "C" fn in_child() {
    // Relaxed: the child has one thread.
    RECORDER.store(core::ptr::null_mut(), Ordering::Relaxed);
    let descriptor = DESCRIPTOR.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        // SAFETY: the recorder's own, which the child never uses.
        unsafe { libc::close(descriptor) };
    }
}

fn await_end(connection: &Connection) {
    loop {
        match connection.receive::<ToTraced>(Duration::from_secs(60)) {
            Ok(received) => match received.message {
                ToTraced::Stop => return,
            },
            Err(SocketError::TimedOut(_)) => {}
            Err(_) => return,
        }
    }
}

/// Records no more; tells the tracer when nothing more will come.
fn end(connection: &Connection) {
    let Some(recorder) = recorder() else { return };
    // Release: as in `publish`; who has the old value still writes to a ring that is there.
    RECORDER.store(core::ptr::null_mut(), Ordering::Release);
    DESCRIPTOR.store(-1, Ordering::Relaxed);
    if let Some(client) = client::started() {
        exports::attach();
        for backend in client.devices.iter().filter_map(Device::opened) {
            backend.session.stop_trace();
        }
    }
    recorder.ring.close();
    let _ = connection.send(&FromTraced::Stopped, &[], TIMEOUT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracer_that_has_read_nothing_since_is_not_waited_for_again() {
        let (_file, ring) = TraceRing::create().unwrap();
        let (ours, _theirs) = Connection::pair().unwrap();
        let recorder = Recorder {
            ring,
            connection: Arc::new(ours),
            texts: Mutex::default(),
            stuck_at: AtomicU64::new(0),
        };
        let words = [1; link::trace::RECORD_WORDS];
        while recorder.ring.try_push(&words) {}
        // Nothing is recorded in this process, so nobody waits; but that is noted.
        recorder.push_when_there_is_room(&words);
        assert_eq!(recorder.stuck_at.load(Ordering::Relaxed), 1, "it has read nothing, and 1");
        let before = Instant::now();
        for _ in 0..1000 {
            recorder.push_when_there_is_room(&words);
        }
        assert!(before.elapsed() < ROOM_PATIENCE, "each waited");
        let reader = link::trace::TraceReader::new(recorder.ring);
        assert_eq!(reader.lost(), 1001);
    }
}
