//! What clients of an executor share besides the device: mappings, of which a process can have only so many, and the host's memory.
//!
//! Both count for the [`Owner`] of a session, and are refused before they are used up.

use crate::log::log_server;
use crate::policy::budgets::{Budget, Part};
use link::memory_limits::parse_size_bytes;
use link::wire::owner::Owner;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names how much memory one user's pinned regions may have, as `64G`.
pub(crate) const PINNED_LIMIT_VARIABLE: &str = "OPENMPS_PINNED_LIMIT";
/// What the kernel allows where it does not say.
const USUAL_MAPPINGS: u64 = 65_530;
/// A region splits the reserved addresses around it.
pub(super) const MAPPINGS_OF_REGION: u64 = 2;
/// The other half is for the driver, for threads, and for what sessions have besides regions.
const PART_FOR_REGIONS: u64 = 2;
const HALF: Part = Part { numerator: 1, denominator: 2 };
/// A program may want to pin most of the machine's memory, as it could natively.
const MOST: Part = Part { numerator: 3, denominator: 4 };

/// Those of an executor.
#[derive(Debug)]
pub(crate) struct Budgets {
    mappings: Mutex<Budget>,
    pinned_bytes: Mutex<Budget>,
}

/// What a session has of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Holding {
    of: Arc<Budgets>,
    owner: Owner,
    mappings: u64,
    pinned_bytes: u64,
    /// What its client's control group may have.
    most_pinned_bytes: u64,
    is_refusal_said: bool,
}

impl Budgets {
    /// By what the kernel says, and the environment.
    pub(crate) fn of_process() -> Arc<Self> {
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        let mappings = mappings.and_then(|text| text.trim().parse().ok()).unwrap_or(USUAL_MAPPINGS);
        let system = rustix::system::sysinfo();
        let host_bytes = (system.totalram as u64).saturating_mul(system.mem_unit.into());
        let limit =
            std::env::var(PINNED_LIMIT_VARIABLE).ok().filter(|text| !text.trim().is_empty());
        let most_of_one = limit.and_then(|text| {
            let bytes = parse_size_bytes(text.trim()).ok();
            if bytes.is_none() {
                log_server!(
                    "{PINNED_LIMIT_VARIABLE}={text} is no amount of memory, as in 64G; ignored"
                );
            }
            bytes
        });
        let most_of_one = most_of_one.unwrap_or(u64::MAX);
        Arc::new(Self {
            mappings: Mutex::new(Budget::new(mappings / PART_FOR_REGIONS, HALF, u64::MAX)),
            pinned_bytes: Mutex::new(Budget::new(host_bytes, MOST, most_of_one)),
        })
    }

    /// What a session of this owner has: nothing yet.
    pub(super) fn open(self: &Arc<Self>, owner: &Owner, most_pinned_bytes: Option<u64>) -> Holding {
        Holding {
            of: Arc::clone(self),
            owner: owner.clone(),
            mappings: 0,
            pinned_bytes: 0,
            most_pinned_bytes: most_pinned_bytes.unwrap_or(u64::MAX),
            is_refusal_said: false,
        }
    }
}

impl Holding {
    /// Counts a region, whose pages are the host's to give if `pinned_bytes` is not 0; says whether it may be had.
    pub(super) fn take(&mut self, label: &str, pinned_bytes: u64) -> bool {
        let refused = self.refusal(pinned_bytes);
        if let Some(refused) = &refused
            && !std::mem::replace(&mut self.is_refusal_said, true)
        {
            log_server!("{label} gets no more host memory: {refused}");
        }
        refused.is_none()
    }

    fn refusal(&mut self, pinned_bytes: u64) -> Option<String> {
        let Self { of, owner, .. } = self;
        let all = self.pinned_bytes.saturating_add(pinned_bytes);
        if pinned_bytes > 0 && all > self.most_pinned_bytes {
            let most = self.most_pinned_bytes >> 20;
            return Some(format!("its control group may have {most} MiB"));
        }
        if !lock(&of.mappings).take(owner, MAPPINGS_OF_REGION) {
            return Some(format!(
                "{owner} has as many regions as one may have of this executor (vm.max_map_count)"
            ));
        }
        if !lock(&of.pinned_bytes).take(owner, pinned_bytes) {
            lock(&of.mappings).give_back(owner, MAPPINGS_OF_REGION);
            return Some(format!(
                "{owner} has as much pinned memory as one may have ({PINNED_LIMIT_VARIABLE})"
            ));
        }
        self.mappings += MAPPINGS_OF_REGION;
        self.pinned_bytes = all;
        None
    }

    /// Takes back what was counted for a region.
    pub(super) fn give_back(&mut self, pinned_bytes: u64) {
        lock(&self.of.mappings).give_back(&self.owner, MAPPINGS_OF_REGION);
        lock(&self.of.pinned_bytes).give_back(&self.owner, pinned_bytes);
        self.mappings = self.mappings.saturating_sub(MAPPINGS_OF_REGION);
        self.pinned_bytes = self.pinned_bytes.saturating_sub(pinned_bytes);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        lock(&self.of.mappings).give_back(&self.owner, self.mappings);
        lock(&self.of.pinned_bytes).give_back(&self.owner, self.pinned_bytes);
    }
}

fn lock(budget: &Mutex<Budget>) -> MutexGuard<'_, Budget> {
    budget.lock().unwrap_or_else(PoisonError::into_inner)
}
