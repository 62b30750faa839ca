//! What launches cost the executor, in instructions of its own code: bounds that a change of the batch path must keep.
//!
//! Counted one by one, which gives the same on a busy machine: the processor traps after each while the trap flag is set, in this thread alone. Instructions
//! of other libraries are left out, since they differ between machines. The client's side of a launch is in `tests/tests/instructions.rs`.
//!
//! A bound is what was counted when it was set, and a tenth more. Who needs more says in the commit why, and raises it; who needs less lowers it.

use super::session::Step;
use super::testbed::{Bed, Client, submitted};
use crate::standing::Standing;
use link::wire::command::{Opcode, StreamCreate};
use rustix::fd::AsFd;
use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use zerocopy::IntoBytes;

/// Launches that wait together: a full batch.
const TOGETHER: u64 = super::waiting::MOST_WAITING as u64;
/// Until chains are made, and what kernels cost is known.
const BEFORE: usize = 40;
/// The round with the fewest counts. A trap takes microseconds, on some virtual machines some twenty.
const ROUNDS: usize = 3;

/// Of the test build, per launch.
const LAUNCH_OF_A_BATCH: u64 = 1672;
const LAUNCH_WITH_ITS_SIGNAL: u64 = 4646;
/// Of this, per command, what is for the next executor: where the session stands.
const STANDING: u64 = 42;

/// Instructions of this program since it was last set to zero.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Held by the thread that counts: tests run at the same time.
static COUNTING: Mutex<()> = Mutex::new(());

unsafe extern "C" {
    /// Where the linker says that this program's code begins and ends.
    static __executable_start: u8;
    static etext: u8;
}

/// After each instruction.
extern "C" fn count_one(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel's record of the interrupted thread.
    let at = unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] } as usize;
    let code = (&raw const __executable_start).addr()..(&raw const etext).addr();
    // Relaxed: one thread traps.
    COUNT.fetch_add(code.contains(&at).into(), Ordering::Relaxed);
}

/// How many instructions of this program `act` takes.
fn instructions(act: impl FnOnce()) -> u64 {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: plain data; a handler that calls nothing. Nobody else in this program uses the signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_one as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
    }
    COUNT.store(0, Ordering::Relaxed);
    // SAFETY: sets the trap flag, for which there is a handler now.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    act();
    // SAFETY: clears it.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    COUNT.load(Ordering::Relaxed)
}

/// The fewest instructions in which what `post` posts is done, and how much it gave the driver to do.
fn fewest(client: &mut Client, mut post: impl FnMut(&mut Client)) -> (u64, u32) {
    let serve = |client: &mut Client| assert_eq!(client.serve(), Step::Nothing, "it waits");
    for _ in 0..BEFORE {
        post(client);
        serve(client);
    }
    let mut round = || {
        post(client);
        let before = submitted();
        let count = instructions(|| serve(client));
        (count, submitted() - before)
    };
    (0..ROUNDS).map(|_| round()).min().unwrap()
}

#[track_caller]
fn assert_bound(what: &str, each: u64, bound: u64) {
    println!("{what}: {each} instructions, at most {bound}");
    assert!(each <= bound, "{what} takes {each} instructions, {bound} are allowed");
}

#[test]
fn launches_take_no_more_instructions_than_they_did() {
    let bed = Bed::new();
    let mut client = bed.open();
    let (all, submissions) = fewest(&mut client, |client| {
        (0..TOGETHER).for_each(|_| client.post_launch());
    });
    assert_eq!(submissions, 1, "they go together");
    assert_bound("a launch of a batch", all / TOGETHER, LAUNCH_OF_A_BATCH);
    let mut value = 0;
    let (both, submissions) = fewest(&mut client, |client| {
        value += 1;
        client.post_launch();
        client.post_signal(value);
    });
    assert_eq!(submissions, 1, "the signal goes with it");
    assert_bound("a launch with its signal", both, LAUNCH_WITH_ITS_SIGNAL);
}

#[test]
fn launches_and_waits_write_no_journal_and_tell_the_keeper_nothing() {
    const ROUNDS: u64 = 200;
    let bed = Bed::new();
    let mut client = bed.open();
    let rounds = |client: &mut Client, from: u64| {
        for value in from..from + ROUNDS {
            // What `infer` does: launches, some of which find others in the ring, and a wait.
            (0..20).for_each(|_| client.post_launch());
            client.post_signal(value);
            assert_eq!(client.serve(), Step::Nothing, "it waits");
        }
    };
    rounds(&mut client, 1);
    bed.told_keeper();
    let written = client.session.state().records.journal_bytes();
    rounds(&mut client, 1 + ROUNDS);
    assert_eq!(client.session.state().records.journal_bytes(), written);
    assert_eq!(bed.told_keeper(), 0);
    // What is to be made again is written down.
    let stream = StreamCreate { stream: 1, ..Default::default() };
    client.post(Opcode::StreamCreate, stream.as_bytes());
    assert_eq!(client.serve(), Step::Nothing);
    assert!(client.session.state().records.journal_bytes() > written);
}

#[test]
fn where_a_session_stands_is_a_few_words_for_each_command() {
    let file = Standing::create_file().unwrap();
    let standing = Standing::map(file.as_fd()).unwrap();
    let each = |position: u64| {
        standing.begin(Opcode::Launch as u16);
        standing.note_submitted(0, position);
        standing.commit(position);
    };
    each(16);
    assert_bound("where it stands, for a launch", instructions(|| each(32)), STANDING);
}
