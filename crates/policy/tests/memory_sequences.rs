//! Random sequences of what clients, limits of clients and of groups, and memory policies can do,
//! with memory that has addresses and with such that has none (`cuMemCreate`), against the
//! decisions of this crate: sums never exceed the device, nor those of what was granted a
//! limit, nothing leaks, every refusal is for a true reason, and who waits is served when others
//! have gone.
//!
//! The world around the decisions is a model: a device that has so much memory, executors that
//! answer at some time or say that they cannot, and a keeper that does what it is told.
//! `OPENMPS_TEST_SEED` repeats one run.

use link::wire::attach::Window;
use policy::memory::grants::{GrantRefusal, Grants, is_beyond_group};
use policy::memory::memory_settings::{MemoryPolicy, MemorySettings};
use policy::memory::residency::{Action, Refusal, Residency, Urgency, Wish};
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
const GRANULARITY_BYTES: u64 = 2 * MIB;
const SEQUENCES: u64 = 3000;
const STEPS: u32 = 120;

/// xorshift64*: enough for choices.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What an executor was asked to move out.
#[derive(Default)]
struct Order {
    allocations: Vec<(u64, u64)>,
    pauses: bool,
    is_called_off: bool,
}

/// What memory is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Placement {
    Window,
    /// Without an address.
    Piece,
}

struct Client {
    grants: Grants,
    group: Option<usize>,
    /// Keys of what has no address.
    pieces: BTreeSet<u64>,
    /// Key to length, of what is on the device.
    resident: BTreeMap<u64, u64>,
    /// The same, of what is in host memory.
    spilled: BTreeMap<u64, u64>,
    /// What cannot be moved out.
    shared: BTreeSet<u64>,
    /// What it waits for: key and length of new memory.
    wanted: Option<(u64, u64)>,
    returns: bool,
    is_busy: bool,
    idle_since_ms: Option<u64>,
    order: Option<Order>,
    waits_since_ms: u64,
}

impl Client {
    fn waits(&self) -> bool {
        self.wanted.is_some() || self.returns
    }
}

struct World {
    settings: MemorySettings,
    device_bytes: u64,
    now_ms: u64,
    clients: BTreeMap<u64, Client>,
    /// Limits of the groups.
    groups: [Option<u64>; 2],
    residency: Residency,
    next: u64,
    refusals: BTreeMap<&'static str, u64>,
    moved: u64,
    /// Pieces without an address that came back from host memory.
    pieces_returned: u64,
    /// Grants to members of a group with a limit that came when memory of members was in host
    /// memory.
    granted_beside_spilled: u64,
}

impl World {
    fn new(random: &mut Random) -> Self {
        let policies = [MemoryPolicy::Fail, MemoryPolicy::Queue, MemoryPolicy::Spill];
        let settings = MemorySettings {
            total: Default::default(),
            policy: policies[[0, 1, 2, 2, 2][random.below(5) as usize]],
            wait_ms: 1 + random.below(2000),
            turn_ms: 1 + random.below(300),
            host_limit_bytes: random.below(200) * MIB,
        };
        Self {
            settings,
            device_bytes: (8 + random.below(200)) * MIB,
            now_ms: 1000,
            clients: BTreeMap::new(),
            groups: [Some(random.below(300) * MIB), None],
            residency: Residency::new(settings),
            next: 0,
            refusals: BTreeMap::new(),
            moved: 0,
            pieces_returned: 0,
            granted_beside_spilled: 0,
        }
    }

    fn used_bytes(&self) -> u64 {
        self.clients.values().flat_map(|client| client.resident.values()).sum()
    }

    fn fits(&self, size_bytes: u64) -> bool {
        self.used_bytes() + size_bytes <= self.device_bytes
    }

    fn host_bytes(&self) -> u64 {
        self.clients.values().flat_map(|client| client.spilled.values()).sum()
    }

