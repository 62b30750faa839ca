use super::*;
use crate::socket::{Listener, SocketError};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::net::sockopt;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const SOON: Duration = Duration::from_secs(60);

/// A TCP socket whose closing would take a minute, and the end that reads nothing.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (reader, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    // Until neither side has room for more.
    while sender.write(&[0; 1 << 16]).is_ok() {}
    sockopt::set_socket_linger(&sender, Some(SOON)).unwrap();
    (sender.into(), reader)
}

fn until(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A connection that was sent a lingering socket, which it has the last copy of.
fn loaded() -> (Connection, Connection, TcpStream) {
    let (ours, theirs) = Connection::pair().unwrap();
    let (socket, reader) = lingering();
    theirs.send(&1, &[socket.as_fd()], SOON).unwrap();
    (ours, theirs, reader)
}

#[test]
fn what_lingers_is_closed_elsewhere_and_does_not_stay() {
    let closer = Closer::default();
    let (ours, theirs, mut reader) = loaded();
    let (one, other) = (Owner::user(1), Owner::user(2));
    let began = Instant::now();
    drop(closer.guard(one.clone(), ours));
    assert!(began.elapsed() < SOON / 2, "nobody waited");
    assert_eq!(closer.waiting(&other), 0);
    until(|| closer.waiting(&one) == 0);
    assert!(began.elapsed() < SOON / 2, "nor does it linger there");
    assert_eq!(closer.waiting_of_all(), 0);
    assert!(theirs.is_closed());
    // What it had sent arrives all the same, and then its end.
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
}

#[test]
fn a_closing_that_blocks_holds_up_its_owner_alone() {
    // A directory whose file system answers nobody cannot be had here: a pipe that is drained
    // stands for a thread that is busy.
    let closer = Closer::default();
    let (busy, idle) = (Owner::user(1), Owner::user(2));
    closer.lock().insert(busy.clone(), Queue { has_thread: true, ..Default::default() });
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    for _ in 0..=MOST_WAITING {
        assert!(!closer.is_behind(&busy));
        closer.close(&busy, file());
    }
    assert!(closer.is_behind(&busy));
    assert_eq!(closer.waiting(&busy), MOST_WAITING + 1);
    closer.close(&idle, file());
    until(|| closer.waiting(&idle) == 0);
    assert!(closer.is_behind(&busy) && !closer.is_behind(&idle));
}

#[test]
fn a_connection_without_descriptors_is_closed_at_once() {
    let closer = Closer::default();
    let owner = Owner::user(1);
    for packets in 0..3 {
        let (ours, theirs) = Connection::pair().unwrap();
        for packet in 0..packets {
            theirs.send(&packet, &[], SOON).unwrap();
        }
        drop(closer.guard(owner.clone(), ours));
        assert_eq!(closer.waiting_of_all(), 0, "it needed no thread");
        assert!(theirs.is_closed());
    }
}

#[test]
fn a_connection_that_others_go_on_with_stays_open() {
    let closer = Closer::default();
    let owner = Owner::user(1);
    let (ours, theirs) = Connection::pair().unwrap();
    let copy = Connection::from_socket(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
    drop(closer.guard(owner.clone(), ours).shared());
    until(|| closer.waiting(&owner) == 0);
    theirs.send(&7, &[], SOON).unwrap();
    assert_eq!(copy.receive::<u32>(SOON).unwrap().message, 7);
}

#[test]
fn descriptors_are_not_taken_where_none_are_wanted() {
    let (ours, theirs) = Connection::pair().unwrap();
    theirs.send(&1, &[], SOON).unwrap();
    assert_eq!(ours.try_hear::<u32>().unwrap(), Some(1));
    assert_eq!(ours.try_hear::<u32>().unwrap(), None);
    let copies: Vec<BorrowedFd<'_>> = (0..8).map(|_| theirs.as_fd()).collect();
    theirs.send(&2, &copies, SOON).unwrap();
    for _ in 0..2 {
        assert!(matches!(ours.try_hear::<u32>(), Err(SocketError::UnwantedDescriptors)));
    }
    theirs.shut_down();
    assert!(matches!(ours.try_hear::<u32>(), Err(SocketError::UnwantedDescriptors)));
    let (ours, theirs) = Connection::pair().unwrap();
    drop(theirs);
    assert!(matches!(ours.try_hear::<u32>(), Err(SocketError::Closed)));
}

#[test]
fn a_kernel_that_can_refuse_descriptors_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    listener.refuse_descriptors();
    let client = Connection::connect(&path, SOON).unwrap();
    let accepted = listener.try_accept().unwrap().unwrap();
    // An older one lets it pass, and then it is refused here.
    if client.send(&1, &[client.as_fd()], SOON).is_ok() {
        assert!(matches!(accepted.try_hear::<u32>(), Err(SocketError::UnwantedDescriptors)));
    }
    accepted.send(&1, &[accepted.as_fd()], SOON).unwrap();
    assert_eq!(client.receive::<u32>(SOON).unwrap().descriptors.len(), 1, "the way back is open");
}
