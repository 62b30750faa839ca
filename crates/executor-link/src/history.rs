//! The last calls of each session, in shared memory: written by the executor just before it submits
//! them, read by the keeper when somebody must be found to blame, and still there when the executor
//! is not. It is the counters' file ([`crate::counters`]).
//!
//! A ring of [`CALLS`] entries costs a launch some twenty stores to memory that is in the cache.

use crate::counters::monotonic_ns;
use link::printable;
use link::wire::command::Opcode;
use link::wire::fault::{CallRecord, LaunchRecord};
use policy::faults::suspects::NAME_BYTES;
use std::array;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Calls that are remembered.
pub const CALLS: usize = 32;
const NAME_WORDS: usize = NAME_BYTES / 8;

/// One session's calls. Written by the session's thread and, once the context is lost, by the
/// monitor.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct History {
    /// Calls ever; the next entry is this, modulo [`CALLS`].
    written: AtomicU64,
    /// All of the first so many calls have ended.
    settled: AtomicU64,
    /// The last launch that is not remembered any more; 0: none.
    forgotten_launch: AtomicU64,
    entries: [Entry; CALLS],
}

/// One call. `number` is 0 while the rest is being written.
#[repr(C)]
#[derive(Debug, Default)]
struct Entry {
    number: AtomicU64,
    /// Opcode, stream, whether it is known to have ended.
    what: AtomicU64,
    time_ns: AtomicU64,
    /// Of a signal, the value; of a launch, shared bytes and the length of the name.
    value: AtomicU64,
    shape: [AtomicU64; 3],
    name: [AtomicU64; NAME_WORDS],
}

const ENDED: u64 = 1 << 63;

/// A launch about to be submitted.
#[derive(Clone, Copy, Debug)]
pub struct NotedLaunch<'a> {
    pub kernel: &'a str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
}

/// One call, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    pub record: CallRecord,
    /// A launch that is not known to have ended.
    pub in_flight: bool,
}

