//! The ring with one thread: any sizes come out as they went in, and hostile bytes are refused by
//! name.

use super::*;
use crate::atomic::Ordering;
use crate::session_memory::store_bytes;
use proptest::prelude::*;
use std::collections::VecDeque;

fn ends(ring_bytes: usize) -> (Producer, Consumer) {
    let memory = Arc::new(SessionMemory::in_process(ring_bytes));
    (Producer::new(Arc::clone(&memory)), Consumer::new(memory))
}

fn dead() -> bool {
    false
}

proptest! {
    #[test]
    fn commands_of_any_size_come_out_whole_and_in_order(
        sizes in prop::collection::vec((0usize..700, 0usize..3), 1..200),
        take_after in 1usize..5,
    ) {
        let (mut producer, mut consumer) = ends(4096);
        let mut expected = VecDeque::new();
        let mut take = |expected: &mut VecDeque<(u32, Vec<u8>)>| {
            let Some(command) = consumer.take().unwrap() else { return false };
            let (context, body): (u32, Vec<u8>) = expected.pop_front().unwrap();
            assert_eq!(command.header.context, context);
            assert_eq!(&command.body[..body.len()], body);
            assert!(command.body[body.len()..].iter().all(|&byte| byte == 0));
            true
        };
        for (number, &(length, parts)) in sizes.iter().enumerate() {
            let body: Vec<u8> = (0..length).map(|index| (index * 7 + number) as u8).collect();
            let cut = if parts == 0 { 0 } else { length / (parts + 1) };
            let (first, second) = body.split_at(cut);
            while !producer.has_room(768) {
                prop_assert!(take(&mut expected), "a full ring has something to take");
            }
            producer.post(Opcode::Copy, 3, number as u32, &[first, second], &mut dead).unwrap();
            expected.push_back((number as u32, body));
            if number % take_after == 0 {
                take(&mut expected);
            }
        }
        while take(&mut expected) {}
        prop_assert!(expected.is_empty());
    }

    #[test]
    fn hostile_memory_never_panics_and_never_yields_a_bad_length(
        tail in prop_oneof![any::<u64>(), (0u64..300).prop_map(|units| units * 16)],
        words in prop::collection::vec(any::<u64>(), 512),
    ) {
        let (_, mut consumer) = ends(4096);
        for (shared, word) in consumer.memory().ring_words().iter().zip(words) {
            shared.store(word, core::sync::atomic::Ordering::Relaxed);
        }
        consumer.memory().shared().tail.0.store(tail, Ordering::Relaxed);
        while let Ok(Some(command)) = consumer.take() {
            prop_assert_eq!(command.body.len() + 16, command.header.size_bytes as usize);
        }
    }
}

fn with_header(opcode: u16, size_bytes: u32, tail: u64) -> Result<(), RingError> {
    let (_, mut consumer) = ends(4096);
    let header = Header { opcode, call_slot: 0, size_bytes, context: 0, reserved: 0 };
    store_bytes(consumer.memory().ring_words(), 0, header.as_bytes());
    consumer.memory().shared().tail.0.store(tail, Ordering::Relaxed);
    consumer.take().map(drop)
}

#[test]
fn each_kind_of_nonsense_has_its_error() {
    assert_eq!(
        with_header(1, 16, 4112),
        Err(RingError::BadTail { tail: 4112, head: 0, ring_bytes: 4096 })
    );
    assert_eq!(with_header(1, 16, 24), Err(RingError::UnalignedTail { tail: 24 }));
    assert_eq!(with_header(1, 0, 16), Err(RingError::BadLength { opcode: 1, size_bytes: 0 }));
    assert_eq!(with_header(1, 24, 32), Err(RingError::BadLength { opcode: 1, size_bytes: 24 }));
    assert_eq!(
        with_header(1, 1 << 20, 32),
        Err(RingError::BadLength { opcode: 1, size_bytes: 1 << 20 })
    );
    assert_eq!(
        with_header(1, 48, 32),
        Err(RingError::Incomplete { opcode: 1, size_bytes: 48, available: 32 })
    );
    assert_eq!(with_header(1, 32, 32), Ok(()));
}

