//! Processes that end and that nobody can wait for, as this traces them and does not look.

use std::fs;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::injected::request;

/// Traces the first thread of a process, or all of them, and kills it.
pub(crate) fn hold(pid: i32, what: Threads) -> Result<String> {
    let threads = match what {
        Threads::First => vec![pid],
        Threads::All => {
            let threads = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
            threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok()).collect()
        }
    };
    ensure!(!threads.is_empty(), "{pid} has no threads");
    for thread in threads {
        request(libc::PTRACE_SEIZE, thread, 0).context("it cannot be traced")?;
    }
    kill_process(Pid::from_raw(pid).context("no process id")?, Signal::KILL)?;
    Ok("held".to_owned())
}

#[derive(Clone, Copy)]
pub(crate) enum Threads {
    First,
    All,
}
