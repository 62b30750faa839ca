//! The ring, the doorbell, the calls and the completions under a model checker. loom tries the
//! orders in which threads can be switched, and for each load all values that the orderings allow,
//! as a processor with weak memory does. Sleeping has no time limit there: a wake-up that gets lost
//! is a deadlock, which loom reports, as it does data that is read while another may write it.
//!
//! `cargo test -p link --features loom --test model`
//!
//! That a model would find a wrong ordering is shown at the end: each ordering is weakened in turn.

use link::atomic::model::{Place, take_places, weaken};
use link::atomic::{AtomicU32, DataWord, Ordering};
use link::call::{self, CallSlots};
use link::completion::{self, CompletionWords, Sleeper};
use link::doorbell::Doorbell;
use link::ring::{Consumer, Producer};
use link::session_memory::SessionMemory;
use link::spin::{Cores, Spin};
use link::wire::command::Opcode;
use loom::thread;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);
/// How often a thread is stopped where it could go on, at most. More find nothing that fewer did
/// not, and take very long.
const PREEMPTIONS: usize = 2;

/// Says to a process of this test which ordering is weakened: `FILE:LINE`.
const VARIABLE: &str = "OPENMPS_WEAKENED";
/// How such a process ends when its model fails. It has to be a process, since what fails in the
/// middle of a model cannot be unwound.
const FOUND: i32 = 3;

fn alive() -> bool {
    true
}

fn check(model: fn()) {
    if let Ok(place) = std::env::var(VARIABLE) {
        std::panic::set_hook(Box::new(|_| std::process::exit(FOUND)));
        let (file, line) = place.split_once(':').unwrap();
        weaken(file, line.parse().unwrap());
    }
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(PREEMPTIONS);
    checker.check(model);
}

fn session(ring_bytes: usize) -> Arc<SessionMemory> {
    Arc::new(SessionMemory::in_process(ring_bytes))
}

/// One thread posts `commands` of two lengths, the other takes them.
fn pass_commands(commands: u32, words: usize) {
    let memory = session(64);
    let mut producer = Producer::new(Arc::clone(&memory));
    let posting = thread::spawn(move || {
        for number in 0..commands {
            let body = number.to_ne_bytes().repeat(words);
            producer.post(Opcode::Copy, 0, number, &[&body], &mut alive).unwrap();
        }
    });
    let mut consumer = Consumer::new(memory);
    let mut next = 0;
    while next < commands {
        match consumer.take().unwrap() {
            Some(command) => {
                assert_eq!(command.header.context, next, "lost or repeated");
                let (body, _) = command.body.split_at(words * 4);
                assert_eq!(body, next.to_ne_bytes().repeat(words), "torn");
                next += 1;
            }
            None => {
                consumer.wait(Cores::Spare, LONG, &mut || false);
            }
        }
    }
    assert!(consumer.take().unwrap().is_none());
    posting.join().unwrap();
}

fn one_command() {
    pass_commands(1, 1);
}

/// The second has no room until the first was taken, and goes over the ring's end.
fn a_ring_too_small_for_two() {
    pass_commands(2, 8);
}

/// A consumer that is told of something else than a command.
fn an_interruption() {
    let memory = session(64);
    let said = Arc::new(AtomicU32::new(0));
    let (says, waker) = (Arc::clone(&said), Arc::clone(&memory));
    let interrupting = thread::spawn(move || {
        says.store(1, Ordering::Relaxed);
        waker.wake_consumer();
    });
    let mut consumer = Consumer::new(memory);
    let is_said = || said.load(Ordering::Relaxed) == 1;
    while !is_said() {
        consumer.wait(Cores::Spare, LONG, &mut || is_said());
    }
    interrupting.join().unwrap();
}

fn a_doorbell() {
    let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0), DataWord::new(0)));
    let ringer = Arc::clone(&words);
    let ringing = thread::spawn(move || {
        ringer.2.store(7, Ordering::Relaxed);
        ringer.1.store(1, Ordering::Release);
        Doorbell::new(&ringer.0).ring();
    });
    let is_published = || words.1.load(Ordering::Acquire) == 1;
    while !is_published() {
        Doorbell::new(&words.0).sleep(LONG, is_published);
    }
    assert_eq!(words.2.load(Ordering::Relaxed), 7);
    ringing.join().unwrap();
}