#[test]
fn what_is_committed_is_not_taken_again() {
    let (mut producer, _) = ends(4096);
    let memory = Arc::clone(&producer.memory);
    let mut consumer = Consumer::resume(Arc::clone(&memory), 0);
    let mut positions = Vec::new();
    for number in 0..3 {
        producer.post(Opcode::Copy, 3, number, &[&[0; 100]], &mut dead).unwrap();
        assert!(consumer.take().unwrap().is_some());
        positions.push(consumer.taken_bytes());
    }
    assert_eq!(consumer.commit_until(positions[0]), positions[0]);
    let mut next = Consumer::resume(memory, positions[0]);
    assert_eq!(next.take().unwrap().unwrap().header.context, 1);
    assert_eq!(consumer.commit_until(u64::MAX), positions[2], "no more than was taken");
}

#[test]
fn a_tail_that_goes_back_is_refused() {
    let (mut producer, mut consumer) = ends(4096);
    producer.post(Opcode::Ping, 0, 0, &[&[0; 64]], &mut dead).unwrap();
    consumer.take().unwrap().unwrap();
    consumer.memory().shared().tail.0.store(16, Ordering::Relaxed);
    assert_eq!(
        consumer.take().map(drop),
        Err(RingError::BadTail { tail: 16, head: 80, ring_bytes: 4096 })
    );
}

#[test]
fn a_command_longer_than_the_limit_is_refused_and_posts_nothing() {
    let (mut producer, mut consumer) = ends(4096);
    let posted = producer.post(Opcode::Launch, 0, 0, &[&[0; 4096]], &mut dead);
    assert_eq!(posted, Err(PostError::TooLong { size_bytes: 4112, limit_bytes: 4096 }));
    assert!(consumer.take().unwrap().is_none());
}

#[test]
fn posting_to_a_full_ring_of_a_dead_server_ends() {
    let (mut producer, _consumer) = ends(64);
    producer.post(Opcode::Ping, 0, 0, &[&[0; 48]], &mut dead).unwrap();
    assert_eq!(producer.post(Opcode::Ping, 0, 0, &[], &mut dead), Err(PostError::PeerGone));
}

#[test]
fn two_threads_pass_a_million_bytes_through_a_small_ring() {
    let (mut producer, mut consumer) = ends(256);
    let posting = std::thread::spawn(move || {
        for number in 0..20_000u32 {
            let body = number.to_ne_bytes().repeat(1 + (number % 40) as usize);
            producer.post(Opcode::Copy, 0, number, &[&body], &mut || true).unwrap();
        }
    });
    let mut next = 0;
    while next < 20_000u32 {
        match consumer.take().unwrap() {
            Some(command) => {
                assert_eq!(command.header.context, next);
                let body = next.to_ne_bytes().repeat(1 + (next % 40) as usize);
                assert_eq!(&command.body[..body.len()], body);
                next += 1;
            }
            None => {
                consumer.wait(Cores::Spare, LIVENESS_INTERVAL, &mut || false);
            }
        }
    }
    posting.join().unwrap();
}

#[test]
fn who_is_woken_with_nothing_posted_is_told_that_something_comes() {
    let (_, mut consumer) = ends(4096);
    consumer.spin = Spin::never();
    let memory = Arc::clone(consumer.memory());
    let wakes = std::thread::spawn(move || {
        while memory.shared().consumer_asleep.0.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        memory.wake_consumer();
    });
    let hour = Duration::from_secs(3600);
    assert_eq!(consumer.wait(Cores::Spare, hour, &mut dead), Waited::Nothing);
    wakes.join().unwrap();
    assert!(consumer.spin.is_announced());
}