    fn enter(&mut self, random: &mut Random) {
        self.next += 1;
        let window = Window { base: self.next << 40, size_bytes: 1 << 38 };
        let limit = (random.below(2) == 0).then(|| random.below(150) * MIB);
        let client = Client {
            grants: Grants::new(window, limit),
            group: [None, Some(0), Some(0), Some(1)][random.below(4) as usize],
            pieces: BTreeSet::new(),
            resident: BTreeMap::new(),
            spilled: BTreeMap::new(),
            shared: BTreeSet::new(),
            wanted: None,
            returns: false,
            is_busy: false,
            idle_since_ms: Some(self.now_ms),
            order: None,
            waits_since_ms: 0,
        };
        self.clients.insert(self.next, client);
        self.residency.open(self.next, self.now_ms);
    }

    fn leave(&mut self, id: u64) {
        self.clients.remove(&id);
        self.residency.close(id);
        self.serve();
    }

    /// What members of a group have, wherever it is, and what they wait for.
    fn bytes_of_group(&self, group: usize) -> u64 {
        let members = self.clients.values().filter(|client| client.group == Some(group));
        let has = |client: &Client| -> u64 {
            let there = client.resident.values().chain(client.spilled.values());
            there.sum::<u64>() + client.wanted.map_or(0, |(_, size_bytes)| size_bytes)
        };
        members.map(has).sum()
    }

    fn is_beyond_group(&self, id: u64, size_bytes: u64) -> bool {
        let Some(group) = self.clients[&id].group else { return false };
        let Some(limit) = self.groups[group] else { return false };
        let members = self.clients.values().filter(|client| client.group == Some(group));
        let granted = members.map(|client| client.grants.granted_bytes());
        is_beyond_group(granted, size_bytes, GRANULARITY_BYTES, limit)
    }

    fn allocate(&mut self, id: u64, size_bytes: u64, placement: Placement) {
        let rounded = size_bytes.next_multiple_of(GRANULARITY_BYTES);
        let group = self.clients[&id].group;
        let group = group.and_then(|group| Some((group, self.groups[group]?)));
        let beyond =
            group.is_some_and(|(group, limit)| self.bytes_of_group(group) + rounded > limit);
        assert_eq!(self.is_beyond_group(id, size_bytes), beyond, "a true reason");
        if beyond {
            *self.refusals.entry("group").or_default() += 1;
            return;
        }
        let is_spilled = |client: &Client| client.group.is_some() && !client.spilled.is_empty();
        let beside_spilled = group.is_some() && self.clients.values().any(is_spilled);
        let client = self.clients.get_mut(&id).expect("a client");
        let (granted, limit) = (client.grants.granted_bytes(), client.grants.limit_bytes());
        let planned = match placement {
            Placement::Window => client.grants.plan(size_bytes, GRANULARITY_BYTES),
            Placement::Piece => client.grants.plan_piece(size_bytes, GRANULARITY_BYTES),
        };
        match planned {
            Err(GrantRefusal::OverLimit) => {
                assert!(limit.is_some_and(|limit| granted + rounded > limit), "a true reason");
                *self.refusals.entry("limit").or_default() += 1;
            }
            Err(GrantRefusal::NoAddresses) => panic!("the window is large enough"),
            Ok((key, size_bytes)) => {
                assert!(limit.is_none_or(|limit| granted + size_bytes <= limit));
                client.wanted = Some((key, size_bytes));
                let is_new =
                    !client.resident.contains_key(&key) && !client.spilled.contains_key(&key);
                assert!(is_new, "one key for two");
                if placement == Placement::Piece {
                    client.pieces.insert(key);
                }
                self.granted_beside_spilled += u64::from(beside_spilled);
                client.waits_since_ms = self.now_ms;
                if !self.try_new(id)
                    && let Err(refusal) =
                        self.residency.wait(id, Wish::New { size_bytes }, self.now_ms)
                {
                    self.refuse(id, refusal);
                }
                self.find_room();
            }
        }
    }

    /// The keeper's attempt; what the driver says is the model's truth.
    fn try_new(&mut self, id: u64) -> bool {
        let Some((key, size_bytes)) = self.clients[&id].wanted else { return true };
        if !self.bring_back(id) || !self.fits(size_bytes) {
            return false;
        }
        let client = self.clients.get_mut(&id).expect("a client");
        client.wanted = None;
        client.resident.insert(key, size_bytes);
        self.residency.add(id, key, size_bytes);
        true
    }