/// The client waits for a stream, the device gets there, and the executor, which sleeps until it
/// hears that somebody waits, looks at the stream.
fn a_stream_is_waited_for() {
    let memory = session(64);
    let words = Arc::new(CompletionWords::in_process(1));
    let (result, done) = (Arc::new(DataWord::new(0)), Arc::new(AtomicU32::new(0)));
    let device = {
        let (words, result) = (Arc::clone(&words), Arc::clone(&result));
        thread::spawn(move || {
            result.store(7, Ordering::Relaxed);
            words.reach(0, 1);
        })
    };
    let executor = {
        let (memory, words, done) = (Arc::clone(&memory), Arc::clone(&words), Arc::clone(&done));
        thread::spawn(move || {
            let mut consumer = Consumer::new(Arc::clone(&memory));
            let is_wanted = || memory.sleepers() > 0 || done.load(Ordering::Relaxed) == 1;
            while !is_wanted() {
                consumer.wait(Cores::Spare, LONG, &mut || is_wanted());
            }
            while words.completed(0) == 0 {
                thread::yield_now();
            }
            memory.wake_sleepers();
        })
    };
    completion::wait(&memory, &words, 0, 1, None, &mut Spin::never(), &mut alive).unwrap();
    assert_eq!(result.load(Ordering::Relaxed), 7, "what the stream wrote");
    done.store(1, Ordering::Relaxed);
    memory.wake_consumer();
    executor.join().unwrap();
    device.join().unwrap();
}

/// Where there are no cores for threads that spin, who begins to sleep says nothing. It is seen by
/// whoever says that there are again, and looks once more; or it rings.
fn cores_become_spare() {
    let memory = session(64);
    memory.set_cores(Cores::Wanted);
    let doorbell = &memory.shared().consumer_asleep.0;
    doorbell.store(1, Ordering::Relaxed);
    let sleeps = Arc::clone(&memory);
    // Stays registered: it waits for what comes later.
    let sleeping = thread::spawn(move || std::mem::forget(Sleeper::register(&sleeps)));
    memory.set_cores(Cores::Spare);
    let is_seen = memory.sleepers() > 0;
    sleeping.join().unwrap();
    assert!(is_seen || doorbell.load(Ordering::Relaxed) == 0, "nobody knows of the sleeper");
}

fn a_session_fails() {
    let memory = session(64);
    let words = CompletionWords::in_process(1);
    let reason = Arc::new(DataWord::new(0));
    let (fails, said) = (Arc::clone(&memory), Arc::clone(&reason));
    let failing = thread::spawn(move || {
        said.store(7, Ordering::Relaxed);
        fails.fail(700);
    });
    let waited = completion::wait(&memory, &words, 0, 1, None, &mut Spin::never(), &mut alive);
    assert_eq!(waited, Err(completion::CompletionError::SessionFailed(700)));
    assert_eq!(reason.load(Ordering::Relaxed), 7, "what was said before");
    failing.join().unwrap();
}

fn a_guard_is_broken() {
    let words = Arc::new(CompletionWords::in_process(1));
    let kernels = Arc::clone(&words);
    let kernel = thread::spawn(move || kernels.break_guard(&[1, 7]));
    let record = loop {
        match words.guard_record() {
            Some(record) => break record,
            None => thread::yield_now(),
        }
    };
    assert_eq!(record[..2], [1, 7]);
    kernel.join().unwrap();
}

/// As the ring does it: whoever sees the slot sees what was written before.
fn slot_in(posted: &AtomicU32) -> u16 {
    loop {
        match posted.load(Ordering::Acquire) {
            0 => thread::yield_now(),
            slot => return slot as u16 - 1,
        }
    }
}

fn call(slots: &CallSlots, posted: &AtomicU32) -> (u32, Vec<u8>) {
    let call = slots.claim().unwrap();
    posted.store(u32::from(call.slot()) + 1, Ordering::Release);
    // The answer may come before the first look for it.
    thread::yield_now();
    let mut reply = Vec::new();
    let status = call.wait(&mut Spin::never(), &mut reply, &mut alive).unwrap();
    (status, reply)
}

