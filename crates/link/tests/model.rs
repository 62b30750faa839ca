//! The ring, the doorbell and the calls under a model checker: threads are switched at every atomic
//! access, in the orders that the checker chooses, and sleeping has no time limit, so a wake-up
//! that gets lost is a deadlock that the checker reports.
//!
//! `cargo test -p link --features shuttle --test model`
#![cfg(feature = "shuttle")]

use link::atomic::{AtomicU32, Ordering};
use link::call::{self, CallSlots};
use link::completion::Sleeper;
use link::doorbell::Doorbell;
use link::ring::{Consumer, Producer};
use link::session_memory::SessionMemory;
use link::spin::{Cores, Spin};
use link::wire::command::Opcode;
use shuttle::thread;
use std::sync::Arc;
use std::time::Duration;

const RANDOM_SCHEDULES: usize = 20_000;
const LONG: Duration = Duration::from_secs(3600);

fn alive() -> bool {
    true
}

/// Runs `model` in random orders and in orders that starve one thread, which finds other faults.
fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(model.clone(), RANDOM_SCHEDULES);
    shuttle::check_pct(model, RANDOM_SCHEDULES / 2, 3);
}

fn pass_commands(ring_bytes: usize, commands: u32, words: usize) {
    let memory = Arc::new(SessionMemory::in_process(ring_bytes));
    let mut producer = Producer::new(Arc::clone(&memory));
    let posting = thread::spawn(move || {
        for number in 0..commands {
            let body = vec![number; words * (1 + number as usize % 2)];
            let bytes: Vec<u8> = body.iter().flat_map(|word| word.to_ne_bytes()).collect();
            producer.post(Opcode::Copy, 0, number, &[&bytes], &mut alive).unwrap();
        }
    });
    let mut consumer = Consumer::new(memory);
    let mut next = 0;
    while next < commands {
        match consumer.take().unwrap() {
            Some(command) => {
                assert_eq!(command.header.context, next, "lost or repeated");
                let length = words * (1 + next as usize % 2) * 4;
                assert!(
                    command.body[..length].chunks(4).all(|word| word == next.to_ne_bytes()),
                    "torn"
                );
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

#[test]
fn no_command_is_lost_repeated_or_torn_and_no_wake_up_is_lost() {
    check(|| pass_commands(256, 4, 5));
}

#[test]
fn a_producer_that_waits_for_room_is_woken() {
    check(|| pass_commands(64, 4, 4));
}

#[test]
fn every_short_order_of_one_post_and_one_sleep_is_fine() {
    // Small enough to try all orders one after the other.
    shuttle::check_dfs(|| pass_commands(64, 1, 1), Some(200_000));
}

#[test]
fn a_doorbell_wakes_whoever_sleeps_for_what_was_published() {
    shuttle::check_dfs(
        || {
            let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
            let ringer = Arc::clone(&words);
            let ringing = thread::spawn(move || {
                ringer.1.store(1, Ordering::Release);
                Doorbell::new(&ringer.0).ring();
            });
            while words.1.load(Ordering::Acquire) == 0 {
                Doorbell::new(&words.0).sleep(LONG, || words.1.load(Ordering::Acquire) == 1);
            }
            ringing.join().unwrap();
        },
        Some(200_000),
    );
}

#[test]
fn an_interrupted_consumer_wakes() {
    check(|| {
        let memory = Arc::new(SessionMemory::in_process(64));
        let stop = Arc::new(AtomicU32::new(0));
        let (stopper, waker) = (Arc::clone(&stop), Arc::clone(&memory));
        let stopping = thread::spawn(move || {
            stopper.store(1, Ordering::SeqCst);
            waker.wake_consumer();
        });
        let mut consumer = Consumer::new(memory);
        while stop.load(Ordering::SeqCst) == 0 {
            consumer.wait(Cores::Spare, LONG, &mut || stop.load(Ordering::SeqCst) == 1);
        }
        stopping.join().unwrap();
    });
}

#[test]
fn who_begins_to_sleep_is_seen_by_whoever_stops_looking() {
    shuttle::check_dfs(
        || {
            let memory = Arc::new(SessionMemory::in_process(64));
            memory.set_cores(Cores::Wanted);
            let sleeps = Arc::clone(&memory);
            // Stays registered: it waits for what comes later.
            let sleeping = thread::spawn(move || std::mem::forget(Sleeper::register(&sleeps)));
            memory.set_cores(Cores::Spare);
            let mut consumer = Consumer::new(Arc::clone(&memory));
            while memory.sleepers() == 0 {
                consumer.wait(Cores::Spare, LONG, &mut || memory.sleepers() > 0);
            }
            sleeping.join().unwrap();
        },
        Some(200_000),
    );
}

#[test]
fn two_callers_get_their_own_answers() {
    check(|| {
        let memory = Arc::new(SessionMemory::in_process(64));
        let slots = Arc::new(CallSlots::new(Arc::clone(&memory)));
        let (send, receive) = shuttle::sync::mpsc::channel();
        let callers: Vec<_> = (0..2u8)
            .map(|_| {
                let (slots, send) = (Arc::clone(&slots), send.clone());
                thread::spawn(move || {
                    let call = slots.claim().unwrap();
                    let slot = call.slot();
                    send.send(slot).unwrap();
                    let mut reply = Vec::new();
                    let status = call.wait(&mut Spin::never(), &mut reply, &mut alive).unwrap();
                    assert_eq!((status, reply), (u32::from(slot) + 100, vec![slot as u8; 9]));
                })
            })
            .collect();
        for _ in 0..2 {
            let slot = receive.recv().unwrap();
            call::answer(&memory, slot, u32::from(slot) + 100, &[slot as u8; 9]).unwrap();
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}
