//! Instructions of a call, counted one by one: the same on any machine and under any load, where times are not.
//!
//! A tracer (`ptrace`) lets a [`Puppet`]'s thread go on by single instructions from one signal that the thread sends itself to the next. System calls count as one
//! instruction. Counters of the processor would be quicker, but most virtual machines and containers keep them to themselves.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::Puppet;

/// What the thread sends itself before and after what is counted: ignored by processes without a tracer.
pub const MARK: i32 = libc::SIGURG;
/// How often a puppet does what is counted.
pub const ROUNDS: usize = 16;

/// For all rounds of one call; a thousand instructions take some milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

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
    puppet.tell(order)?;
    let deadline = Instant::now() + LIMIT;
    let mut fewest = u64::MAX;
    for _ in 0..ROUNDS {
        go_to_mark(tracee, deadline)?;
        fewest = fewest.min(step_to_mark(tracee, deadline)?);
        trace(libc::PTRACE_CONT, tracee)?;
    }
    // It must stop once more to be let go.
    trace(libc::PTRACE_INTERRUPT, tracee)?;
    stopped(tracee, deadline)?;
    trace(libc::PTRACE_DETACH, tracee)?;
    let answer = puppet.answer_within(LIMIT)?;
    ensure!(answer == "ok", "{order:?} was answered {answer:?}");
    Ok(Counted::Instructions(fewest))
}

/// Lets the thread run until it stops at a mark.
fn go_to_mark(tracee: i32, deadline: Instant) -> Result<()> {
    loop {
        let signal = stopped(tracee, deadline)?;
        if signal == MARK {
            return Ok(());
        }
        go_on(libc::PTRACE_CONT, tracee, signal)?;
    }
}

/// Lets the thread go on from one mark to the next; how many instructions that were.
fn step_to_mark(tracee: i32, deadline: Instant) -> Result<u64> {
    let mut instructions = 0;
    trace(libc::PTRACE_SINGLESTEP, tracee)?;
    loop {
        match stopped(tracee, deadline)? {
            MARK => return Ok(instructions),
            libc::SIGTRAP => {
                instructions += 1;
                trace(libc::PTRACE_SINGLESTEP, tracee)?;
            }
            other => go_on(libc::PTRACE_SINGLESTEP, tracee, other)?,
        }
    }
}

/// Waits until the thread has stopped; the signal that did it.
fn stopped(tracee: i32, deadline: Instant) -> Result<i32> {
    loop {
        let mut status = 0;
        // SAFETY: a valid place for the status.
        let found = unsafe { libc::waitpid(tracee, &raw mut status, libc::WNOHANG | libc::__WALL) };
        match found {
            0 if Instant::now() > deadline => bail!("the puppet does not stop at its marks"),
            0 => std::thread::yield_now(),
            _ if found == tracee && libc::WIFSTOPPED(status) => return Ok(libc::WSTOPSIG(status)),
            _ if found == tracee => bail!("the puppet has ended: status {status:#x}"),
            _ => return Err(io::Error::last_os_error()).context("waitpid"),
        }
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
