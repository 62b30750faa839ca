//! The rules one by one, and all of them at random against a kubelet that does what the real one
//! does.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const GIB: u64 = 1 << 30;
const PERCENT: &str = "openmps.dev/sm-percent";
const SMALL: &str = "openmps.dev/small";
const MEMORY: &str = "openmps.dev/memory-gib";

fn resources() -> Vec<Resource> {
    let resource = |name: &str, sm_percent, memory, most_per_container| Resource {
        name: name.to_owned(),
        sm_percent,
        memory,
        most_per_container,
    };
    vec![
        resource(PERCENT, Some(1), Memory::Percent(1), None),
        resource(SMALL, Some(25), Memory::Bytes(10 * GIB), Some(1)),
        resource(MEMORY, None, Memory::Bytes(GIB), None),
    ]
}

fn rules() -> Rules {
    Rules { sm_percent_per_gpu: 100, memory_reserve_bytes: GIB }
}

fn gpu(name: &str, health: Health) -> Gpu {
    Gpu { uuid: format!("GPU-{name}"), memory_bytes: 81 * GIB, health }
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::new(resources(), rules(), Vec::new());
    ledger.set_gpus(vec![gpu("a", Health::Healthy), gpu("b", Health::Healthy)]);
    ledger
}

fn healthy(ledger: &Ledger, resource: &str) -> Vec<String> {
    let devices = ledger.devices(resource).into_iter();
    devices.filter(|device| device.health == Health::Healthy).map(|device| device.id).collect()
}

fn ids(gpu: &str, numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| device_id(&format!("GPU-{gpu}"), number)).collect()
}

/// The kubelet's list, asked for now.
fn reconcile(ledger: &mut Ledger, listed: &[Owner], now: Now) -> Vec<Allocation> {
    let known = ledger.ids();
    ledger.reconcile(listed, &known, now)
}

fn owner(name: &str, resource: &str, devices: &[String]) -> Owner {
    let devices = devices.iter().cloned().collect();
    Owner { name: name.to_owned(), resource: resource.to_owned(), devices }
}

#[test]
fn a_gpu_is_cut_by_what_is_scarce() {
    let ledger = ledger();
    assert_eq!(ledger.devices(PERCENT).len(), 200);
    assert_eq!(healthy(&ledger, SMALL).len(), 8, "by SMs");
    assert_eq!(healthy(&ledger, MEMORY).len(), 160, "by memory");
    assert!(ledger.devices(PERCENT).iter().all(|device| device.id.len() <= 63));
    assert_eq!(ledger.devices("other"), []);
}

#[test]
fn what_one_resource_lends_the_others_have_not() {
    let mut ledger = ledger();
    let lent = ledger.lend(PERCENT, &ids("a", 0..60), "one", 0).unwrap().allocation;
    assert_eq!((lent.sm_percent(), lent.memory_bytes()), (Some(60), 80 * GIB / 100 * 60));
    assert_eq!(healthy(&ledger, SMALL).len(), 1 + 4);
    assert_eq!(healthy(&ledger, MEMORY).len(), 32 + 80);
    assert_eq!(healthy(&ledger, PERCENT).len(), 200, "its own are lent or free");
    let refused = ledger.lend(SMALL, &ids("a", 1..3), "two", 0).unwrap_err();
    assert!(matches!(refused, Refusal::MoreThanOneGpu { most: 1, .. }), "{refused}");
    ledger.lend(SMALL, &ids("a", 0..1), "three", 0).unwrap();
    let refused = ledger.lend(SMALL, &ids("a", 1..2), "four", 0).unwrap_err();
    assert!(matches!(refused, Refusal::Full { .. }), "{refused}");
    assert_eq!(ledger.allocations().len(), 2);
    // Without a limit of SMs only memory counts.
    ledger.lend(MEMORY, &ids("a", 0..10), "five", 0).unwrap();
    assert_eq!(ledger.used("GPU-a").sm_percent, 85);
}