/// The second may get the slot of the first.
fn two_callers() {
    let memory = session(64);
    let slots = Arc::new(CallSlots::new(Arc::clone(&memory)));
    let posted = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let callers = [0, 1].map(|number: u8| {
        let (slots, posted) = (Arc::clone(&slots), Arc::clone(&posted));
        thread::spawn(move || {
            let answer = call(&slots, &posted[usize::from(number)]);
            assert_eq!(answer, (100 + u32::from(number), vec![number; 9]));
        })
    });
    for (number, posted) in (0..).zip(posted.iter()) {
        let slot = slot_in(posted);
        call::answer(&memory, slot, 100 + u32::from(number), &[number; 9]).unwrap();
    }
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}

/// An answer that is given twice, since nobody knows whether it was given, does not meet the next
/// call in its slot.
fn an_answer_given_twice() {
    let memory = session(64);
    let posted = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let (calls, theirs) = (CallSlots::new(Arc::clone(&memory)), Arc::clone(&posted));
    let caller = thread::spawn(move || {
        assert_eq!(call(&calls, &theirs[0]), (1, b"first".to_vec()));
        assert_eq!(call(&calls, &theirs[1]), (2, b"second".to_vec()));
    });
    let first = call::prepare(&memory, slot_in(&posted[0]), 1, b"first").unwrap();
    call::give(&memory, first);
    call::give(&memory, first);
    call::answer(&memory, slot_in(&posted[1]), 2, b"second").unwrap();
    caller.join().unwrap();
}

macro_rules! models {
    ($($model:ident),* $(,)?) => {
        const MODELS: &[(&str, fn())] = &[$((stringify!($model), $model)),*];

        mod holds {
            $(
                #[test]
                fn $model() {
                    super::check(super::$model);
                }
            )*
        }
    };
}

models!(
    one_command,
    a_ring_too_small_for_two,
    an_interruption,
    a_doorbell,
    a_stream_is_waited_for,
    cores_become_spare,
    a_session_fails,
    a_guard_is_broken,
    two_callers,
    an_answer_given_twice,
);

/// Orderings whose weakening no model finds, by what stands there, and why they are there.
const NOT_FOUND: &[(&str, &str)] = &[
    ("memory.shared().sleepers.0.fetch_add(1, Ordering::SeqCst);", MONITOR),
    ("self.0.shared().sleepers.0.fetch_sub(1, Ordering::SeqCst);", MONITOR),
    ("self.shared().sleepers.0.load(Ordering::SeqCst)", MONITOR),
    (
        "if state.load(Ordering::Acquire) == CALL_DONE {",
        "who was woken is ordered behind who woke it, by a lock in the model's kernel",
    ),
];
const MONITOR: &str =
    "for the executor's monitor, which is in no model: it says that it parks, and looks once more";

#[test]
fn each_ordering_that_is_weakened_is_found() {
    let mut places: BTreeMap<Place, Vec<&str>> = BTreeMap::new();
    for (name, model) in MODELS {
        check(*model);
        let of_ours = take_places().into_iter().filter(|(file, _)| file.contains("/src/"));
        of_ours.for_each(|place| places.entry(place).or_default().push(name));
    }
    for file in ["ring.rs", "doorbell.rs", "completion.rs", "call.rs"] {
        assert!(places.keys().any(|(path, _)| path.ends_with(file)), "nothing of {file}");
    }
    let is_found = |place, models: &[&str]| models.iter().any(|model| fails(model, place));
    let not_found = places.iter().filter(|(place, models)| !is_found(**place, models));
    let not_found = not_found.map(|(place, _)| text_at(*place));
    let expected = NOT_FOUND.iter().map(|(text, _)| (*text).to_owned());
    assert_eq!(BTreeSet::from_iter(not_found), BTreeSet::from_iter(expected));
}

/// Whether a model fails where the ordering at a place is weakened.
fn fails(model: &str, (file, line): Place) -> bool {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("holds::{model}")])
        .env(VARIABLE, format!("{file}:{line}"))
        .output()
        .unwrap();
    assert!([Some(0), Some(FOUND)].contains(&ended.status.code()), "{file}:{line}: {ended:?}");
    ended.status.code() == Some(FOUND)
}

fn text_at((file, line): Place) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let text = std::fs::read_to_string(root.join(file)).unwrap();
    text.lines().nth(line as usize - 1).unwrap().trim().to_owned()
}
