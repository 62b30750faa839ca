//! What is left of a daemon that was killed or hangs: the daemon, its servers, their executors.
//!
//! A daemon of this module's begins a *session* (setsid(2)), in which all that it starts stays. Its
//! number is the daemon's, which is in the pid file in a directory that only root can enter; the
//! kernel gives it to nobody else while a process of it lives, and nobody can enter another's. So
//! what a stranger runs is none of it, whatever its program and its environment: those can be
//! anything. (A number that was given again, because nothing of a daemon was left, has another
//! process under it, or other programs.)

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use control::directories::Directories;
use control::zombies::is_zombie;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What quits, or is killed, is gone after that, or never.
const END_LIMIT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(2);
/// A process that is killed may have started others meanwhile; it has had no chance to after so
/// many looks.
const MOST_LOOKS: usize = 16;

/// The processes of one daemon.
#[derive(Debug)]
pub(crate) struct Leftovers {
    session: Pid,
    lock: PathBuf,
    ours: PathBuf,
}

/// A process, held so that no other is meant once it has ended.
#[derive(Debug)]
struct Held {
    pid: Pid,
    process: OwnedFd,
}

impl Held {
    fn is_zombie(&self) -> bool {
        is_zombie(self.pid.as_raw_pid().cast_unsigned())
    }
}

impl Leftovers {
    /// Those of the daemon that has, or had, these directories; none, where there was no daemon or
    /// it quit.
    pub(crate) fn of(directories: &Directories) -> Option<Self> {
        let text = fs::read_to_string(directories.pid_file()).ok()?;
        let session = Pid::from_raw(text.trim().parse().ok()?)?;
        let ours = std::env::current_exe().ok()?;
        Some(Self { session, lock: directories.lock(), ours })
    }

    /// Gives them the time to end by themselves, as those of a daemon that quits do, and kills
    /// those that do not; the error names what does not go.
    pub(crate) fn end_those_that_stay(&self) -> Result<(), String> {
        let deadline = Instant::now() + END_LIMIT;
        let here = self.processes();
        if wait_for_ends(here, deadline).is_empty() && self.processes().is_empty() {
            return Ok(());
        }
        self.end()
    }

    /// Kills them; the error names what does not go.
    pub(crate) fn end(&self) -> Result<(), String> {
        for _ in 0..MOST_LOOKS {
            let found = self.processes();
            if found.is_empty() {
                return Ok(());
            }
            for Held { process, .. } in &found {
                // One that has ended meanwhile is what was wanted.
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
            let left = wait_for_ends(found, Instant::now() + END_LIMIT);
            if !left.is_empty() {
                return Err(format!("MPS did not quit: process {} cannot be killed", pids(&left)));
            }
        }
        match self.processes() {
            left if left.is_empty() => Ok(()),
            left => Err(format!("MPS did not quit: process {} was started again", pids(&left))),
        }
    }

    /// Processes of the session that run this program. Nothing is read here that a process could
    /// hold up.
    fn processes(&self) -> Vec<Held> {
        let leader = Stat::of(self.session);
        let is_dead = leader.as_ref().is_none_or(|stat| stat.is_zombie);
        if !is_dead && !self.is_locked() {
            return Vec::new(); // The daemon is dead, and so is its session, if its number is another process's.
        }
        let pids = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        pids.filter_map(|pid| self.hold(pid)).collect()
    }

    fn hold(&self, pid: Pid) -> Option<Held> {
        let is_ours = || {
            // What has ended has no executable; one that was replaced by an upgrade has a remark
            // behind its name.
            let executable = fs::read_link(format!("/proc/{}/exe", pid.as_raw_pid())).ok();
            let ours = self.ours.as_os_str().as_bytes();
            executable.is_some_and(|program| program.as_os_str().as_bytes().starts_with(ours))
        };
        let is_in_session = || Stat::of(pid).is_some_and(|stat| stat.session == self.session);
        if pid == rustix::process::getpid() || !is_in_session() || !is_ours() {
            return None;
        }
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Looked at again: what is held now is what was meant.
        (is_in_session() && is_ours()).then_some(Held { pid, process })
    }

    /// Whether the daemon lives: it has its lock as long as it does.
    fn is_locked(&self) -> bool {
        let Ok(lock) = File::open(&self.lock) else { return false };
        matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
    }
}

fn pids(held: &[Held]) -> String {
    let pids: Vec<String> = held.iter().map(|held| held.pid.as_raw_pid().to_string()).collect();
    pids.join(", ")
}

/// Those that have not ended by then.
fn wait_for_ends(mut held: Vec<Held>, deadline: Instant) -> Vec<Held> {
    loop {
        // What somebody traces may never be waited for, and runs nothing all the same.
        held.retain(|held| !has_ended(&held.process).unwrap_or(false) && !held.is_zombie());
        if held.is_empty() || Instant::now() >= deadline {
            return held;
        }
        thread::sleep(INTERVAL);
    }
}

fn has_ended(process: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    Ok(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}

/// Of `/proc/PID/stat`, proc(5).
#[derive(Debug, PartialEq)]
struct Stat {
    is_zombie: bool,
    session: Pid,
}

impl Stat {
    fn of(pid: Pid) -> Option<Self> {
        let text = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        Self::parse(&String::from_utf8_lossy(&text))
    }

    /// `PID (NAME) STATE PPID PGRP SESSION ...`; a name may have anything in it.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next()?;
        let session = Pid::from_raw(fields.nth(2)?.parse().ok()?)?;
        Some(Self { is_zombie: state == "Z" || state == "X", session })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_read_whatever_the_name() {
        let session = Pid::from_raw(12).unwrap();
        let stat = Stat::parse("7 (a) Z 1 2 (b) S 1 11 12 0 -1\n").unwrap();
        assert_eq!(stat, Stat { is_zombie: false, session });
        assert!(Stat::parse("7 (a) Z 1 11 12 0").unwrap().is_zombie);
        assert_eq!(Stat::parse("7 (a) S 1 11 0 0"), None, "a thread of the kernel's");
    }

    #[test]
    fn the_stat_of_a_process_is_the_kernel_s() {
        // Not this one's: its session reads as 0 where it was begun outside of this PID namespace.
        let mut leader =
            std::process::Command::new("setsid").args(["sleep", "60"]).spawn().unwrap();
        let pid = Pid::from_child(&leader);
        let end = Instant::now() + Duration::from_secs(30);
        let read = loop {
            let stat = Stat::of(pid);
            if stat.as_ref().is_some_and(|stat| stat.session == pid) || Instant::now() > end {
                break stat;
            }
            thread::sleep(INTERVAL);
        };
        leader.kill().unwrap();
        leader.wait().unwrap();
        assert_eq!(read, Some(Stat { is_zombie: false, session: pid }));
    }

    #[test]
    fn without_a_pid_file_nothing_is_left() {
        let nowhere = Directories::from_variables(|_| Some("/nowhere/at/all".into()));
        assert!(Leftovers::of(&nowhere).is_none());
    }

    #[test]
    fn a_number_that_is_another_process_s_is_no_daemons() {
        let directory = tempfile::tempdir().unwrap();
        let directories = Directories::from_variables(|_| Some(directory.path().into()));
        // This process lives, and does not have the lock.
        fs::write(directories.pid_file(), format!("{}\n", std::process::id())).unwrap();
        let leftovers = Leftovers::of(&directories).unwrap();
        assert!(leftovers.processes().is_empty());
        leftovers.end().unwrap();
    }
}
