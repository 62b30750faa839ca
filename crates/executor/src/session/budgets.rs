//! What clients of an executor share besides the device: mappings and open files, of which a
//! process can have only so many, and the host's memory.
//!
//! All count for the [`Owner`] of a session, and are refused before they are used up. What a
//! session had in another executor is counted, and not refused.

use executor_link::log::log_server;
use link::wire::owner::Owner;
use policy::budgets::{Budget, Part};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What the kernel allows where it does not say.
const USUAL_MAPPINGS: u64 = 65_530;
/// A region splits the reserved addresses around it.
pub(crate) const MAPPINGS_OF_REGION: u64 = 2;
/// The other half is for the driver, for threads, and for what sessions have besides regions.
const PART_FOR_REGIONS: u64 = 2;
/// So much of the host's memory is for images of code, which are kept as long as they are loaded.
/// All processes that load the same have it once, so a quarter of the machine is much for the code
/// of one owner.
const PART_FOR_IMAGES: u64 = 2;

/// Those of an executor.
#[derive(Debug)]
pub(crate) struct Budgets {
    mappings: Mutex<Budget>,
    pinned_bytes: Mutex<Budget>,
    image_bytes: Mutex<Budget>,
    /// Whose large image is being loaded.
    loading: Mutex<BTreeMap<Owner, Weak<Mutex<()>>>>,
}

/// Bytes of images that are counted until this is dropped.
#[derive(Debug)]
pub(crate) struct ImageBytes {
    of: Arc<Budgets>,
    owner: Owner,
    bytes: u64,
}

impl Drop for ImageBytes {
    fn drop(&mut self) {
        lock(&self.of.image_bytes).give_back(&self.owner, self.bytes);
    }
}

/// What a session has of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
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
        let limit = crate::setting(|variables| variables.memory_bytes(&settings::PINNED_LIMIT));
        let most_of_one = limit.unwrap_or(u64::MAX);
        Arc::new(Self {
            mappings: Mutex::new(Budget::new(mappings / PART_FOR_REGIONS, Part::HALF, u64::MAX)),
            // A program may want to pin most of the machine's memory, as it could natively.
            pinned_bytes: Mutex::new(Budget::new(host_bytes, Part::THREE_QUARTERS, most_of_one)),
            image_bytes: Mutex::new(Budget::new(
                host_bytes / PART_FOR_IMAGES,
                Part::HALF,
                u64::MAX,
            )),
            loading: Mutex::default(),
        })
    }

    /// Counts an image of this length; `None`: its owner has too many.
    pub(crate) fn take_image(self: &Arc<Self>, owner: &Owner, bytes: u64) -> Option<ImageBytes> {
        let counted = || ImageBytes { of: Arc::clone(self), owner: owner.clone(), bytes };
        lock(&self.image_bytes).take(owner, bytes).then(counted)
    }

    /// The same where the owner had it before.
    pub(crate) fn count_image(self: &Arc<Self>, owner: &Owner, bytes: u64) -> ImageBytes {
        lock(&self.image_bytes).count(owner, bytes);
        ImageBytes { of: Arc::clone(self), owner: owner.clone(), bytes }
    }

    /// Held while a large image of this owner is loaded: one at a time, as each takes several times
    /// its length meanwhile.
    pub(crate) fn loading_turn(&self, owner: &Owner) -> Arc<Mutex<()>> {
        let mut turns = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(owner).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(Mutex::new(()));
        turns.insert(owner.clone(), Arc::downgrade(&turn));
        turn
    }

    /// What a session of this owner has: nothing yet.
    pub(crate) fn open(self: &Arc<Self>, owner: &Owner, most_pinned_bytes: Option<u64>) -> Holding {
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
    /// Whom it counts for.
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What it counts in.
    pub(crate) fn budgets(&self) -> &Arc<Budgets> {
        &self.of
    }

    /// Counts a region that the session had in another executor.
    pub(crate) fn keep(&mut self, pinned_bytes: u64) {
        lock(&self.of.mappings).count(&self.owner, MAPPINGS_OF_REGION);
        lock(&self.of.pinned_bytes).count(&self.owner, pinned_bytes);
        self.mappings += MAPPINGS_OF_REGION;
        self.pinned_bytes = self.pinned_bytes.saturating_add(pinned_bytes);
    }

    /// Counts a region, whose pages are the host's to give if `pinned_bytes` is not 0; says whether
    /// it may be had.
    pub(crate) fn take(&mut self, label: &str, pinned_bytes: u64) -> bool {
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
                "{owner} has as much pinned memory as one may have (OPENMPS_PINNED_LIMIT)"
            ));
        }
        self.mappings += MAPPINGS_OF_REGION;
        self.pinned_bytes = all;
        None
    }

    /// Takes back what was counted for a region.
    pub(crate) fn give_back(&mut self, pinned_bytes: u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn budgets(mappings: u64, image_bytes: u64) -> Arc<Budgets> {
        let of = |most| Mutex::new(Budget::new(most, Part::HALF, u64::MAX));
        Arc::new(Budgets {
            mappings: of(mappings),
            pinned_bytes: of(u64::MAX),
            image_bytes: of(image_bytes),
            loading: Mutex::default(),
        })
    }

    #[test]
    fn what_a_session_had_before_a_takeover_it_has_again_whoever_comes_first() {
        let budgets = budgets(8 * MAPPINGS_OF_REGION, 0);
        let [mut one, mut other] = [1, 2].map(|uid| budgets.open(&Owner::user(uid), None));
        assert_eq!((0..).take_while(|_| one.take("one", 4096)).count(), 4);
        // The other had four before there was anybody else.
        (0..4).for_each(|_| other.keep(4096));
        assert!(!other.take("other", 4096) && !one.take("one", 4096));
        (0..4).for_each(|_| other.give_back(4096));
        assert!(other.take("other", 4096));
        drop((one, other));
        assert!(lock(&budgets.mappings).take(&Owner::user(3), 4 * MAPPINGS_OF_REGION));
    }

    #[test]
    fn images_count_until_they_are_dropped_and_large_ones_take_turns() {
        let budgets = budgets(0, 100);
        let [one, other] = [1, 2].map(Owner::user);
        let first = budgets.take_image(&one, 50).unwrap();
        assert!(budgets.take_image(&one, 1).is_none());
        let second = budgets.take_image(&other, 25).unwrap();
        drop(first);
        let kept = budgets.count_image(&one, 90);
        assert!(budgets.take_image(&one, 1).is_none());
        drop((kept, second));
        assert!(budgets.take_image(&other, 50).is_some());
        let turn = budgets.loading_turn(&one);
        let _held = turn.lock().unwrap();
        assert!(budgets.loading_turn(&one).try_lock().is_err());
        assert!(budgets.loading_turn(&other).try_lock().is_ok());
    }
}