    fn try_return(&mut self, id: u64) -> bool {
        if !self.bring_back(id) {
            return false;
        }
        let client = self.clients.get_mut(&id).expect("a client");
        client.returns = false;
        client.is_busy = true;
        client.idle_since_ms = None;
        true
    }

    fn bring_back(&mut self, id: u64) -> bool {
        while let Some((key, size_bytes)) = self.residency.next_to_return(id) {
            if !self.fits(size_bytes) {
                return false;
            }
            let client = self.clients.get_mut(&id).expect("a client");
            assert_eq!(client.spilled.remove(&key), Some(size_bytes));
            client.resident.insert(key, size_bytes);
            self.pieces_returned += u64::from(client.pieces.contains(&key));
            self.residency.returned(id, key, self.now_ms);
        }
        true
    }

    /// A command that needs memory.
    fn work(&mut self, id: u64) {
        let now_ms = self.now_ms;
        let client = self.clients.get_mut(&id).expect("a client");
        if client.order.as_ref().is_some_and(|order| order.pauses) {
            return;
        }
        client.idle_since_ms = None;
        client.is_busy = true;
        if !client.spilled.is_empty() {
            client.is_busy = false;
            client.returns = true;
            client.waits_since_ms = now_ms;
            if !self.try_return(id) {
                self.residency.wait(id, Wish::Return, now_ms).expect("it is never refused");
                self.find_room();
            }
        }
    }

    fn free(&mut self, id: u64, which: u64) {
        let client = self.clients.get_mut(&id).expect("a client");
        let keys: Vec<u64> = client.resident.keys().chain(client.spilled.keys()).copied().collect();
        if keys.is_empty() || client.waits() {
            return;
        }
        let key = keys[(which % keys.len() as u64) as usize];
        client.resident.remove(&key);
        client.spilled.remove(&key);
        client.shared.remove(&key);
        client.pieces.remove(&key);
        assert!(client.grants.release(key).is_some());
        self.residency.remove(id, key);
        self.serve();
    }

    /// The executor's answer to what it was ordered: only where nothing is in flight.
    fn answer(&mut self, id: u64, random: &mut Random) {
        let client = self.clients.get_mut(&id).expect("a client");
        let Some(order) = client.order.take() else { return };
        if client.is_busy && !order.is_called_off {
            client.order = Some(order);
            return;
        }
        for (key, size_bytes) in order.allocations {
            let is_there = client.resident.get(&key) == Some(&size_bytes);
            if client.shared.contains(&key) {
                self.residency.fix(id, key);
                self.residency.stayed(id, key);
            } else if !is_there || order.is_called_off || random.below(16) == 0 {
                self.residency.stayed(id, key);
            } else {
                client.resident.remove(&key);
                client.spilled.insert(key, size_bytes);
                self.residency.moved_out(id, key);
                self.moved += 1;
            }
        }
        self.serve();
    }

    fn serve(&mut self) {
        for (id, wish) in self.residency.waiting() {
            let served = match wish {
                Wish::New { .. } => self.try_new(id),
                Wish::Return => self.try_return(id),
            };
            if served {
                self.residency.give_up(id);
            }
        }
        self.find_room();
    }

    fn find_room(&mut self) {
        let idle: BTreeMap<u64, Option<u64>> =
            self.clients.iter().map(|(id, client)| (*id, client.idle_since_ms)).collect();
        let step = |id: u64| idle.get(&id).copied().flatten();
        for action in self.residency.step(self.now_ms, step) {
            match action {
                Action::MoveOut { session, allocations, urgency } => {
                    let client = self.clients.get_mut(&session).expect("a living client is asked");
                    assert_eq!(self.settings.policy, MemoryPolicy::Spill);
                    for (key, size_bytes) in &allocations {
                        assert_eq!(client.resident.get(key), Some(size_bytes), "it is there");
                    }
                    let pauses = urgency == Urgency::Pause;
                    if !pauses && !client.waits() {
                        assert!(client.idle_since_ms.is_some(), "only the idle are asked so");
                    }
                    // An earlier order may be left of which all was freed meanwhile.
                    let order = client.order.get_or_insert_with(Order::default);
                    order.allocations.extend(allocations);
                    order.pauses = pauses;
                }
                Action::Pause { session } => {
                    let order = self.clients.get_mut(&session).and_then(|c| c.order.as_mut());
                    order.expect("who pauses was asked").pauses = true;
                }
                Action::CallOff { session } => {
                    let order = self.clients.get_mut(&session).and_then(|c| c.order.as_mut());
                    let order = order.expect("what is called off was asked");
                    order.is_called_off = true;
                    order.pauses = false;
                }
                Action::Refuse { session, refusal } => self.refuse(session, refusal),
            }
        }
    }