#[test]
fn more_than_a_gpu_is_refused_with_the_reason() {
    let mut ledger = ledger();
    let mut both = ids("a", 0..60);
    both.extend(ids("b", 0..60));
    let refused = ledger.lend(PERCENT, &both, "one", 0).unwrap_err();
    assert!(matches!(refused, Refusal::MoreThanOneGpu { units: 120, most: 100, .. }), "{refused}");
    let refused = ledger.lend(PERCENT, &both[30..90], "one", 0).unwrap_err();
    assert!(matches!(refused, Refusal::SeveralGpus { units: 60, .. }), "{refused}");
    for (wrong, expected) in [
        (vec![], Refusal::Nothing),
        (vec!["x".to_owned()], Refusal::Unknown("x".into())),
        (vec!["GPU-a::100".to_owned()], Refusal::Unknown("GPU-a::100".into())),
        (vec!["GPU-c::0".to_owned()], Refusal::Unknown("GPU-c::0".into())),
    ] {
        assert_eq!(ledger.lend(PERCENT, &wrong, "one", 0), Err(expected));
    }
    ledger.set_gpus(vec![gpu("a", Health::Unhealthy), gpu("b", Health::Healthy)]);
    let refused = ledger.lend(PERCENT, &both[..1], "one", 0).unwrap_err();
    assert!(matches!(refused, Refusal::Unhealthy { .. }), "{refused}");
}

#[test]
fn overcommitted_gpus_lend_a_container_no_more_than_one() {
    let rules = Rules { sm_percent_per_gpu: 200, ..rules() };
    let resource = Resource { memory: Memory::Bytes(GIB / 4), ..resources().remove(0) };
    let mut ledger = Ledger::new(vec![resource], rules, Vec::new());
    ledger.set_gpus(vec![gpu("a", Health::Healthy)]);
    assert_eq!(healthy(&ledger, PERCENT).len(), 200);
    let refused = ledger.lend(PERCENT, &ids("a", 0..101), "one", 0).unwrap_err();
    assert!(matches!(refused, Refusal::MoreThanOneGpu { most: 100, .. }), "{refused}");
    ledger.lend(PERCENT, &ids("a", 0..100), "one", 0).unwrap();
    ledger.lend(PERCENT, &ids("a", 100..200), "two", 0).unwrap();
}

#[test]
fn shares_are_packed_on_the_fullest_gpu_that_has_room() {
    let mut ledger = ledger();
    ledger.lend(PERCENT, &ids("b", 0..40), "one", 0).unwrap();
    let mut available = ids("a", 0..100);
    available.extend(ids("b", 40..100));
    let preferred = |ledger: &Ledger, must: &[String], units| {
        let chosen = ledger.preferred(PERCENT, &available, must, units);
        let gpus: BTreeSet<String> =
            chosen.iter().map(|id| device_gpu(id).unwrap().0.to_owned()).collect();
        (chosen.len(), gpus.into_iter().collect::<Vec<_>>())
    };
    assert_eq!(preferred(&ledger, &[], 60), (60, vec!["GPU-b".to_owned()]));
    assert_eq!(preferred(&ledger, &[], 61), (61, vec!["GPU-a".to_owned()]));
    assert_eq!(preferred(&ledger, &ids("a", 0..1), 30), (30, vec!["GPU-a".to_owned()]));
    // The kubelet must be given as many as it asks for.
    assert_eq!(preferred(&ledger, &[], 150).0, 150);
}

