//! Who has what: GPUs cut into units, units lent to containers. Pure: no I/O, no clock; the truth
//! of a node's allocations is decided here.
//!
//! A *resource* is what pods ask for; one unit of it is so many per cent of a GPU's SMs and so much
//! of its memory. All resources are cut from the same GPUs, so what one lends the others cannot;
//! what the kubelet is told is healthy follows. A unit that a container has counts once, however
//! many records name it. Rules about the kubelet, from its source (`devicemanager`) and from
//! running it:
//! - it never says that a container has ended; it lists who has which devices (`podresources`), and
//!   lends a device again when it is free;
//! - an init container's devices are lent again to its pod's other containers, before it has run;
//! - after a restart it has its own checkpoint and asks nothing again.

mod preference;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use record::{Allocation, Owner, device_gpu, device_id};

/// Allocations of a node at a time, at most: each is a group of the daemon with limits.
pub const MAX_ALLOCATIONS: usize = 240;
/// Units of one resource that a GPU is cut into, at most: the kubelet keeps a list of them all.
pub const MAX_UNITS_PER_GPU: u32 = 1000;
/// The kubelet lists a container's devices a moment after they were lent; for so long it means
/// nothing that it has not listed them yet.
pub const GRACE_S: u64 = 30;
/// An allocation whose devices were lent again so soon may be of an init container that has still
/// to run.
const SAME_POD_S: u64 = 60;
/// How long such an allocation is kept beside its successor.
const INIT_CONTAINER_S: u64 = 3600;

/// Seconds since the epoch, as the caller says.
pub type Now = u64;

/// Memory of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// So many bytes.
    Bytes(u64),
    /// Hundredths of what a GPU has to lend.
    Percent(u32),
}

/// Something that pods can ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// `domain/name`.
    pub name: String,
    /// Of a GPU's SMs, per unit; without it a container may use all of them.
    pub sm_percent: Option<u32>,
    /// Of a GPU's memory, per unit.
    pub memory: Memory,
    /// Units that one container may have, if fewer than a GPU has.
    pub most_per_container: Option<u32>,
}

/// How much of a GPU is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// 100: each SM once.
    pub sm_percent_per_gpu: u32,
    /// Left for contexts and for who is no container.
    pub memory_reserve_bytes: u64,
}

/// A GPU of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// `GPU-...`.
    pub uuid: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Whether work can be given to it.
    pub health: Health,
}

/// Whether work can be given to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Yes.
    Healthy,
    /// No: it has failed, or nobody serves it.
    Unhealthy,
}

/// Why a container does not get what it asks for; the pod's event shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such resource or device.
    #[error("{0} is not a device of this plugin")]
    Unknown(String),
    /// Nothing was asked for.
    #[error("no device is asked for")]
    Nothing,
    /// More than a GPU is.
    #[error(
        "{resource}: {units} units are more than one GPU has, and a container's share is of one GPU: ask for at most {most}, or for whole GPUs elsewhere"
    )]
    MoreThanOneGpu {
        /// Of what.
        resource: String,
        /// Asked for.
        units: usize,
        /// What one container can have.
        most: u32,
    },
    /// The kubelet found enough, but on several GPUs.
    #[error(
        "{resource}: no GPU of this node has {units} units left, only several together, and a container's share is of one GPU: free some, or let the pod go to another node"
    )]
    SeveralGpus {
        /// Of what.
        resource: String,
        /// Asked for.
        units: usize,
    },
    /// Another resource's containers have it.
    #[error(
        "{resource}: {gpu} has no room left for {units} units: containers with other resources of OpenMPS have it"
    )]
    Full {
        /// Of what.
        resource: String,
        /// Where.
        gpu: String,
        /// Asked for.
        units: usize,
    },
    /// It cannot work now.
    #[error("{gpu} cannot be used now: the OpenMPS daemon does not serve it, or it has failed")]
    Unhealthy {
        /// Which.
        gpu: String,
    },
    /// Too many.
    #[error("{MAX_ALLOCATIONS} containers have shares of this node's GPUs already")]
    TooMany,
}

/// An allocation that was made, and those that it takes the place of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The new one.
    pub allocation: Allocation,
    /// Ended by it.
    pub ended: Vec<Allocation>,
}

