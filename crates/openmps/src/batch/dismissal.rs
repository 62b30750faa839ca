//! The epilog's work: nothing of a job stays, and the node is looked at before the next one comes
//! (NVIDIA's MPS guide, 5.1.3.2). Doing it twice changes nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use link::wire::ui::EndedClient;

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
            let pipe = place.pipe_of(job)?;
            let closed = daemon::dismiss(&locked.directories, job, &pipe);
            if let Some(error) = closed.err().filter(|_| !is_last) {
                eprintln!("openmps: {error}");
            }
            wrong.extend(end_clients(&locked, job, &pipe, is_last)?);
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

/// Has the daemon kill what is still attached of a job whose processes should have ended; says what
/// does not go.
fn end_clients(
    locked: &Locked,
    job: &Job,
    pipe: &Path,
    is_last: bool,
) -> Result<Option<String>, BatchError> {
    let deadline = Instant::now() + LEAVE_LIMIT;
    let mut told = BTreeSet::new();
    loop {
        let zombies = match daemon::end_clients(&locked.directories, pipe) {
            Ok(zombies) => zombies,
            // One that does not answer is ended with the last job.
            Err(error) if is_last => {
                eprintln!("openmps: {error}");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let Some(first) = zombies.first() else { return Ok(None) };
        if Instant::now() >= deadline {
            return Ok(Some(format!(
                "process {} of {} is still a client and cannot be killed",
                first.pid, job.name
            )));
        }
        for EndedClient { pid, command } in &zombies {
            if told.insert(*pid) {
                eprintln!("openmps: process {pid} ({command}), still a client, was killed");
            }
        }
        thread::sleep(INTERVAL);
    }
}