#[test]
fn a_kubelet_that_is_late_is_not_led_to_a_full_gpu() {
    let mut ledger = ledger();
    let before = healthy(&ledger, SMALL);
    let chosen = |ledger: &Ledger| ledger.preferred(SMALL, &before, &[], 1);
    assert_eq!(chosen(&ledger), ids("a", 0..1));
    ledger.lend(PERCENT, &ids("a", 0..76), "one", 0).unwrap();
    assert_eq!(chosen(&ledger), ids("b", 0..1), "by SMs");
    // What another container had is free by the kubelet's word, and fits: it counts already.
    ledger.lend(SMALL, &ids("b", 0..1), "two", 0).unwrap();
    ledger.lend(PERCENT, &ids("b", 0..75), "three", 0).unwrap();
    let chosen_of_b = ledger.preferred(SMALL, &ids("b", 0..4), &[], 1);
    assert_eq!(chosen_of_b, ids("b", 0..1));
    assert_eq!(ledger.preferred(SMALL, &ids("b", 1..4), &[], 1), ids("b", 1..2), "refused later");
    // What must be included takes room, too.
    let must = ids("a", 80..90);
    let rest = ledger.preferred(PERCENT, &ids("a", 76..80), &must, 14);
    assert_eq!(rest.len(), 14);
    // A GPU that has failed meanwhile is no choice while there is another.
    ledger.take_back("three");
    ledger.set_gpus(vec![gpu("a", Health::Unhealthy), gpu("b", Health::Healthy)]);
    let both = [ids("a", 90..95), ids("b", 0..5)].concat();
    assert_eq!(ledger.preferred(PERCENT, &both, &[], 5), ids("b", 0..5));
}

#[test]
fn what_the_kubelet_no_longer_lists_is_free_after_a_moment() {
    let mut ledger = ledger();
    let devices = ids("a", 0..60);
    ledger.lend(PERCENT, &devices, "one", 1000).unwrap();
    assert_eq!(reconcile(&mut ledger, &[], 1000 + GRACE_S - 1), []);
    let listed = [owner("default/pod/c", PERCENT, &devices)];
    assert_eq!(reconcile(&mut ledger, &listed, 5000), []);
    assert_eq!(ledger.allocations()[0].owner.as_deref(), Some("default/pod/c"));
    let ended = reconcile(&mut ledger, &[], 5000);
    assert_eq!(ended.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["one"]);
    assert_eq!(ledger.used("GPU-a"), Used::default());
    // One that was never listed is waited for; a list that was asked for before it was lent says
    // nothing of it.
    ledger.lend(PERCENT, &devices, "two", 6000).unwrap();
    assert_eq!(ledger.reconcile(&listed, &BTreeSet::new(), 6000), []);
    assert_eq!(ledger.allocations()[0].owner, None);
    assert_eq!(ledger.reconcile(&[], &BTreeSet::new(), 9000), []);
    assert_eq!(reconcile(&mut ledger, &[], 6000 + GRACE_S).len(), 1);
    ledger.lend(PERCENT, &devices, "three", 7000).unwrap();
    assert_eq!(reconcile(&mut ledger, &listed, 7000), []);
    assert_eq!(reconcile(&mut ledger, &[], 7001).len(), 1, "it was listed, and is no more");
}

#[test]
fn without_records_the_kubelets_list_counts() {
    let mut ledger = ledger();
    let listed = [owner("default/pod/c", PERCENT, &ids("a", 0..60))];
    assert_eq!(reconcile(&mut ledger, &listed, 10), []);
    reconcile(&mut ledger, &listed, 11);
    assert_eq!(ledger.allocations().len(), 1);
    assert_eq!(ledger.used("GPU-a").sm_percent, 60);
    assert!(ledger.lend(SMALL, &ids("a", 0..1), "one", 11).is_ok());
    assert!(ledger.lend(SMALL, &ids("a", 1..2), "two", 11).is_err());
    // Once its devices are lent again it has ended, whatever its age.
    let lent = ledger.lend(PERCENT, &ids("a", 0..10), "three", 12).unwrap();
    assert_eq!(lent.ended.len(), 1);
}

#[test]
fn an_init_container_keeps_its_socket_when_its_devices_are_lent_again() {
    let mut ledger = ledger();
    let devices = ids("a", 0..60);
    ledger.lend(PERCENT, &devices, "init", 1000).unwrap();
    let lent = ledger.lend(PERCENT, &devices, "main", 1001).unwrap();
    assert_eq!(lent.ended, []);
    assert_eq!(ledger.used("GPU-a").sm_percent, 60, "counted once");
    let listed = [owner("default/pod/c", PERCENT, &devices)];
    assert_eq!(reconcile(&mut ledger, &listed, 2000), []);
    let ended = reconcile(&mut ledger, &listed, 1001 + INIT_CONTAINER_S);
    assert_eq!(ended.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["init"]);
    // An older one has ended: its pod's containers were all lent theirs at once.
    let lent = ledger.lend(PERCENT, &devices, "next", 9000).unwrap();
    assert_eq!(lent.ended.len(), 1);
}