/// A unit as the kubelet is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// See [`device_id`].
    pub id: String,
    /// Unhealthy are also those that nobody has and that nothing is left for.
    pub health: Health,
}

/// The node's GPUs and who has what of them.
#[derive(Clone, Debug)]
pub struct Ledger {
    resources: Vec<Resource>,
    rules: Rules,
    gpus: BTreeMap<String, Gpu>,
    allocations: Vec<Allocation>,
}

/// What is lent of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Of its SMs.
    pub sm_percent: u32,
    /// Of its memory.
    pub memory_bytes: u64,
}

impl Used {
    fn add(&mut self, other: Used) {
        self.sm_percent = self.sm_percent.saturating_add(other.sm_percent);
        self.memory_bytes = self.memory_bytes.saturating_add(other.memory_bytes);
    }
}

impl Ledger {
    /// What was recorded, before any GPU is known.
    pub fn new(resources: Vec<Resource>, rules: Rules, allocations: Vec<Allocation>) -> Self {
        Ledger { resources, rules, gpus: BTreeMap::new(), allocations }
    }

    /// The ids of all allocations, for [`Self::reconcile`].
    pub fn ids(&self) -> BTreeSet<String> {
        self.allocations.iter().map(|allocation| allocation.id.clone()).collect()
    }

    /// Those that have something.
    pub fn allocations(&self) -> &[Allocation] {
        &self.allocations
    }

    /// The node's GPUs are these; returns whether anything changed.
    pub fn set_gpus(&mut self, gpus: Vec<Gpu>) -> bool {
        let gpus = gpus.into_iter().map(|gpu| (gpu.uuid.clone(), gpu)).collect();
        let changed = self.gpus != gpus;
        self.gpus = gpus;
        changed
    }

    /// Nobody serves the GPUs; returns whether anything changed.
    pub fn set_all_unhealthy(&mut self) -> bool {
        let mut changed = false;
        for gpu in self.gpus.values_mut() {
            changed |= gpu.health != Health::Unhealthy;
            gpu.health = Health::Unhealthy;
        }
        changed
    }

    /// The devices of a resource, by id.
    pub fn devices(&self, resource: &str) -> Vec<Device> {
        let Some(resource) = self.resource(resource) else { return Vec::new() };
        let lent = self.lent_devices(&resource.name);
        let mut devices = BTreeMap::new();
        for gpu in self.gpus.values() {
            let mut room = self.room(resource, gpu);
            for number in 0..self.units_of(resource, gpu) {
                let id = device_id(&gpu.uuid, number);
                let fits = lent.contains(&id) || room > 0;
                room -= u32::from(fits && !lent.contains(&id));
                let health = if fits { gpu.health } else { Health::Unhealthy };
                devices.insert(id, health);
            }
        }
        // Lent before the GPU went, or before the configuration changed: the container has them
        // still.
        for id in lent {
            devices.entry(id).or_insert(Health::Unhealthy);
        }
        devices.into_iter().map(|(id, health)| Device { id, health }).collect()
    }

