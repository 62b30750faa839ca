//! Instructions of a call, counted one by one: the same on any machine and under any load, where times are not.
//!
//! A tracer (`ptrace`) lets a [`Puppet`]'s thread go on by single instructions from one signal that the thread sends itself to the next. System calls count as one
//! instruction. Counters of the processor would be quicker, but most virtual machines and containers keep them to themselves.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::Puppet;

/// What the thread sends itself before and after what is counted: ignored by processes without a tracer.
pub const MARK: i32 = libc::SIGURG;
/// How often a puppet does what is counted.
pub const ROUNDS: usize = 16;

/// For all rounds of one call; a thousand instructions take some milliseconds, and many times that where others want the processors.
const LIMIT: Duration = Duration::from_secs(300);

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// So many instructions, in the round with the fewest: others may have woken a sleeper.
    Instructions(u64),
    /// This system lets nobody trace.
    NotPermitted,
}

/// Gives an order under which the puppet's first thread does something [`ROUNDS`] times, each time between two marks, and counts that.
///
/// # Errors
/// When the puppet does not do so.
pub fn count(puppet: &mut Puppet, order: &str) -> Result<Counted> {
    let tracee = i32::try_from(puppet.pid())?;
    match trace(libc::PTRACE_SEIZE, tracee) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            return Ok(Counted::NotPermitted);
        }
        Err(error) => return Err(error).context("ptrace"),
    }
    let (counted, is_counted) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Waits for a thread that is traced have no limit: whoever waits for it longer than that sees it killed.
        scope.spawn(move || {
            if let Err(RecvTimeoutError::Timeout) = is_counted.recv_timeout(LIMIT) {
                let _ = Pid::from_raw(tracee).map(|pid| kill_process(pid, Signal::KILL));
            }
        });
        let fewest = count_rounds(puppet, order, tracee);
        drop(counted);
        Ok(Counted::Instructions(fewest?))
    })
}

/// The instructions of the round with the fewest, of a puppet that is traced, and is let go.
fn count_rounds(puppet: &mut Puppet, order: &str, tracee: i32) -> Result<u64> {
    puppet.tell(order)?;
    let mut fewest = u64::MAX;
    for _ in 0..ROUNDS {
        go_to_mark(tracee)?;
        fewest = fewest.min(step_to_mark(tracee)?);
        trace(libc::PTRACE_CONT, tracee)?;
    }
    // It must stop once more to be let go.
    trace(libc::PTRACE_INTERRUPT, tracee)?;
    stopped(tracee)?;
    trace(libc::PTRACE_DETACH, tracee)?;
    let answer = puppet.answer_within(LIMIT)?;
    ensure!(answer == "ok", "{order:?} was answered {answer:?}");
    Ok(fewest)
}

/// Lets the thread run until it stops at a mark.
fn go_to_mark(tracee: i32) -> Result<()> {
    loop {
        let signal = stopped(tracee)?;
        if signal == MARK {
            return Ok(());
        }
        go_on(libc::PTRACE_CONT, tracee, signal)?;
    }
}

/// Lets the thread go on from one mark to the next; how many instructions that were.
fn step_to_mark(tracee: i32) -> Result<u64> {
    let mut instructions = 0;
    trace(libc::PTRACE_SINGLESTEP, tracee)?;
    loop {
        match stopped(tracee)? {
            MARK => return Ok(instructions),
            libc::SIGTRAP => {
                instructions += 1;
                trace(libc::PTRACE_SINGLESTEP, tracee)?;
            }
            other => go_on(libc::PTRACE_SINGLESTEP, tracee, other)?,
        }
    }
}

/// Waits until the thread has stopped; the signal that did it. Asleep, so that it is run at once when others want the processors too.
fn stopped(tracee: i32) -> Result<i32> {
    let mut status = 0;
    // SAFETY: a valid place for the status.
    let found = unsafe { libc::waitpid(tracee, &raw mut status, libc::__WALL) };
    match found {
        _ if found == tracee && libc::WIFSTOPPED(status) => Ok(libc::WSTOPSIG(status)),
        _ if found == tracee => bail!("the puppet has ended: status {status:#x}"),
        _ => Err(io::Error::last_os_error()).context("waitpid"),
    }
}

fn trace(request: libc::c_uint, tracee: i32) -> io::Result<()> {
    go_on(request, tracee, 0)
}

/// A request whose data is a signal to be delivered, or none.
fn go_on(request: libc::c_uint, tracee: i32, signal: i32) -> io::Result<()> {
    let (nowhere, data) = (0_usize, libc::c_long::from(signal));
    // SAFETY: none of the requests used here reads or writes memory of this process.
    match unsafe { libc::ptrace(request, tracee, nowhere, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