    fn refuse(&mut self, id: u64, refusal: Refusal) {
        let (key, size_bytes) = self.clients[&id].wanted.expect("only what is wanted is refused");
        let out: u64 = self.clients[&id].spilled.values().sum();
        assert!(!self.fits(out + size_bytes), "{refusal:?}, but it fits");
        let others = || self.clients.iter().filter(|(other, _)| **other != id);
        let has_memory =
            |client: &Client| !client.resident.is_empty() || !client.spilled.is_empty();
        let name = match refusal {
            Refusal::Policy => {
                assert_eq!(self.settings.policy, MemoryPolicy::Fail);
                "policy"
            }
            Refusal::NothingToWaitFor => {
                match self.settings.policy {
                    MemoryPolicy::Queue => {
                        assert!(!others().any(|(_, client)| has_memory(client)));
                    }
                    // Shared memory may still be believed to be movable, not the other way round.
                    _ => assert!(!others().any(|(_, client)| {
                        client.resident.keys().any(|key| !client.shared.contains(key))
                    })),
                }
                "nothing to wait for"
            }
            Refusal::HostFull => {
                let room = self.settings.host_limit_bytes.saturating_sub(self.host_bytes());
                let fits = |client: &Client| {
                    let free =
                        client.resident.iter().filter(|(key, _)| !client.shared.contains(key));
                    free.map(|(_, bytes)| *bytes).any(|bytes| bytes <= room)
                };
                assert!(!others().any(|(_, client)| fits(client)), "the host has room");
                "host"
            }
            Refusal::TimedOut => {
                let waited_ms = self.now_ms - self.clients[&id].waits_since_ms;
                assert!(waited_ms >= self.settings.wait_ms);
                "time"
            }
        };
        *self.refusals.entry(name).or_default() += 1;
        let client = self.clients.get_mut(&id).expect("a client");
        client.wanted = None;
        client.pieces.remove(&key);
        assert!(client.grants.release(key).is_some());
    }

    fn check(&self) {
        assert!(self.used_bytes() <= self.device_bytes);
        assert_eq!(self.residency.resident_bytes(), self.used_bytes());
        assert_eq!(self.residency.spilled_bytes(), self.host_bytes());
        assert!(self.host_bytes() <= 2 * self.settings.host_limit_bytes, "the host's bound");
        for (id, client) in &self.clients {
            let has: u64 = client.resident.values().chain(client.spilled.values()).sum();
            let wanted = client.wanted.map_or(0, |(_, size_bytes)| size_bytes);
            assert_eq!(client.grants.granted_bytes(), has + wanted, "client {id}");
            let waits = self.residency.waiting().iter().any(|(session, _)| session == id);
            assert_eq!(waits, client.waits(), "client {id}");
        }
    }

    /// Everybody but the first that waits becomes idle and answers; it must be served, unless it is
    /// refused.
    fn settle(&mut self, random: &mut Random) {
        for client in self.clients.values_mut() {
            client.is_busy = false;
        }
        let Some(&(head, wish)) = self.residency.waiting().first() else { return };
        let limit_ms = 40 * (self.settings.turn_ms + 50) + self.settings.wait_ms;
        let until_ms = self.now_ms + limit_ms * 3;
        while self.residency.waiting().iter().any(|(session, _)| *session == head) {
            assert!(self.now_ms < until_ms, "session {head} is not served: {wish:?}");
            // What cannot be exchanged for lack of host memory, or was fixed, goes when its owner
            // does.
            if self.now_ms > until_ms - limit_ms {
                let other = self.clients.keys().copied().find(|id| *id != head);
                self.leave(other.expect("alone, it is served"));
            }
            self.now_ms += 5;
            for id in self.clients.keys().copied().collect::<Vec<_>>() {
                let client = self.clients.get_mut(&id).expect("a client");
                if !client.waits() {
                    client.is_busy = false;
                    client.idle_since_ms.get_or_insert(self.now_ms);
                }
                self.answer(id, random);
            }
            self.serve();
            self.check();
        }
    }
}