    /// Lends devices to a container. The kubelet lends a device only when it is free: who is
    /// recorded to have it has ended, or is an init container of the same pod.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub fn lend(
        &mut self,
        resource: &str,
        ids: &[String],
        id: &str,
        now: Now,
    ) -> Result<Lent, Refusal> {
        let resource = self.resource(resource).ok_or_else(|| Refusal::Unknown(resource.into()))?;
        let resource = resource.clone();
        let devices: BTreeSet<String> = ids.iter().cloned().collect();
        let units = devices.len();
        let name = || resource.name.clone();
        let gpus = self.gpus_of(&resource, &devices)?;
        let most = gpus.values().map(|gpu| self.most_units(&resource, gpu)).max().unwrap_or(0);
        if units as u64 > u64::from(most) {
            return Err(Refusal::MoreThanOneGpu { resource: name(), units, most });
        }
        let mut gpus = gpus.into_values();
        let (Some(gpu), None) = (gpus.next(), gpus.next()) else {
            return Err(Refusal::SeveralGpus { resource: name(), units });
        };
        if gpu.health == Health::Unhealthy {
            return Err(Refusal::Unhealthy { gpu: gpu.uuid });
        }
        let allocation = Allocation {
            id: id.to_owned(),
            resource: name(),
            gpu: gpu.uuid.clone(),
            devices,
            sm_percent_per_unit: resource.sm_percent,
            memory_bytes_per_unit: self.memory_of_unit(&resource, &gpu),
            lent_at: now,
            succeeded_at: None,
            owner: None,
        };
        let ended: Vec<Allocation> =
            self.allocations.iter().filter(|old| old.ends_for(&allocation, now)).cloned().collect();
        let is_ended = |old: &Allocation| ended.contains(old);
        let kept = self.allocations.iter().filter(|old| !is_ended(old));
        if kept.clone().count() >= MAX_ALLOCATIONS {
            return Err(Refusal::TooMany);
        }
        let used = used_of(kept.chain([&allocation]), &gpu.uuid);
        if used.sm_percent > self.rules.sm_percent_per_gpu
            || used.memory_bytes > self.lendable_bytes(&gpu)
        {
            return Err(Refusal::Full { resource: name(), gpu: gpu.uuid, units });
        }
        self.allocations.retain(|old| !is_ended(old));
        for old in &mut self.allocations {
            if old.resource == allocation.resource && !old.devices.is_disjoint(&allocation.devices)
            {
                old.succeeded_at.get_or_insert(now);
            }
        }
        self.allocations.push(allocation.clone());
        Ok(Lent { allocation, ended })
    }

    /// Takes a lent allocation back that did not come about.
    pub fn take_back(&mut self, id: &str) {
        self.allocations.retain(|allocation| allocation.id != id);
    }

    /// Compares the records with the kubelet's list; returns those that have ended. What the list
    /// has and the records have not is recorded, so that it is not lent twice. `known_before` are
    /// the ids of the allocations that were there before the list was asked for: of later ones it
    /// says nothing.
    pub fn reconcile(
        &mut self,
        listed: &[Owner],
        known_before: &BTreeSet<String>,
        now: Now,
    ) -> Vec<Allocation> {
        for owner in listed {
            self.adopt(owner, known_before, now);
        }
        let listed_devices: BTreeSet<(&str, &String)> = listed
            .iter()
            .flat_map(|owner| owner.devices.iter().map(|id| (owner.resource.as_str(), id)))
            .collect();
        let is_listed = |allocation: &Allocation| {
            let resource = allocation.resource.as_str();
            allocation.devices.iter().any(|id| listed_devices.contains(&(resource, id)))
        };
        let has_ended = |allocation: &Allocation| {
            let is_meant = allocation.id.is_empty() || known_before.contains(&allocation.id);
            let was_listed = allocation.owner.is_some();
            let late = now.saturating_sub(allocation.lent_at) >= GRACE_S;
            let outlived = allocation
                .succeeded_at
                .is_some_and(|at| now.saturating_sub(at) >= INIT_CONTAINER_S);
            outlived || (is_meant && (was_listed || late) && !is_listed(allocation))
        };
        let (ended, kept) = std::mem::take(&mut self.allocations).into_iter().partition(has_ended);
        self.allocations = kept;
        ended
    }

    /// What is lent of a GPU.
    pub fn used(&self, gpu: &str) -> Used {
        used_of(self.allocations.iter(), gpu)
    }

    fn adopt(&mut self, owner: &Owner, known_before: &BTreeSet<String>, now: Now) {
        let Some(resource) = self.resource(&owner.resource).cloned() else { return };
        let owns = |allocation: &&mut Allocation| {
            allocation.resource == owner.resource && allocation.devices == owner.devices
        };
        if let Some(known) = self.allocations.iter_mut().rev().find(owns) {
            if known.id.is_empty() || known_before.contains(&known.id) {
                known.owner = Some(owner.name.clone());
            }
            return;
        }
        let known = self.lent_devices(&owner.resource);
        let unknown: BTreeSet<String> =
            owner.devices.iter().filter(|id| !known.contains(*id)).cloned().collect();
        let Some((gpu, _)) = unknown.iter().find_map(|id| device_gpu(id)) else { return };
        let gpu = gpu.to_owned();
        let memory = self.gpus.get(&gpu).map_or(0, |known| self.memory_of_unit(&resource, known));
        self.allocations.push(Allocation {
            id: String::new(),
            resource: resource.name,
            gpu,
            devices: unknown,
            sm_percent_per_unit: resource.sm_percent,
            memory_bytes_per_unit: memory,
            lent_at: now,
            succeeded_at: None,
            owner: Some(owner.name.clone()),
        });
    }

    fn resource(&self, name: &str) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.name == name)
    }

    fn lent_devices(&self, resource: &str) -> BTreeSet<String> {
        let of_resource = self.allocations.iter().filter(|lent| lent.resource == resource);
        of_resource.flat_map(|lent| lent.devices.iter().cloned()).collect()
    }

    /// The GPUs that devices are of.
    fn gpus_of(
        &self,
        resource: &Resource,
        devices: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Gpu>, Refusal> {
        let mut gpus = BTreeMap::new();
        for id in devices {
            let unknown = || Refusal::Unknown(id.clone());
            let (uuid, number) = device_gpu(id).ok_or_else(unknown)?;
            let gpu = self.gpus.get(uuid).ok_or_else(unknown)?;
            if number >= self.units_of(resource, gpu) {
                return Err(unknown());
            }
            gpus.insert(gpu.uuid.clone(), gpu.clone());
        }
        if gpus.is_empty() { Err(Refusal::Nothing) } else { Ok(gpus) }
    }

    fn lendable_bytes(&self, gpu: &Gpu) -> u64 {
        gpu.memory_bytes.saturating_sub(self.rules.memory_reserve_bytes)
    }

    fn memory_of_unit(&self, resource: &Resource, gpu: &Gpu) -> u64 {
        match resource.memory {
            Memory::Bytes(bytes) => bytes,
            Memory::Percent(percent) => self.lendable_bytes(gpu) / 100 * u64::from(percent),
        }
    }

    /// Units of a resource that fit into what is free.
    fn units_in(&self, resource: &Resource, gpu: &Gpu, used: Used) -> u32 {
        let by_sms = resource.sm_percent.map_or(MAX_UNITS_PER_GPU, |percent| {
            self.rules.sm_percent_per_gpu.saturating_sub(used.sm_percent) / percent.max(1)
        });
        let free = self.lendable_bytes(gpu).saturating_sub(used.memory_bytes);
        let by_memory = free.checked_div(self.memory_of_unit(resource, gpu)).unwrap_or(0);
        by_sms.min(u32::try_from(by_memory).unwrap_or(u32::MAX)).min(MAX_UNITS_PER_GPU)
    }

    /// Units of a resource that an empty GPU is.
    fn units_of(&self, resource: &Resource, gpu: &Gpu) -> u32 {
        self.units_in(resource, gpu, Used::default())
    }

    /// Units that a container can have of a GPU: not more than its SMs are once, whatever is lent
    /// beyond.
    fn most_units(&self, resource: &Resource, gpu: &Gpu) -> u32 {
        let by_sms = resource.sm_percent.map_or(u32::MAX, |percent| 100 / percent.max(1));
        let most = self.units_of(resource, gpu).min(by_sms);
        most.min(resource.most_per_container.unwrap_or(u32::MAX))
    }

    /// Units that can be lent now.
    fn room(&self, resource: &Resource, gpu: &Gpu) -> u32 {
        self.units_in(resource, gpu, self.used(&gpu.uuid))
    }
}

/// What allocations have of a GPU, each unit once.
fn used_of<'a>(allocations: impl Iterator<Item = &'a Allocation>, gpu: &str) -> Used {
    let mut units: BTreeMap<(&str, &str), Used> = BTreeMap::new();
    for lent in allocations {
        for id in lent.devices.iter().filter(|id| device_gpu(id).is_some_and(|(of, _)| of == gpu)) {
            let unit = units.entry((&lent.resource, id)).or_default();
            unit.sm_percent = unit.sm_percent.max(lent.sm_percent_per_unit.unwrap_or(0));
            unit.memory_bytes = unit.memory_bytes.max(lent.memory_bytes_per_unit);
        }
    }
    let mut used = Used::default();
    units.into_values().for_each(|unit| used.add(unit));
    used
}
