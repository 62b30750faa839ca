//! Executors that were killed and have not left their device yet.
//!
//! A killed process runs no code of its own any more long before the driver has taken its context
//! down, which takes a GPU's a quarter of a second and more with much memory. What may go on
//! meanwhile, and why, is in ARCHITECTURE.md: sessions with nothing in flight do; those that lose
//! their work, and their memory, wait here.

use crate::Keeper;
use crate::executors::KILL_TIMEOUT;
use crate::executors::place::Place;
use crate::sessions::session::Service;
use cuda_abi::types::CUresult;
use executor_link::log::log_server;
use std::process::Child;
use std::time::{Duration, Instant};

/// Between two looks at whether a killed process still runs.
const LOOK: Duration = Duration::from_micros(200);
/// `PF_EXITING` of the flags in `/proc/PID/task/TID/stat` (`proc_pid_stat(5)`, linux/sched.h): the
/// thread never returns to its program.
const EXITING: u64 = 0x4;

/// A process that was killed.
pub(crate) enum Killed {
    /// Nothing is left of it; how it ended.
    Gone(String),
    /// It runs no code any more, and its context is being taken down.
    Leaving(Child),
}

impl Killed {
    /// Waits until nothing is left of it. One that hangs in the driver of the kernel is given up:
    /// it runs none of its own code any more.
    pub(crate) fn await_gone(self) -> String {
        match self {
            Self::Gone(how) => how,
            Self::Leaving(child) => await_killed(child),
        }
    }
}

/// Kills a process, and waits until it runs no code any more.
pub(crate) fn kill(mut child: Child) -> Killed {
    let _ = child.kill();
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Killed::Gone(status.to_string()),
            Err(error) => return Killed::Gone(error.to_string()),
            Ok(None) if runs_no_code(child.id()) => return Killed::Leaving(child),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
            Ok(None) => return Killed::Gone(give_up(child)),
        }
    }
}

/// Waits for the end of a process that was killed; says how it ended.
pub(crate) fn await_killed(mut child: Child) -> String {
    crate::executors::await_end(&mut child, KILL_TIMEOUT).unwrap_or_else(|| give_up(child))
}

fn give_up(mut child: Child) -> String {
    let pid = child.id();
    log_server!(
        "Executor {pid} does not end though it was killed: it hangs in the GPU's driver, of which `dmesg` may say more"
    );
    // Until it does, it is to be waited for.
    std::thread::spawn(move || child.wait());
    "killed, and hangs in the driver".to_owned()
}

/// Whether no thread of a killed process will ever run code of its own again. A process with a
/// fatal signal makes no new threads. Where it cannot be seen, no.
fn runs_no_code(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut seen = 0;
    for thread in threads {
        let Ok(thread) = thread else { return false };
        match std::fs::read_to_string(thread.path().join("stat")) {
            Ok(stat) if is_exiting(&stat) => seen += 1,
            Ok(_) => return false,
            // It has ended meanwhile; anything else counts as running.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(_) => return false,
        }
    }
    seen > 0
}

/// What a thread's `stat` says: state, six numbers, flags, behind the name, which may hold
/// anything.
fn is_exiting(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_ascii_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X"));
    let flags: Option<u64> = fields.nth(5).and_then(|flags| flags.parse().ok());
    is_dead || flags.is_some_and(|flags| flags & EXITING != 0)
}

/// An executor that is on its way, and who is told what when it has gone.
pub(crate) struct Leaving {
    pub(crate) place: Place,
    pub(crate) child: Child,
    since: Instant,
    lost: Vec<(u64, CUresult)>,
}

impl Leaving {
    pub(crate) fn new(place: Place, child: Child, lost: Vec<(u64, CUresult)>) -> Self {
        Self { place, child, since: Instant::now(), lost }
    }
}

impl Keeper {
    /// Looks which executors have left their device, and ends the sessions that waited for that.
    pub(crate) fn see_to_leaving(&mut self) {
        let mut still = Vec::new();
        for mut leaving in std::mem::take(&mut self.leaving) {
            match leaving.child.try_wait() {
                Ok(None) if leaving.since.elapsed() < KILL_TIMEOUT => still.push(leaving),
                Ok(None) => {
                    give_up(leaving.child);
                    self.end_lost(leaving.place, leaving.lost);
                }
                Ok(Some(_)) | Err(_) => {
                    log_server!(
                        "Executor {} has left device {} {:.0} ms after it was killed",
                        leaving.child.id(),
                        leaving.place.device,
                        leaving.since.elapsed().as_secs_f64() * 1e3
                    );
                    self.end_lost(leaving.place, leaving.lost);
                }
            }
        }
        self.leaving.extend(still);
    }

    /// Those who have lost their work are told, or forgotten if nobody is there to be told.
    pub(crate) fn end_lost(&mut self, place: Place, lost: Vec<(u64, CUresult)>) {
        for (id, code) in lost {
            let Some(session) = self.sessions.get(&id) else { continue };
            let is_losing = session.service == Service::Losing;
            match self.clients.contains_key(&session.client) {
                true if is_losing => self.condemn(id, code),
                true => {}
                false => self.forget_session(id),
            }
        }
        self.leave_domain(place.domain);
    }

    /// Waits for all of them, at the server's end.
    pub(crate) fn await_leaving(&mut self) {
        for leaving in self.leaving.drain(..) {
            await_killed(leaving.child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_thread_that_exits_is_known_by_its_flags_or_state() {
        assert!(is_exiting("7 (a) b) S 1 7 7 0 -1 4194564 116 0 0"));
        assert!(!is_exiting("7 (a) b) S 1 7 7 0 -1 4194560 116 0 0"));
        assert!(is_exiting("7 (x) Z 1 7 7 0 -1 0 116 0 0"));
        assert!(!is_exiting("7 (x) R 1") && !is_exiting(""));
    }

    #[test]
    fn a_process_runs_until_it_is_killed() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(!runs_no_code(child.id()));
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // It is a zombie until it is waited for.
        while !runs_no_code(child.id()) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(LOOK);
        }
        assert!(matches!(kill(child), Killed::Gone(_) | Killed::Leaving(_)));
        assert!(!runs_no_code(u32::MAX));
    }
}
