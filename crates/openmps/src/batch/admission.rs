//! The prolog's work: a job gets its share. Doing it twice changes nothing.

use super::daemon::{self, Found, Sharing};
use super::place::Place;
use super::{BatchError, Job, MemoryRule, health};

/// How the node shares its GPUs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Among users.
    pub(crate) sharing: Sharing,
    /// Memory of jobs that do not say what they need.
    pub(crate) memory: MemoryRule,
}

/// Admits a job: its daemon runs, its limits are set, its tasks find what they need.
pub(crate) fn admit(place: &Place, rules: Rules, mut job: Job) -> Result<(), BatchError> {
    let gpus = job.gpus.clone();
    let locked = place.lock(&gpus)?;
    if job.refusal.is_some() {
        return place.write(&job);
    }
    if let (Some(percentage), MemoryRule::Share) = (job.percentage, rules.memory) {
        let share = share_bytes(health::memory_bytes(place, &gpus)?, percentage);
        job.memory_bytes = Some(job.memory_bytes.unwrap_or(share).min(share));
    }
    let found = daemon::ensure(&locked.directories, &gpus, rules.sharing)?;
    place.write(&job)?;
    // A daemon that is new because the last one died knows none of the jobs.
    let told = match found {
        Found::Running => vec![job],
        Found::Started => {
            let jobs = place.jobs_on(&gpus)?;
            jobs.into_iter().filter(|job| job.refusal.is_none()).collect()
        }
    };
    told.iter().try_for_each(|job| {
        daemon::admit(&locked.directories, job, &place.make_pipe(job)?)?;
        place.open_pipe(job)
    })
}

/// So many per cent of a device's memory, in whole mebibytes.
fn share_bytes(all: u64, percentage: f64) -> u64 {
    let share = (all as f64 * percentage / 100.0) as u64;
    (share >> 20 << 20).max(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_in_mebibytes() {
        assert_eq!(share_bytes(8 << 30, 25.0), 2 << 30);
        assert_eq!(share_bytes(1000 << 20, 33.3), 333 << 20);
        assert_eq!(share_bytes(10 << 20, 0.1), 1 << 20);
    }
}