impl History {
    /// A launch, of a kernel or of a graph, is about to be submitted.
    pub fn launch(&self, opcode: Opcode, stream: u32, launch: &NotedLaunch<'_>) {
        self.write(opcode, stream, |entry| {
            let name = launch.kernel.as_bytes();
            let name = &name[..name.len().min(NAME_BYTES)];
            let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
            let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
            entry.value.store(pair(launch.shared_bytes, name.len() as u32), Ordering::Relaxed);
            for (word, value) in entry.shape.iter().zip([pair(gx, gy), pair(gz, bx), pair(by, bz)])
            {
                word.store(value, Ordering::Relaxed);
            }
            for (word, bytes) in entry.name.iter().zip(name.chunks(8)) {
                let mut eight = [0; 8];
                eight[..bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
            }
        });
    }

    /// The device will write `value` for a stream when all earlier calls on it have ended.
    #[inline]
    pub fn signal(&self, stream: u32, value: u64) {
        self.write(Opcode::Signal, stream, |entry| entry.value.store(value, Ordering::Relaxed));
    }

    /// Any other call.
    #[inline]
    pub fn call(&self, opcode: Opcode) {
        self.write(opcode, 0, |_| {});
    }

    /// All that was submitted has ended.
    pub fn settle(&self) {
        // Relaxed: a statistic of this thread's; read when nothing is written any more, or as a
        // hint.
        self.settled.store(self.written.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Marks what has ended by what the device has written for each stream.
    pub fn mark_ended(&self, completed: impl Fn(u32) -> u64) {
        let all = self.in_order();
        for (at, (_, signal)) in all.iter().enumerate() {
            let (opcode, stream) = split(signal.what.load(Ordering::Relaxed));
            let reached = opcode == Opcode::Signal as u16
                && signal.value.load(Ordering::Relaxed) <= completed(stream);
            for (_, earlier) in all.iter().take(if reached { at } else { 0 }) {
                let what = earlier.what.load(Ordering::Relaxed);
                if split(what).1 == stream {
                    earlier.what.store(what | ENDED, Ordering::Relaxed);
                }
            }
        }
    }

    /// Whether there was a launch before the calls that are remembered, of which it is not known
    /// that all work has ended since.
    pub fn has_forgotten_launches(&self) -> bool {
        self.forgotten_launch.load(Ordering::Relaxed) > self.settled.load(Ordering::Relaxed)
    }

    /// The last calls, the oldest first, signals left out.
    pub fn read(&self, now_ns: u64) -> Vec<Noted> {
        self.numbered(now_ns).into_iter().map(|(_, noted)| noted).collect()
    }

    /// The last launches, the oldest first, of a session that goes on: nothing is marked. What a
    /// stream has reached by `completed` has ended.
    pub fn launches(&self, now_ns: u64, completed: impl Fn(u32) -> u64) -> Vec<Noted> {
        let mut launches = self.numbered(now_ns);
        launches.retain(|(_, noted)| noted.record.launch.is_some());
        if launches.iter().any(|(_, noted)| noted.in_flight) {
            let reached = self.reached(completed);
            for (number, noted) in &mut launches {
                let stream = noted.record.launch.as_ref().map(|launch| launch.stream);
                let reached = stream.and_then(|stream| reached.get(&stream));
                noted.in_flight &= reached.is_none_or(|reached| *reached < *number);
            }
        }
        launches.into_iter().map(|(_, noted)| noted).collect()
    }

    /// By stream, the number of the last signal that the device has written.
    fn reached(&self, completed: impl Fn(u32) -> u64) -> HashMap<u32, u64> {
        let mut reached = HashMap::new();
        for (number, entry) in self.in_order() {
            let (opcode, stream) = split(entry.what.load(Ordering::Relaxed));
            let value = entry.value.load(Ordering::Relaxed);
            // Acquire fence: as in `numbered`.
            fence(Ordering::Acquire);
            let is_whole = entry.number.load(Ordering::Relaxed) == number;
            if is_whole && opcode == Opcode::Signal as u16 && value <= completed(stream) {
                reached.insert(stream, number);
            }
        }
        reached
    }

    fn numbered(&self, now_ns: u64) -> Vec<(u64, Noted)> {
        let settled = self.settled.load(Ordering::Relaxed);
        let read = |(number, entry): (u64, &Entry)| {
            let what = entry.what.load(Ordering::Relaxed);
            let (opcode, stream) = split(what);
            let opcode = Opcode::from_number(opcode).filter(|opcode| *opcode != Opcode::Signal)?;
            let is_launch = is_launch(opcode as u16);
            let record = CallRecord {
                call: format!("{opcode:?}"),
                launch: is_launch.then(|| entry.launch(stream)),
                age_us: now_ns.saturating_sub(entry.time_ns.load(Ordering::Relaxed)) / 1000,
            };
            // Acquire fence: the loads before are not moved behind the check of the number; pairs
            // with the release in `write`.
            fence(Ordering::Acquire);
            let in_flight = is_launch && what & ENDED == 0 && number > settled;
            let is_whole = entry.number.load(Ordering::Relaxed) == number;
            is_whole.then_some((number, Noted { record, in_flight }))
        };
        self.in_order().into_iter().filter_map(read).collect()
    }

    /// Forgets all, for the next session.
    pub fn reset(&self) {
        self.written.store(0, Ordering::Relaxed);
        self.settled.store(0, Ordering::Relaxed);
        self.forgotten_launch.store(0, Ordering::Relaxed);
        self.entries.iter().for_each(|entry| entry.number.store(0, Ordering::Relaxed));
    }

    fn write(&self, opcode: Opcode, stream: u32, fill: impl FnOnce(&Entry)) {
        // Relaxed: one thread writes.
        let number = self.written.load(Ordering::Relaxed) + 1;
        let entry = &self.entries[(number as usize) % CALLS];
        if is_launch(entry.what.load(Ordering::Relaxed) as u16) {
            // Of an entry that was another session's: 0.
            let forgotten = number.saturating_sub(CALLS as u64);
            self.forgotten_launch.store(forgotten, Ordering::Relaxed);
        }
        entry.number.store(0, Ordering::Relaxed);
        // Release fence: readers that see what follows see that the entry is being written; pairs
        // with the acquire fence in `read`.
        fence(Ordering::Release);
        entry.what.store(opcode as u64 | u64::from(stream) << 16, Ordering::Relaxed);
        entry.time_ns.store(monotonic_ns(), Ordering::Relaxed);
        fill(entry);
        // Release: pairs with the acquire in `in_order`.
        entry.number.store(number, Ordering::Release);
        self.written.store(number, Ordering::Relaxed);
    }

    fn in_order(&self) -> Vec<(u64, &Entry)> {
        // Acquire: pairs with the release in `write`.
        let number = |entry: &Entry| entry.number.load(Ordering::Acquire);
        let mut all: Vec<(u64, &Entry)> =
            self.entries.iter().map(|entry| (number(entry), entry)).collect();
        all.retain(|(number, _)| *number > 0);
        all.sort_unstable_by_key(|(number, _)| *number);
        all
    }
}

impl Entry {
    fn launch(&self, stream: u32) -> LaunchRecord {
        let halves = |word: &AtomicU64| {
            let word = word.load(Ordering::Relaxed);
            [word as u32, (word >> 32) as u32]
        };
        let [shared_bytes, name_bytes] = halves(&self.value);
        let [[gx, gy], [gz, bx], [by, bz]] = array::from_fn(|at| halves(&self.shape[at]));
        let mut name: Vec<u8> =
            self.name.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        name.truncate(name_bytes as usize);
        LaunchRecord {
            // A name of a client's image, which may hold anything.
            kernel: printable(&String::from_utf8_lossy(&name)),
            grid: [gx, gy, gz],
            block: [bx, by, bz],
            shared_bytes,
            stream,
        }
    }
}

fn is_launch(opcode: u16) -> bool {
    Opcode::from_number(opcode).is_some_and(|opcode| opcode.facts().does.launches())
}

/// Opcode and stream.
fn split(what: u64) -> (u16, u32) {
    (what as u16, ((what & !ENDED) >> 16) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch<'a>(kernel: &'a str) -> NotedLaunch<'a> {
        NotedLaunch { kernel, grid: [1, 2, 3], block: [4, 5, 6], shared_bytes: 7 }
    }

    fn flying(history: &History) -> Vec<String> {
        let read = history.read(monotonic_ns()).into_iter();
        read.filter(|noted| noted.in_flight)
            .filter_map(|noted| Some(noted.record.launch?.kernel))
            .collect()
    }

    #[test]
    fn what_was_written_is_read() {
        let history = History::default();
        history.call(Opcode::ModuleLoad);
        history.launch(Opcode::Launch, 9, &launch("poke"));
        let read = history.read(monotonic_ns());
        assert_eq!(read[0].record.call, "ModuleLoad");
        assert!(!read[0].in_flight && read[1].in_flight);
        let line = "Launch poke grid (1,2,3) block (4,5,6) shared 7 B stream 9";
        assert_eq!(read[1].record.to_string(), line);
    }

    #[test]
    fn a_kernels_name_forges_no_lines() {
        let history = History::default();
        history.launch(Opcode::Launch, 0, &launch("k\n[2026-11-20 forged]\u{1b}[2J"));
        assert_eq!(flying(&history), ["k[2026-11-20 forged][2J"]);
    }

    #[test]
    fn what_a_stream_has_reached_has_ended_and_other_streams_have_not() {
        let history = History::default();
        history.launch(Opcode::Launch, 1, &launch("first"));
        history.signal(1, 10);
        history.launch(Opcode::Launch, 2, &launch("other"));
        history.launch(Opcode::Launch, 1, &launch("second"));
        history.signal(1, 11);
        history.launch(Opcode::Launch, 1, &launch("third"));
        history.mark_ended(|stream| if stream == 1 { 10 } else { 0 });
        assert_eq!(flying(&history), ["other", "second", "third"]);
        history.mark_ended(|stream| if stream == 1 { 11 } else { 0 });
        assert_eq!(flying(&history), ["other", "third"]);
        history.settle();
        assert!(flying(&history).is_empty());
    }

    #[test]
    fn a_session_that_goes_on_is_read_without_a_mark() {
        let history = History::default();
        history.call(Opcode::ModuleLoad);
        history.launch(Opcode::Launch, 1, &launch("first"));
        history.signal(1, 10);
        history.launch(Opcode::GraphLaunch, 2, &launch("other"));
        history.launch(Opcode::Launch, 1, &launch("second"));
        let read = |reached: u64| {
            let launches =
                history.launches(monotonic_ns(), |stream| u64::from(stream == 1) * reached);
            let flies = |noted: &Noted| noted.in_flight;
            launches.iter().map(flies).collect::<Vec<bool>>()
        };
        assert_eq!(read(9), [true, true, true]);
        assert_eq!(read(10), [false, true, true]);
        history.settle();
        assert_eq!(read(10), [false, false, false]);
        assert_eq!(flying(&history), Vec::<String>::new());
    }

    #[test]
    fn a_launch_behind_which_many_calls_came_is_not_forgotten_until_it_has_ended() {
        let history = History::default();
        history.launch(Opcode::Launch, 1, &launch("bad"));
        (1..CALLS).for_each(|_| history.call(Opcode::StreamWaitEvent));
        assert!(!history.has_forgotten_launches() && flying(&history) == ["bad"]);
        history.call(Opcode::EventCreate);
        assert!(history.has_forgotten_launches() && flying(&history).is_empty());
        history.settle();
        assert!(!history.has_forgotten_launches());
        history.launch(Opcode::GraphLaunch, 1, &launch("graph"));
        (0..CALLS).for_each(|_| history.call(Opcode::EventCreate));
        assert!(history.has_forgotten_launches());
        history.reset();
        (0..2 * CALLS).for_each(|_| history.call(Opcode::EventCreate));
        assert!(!history.has_forgotten_launches());
    }

    #[test]
    fn the_oldest_go_first_and_names_are_cut() {
        let history = History::default();
        for number in 0..CALLS + 3 {
            history.launch(Opcode::Launch, 0, &launch(&format!("kernel{number}")));
        }
        let kernels = flying(&history);
        assert_eq!((kernels.len(), kernels[0].as_str()), (CALLS, "kernel3"));
        history.reset();
        assert!(history.read(0).is_empty());
        history.launch(Opcode::Launch, 0, &launch(&"x".repeat(1000)));
        assert_eq!(flying(&history)[0].len(), NAME_BYTES);
    }
}