fn run(seed: u64) -> World {
    let mut random = Random(seed | 1);
    let mut world = World::new(&mut random);
    for _ in 0..STEPS {
        world.now_ms += random.below(60);
        let ids: Vec<u64> = world.clients.keys().copied().collect();
        let choice = random.below(21);
        if ids.is_empty() || (choice == 0 && ids.len() < 6) {
            world.enter(&mut random);
        } else {
            let id = ids[random.below(ids.len() as u64) as usize];
            let waits = world.clients[&id].waits();
            match choice {
                1..=5 if !waits => {
                    let size_bytes = 1 + random.below(world.device_bytes / 2 + 8 * MIB);
                    let placement = [Placement::Window, Placement::Piece];
                    world.allocate(id, size_bytes, placement[random.below(2) as usize]);
                }
                6..=7 => world.free(id, random.next()),
                8 => world.leave(id),
                9 => {
                    let client = world.clients.get_mut(&id).expect("a client");
                    let limit = (random.below(3) > 0).then(|| random.below(200) * MIB);
                    client.grants.set_limit_bytes(limit);
                }
                10 => {
                    let client = world.clients.get_mut(&id).expect("a client");
                    let keys: Vec<u64> = client.resident.keys().copied().collect();
                    client.shared.extend(keys.first());
                }
                // What is held beyond a new limit stays.
                20 => {
                    let limit = (random.below(4) > 0).then(|| random.below(300) * MIB);
                    world.groups[random.below(2) as usize] = limit;
                }
                11..=14 if !waits => world.work(id),
                15..=16 if !waits => {
                    let now_ms = world.now_ms;
                    let client = world.clients.get_mut(&id).expect("a client");
                    client.is_busy = false;
                    client.idle_since_ms.get_or_insert(now_ms);
                }
                _ => ids.iter().for_each(|id| world.answer(*id, &mut random)),
            }
        }
        world.serve();
        world.check();
    }
    world.settle(&mut random);
    for id in world.clients.keys().copied().collect::<Vec<_>>() {
        world.leave(id);
        world.check();
    }
    assert_eq!(world.residency.resident_bytes() + world.residency.host_bytes(), 0);
    assert!(!world.residency.is_waited_for());
    world
}

#[test]
fn sums_hold_nothing_leaks_and_refusals_are_true() {
    let given = std::env::var("OPENMPS_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let (mut refusals, mut moved) = (BTreeMap::<&str, u64>::new(), 0);
    let (mut pieces_returned, mut granted_beside_spilled) = (0, 0);
    for number in 0..if given.is_some() { 1 } else { SEQUENCES } {
        let seed = given.unwrap_or(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(number + 1));
        let world = std::panic::catch_unwind(|| run(seed))
            .unwrap_or_else(|_| panic!("sequence {number} failed: OPENMPS_TEST_SEED={seed}"));
        moved += world.moved;
        pieces_returned += world.pieces_returned;
        granted_beside_spilled += world.granted_beside_spilled;
        for (reason, count) in world.refusals {
            *refusals.entry(reason).or_default() += count;
        }
    }
    if given.is_none() {
        // A test that never comes to these proves nothing of them.
        for reason in ["limit", "group", "policy", "nothing to wait for", "host", "time"] {
            assert!(refusals.get(reason).is_some_and(|count| *count > 20), "{refusals:?}");
        }
        assert!(moved > 1000 && pieces_returned > 500, "{moved}, {pieces_returned}");
        assert!(granted_beside_spilled > 100, "{granted_beside_spilled}");
    }
}
