//! A function's attributes as this process knows them, and what setting one takes.
//!
//! cuDNN and CUTLASS set the same values before every launch (observed: PyTorch with ResNet-18 on
//! an H200, 1,900 times a second), and a driver does that in 0.1 us. So what a function has already
//! takes no command, and a value that every driver takes is posted. Which values those are says the
//! driver API's documentation (`CUfunction_attribute`). All else is the driver's to judge: what it
//! refuses is asked, and refused, each time.

use crate::code::attributes::{Attributes, LiveAttributes};
use crate::context::device::Device;
use cuda_abi::types::{CUdevice_attribute, CUfunction_attribute};
use link::wire::command::CACHE_CONFIG;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Attributes that can be set to whatever a driver says that they are. Those of required clusters
/// are not among them: code may forbid it.
const SETTABLE: [CUfunction_attribute; 4] = [
    CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT,
    CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
    CUfunction_attribute::CLUSTER_SCHEDULING_POLICY_PREFERENCE,
];
/// Compute capability of the first devices with clusters.
const CLUSTERS_SINCE: i32 = 9;
/// No cache preference is known: beyond values of 32 bits.
const UNKNOWN: i64 = i64::MIN;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct FunctionSettings {
    attributes: LiveAttributes,
    /// The cache preference that the driver took last and that nothing may have changed since.
    cache_config: AtomicI64,
    /// Held while a value is sent and noted: what is noted last is then what the executor is told
    /// last.
    changing: Mutex<()>,
}

/// What may be used of shared memory and clusters on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Shared memory of a block, static and dynamic, in bytes; `None`: the driver does not say.
    pub(crate) shared_bytes: Option<i32>,
    /// Whether there are clusters.
    pub(crate) clusters: bool,
}

impl Bounds {
    /// Those of a device.
    pub(crate) fn of(device: &Device) -> Self {
        let major = device.attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR);
        Self {
            shared_bytes: device.attribute(CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            clusters: major.is_some_and(|major| major >= CLUSTERS_SINCE),
        }
    }
}

impl FunctionSettings {
    /// A function as its driver has described it.
    pub(crate) fn new(attributes: &Attributes) -> Self {
        Self {
            attributes: LiveAttributes::new(attributes),
            cache_config: AtomicI64::new(UNKNOWN),
            changing: Mutex::new(()),
        }
    }

    /// The value of an attribute, if it has one.
    pub(crate) fn get(&self, attribute: CUfunction_attribute) -> Option<i32> {
        self.attributes.get(attribute.0)
    }

    /// Whether setting an attribute (or the wire's own numbers) to this value would succeed and
    /// change nothing.
    pub(crate) fn has(&self, attribute: i32, value: i32) -> bool {
        if attribute == CACHE_CONFIG {
            // Acquire: with the Release in `note_driver`.
            return self.cache_config.load(Ordering::Acquire) == i64::from(value);
        }
        let attribute = CUfunction_attribute(attribute.cast_unsigned());
        SETTABLE.contains(&attribute) && self.get(attribute) == Some(value)
    }

    /// Whether every driver takes this value, and says afterwards that the attribute has it.
    pub(crate) fn is_valid(&self, bounds: Bounds, attribute: i32, value: i32) -> bool {
        let attribute = CUfunction_attribute(attribute.cast_unsigned());
        if self.get(attribute).is_none() {
            return false;
        }
        match attribute {
            CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let used = self.get(CUfunction_attribute::SHARED_SIZE_BYTES);
                let left =
                    bounds.shared_bytes.zip(used).and_then(|(all, used)| all.checked_sub(used));
                left.is_some_and(|left| (0..=left).contains(&value))
            }
            CUfunction_attribute::PREFERRED_SHARED_MEMORY_CARVEOUT => (-1..=100).contains(&value),
            CUfunction_attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => {
                bounds.clusters && matches!(value, 0 | 1)
            }
            _ => false,
        }
    }

    /// Keeps other threads from changing it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A valid value was posted; locked.
    pub(crate) fn note_posted(&self, attribute: i32, value: i32) {
        self.attributes.set(attribute.cast_unsigned(), value);
        self.forget_cache_config();
    }

    /// The driver took a value and has these attributes now; locked.
    pub(crate) fn note_driver(&self, attribute: i32, value: i32, attributes: &Attributes) {
        self.attributes.replace(attributes);
        if attribute == CACHE_CONFIG {
            // Release: with the Acquire in `has`: who finds it finds the attributes that came with
            // it.
            self.cache_config.store(value.into(), Ordering::Release);
        } else {
            self.forget_cache_config();
        }
    }

    /// The preferences for a cache and for shared memory are about the same memory: the later one
    /// may undo the earlier one.
    fn forget_cache_config(&self) {
        // Release: as in `note_driver`.
        self.cache_config.store(UNKNOWN, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { shared_bytes: Some(1000), clusters: true };
    const SHARED: i32 = 8;
    const CARVEOUT: i32 = 9;
    const NON_PORTABLE: i32 = 14;

    fn settings() -> FunctionSettings {
        let attributes = [(1, 200), (4, 32), (SHARED, 700), (CARVEOUT, -1), (NON_PORTABLE, 0)];
        FunctionSettings::new(&attributes.into_iter().collect())
    }

    #[test]
    fn what_can_be_set_and_is_so_needs_nothing() {
        let settings = settings();
        assert!(settings.has(SHARED, 700) && settings.has(CARVEOUT, -1));
        assert!(!settings.has(SHARED, 701) && !settings.has(1, 200) && !settings.has(4, 32));
        assert!(!settings.has(15, 0), "unknown");
        settings.note_posted(SHARED, 100);
        assert!(settings.has(SHARED, 100) && !settings.has(SHARED, 700));
    }

    #[test]
    fn what_is_valid_is_known_by_the_devices_bounds() {
        let settings = settings();
        let valid = |attribute, value| settings.is_valid(BOUNDS, attribute, value);
        assert!([0, 1, 800].iter().all(|&value| valid(SHARED, value)));
        assert!([-1, 801, i32::MIN, i32::MAX].iter().all(|&value| !valid(SHARED, value)));
        assert!([-1, 0, 100].iter().all(|&value| valid(CARVEOUT, value)));
        assert!([-2, 101].iter().all(|&value| !valid(CARVEOUT, value)));
        assert!(valid(NON_PORTABLE, 1) && !valid(NON_PORTABLE, 2));
        assert!(!valid(15, 0) && !valid(4, 32) && !valid(CACHE_CONFIG, 1));
        let other = Bounds { shared_bytes: None, clusters: false };
        assert!(!settings.is_valid(other, SHARED, 0) && !settings.is_valid(other, NON_PORTABLE, 1));
    }

    #[test]
    fn a_cache_preference_is_known_once_the_driver_took_it() {
        let settings = settings();
        assert!(!settings.has(CACHE_CONFIG, 0));
        settings.note_driver(CACHE_CONFIG, 2, &[(CARVEOUT, 30)].into_iter().collect());
        assert!(settings.has(CACHE_CONFIG, 2) && settings.has(CARVEOUT, 30));
        settings.note_posted(CARVEOUT, 40);
        assert!(!settings.has(CACHE_CONFIG, 2) && settings.has(CARVEOUT, 40));
    }
}
