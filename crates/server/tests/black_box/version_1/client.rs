//! A client of version 1 of the client wire, with its own copies of all layouts: nothing here is
//! `link`'s, so that a change there does not change this.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::thread::futex;
use serde_json::Value;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const MAX_PACKET_BYTES: usize = 256 * 1024;
const MAX_DESCRIPTORS: usize = 8;

/// Length of a command's header, and of what all commands are multiples of.
pub(super) const HEADER_BYTES: usize = 16;
/// In a header's second half word: nobody waits for an answer.
const NO_CALL: u16 = 0xffff;

const RING_OFFSET: usize = 4096;
const RING_BYTES: usize = 1 << 20;
const CALLS_OFFSET: usize = RING_OFFSET + RING_BYTES;
const CALL_SLOT_BYTES: usize = 8192;
const CALL_SLOTS: usize = 32;
const SESSION_BYTES: usize = CALLS_OFFSET + CALL_SLOTS * CALL_SLOT_BYTES;
/// In the session file.
const TAIL: usize = 0;
const HEAD: usize = 128;
const CONSUMER_ASLEEP: usize = 256;
const SESSION_ERROR: usize = 768;
/// In a call slot.
const STATE: usize = 0;
const STATUS: usize = 4;
const REPLY_BYTES: usize = 8;
const CLAIMS: usize = 12;
const REPLY: usize = 64;
const CALL_IDLE: u32 = 0;
const CALL_PENDING: u32 = 1;
const CALL_DONE: u32 = 3;
const STREAMS: usize = 4096;
const COMPLETION_BYTES: usize = 2 * 64 * 1024;