#[test]
fn a_gpu_that_goes_takes_its_devices_along_but_not_its_containers() {
    let mut ledger = ledger();
    ledger.lend(PERCENT, &ids("a", 0..60), "one", 0).unwrap();
    ledger.set_gpus(vec![gpu("b", Health::Healthy)]);
    let devices = ledger.devices(PERCENT);
    assert_eq!(devices.len(), 160);
    let unhealthy = devices.iter().filter(|device| device.health == Health::Unhealthy);
    assert_eq!(unhealthy.count(), 60);
    assert!(ledger.set_all_unhealthy());
    assert!(!ledger.set_all_unhealthy());
    assert_eq!(healthy(&ledger, PERCENT).len(), 0);
}

/// How the kubelet comes to a container's devices.
#[derive(Clone, Copy, Debug)]
enum Choice {
    /// As the plugin prefers, of what it offers now.
    Preferred,
    /// As the plugin prefers, of what it offered when the kubelet last looked.
    PreferredLate,
    /// The first that are free.
    First,
}

/// What happens to a node.
#[derive(Clone, Debug)]
enum Step {
    /// A pod asks for units of a resource.
    Start { resource: usize, units: usize, by: Choice },
    /// A pod ends.
    End(Index),
    /// So much time passes, and the plugin looks at the list.
    Look { seconds: u64 },
    /// The plugin is killed and started; its records are there, or lost.
    Restart { records_lost: bool },
    /// A GPU fails or comes back.
    Fault { gpu: usize, health: bool },
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![Just(Choice::Preferred), Just(Choice::PreferredLate), Just(Choice::First)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..3_usize, 1..70_usize, choice())
            .prop_map(|(resource, units, by)| Step::Start { resource, units, by }),
        3 => any::<Index>().prop_map(Step::End),
        2 => (0..120_u64).prop_map(|seconds| Step::Look { seconds }),
        1 => any::<bool>().prop_map(|records_lost| Step::Restart { records_lost }),
        1 => (0..2_usize, any::<bool>()).prop_map(|(gpu, health)| Step::Fault { gpu, health }),
    ]
}

/// The kubelet's own books, and the plugin's.
struct World {
    ledger: Ledger,
    /// What the ledger was when the kubelet last looked.
    offered: Ledger,
    pods: Vec<Owner>,
    gpus: Vec<Gpu>,
    now: Now,
    started: u64,
}

impl World {
    fn start(&mut self, resource: usize, units: usize, by: Choice) {
        let resource = resources().remove(resource).name;
        let in_use: BTreeSet<&String> =
            self.pods.iter().filter(|p| p.resource == resource).flat_map(|p| &p.devices).collect();
        let mut free = match by {
            Choice::PreferredLate => healthy(&self.offered, &resource),
            Choice::Preferred | Choice::First => healthy(&self.ledger, &resource),
        };
        free.retain(|id| !in_use.contains(id));
        if free.len() < units {
            return; // The scheduler sends no pod.
        }
        let chosen = match by {
            Choice::Preferred | Choice::PreferredLate => {
                self.ledger.preferred(&resource, &free, &[], units)
            }
            Choice::First => free[..units].to_vec(),
        };
        assert_eq!(chosen.len(), units);
        self.started += 1;
        let name = format!("pod-{}", self.started);
        let before = self.ledger.allocations().len();
        match self.ledger.lend(&resource, &chosen, &name, self.now) {
            Ok(lent) => {
                for ended in lent.ended {
                    let alive = |pod: &&Owner| pod.name == ended.id;
                    assert!(self.pods.iter().find(alive).is_none(), "{ended:?} lives");
                }
                self.pods.push(owner(&name, &resource, &chosen));
            }
            Err(refused) => {
                assert_eq!(self.ledger.allocations().len(), before);
                if !matches!(by, Choice::First) {
                    self.check_that_none_had_room(&resource, &free, units, &refused);
                }
            }
        }
    }

