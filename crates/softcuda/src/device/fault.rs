//! Sticky errors: what a faulting kernel leaves on its context, and the log line that says who did
//! it.

use std::fmt;
use std::time::Duration;

use crate::exec::{Fault, FaultKind, WaitingAt};

/// An error that every later call on the context returns. The names are those of the CUDA errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sticky {
    IllegalAddress,
    LaunchTimeout,
    Assert,
    IllegalInstruction,
    MisalignedAddress,
    InvalidAddressSpace,
    InvalidPc,
    LaunchFailed,
    /// The context was destroyed while work was queued.
    ContextDestroyed,
}

impl fmt::Display for Sticky {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Sticky::IllegalAddress => "illegal address",
            Sticky::LaunchTimeout => "deadlock",
            Sticky::Assert => "device assertion failed",
            Sticky::IllegalInstruction => "illegal instruction",
            Sticky::MisalignedAddress => "misaligned address",
            Sticky::InvalidAddressSpace => "operation not supported on the address space",
            Sticky::InvalidPc => "invalid program counter",
            Sticky::LaunchFailed => "launch failed",
            Sticky::ContextDestroyed => "context destroyed",
        })
    }
}

impl From<FaultKind> for Sticky {
    fn from(kind: FaultKind) -> Self {
        match kind {
            FaultKind::IllegalAddress
            | FaultKind::SharedOutOfRange
            | FaultKind::LocalOutOfRange
            | FaultKind::StackOverflow => Sticky::IllegalAddress,
            FaultKind::MisalignedAddress => Sticky::MisalignedAddress,
            FaultKind::IllegalInstruction => Sticky::IllegalInstruction,
            FaultKind::InvalidAddressSpace => Sticky::InvalidAddressSpace,
            FaultKind::InvalidProgramCounter => Sticky::InvalidPc,
            FaultKind::Trap => Sticky::LaunchFailed,
            FaultKind::Assert => Sticky::Assert,
        }
    }
}

/// Writes one log line about a fault to standard error, unless the configuration silences it.
pub(crate) fn log_fault(log: super::config::LogLevel, kernel: &str, fault: &Fault) {
    if fault.kind == FaultKind::Assert && !fault.detail.is_empty() {
        // What NVIDIA's driver prints, which says all that there is to say.
        return write_line(&fault.detail);
    }
    if log >= super::config::LogLevel::Error {
        write_line(&format!("softcuda: kernel {kernel}: {fault}"));
    }
}

/// Writes where the threads of a deadlocked block wait.
pub(crate) fn log_deadlock(log: super::config::LogLevel, kernel: &str, waiting: &[WaitingAt]) {
    /// Positions printed before the rest is only counted.
    const SHOWN: usize = 8;
    if log < super::config::LogLevel::Error {
        return;
    }
    let shown: Vec<String> = waiting
        .iter()
        .take(SHOWN)
        .map(|at| {
            format!(
                "{} ({} threads) at ptx line {} waits for {}",
                at.position, at.threads, at.ptx_line, at.reason
            )
        })
        .collect();
    let more = waiting.len().saturating_sub(SHOWN);
    write_line(&format!(
        "softcuda: kernel {kernel}: deadlock: {}{}",
        shown.join("; "),
        if more > 0 { format!("; and {more} more") } else { String::new() }
    ));
}

/// Writes that a kernel was ended because of its time.
pub(crate) fn log_overrun(log: super::config::LogLevel, kernel: &str, limit: Duration) {
    if log >= super::config::LogLevel::Error {
        write_line(&format!(
            "softcuda: kernel {kernel}: ended after {} s (OPENMPS_SOFT_KERNEL_LIMIT_S)",
            limit.as_secs()
        ));
    }
}

/// Writes a line to standard error: one write, so that lines of several threads and processes do
/// not mix.
pub(crate) fn write_line(line: &str) {
    use std::io::Write;
    // Nobody to tell if that is closed, or a pipe without room: no reason to panic, as `eprintln`
    // does.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
