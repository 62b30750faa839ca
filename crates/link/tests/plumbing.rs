//! Files, mappings, sockets and completion words between the two ends, as two processes would use
//! them.
#![cfg(not(feature = "loom"))]

use link::completion::{self, CompletionError, CompletionWords};
use link::pages::Pages;
use link::session_memory::SessionMemory;
use link::shm::{self, Access, Reservation, ShmError};
use link::socket::{Connection, Listener, MAX_DESCRIPTORS, SocketError};
use link::spin::Spin;
use link::wire::MAX_PACKET_BYTES;
use link::wire::attach::Window;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(5);

#[test]
fn a_large_packet_and_its_descriptors_arrive_whole() {
    let (one, other) = Connection::pair().unwrap();
    let text = "x".repeat(MAX_PACKET_BYTES - 2);
    let file = shm::create("test", 4096).unwrap();
    one.send(&text, &[file.as_fd(), file.as_fd()], SOON).unwrap();
    let received = other.receive::<String>(SOON).unwrap();
    assert_eq!(received.message, text);
    assert_eq!(received.descriptors.len(), 2);
    shm::check(received.descriptors[1].as_fd(), 4096).unwrap();
    let flags = rustix::io::fcntl_getfd(&received.descriptors[0]).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn too_much_is_refused_on_both_sides() {
    let (one, other) = Connection::pair().unwrap();
    let long = "x".repeat(MAX_PACKET_BYTES);
    assert!(matches!(one.send(&long, &[], SOON), Err(SocketError::TooLong)));
    let many: Vec<BorrowedFd<'_>> = vec![one.as_fd(); MAX_DESCRIPTORS + 1];
    assert!(matches!(one.send(&1, &many, SOON), Err(SocketError::DescriptorsLost)));
    // A hostile sender does not use our `send`.
    let raw = vec![b'1'; MAX_PACKET_BYTES + 1];
    rustix::net::send(&one, &raw, rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(other.receive::<u64>(SOON), Err(SocketError::TooLong)));
    rustix::net::send(&one, b"{", rustix::net::SendFlags::empty()).unwrap();
    assert!(matches!(other.receive::<u64>(SOON), Err(SocketError::NotUnderstood(_))));
    one.send(&7u64, &[], SOON).unwrap();
    assert_eq!(other.receive::<u64>(SOON).unwrap().message, 7);
}

#[test]
fn who_looks_at_a_packet_leaves_it() {
    let (one, other) = Connection::pair().unwrap();
    let file = shm::create("test", 4096).unwrap();
    one.send(&1, &[file.as_fd()], SOON).unwrap();
    one.send(&2, &[], SOON).unwrap();
    for _ in 0..2 {
        let seen = other.peek::<u64>(SOON).unwrap();
        assert_eq!((seen.message, seen.descriptors.len()), (1, 1));
        shm::check(seen.descriptors[0].as_fd(), 4096).unwrap();
    }
    let taken = other.receive::<u64>(SOON).unwrap();
    assert_eq!((taken.message, taken.descriptors.len()), (1, 1));
    assert_eq!(other.peek::<u64>(SOON).unwrap().message, 2);
    assert_eq!(other.receive::<u64>(SOON).unwrap().message, 2);
    let short = Duration::from_millis(5);
    assert!(matches!(other.peek::<u64>(short), Err(SocketError::TimedOut(_))));
}

#[test]
fn a_closed_end_is_seen_and_silence_has_a_limit() {
    let (one, other) = Connection::pair().unwrap();
    assert!(!other.is_closed());
    assert!(matches!(
        other.receive::<u64>(Duration::from_millis(5)),
        Err(SocketError::TimedOut(_))
    ));
    drop(one);
    assert!(other.is_closed());
    assert!(matches!(other.receive::<u64>(SOON), Err(SocketError::Closed)));
    assert!(matches!(other.send(&1, &[], SOON), Err(SocketError::Closed)));
}

#[test]
fn a_listener_knows_who_connected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    assert!(matches!(Connection::connect(&path, SOON), Err(SocketError::Connect { .. })));
    let listener = Listener::bind(&path).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    let _client = Connection::connect(&path, SOON).unwrap();
    let peer = listener.try_accept().unwrap().unwrap().peer().unwrap();
    assert_eq!(peer.pid, std::process::id());
    assert_eq!(peer.uid, rustix::process::getuid().as_raw());
}

#[test]
fn only_sealed_files_of_the_right_size_are_mapped() {
    let file = SessionMemory::create_file().unwrap();
    SessionMemory::map(file.as_fd()).unwrap();
    let small = shm::create("test", 4096).unwrap();
    assert!(matches!(
        SessionMemory::map(small.as_fd()),
        Err(ShmError::WrongSize { actual: 4096, .. })
    ));
    let unsealed = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(matches!(shm::check(unsealed.as_fd(), 0), Err(ShmError::NotSealed)));
    let pipe = rustix::pipe::pipe().unwrap().0;
    assert!(matches!(shm::check(pipe.as_fd(), 0), Err(ShmError::NotAMemfd(_))));
    assert!(rustix::fs::ftruncate(&small, 0).is_err());
}

