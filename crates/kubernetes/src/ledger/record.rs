//! One allocation, as it is kept on disk; and the names of devices.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Now, SAME_POD_S};

/// What a container has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Names its socket and its group; empty: the kubelet lent it, and what was told the container
    /// is not known (the records were lost).
    pub id: String,
    /// Of which resource.
    pub resource: String,
    /// Of which GPU.
    pub gpu: String,
    /// Its units.
    pub devices: BTreeSet<String>,
    /// SMs of each; absent: all, not counted.
    pub sm_percent_per_unit: Option<u32>,
    /// Memory of each.
    pub memory_bytes_per_unit: u64,
    /// When.
    pub lent_at: Now,
    /// When its devices were lent again while it may still be in use.
    #[serde(default)]
    pub succeeded_at: Option<Now>,
    /// `namespace/pod/container`, once the kubelet has said so.
    #[serde(default)]
    pub owner: Option<String>,
}

impl Allocation {
    /// Its share of the SMs, in per cent; absent: all.
    pub fn sm_percent(&self) -> Option<u32> {
        let units = u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
        Some(self.sm_percent_per_unit?.saturating_mul(units))
    }

    /// Its share of the memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes_per_unit.saturating_mul(self.devices.len() as u64)
    }

    /// Whether it is over when `next` is lent: its devices are lent again, and it is too old for an
    /// init container of the same pod.
    pub(super) fn ends_for(&self, next: &Allocation, now: Now) -> bool {
        self.resource == next.resource
            && !self.devices.is_disjoint(&next.devices)
            && (self.id.is_empty() || now.saturating_sub(self.lent_at) >= SAME_POD_S)
    }
}

/// A container as the kubelet lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// `namespace/pod/container`.
    pub name: String,
    /// The resource.
    pub resource: String,
    /// What it has of it.
    pub devices: BTreeSet<String>,
}

/// The kubelet's name of a unit: at most 63 characters.
pub fn device_id(gpu: &str, number: u32) -> String {
    format!("{gpu}::{number}")
}

/// The GPU and the number in such a name.
pub fn device_gpu(id: &str) -> Option<(&str, u32)> {
    let (gpu, number) = id.rsplit_once("::")?;
    Some((gpu, number.parse().ok()?))
}
