//! Where a session stands: how far its commands are done, what of its work has not ended.
//!
//! Written by the session's thread in the executor, in memory that survives it; read by the keeper
//! and by the next executor once no process writes any more. So all accesses are relaxed, except
//! that the store of [`Standing::commit`] comes after what it says is done: a process that is
//! killed leaves its stores in the order in which it made them. The client does not see this file.

use link::call::Prepared;
use link::shm::{self, Access, Mapping, ShmError};
use link::wire::layout::STREAM_SLOTS;
use rustix::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[repr(C, align(64))]
#[derive(Debug)]
struct Words {
    committed_bytes: AtomicU64,
    /// A call's answer that belongs to what is committed up to here.
    owed_position: AtomicU64,
    /// [`Prepared::to_bits`].
    owed_answer: AtomicU64,
    /// Commands that wait in the executor's memory for values.
    held: AtomicU32,
    /// Opcode of the command that is being done, 0: none.
    in_hand: AtomicU32,
    /// Variables of its code may have changed since they were saved.
    unsaved: AtomicU32,
    /// So may what is in its arrays.
    unsaved_arrays: AtomicU32,
    /// Other clients could open something of the session.
    lends: AtomicU32,
    /// Things of other clients that it has open.
    borrowed: AtomicU32,
    /// One of [`SERVES`], [`ASKED`] and [`AT_REST`].
    rest: AtomicU32,
    streams: AtomicU32,
    /// By slot: the bits of a [`Work`].
    work: [AtomicU64; STREAM_SLOTS],
}

/// What a stream has submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Something that no signal comes after.
    Unsignalled,
    /// Nothing after this signal.
    Signalled(u64),
    /// Nothing that a signal of another stream does not come after, of this value or a greater one.
    Before { other: u32, signal: u64 },
}

impl Work {
    const BEFORE: u64 = 1 << 63;
    const UNSIGNALLED: u64 = 1;
    /// Of the other stream's slot, above the signal.
    const SLOT_SHIFT: u32 = 48;

    /// A signal above which the slot does not fit is left out, which is on the safe side; streams
    /// do not come near.
    #[inline]
    fn to_bits(self) -> u64 {
        match self {
            Self::Signalled(signal) => signal << 1,
            Self::Before { other, signal } if signal >> Self::SLOT_SHIFT == 0 => {
                Self::BEFORE | u64::from(other) << Self::SLOT_SHIFT | signal
            }
            Self::Unsignalled | Self::Before { .. } => Self::UNSIGNALLED,
        }
    }

    fn from_bits(bits: u64) -> Self {
        match bits {
            _ if bits & Self::BEFORE != 0 => Self::Before {
                other: (bits >> Self::SLOT_SHIFT) as u32 % STREAM_SLOTS as u32,
                signal: bits & ((1 << Self::SLOT_SHIFT) - 1),
            },
            _ if bits & Self::UNSIGNALLED != 0 => Self::Unsignalled,
            _ => Self::Signalled(bits >> 1),
        }
    }
}

const _: () = assert!(STREAM_SLOTS.is_power_of_two() && STREAM_SLOTS <= 1 << 15);
/// What a stream has submitted comes before a signal of another's, and what that one has before a
/// third one's: a blocking stream, a default one, a blocking one.
const MOST_BEFORE: usize = 2;

/// The session does what its client asks for.
const SERVES: u32 = 0;
/// It was told to end, and the driver has not said that its work has ended. This counts as work,
/// whatever a kernel writes to the completion words.
const ASKED: u32 = 1;
/// It was told to end, and all its work has ended: no more will come.
const AT_REST: u32 = 2;

/// How much is saved of what goes with the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// All that work may have changed.
    Whole,
    /// Not all.
    InPart,
}

impl Saved {
    fn unsaved_word(self) -> u32 {
        u32::from(self == Self::InPart)
    }
}

/// One session's words.
#[derive(Clone, Debug)]
pub struct Standing(Arc<Mapping>);

