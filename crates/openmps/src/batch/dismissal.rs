//! The epilog's work: nothing of a job stays, and the node is looked at before the next one comes (NVIDIA's MPS guide, 5.1.3.2). Doing it twice
//! changes nothing.

use std::thread;
use std::time::{Duration, Instant};

use link::wire::daemon::ClientSnapshot;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::gpus::Gpus;
use super::place::{Locked, Place};
use super::{BatchError, Job, daemon, health};

/// A client that was killed has left after that, or never will.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(5);

/// Dismisses a job; returns what is wrong with the node, for which it should get no further jobs.
pub(crate) fn dismiss(place: &Place, name: &str, gpus: &Gpus) -> Result<Vec<String>, BatchError> {
    let mut wrong = Vec::new();
    let job = place.job(name)?;
    // Of a prolog that failed half-way there is no job, but perhaps a daemon.
    let shared = job.as_ref().map_or(gpus, |job| &job.gpus);
    if job.is_some() || place.is_in_use(shared) {
        let locked = place.lock(shared)?;
        let is_last = place.jobs_on(shared)?.iter().all(|job| job.name == name);
        if let Some(job) = &job {
            // Where there is no daemon there is nothing to close; the next prolog starts one.
            let closed = daemon::dismiss(&locked.directories, job, &place.pipe_of(job)?);
            if let Some(error) = closed.err().filter(|_| !is_last) {
                eprintln!("openmps: {error}");
            }
            wrong.extend(end_clients(&locked, job, is_last)?);
        }
        place.remove(name)?;
        if is_last {
            match daemon::stop(&locked.directories) {
                Ok(()) => locked.remove()?,
                Err(still) => wrong.push(still),
            }
        }
    }
    wrong.extend(health::check(gpus).err().map(|why| format!("GPU check failed: {why}")));
    Ok(wrong)
}

/// Kills what is still attached of a job whose processes should have ended; says what does not go.
fn end_clients(locked: &Locked, job: &Job, is_last: bool) -> Result<Option<String>, BatchError> {
    let deadline = Instant::now() + LEAVE_LIMIT;
    loop {
        let clients = match daemon::clients(&locked.directories) {
            Ok(clients) => clients,
            // A server may be busy for a moment.
            Err(_) if Instant::now() < deadline => {
                thread::sleep(INTERVAL);
                continue;
            }
            // One that does not answer is ended with the last job.
            Err(error) if is_last => {
                eprintln!("openmps: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let zombies: Vec<_> =
            clients.into_iter().filter(|client| client.group.as_ref() == Some(&job.name)).collect();
        let Some(first) = zombies.first() else { return Ok(None) };
        if Instant::now() >= deadline {
            return Ok(Some(format!(
                "process {} of {} is still a client and cannot be killed",
                first.pid, job.name
            )));
        }
        for zombie in &zombies {
            kill(zombie, locked);
        }
        thread::sleep(INTERVAL);
    }
}

/// Ends a client's process, and no other that got its number meanwhile; does nothing where that is not certain.
fn kill(client: &ClientSnapshot, locked: &Locked) {
    let pid = i32::try_from(client.pid).ok().and_then(Pid::from_raw);
    let Some(process) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return;
    };
    // What is still listed now is what the descriptor is of: its connection is open.
    let Ok(listed) = daemon::clients(&locked.directories) else { return };
    if listed.iter().any(|other| (other.client_id, other.pid) == (client.client_id, client.pid)) {
        eprintln!("openmps: killing process {} ({}), still a client", client.pid, client.command);
        let _ = pidfd_send_signal(&process, Signal::KILL);
    }
}