/// One end of a connection, with packets as they are.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl Socket {
    pub(super) fn pair() -> (Self, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        (Self(ours), theirs)
    }

    pub(super) fn send(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let packet = [IoSlice::new(packet)];
        rustix::net::sendmsg(&self.0, &packet, &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    /// What has come, if anything has; an empty packet is the connection's end.
    pub(super) fn try_receive(&self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut buffers = [IoSliceMut::new(&mut packet)];
        let bytes = match rustix::net::recvmsg(&self.0, &mut buffers, &mut control, flags) {
            Ok(received) => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return None,
            Err(Errno::CONNRESET) => 0,
            Err(error) => panic!("{error}"),
        };
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        packet.truncate(bytes);
        Some((packet, descriptors))
    }

    pub(super) fn receive(&self) -> (Value, Vec<OwnedFd>) {
        let (packet, descriptors) = patiently("a packet", || self.try_receive());
        let text = String::from_utf8_lossy(&packet);
        let value = serde_json::from_slice(&packet).unwrap_or_else(|e| panic!("{e}: {text}"));
        (value, descriptors)
    }
}

/// Looks until there is something.
pub(super) fn patiently<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A file that two processes map.
#[derive(Debug)]
pub(super) struct Mapped {
    base: *mut u8,
    size_bytes: usize,
}

impl Mapped {
    pub(super) fn new(file: BorrowedFd<'_>, size_bytes: usize, protection: ProtFlags) -> Self {
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping, where the kernel likes.
        let base = unsafe {
            rustix::mm::mmap(anywhere, size_bytes, protection, MapFlags::SHARED, file, 0).unwrap()
        };
        Self { base: base.cast(), size_bytes }
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset + length <= self.size_bytes);
        self.base.wrapping_add(offset)
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: inside of the mapping; the other process reads when it is told of it.
        unsafe {
            self.at(offset, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }

    pub(super) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: inside of the mapping; the other process has written when this is called.
        unsafe { self.at(offset, length).copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside of the mapping, and aligned as the layout has it.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    pub(super) fn long_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this object's own; what it lends does not outlive it.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.size_bytes) };
    }
}

/// A region's file: of a size that nobody can change.
pub(super) fn region(size_bytes: usize) -> (OwnedFd, Mapped) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("version-1", flags).unwrap();
    rustix::fs::ftruncate(&file, size_bytes as u64).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let mapped = Mapped::new(file.as_fd(), size_bytes, ProtFlags::READ | ProtFlags::WRITE);
    (file, mapped)
}

/// A session: the ring, one call at a time, and the streams' words.
#[derive(Debug)]
pub(super) struct Session {
    file: Mapped,
    words: Mapped,
    pub(super) socket: Socket,
    tail: u64,
}

impl Session {
    /// Of the three descriptors that come with a device's first context.
    pub(super) fn open(descriptors: Vec<OwnedFd>) -> Self {
        let [file, words, socket]: [OwnedFd; 3] = descriptors.try_into().unwrap();
        let size = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_size as usize;
        assert_eq!((size(&file), size(&words)), (SESSION_BYTES, COMPLETION_BYTES));
        let both = ProtFlags::READ | ProtFlags::WRITE;
        Self {
            file: Mapped::new(file.as_fd(), SESSION_BYTES, both),
            words: Mapped::new(words.as_fd(), COMPLETION_BYTES, ProtFlags::READ),
            socket: socket.into(),
            tail: 0,
        }
    }

    /// Posts a whole command.
    pub(super) fn post(&mut self, command: &[u8]) {
        self.put(command, NO_CALL);
    }

    /// Posts a whole command and waits for its answer: status and reply.
    pub(super) fn call(&mut self, command: &[u8]) -> (u32, Vec<u8>) {
        const SLOT: u16 = 0;
        let slot = CALLS_OFFSET + usize::from(SLOT) * CALL_SLOT_BYTES;
        self.file.word(slot + CLAIMS).fetch_add(1, Ordering::Relaxed);
        let before = self.file.word(slot + STATE).swap(CALL_PENDING, Ordering::Release);
        assert_eq!(before, CALL_IDLE);
        self.put(command, SLOT);
        patiently("an answer", || {
            (self.file.word(slot + STATE).load(Ordering::Acquire) == CALL_DONE).then_some(())
        });
        let status = self.file.word(slot + STATUS).load(Ordering::Relaxed);
        let length = self.file.word(slot + REPLY_BYTES).load(Ordering::Relaxed) as usize;
        let reply = self.file.read(slot + REPLY, length);
        self.file.word(slot + STATE).store(CALL_IDLE, Ordering::Relaxed);
        (status, reply)
    }

    /// Waits until a stream's word is as great as a value.
    pub(super) fn wait_for(&self, stream: usize, value: u64) {
        assert!(stream < STREAMS);
        patiently("a completion", || {
            assert_eq!(self.file.word(SESSION_ERROR).load(Ordering::Acquire), 0);
            let word = self.words.long_word(8 * stream);
            // The device writes it, and this process may only read it.
            let reached = word.load(Ordering::Acquire) >= value;
            reached.then_some(())
        });
    }

    fn put(&mut self, command: &[u8], call_slot: u16) {
        let mut command = command.to_vec();
        assert!(command.len().is_multiple_of(HEADER_BYTES));
        command[2..4].copy_from_slice(&call_slot.to_le_bytes());
        patiently("room in the ring", || {
            let head = self.file.long_word(HEAD).load(Ordering::Acquire);
            let end = self.tail + command.len() as u64;
            (end - head <= RING_BYTES as u64).then_some(())
        });
        for (part, bytes) in command.chunks(HEADER_BYTES).enumerate() {
            let at = (self.tail as usize + part * HEADER_BYTES) % RING_BYTES;
            self.file.write(RING_OFFSET + at, bytes);
        }
        self.tail += command.len() as u64;
        self.file.long_word(TAIL).store(self.tail, Ordering::Release);
        // What was posted is seen before the flag is looked at.
        fence(Ordering::SeqCst);
        let asleep = self.file.word(CONSUMER_ASLEEP);
        let lowered = asleep.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed);
        if lowered.is_ok() {
            futex::wake(asleep, futex::Flags::empty(), 1).unwrap();
        }
    }
}