impl Standing {
    /// A file of zeros.
    pub fn create_file() -> Result<OwnedFd, ShmError> {
        shm::create("openmps-standing", size_of::<Words>() as u64)
    }

    /// The words in a file.
    pub fn map(file: BorrowedFd<'_>) -> Result<Self, ShmError> {
        shm::check(file, size_of::<Words>() as u64)?;
        Ok(Self(Arc::new(Mapping::new(file, size_of::<Words>(), Access::ReadWrite)?)))
    }

    #[inline]
    fn words(&self) -> &Words {
        // SAFETY: the mapping is as long as this, page-aligned, and holds atomics only.
        unsafe { &*self.0.base().cast() }
    }

    /// All commands before this position are done.
    #[inline]
    pub fn commit(&self, taken_bytes: u64) {
        let words = self.words();
        // Release: after the stores that say what the command did; partner of the acquire in
        // `committed_bytes`.
        words.committed_bytes.store(taken_bytes, Ordering::Release);
        words.in_hand.store(0, Ordering::Relaxed);
    }

    /// See [`Self::commit`].
    pub fn committed_bytes(&self) -> u64 {
        // Acquire: partner of the release in `commit`.
        self.words().committed_bytes.load(Ordering::Acquire)
    }

    /// The next [`Self::commit`], up to `taken_bytes`, commits a call whose answer is prepared, to
    /// be given after it: a caller that has its answer goes on, and what it was told must not be
    /// done again.
    #[inline]
    pub fn owe(&self, taken_bytes: u64, answer: Prepared) {
        let words = self.words();
        // Release, twice: each store after the one before, so that no answer is found with
        // another's position; read when no process writes.
        words.owed_position.store(0, Ordering::Relaxed);
        words.owed_answer.store(answer.to_bits(), Ordering::Release);
        words.owed_position.store(taken_bytes, Ordering::Release);
    }

    /// The answer to the last call that was committed, if nothing was after it: it may not have
    /// been given.
    pub fn owed(&self) -> Option<Prepared> {
        let words = self.words();
        let position = words.owed_position.load(Ordering::Relaxed);
        let is_last = position != 0 && position == self.committed_bytes();
        is_last.then(|| Prepared::from_bits(words.owed_answer.load(Ordering::Relaxed)))
    }

    /// A command is taken in hand.
    #[inline]
    pub fn begin(&self, opcode: u16) {
        self.words().in_hand.store(opcode.into(), Ordering::Relaxed);
    }

    /// Opcode of the command that was being done.
    #[inline]
    pub fn in_hand(&self) -> Option<u16> {
        Some(self.words().in_hand.load(Ordering::Relaxed) as u16).filter(|opcode| *opcode != 0)
    }

    /// A stream has submitted something after its last signal.
    #[inline]
    pub fn note_submitted(&self, slot: u32) {
        self.note_stream(slot, Work::UNSIGNALLED);
    }

    /// A stream has submitted nothing after its last signal, whose value this is.
    #[inline]
    pub fn note_signalled(&self, slot: u32, last_signal: u64) {
        self.note_stream(slot, Work::Signalled(last_signal).to_bits());
    }

    /// Whatever a stream has submitted comes before the signals of another one, from this value on.
    pub fn note_before(&self, slot: u32, other: u32, signal: u64) {
        self.note_stream(slot, Work::Before { other, signal }.to_bits());
    }

    #[inline]
    fn note_stream(&self, slot: u32, work_bits: u64) {
        let words = self.words();
        if let Some(word) = words.work.get(slot as usize) {
            word.store(work_bits, Ordering::Relaxed);
            // One thread writes.
            if words.streams.load(Ordering::Relaxed) <= slot {
                words.streams.store(slot + 1, Ordering::Relaxed);
            }
        }
    }

    /// How much of the variables of the session's code is saved.
    pub fn note_variables(&self, saved: Saved) {
        self.words().unsaved.store(saved.unsaved_word(), Ordering::Relaxed);
    }