#[test]
fn files_are_mapped_inside_a_reservation_and_taken_out_again() {
    let window = Window { base: 0x2100_0000_0000, size_bytes: 64 << 30 };
    let reserved = Reservation::new(window).unwrap();
    assert!(matches!(Reservation::new(window), Err(ShmError::AddressTaken { .. })));
    let file = shm::create("test", 8192).unwrap();
    let at = window.base + 4096;
    reserved.map(file.as_fd(), at, 8192, Access::ReadWrite).unwrap();
    // SAFETY: just mapped, read-write, aligned.
    let word = unsafe { &*(at as *const AtomicU64) };
    word.store(77, Ordering::Relaxed);
    let elsewhere = shm::Mapping::new(file.as_fd(), 8192, Access::ReadOnly).unwrap();
    // SAFETY: mapped, aligned.
    assert_eq!(unsafe { &*elsewhere.base().cast::<AtomicU64>() }.load(Ordering::Relaxed), 77);
    reserved.unmap(at, 8192).unwrap();
    for (address, size_bytes) in
        [(at + 1, 4096), (at, 100), (at, 0), (window.base - 4096, 4096), (u64::MAX - 4095, 4096)]
    {
        let outside = reserved.map(file.as_fd(), address, size_bytes, Access::ReadWrite);
        assert!(
            matches!(outside, Err(ShmError::OutsideWindow { .. })),
            "{address:#x} {size_bytes}"
        );
    }
    drop(reserved);
    Reservation::new(window).unwrap();
}

#[test]
fn completion_words_are_read_only_for_whoever_gets_the_file_and_wake_a_sleeper() {
    let writable = CompletionWords::create_file().unwrap();
    let device = CompletionWords::map_writable(writable.as_fd()).unwrap();
    let file = shm::read_only(writable.as_fd()).unwrap();
    assert!(shm::Mapping::new(file.as_fd(), 4096, Access::ReadWrite).is_err());
    assert!(CompletionWords::map_writable(file.as_fd()).is_err());
    assert!(rustix::io::write(&file, b"x").is_err());
    let client = CompletionWords::map(file.as_fd()).unwrap();
    let session = SessionMemory::create_file().unwrap();
    let memory = SessionMemory::map(session.as_fd()).unwrap();
    let never = Some(Duration::from_millis(5));
    let waited = completion::wait(&memory, &client, 3, 10, never, &mut Spin::never(), &mut || true);
    assert_eq!(waited, Err(CompletionError::TimedOut));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            completion::wait(&memory, &client, 3, 10, None, &mut Spin::never(), &mut || true)
                .unwrap()
        });
        while memory.sleepers() == 0 {
            std::thread::yield_now();
        }
        // SAFETY: inside the writable mapping, aligned.
        unsafe { &*((device.range().0 + 3 * 8) as *const AtomicU64) }.store(10, Ordering::Release);
        memory.wake_sleepers();
    });
    assert_eq!(memory.sleepers(), 0);
    memory.fail(700);
    memory.fail(701);
    let failed = completion::wait(&memory, &client, 3, 11, None, &mut Spin::never(), &mut || true);
    assert_eq!(failed, Err(CompletionError::SessionFailed(700)));
    assert_eq!(client.completed(4096), 0);
}

#[test]
fn parts_of_a_completion_file_lie_where_nobody_can_tell() {
    let files: Vec<_> = (0..8).map(|_| CompletionWords::create_file().unwrap()).collect();
    let map = |file| CompletionWords::map_writable(file).unwrap();
    let all: Vec<_> = files.iter().map(|file| map(file.as_fd())).collect();
    let parts = all.iter().flat_map(|it| [it.range(), it.guard_record_range()]);
    let mut addresses: Vec<u64> = parts.map(|(at, _)| at).collect();
    addresses.sort_unstable();
    let near = addresses.windows(2).find(|pair| pair[1] - pair[0] < 1 << 20);
    assert_eq!(near, None);
    let again = map(files[0].as_fd());
    assert_ne!(again.range().0, all[0].range().0);
}

#[test]
fn last_words_are_whole_lines_and_taken_once() {
    let session = SessionMemory::create_file().unwrap();
    let memory = SessionMemory::map(session.as_fd()).unwrap();
    assert!(memory.take_last_words().is_empty());
    let line = format!("{}\n", "x".repeat(99));
    memory.leave_last_words(&line.repeat(30));
    assert_eq!(memory.take_last_words(), line.repeat(20).into_bytes());
    assert!(memory.take_last_words().is_empty());
    memory.leave_last_words("the end");
    assert_eq!(memory.take_last_words(), b"the end");
}

#[test]
fn a_reservation_takes_files_at_whole_pages_only_whatever_their_length() {
    for kib in [4, 16, 64] {
        let bytes = kib << 10;
        let window = Window { base: 0x0d00_0000_0000, size_bytes: 4 * bytes };
        let kept = shm::Reservation::in_pages(window, Pages::of(bytes)).unwrap();
        let file = shm::create("test", bytes).unwrap();
        let map = |at, size_bytes| kept.map(file.as_fd(), at, size_bytes, Access::ReadWrite);
        map(window.base + bytes, bytes).unwrap();
        for (at, size_bytes) in [(bytes / 2, bytes), (bytes, bytes / 2), (4 * bytes, bytes)] {
            let refused = map(window.base + at, size_bytes);
            assert!(matches!(refused, Err(ShmError::OutsideWindow { .. })), "{kib} KiB: {at:#x}");
        }
        kept.unmap(window.base + bytes, bytes).unwrap();
        let beside = Window { base: window.base + bytes / 2, ..window };
        assert!(shm::Reservation::in_pages(beside, Pages::of(bytes)).is_err());
    }
}