    /// Whoever went by what the plugin prefers is refused only what no GPU has.
    fn check_that_none_had_room(
        &self,
        resource: &str,
        free: &[String],
        units: usize,
        refused: &Refusal,
    ) {
        for gpu in &self.gpus {
            let of_it = |id: &&String| device_gpu(id).unwrap().0 == gpu.uuid;
            let mut ids: Vec<String> = free.iter().filter(of_it).cloned().collect();
            let lent = self.ledger.lent_devices(resource);
            ids.sort_by_key(|id| !lent.contains(id));
            ids.truncate(units);
            if ids.len() == units {
                let other = self.ledger.clone().lend(resource, &ids, "another", self.now);
                assert!(other.is_err(), "{refused}, but {other:?}");
            }
        }
    }

    fn check(&self) {
        for gpu in &self.gpus {
            let used = self.ledger.used(&gpu.uuid);
            assert!(used.sm_percent <= 100 && used.memory_bytes <= 80 * GIB, "{used:?}");
            // What pods have is in the books, each with its own units.
            let mut have = Used::default();
            for pod in self
                .pods
                .iter()
                .filter(|p| device_gpu(p.devices.first().unwrap()).unwrap().0 == gpu.uuid)
            {
                let resource = resources().into_iter().find(|r| r.name == pod.resource).unwrap();
                let units = pod.devices.len() as u32;
                have.sm_percent += resource.sm_percent.unwrap_or(0) * units;
                have.memory_bytes += u64::from(units)
                    * match resource.memory {
                        Memory::Bytes(bytes) => bytes,
                        Memory::Percent(percent) => 80 * GIB / 100 * u64::from(percent),
                    };
            }
            assert!(have.sm_percent <= used.sm_percent && have.memory_bytes <= used.memory_bytes);
        }
        for resource in resources() {
            let devices = self.ledger.devices(&resource.name);
            for pod in self.pods.iter().filter(|pod| pod.resource == resource.name) {
                for id in &pod.devices {
                    let device = devices.iter().find(|device| device.id == *id).unwrap();
                    let gpu = self.gpus.iter().find(|gpu| id.starts_with(&gpu.uuid)).unwrap();
                    assert_eq!(device.health, gpu.health, "{id} is lent");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn allocations_stay_true(steps in proptest::collection::vec(step(), 1..60)) {
        let gpus = vec![gpu("a", Health::Healthy), gpu("b", Health::Healthy)];
        let mut world =
            World { ledger: ledger(), offered: ledger(), pods: Vec::new(), gpus, now: 1_000_000, started: 0 };
        for step in steps {
            match step {
                Step::Start { resource, units, by } => world.start(resource, units, by),
                Step::End(which) if !world.pods.is_empty() => {
                    world.pods.remove(which.index(world.pods.len()));
                }
                Step::End(_) => {}
                Step::Look { seconds } => {
                    world.now += seconds;
                    let pods = world.pods.clone();
                    for ended in reconcile(&mut world.ledger, &pods, world.now) {
                        prop_assert!(pods.iter().all(|pod| pod.name != ended.id));
                    }
                    world.offered = world.ledger.clone();
                }
                Step::Restart { records_lost } => {
                    let kept = match records_lost {
                        true => Vec::new(),
                        false => world.ledger.allocations().to_vec(),
                    };
                    world.ledger = Ledger::new(resources(), rules(), kept);
                    world.ledger.set_gpus(world.gpus.clone());
                    // Whoever lost its records asks before it offers.
                    if records_lost {
                        let pods = world.pods.clone();
                        reconcile(&mut world.ledger, &pods, world.now);
                    }
                }
                Step::Fault { gpu, health } => {
                    world.gpus[gpu].health =
                        if health { Health::Healthy } else { Health::Unhealthy };
                    world.ledger.set_gpus(world.gpus.clone());
                }
            }
            world.check();
        }
        // Once all have ended, everything is free.
        reconcile(&mut world.ledger, &[], world.now + GRACE_S);
        prop_assert_eq!(world.ledger.allocations(), []);
    }
}