    /// How much of what is in its arrays is.
    pub fn note_arrays(&self, saved: Saved) {
        self.words().unsaved_arrays.store(saved.unsaved_word(), Ordering::Relaxed);
    }

    /// Whether variables, or what is in arrays, are lost with the executor.
    pub fn has_unsaved(&self) -> bool {
        let Words { unsaved, unsaved_arrays, .. } = self.words();
        [unsaved, unsaved_arrays].iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// So many things of the session other clients have open, or can open.
    pub fn note_lent(&self, things: usize) {
        self.words().lends.store(things.min(u32::MAX as usize) as u32, Ordering::Relaxed);
    }

    /// Whether there is any.
    pub fn has_lent(&self) -> bool {
        self.words().lends.load(Ordering::Relaxed) != 0
    }

    /// So many things of other clients are open.
    pub fn note_borrowed(&self, things: usize) {
        self.words().borrowed.store(things.min(u32::MAX as usize) as u32, Ordering::Relaxed);
    }

    /// Whether any is.
    pub fn has_borrowed(&self) -> bool {
        self.words().borrowed.load(Ordering::Relaxed) != 0
    }

    /// So many commands wait for values.
    #[inline]
    pub fn note_held(&self, commands: usize) {
        self.words().held.store(commands.min(u32::MAX as usize) as u32, Ordering::Relaxed);
    }

    /// Whether there is work that belongs to no stream, or is not submitted yet.
    pub fn has_work_apart(&self) -> bool {
        let words = self.words();
        words.held.load(Ordering::Relaxed) != 0 || words.rest.load(Ordering::Relaxed) == ASKED
    }

    /// Whether any of the session's work is not known to have ended. `completed` gives a stream's
    /// completion word.
    pub fn in_flight(&self, completed: impl Fn(u32) -> u64) -> bool {
        let words = self.words();
        let streams = words.streams.load(Ordering::Relaxed).min(STREAM_SLOTS as u32);
        let has_work = |slot: u32| match self.work(slot) {
            Work::Unsignalled => true,
            Work::Signalled(signal) => completed(slot) < signal,
            // What the other stream's word says of a third one was noted later, so it holds for the
            // first one as well.
            before => {
                let followed = std::iter::successors(Some(before), |&work| match work {
                    Work::Before { other, .. } => Some(self.work(other)),
                    _ => None,
                });
                !followed.take(MOST_BEFORE).any(|work| match work {
                    Work::Before { other, signal } => completed(other) >= signal,
                    _ => false,
                })
            }
        };
        self.has_work_apart() || (0..streams).any(has_work)
    }

    fn work(&self, slot: u32) -> Work {
        Work::from_bits(self.words().work[slot as usize].load(Ordering::Relaxed))
    }

    /// The session goes on where another file says that it stands, with nothing in flight.
    pub fn go_on_from(&self, before: &Self) {
        let (from, to) = (before.words(), self.words());
        let pairs = [
            (&from.owed_answer, &to.owed_answer),
            (&from.owed_position, &to.owed_position),
            (&from.committed_bytes, &to.committed_bytes),
        ];
        for (from, to) in pairs {
            to.store(from.load(Ordering::Acquire), Ordering::Release);
        }
    }

    /// The session was told to end, and asks the driver whether its work has ended.
    pub fn note_asked(&self) {
        self.words().rest.store(ASKED, Ordering::Relaxed);
    }

    /// All work of such a session has ended, by the driver's word.
    pub fn note_rest(&self) {
        self.forget_work();
        self.words().rest.store(AT_REST, Ordering::Relaxed);
    }

    /// See [`Self::note_rest`].
    pub fn is_at_rest(&self) -> bool {
        self.words().rest.load(Ordering::Relaxed) == AT_REST
    }

    /// The next executor has nothing of the work.
    pub fn forget_work(&self) {
        let words = self.words();
        let streams = words.streams.swap(0, Ordering::Relaxed).min(STREAM_SLOTS as u32);
        (0..streams as usize).for_each(|slot| words.work[slot].store(0, Ordering::Relaxed));
        self.note_held(0);
        words.in_hand.store(0, Ordering::Relaxed);
        words.rest.store(SERVES, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    fn standing() -> Standing {
        Standing::map(Standing::create_file().unwrap().as_fd()).unwrap()
    }

    #[test]
    fn work_is_in_flight_until_its_signal_is_reached() {
        let standing = standing();
        assert!(!standing.in_flight(|_| 0));
        standing.note_submitted(3);
        assert!(standing.in_flight(|_| 100), "no signal was asked for");
        standing.note_signalled(3, 7);
        assert!(standing.in_flight(|slot| if slot == 3 { 6 } else { 100 }));
        assert!(!standing.in_flight(|_| 7));
        standing.note_held(1);
        assert!(standing.in_flight(|_| 7));
        standing.forget_work();
        assert!(!standing.in_flight(|_| 0) && !standing.is_at_rest());
        standing.note_held(1);
        standing.note_rest();
        assert!(!standing.in_flight(|_| 0) && standing.is_at_rest());
    }

    #[test]
    fn what_is_shared_is_noted() {
        let standing = standing();
        assert!(!standing.has_lent() && !standing.has_borrowed());
        standing.note_lent(1);
        standing.note_borrowed(2);
        assert!(standing.has_lent() && standing.has_borrowed());
        standing.note_borrowed(0);
        assert!(standing.has_lent() && !standing.has_borrowed());
        standing.note_lent(0);
        assert!(!standing.has_lent());
    }

    #[test]
    fn work_before_another_streams_signal_ends_with_that() {
        let standing = standing();
        standing.note_signalled(0, 4);
        standing.note_before(1, 0, 5);
        assert!(standing.in_flight(|_| 4));
        assert!(!standing.in_flight(|slot| if slot == 0 { 5 } else { 0 }));
        standing.note_submitted(0);
        assert!(standing.in_flight(|_| 5), "the other one's own work");
        standing.note_before(0, 2, 1);
        assert!(standing.in_flight(|_| 0));
        assert!(!standing.in_flight(|slot| u64::from(slot == 2)), "and through it the first one's");
        standing.note_submitted(1);
        assert!(standing.in_flight(|_| 100));
        standing.note_before(1, 0, 1 << 48);
        assert!(standing.in_flight(|_| u64::MAX), "no room for such a value");
        let last = STREAM_SLOTS as u32 - 1;
        let work = Work::Before { other: last, signal: (1 << 48) - 1 };
        assert_eq!(Work::from_bits(work.to_bits()), work);
    }

    #[test]
    fn who_was_told_to_end_has_work_until_the_driver_says_otherwise() {
        let standing = standing();
        standing.note_signalled(0, 1);
        standing.note_asked();
        assert!(standing.in_flight(|_| u64::MAX), "a kernel can write that");
        standing.note_rest();
        assert!(!standing.in_flight(|_| 0) && standing.is_at_rest());
    }

    #[test]
    fn an_answer_is_owed_once_its_call_is_committed() {
        let standing = standing();
        assert_eq!(standing.owed(), None);
        let answer = Prepared::from_bits(5 << 16 | 3);
        standing.owe(128, answer);
        assert_eq!(standing.owed(), None, "its command is done again");
        standing.commit(128);
        assert_eq!(standing.owed(), Some(answer));
        standing.commit(192);
        assert_eq!(standing.owed(), None, "who went on has had it");
    }

    #[test]
    fn a_command_is_in_hand_until_it_is_committed() {
        let standing = standing();
        standing.begin(20);
        assert_eq!((standing.in_hand(), standing.committed_bytes()), (Some(20), 0));
        standing.commit(64);
        assert_eq!((standing.in_hand(), standing.committed_bytes()), (None, 64));
    }
}
