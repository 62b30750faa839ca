//! Memory of sessions that standbys have mapped before they take over.

use crate::fake_client::{Client, Server};
use crate::spilling::Small;
use crate::takeover::{culprit, fault, hear_recovery, wait_for};
use link::wire::command::{self as wire, Opcode};
use link::wire::daemon::{DeviceSnapshot, ServerSnapshot};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use zerocopy::IntoBytes;

pub(crate) const ALL: &[super::Test] = &[
    ("what_is_mapped_ahead_is_there_takeover_after_takeover", there_takeover_after_takeover),
    ("two_standbys_take_over_one_right_after_the_other", two_take_over),
    ("what_is_given_up_is_unmapped_by_who_stands_by", given_up_is_unmapped),
    ("a_standby_that_is_killed_is_replaced_with_all_that_it_had", a_killed_one_is_replaced),
    ("what_a_standby_still_maps_goes_to_whoever_needs_it", goes_to_whoever_needs_it),
    ("what_is_mapped_ahead_of_who_is_lost_is_unmapped", of_the_lost_is_unmapped),
];

const MIB: u64 = 1 << 20;
const GRANT_BYTES: u64 = 2 * MIB;
/// Of each grant so much is looked at.
const PAGE_BYTES: u64 = 4096;
/// More than one round of messages.
const GRANTS: u32 = 100;

/// A client with many grants, each of which has its number in it.
struct Large {
    client: Client,
    grants: Vec<wire::GrowReply>,
    host: u64,
}

impl Large {
    fn start(mut client: Client, count: u32) -> Self {
        let host = client.pinned(u64::from(count) * PAGE_BYTES);
        let grants: Vec<_> = (0..count).map(|_| client.grow(GRANT_BYTES)).collect();
        let mut large = Self { client, grants, host };
        (0..count).for_each(|number| large.fill(number));
        large
    }

    fn fill(&mut self, number: u32) {
        let fill = wire::Fill {
            element_bytes: 4,
            destination: self.grants[number as usize].address,
            width: GRANT_BYTES / 4,
            height: 1,
            value: number,
            ..Default::default()
        };
        self.client.post(Opcode::Fill, &[fill.as_bytes()]);
        self.client.finish(0).unwrap();
    }

    /// Compares the end of each grant with its number.
    fn check(&mut self) {
        let Self { client, grants, host } = self;
        client.host_bytes(*host, grants.len() * PAGE_BYTES as usize).fill(0xff);
        for (number, grant) in grants.iter().enumerate() {
            let to = *host + number as u64 * PAGE_BYTES;
            client.copy(0, to, grant.address + GRANT_BYTES - PAGE_BYTES, PAGE_BYTES);
        }
        client.finish(0).unwrap();
        let bytes = client.host_bytes(*host, grants.len() * PAGE_BYTES as usize);
        for (number, page) in bytes.chunks(PAGE_BYTES as usize).enumerate() {
            let (words, _) = page.as_chunks::<4>();
            assert!(words.iter().all(|word| u32::from_ne_bytes(*word) == number as u32));
        }
    }

    fn release(&mut self, grant: wire::GrowReply) {
        let wire::GrowReply { address, size_bytes } = grant;
        let release = wire::Release { address, size_bytes };
        assert_eq!(self.client.try_call(Opcode::Release, &[release.as_bytes()]).0, 0);
    }
}

/// Waits until a standby has all mapped that clients have.
fn await_mapped(server: &mut Server) -> DeviceSnapshot {
    let all = |now: &ServerSnapshot| {
        let device = &now.devices[0];
        device.granted_bytes > 0 && device.standby_memory_bytes == device.granted_bytes
    };
    server.await_snapshot("a standby that has mapped everything", all).devices.swap_remove(0)
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// How many pieces of the device's memory a process has.
fn pieces_of(pid: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let is_piece = |link: std::path::PathBuf| link.to_string_lossy().contains("softcuda-device-");
    files
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok())
        .filter(|it| is_piece(it.clone()))
        .count()
}

fn there_takeover_after_takeover() {
    let mut server = Server::start();
    let mut large = Large::start(server.client(), GRANTS);
    for _ in 0..2 {
        let standby = await_mapped(&mut server).standby_pid;
        fault(&mut culprit(&mut server));
        hear_recovery(&mut server);
        large.check();
        assert_eq!(server.snapshot().devices[0].executor_pid, standby);
        // It is the session's as if it had been mapped here.
        let grant = large.grants[7];
        large.release(grant);
        assert_eq!(large.client.grow(GRANT_BYTES).address, grant.address);
        large.fill(7);
    }
    // A killed executor is no different.
    let device = await_mapped(&mut server);
    kill(device.executor_pid, Signal::KILL);
    hear_recovery(&mut server);
    large.check();
    assert_eq!(server.snapshot().devices[0].granted_bytes, device.granted_bytes);
}

fn two_take_over() {
    let mut server = Server::start_with(&[("OPENMPS_STANDBY", "2")]);
    let mut large = Large::start(server.client(), GRANTS);
    await_mapped(&mut server);
    let mut bad = [culprit(&mut server), culprit(&mut server)];
    for bad in &mut bad {
        fault(bad);
        hear_recovery(&mut server);
    }
    large.check();
}

fn given_up_is_unmapped() {
    let mut server = Server::start();
    let mut large = Large::start(server.client(), GRANTS);
    let standby = await_mapped(&mut server).standby_pid;
    assert!(pieces_of(standby) >= GRANTS as usize);
    while let Some(grant) = large.grants.pop() {
        large.release(grant);
    }
    // Some of it is kept for a while, and mapped as long.
    server
        .await_snapshot("a standby without memory", |now| now.devices[0].standby_memory_bytes == 0);
    wait_for("the end of its mappings", || pieces_of(standby) < GRANTS as usize / 2);
    assert_eq!(server.snapshot().devices[0].standby_pid, standby);
}

fn a_killed_one_is_replaced() {
    let mut server = Server::start();
    let mut large = Large::start(server.client(), GRANTS);
    let first = await_mapped(&mut server).standby_pid;
    kill(first, Signal::KILL);
    server.await_snapshot("its end", |now| now.devices[0].standby_pid != first);
    let second = await_mapped(&mut server).standby_pid;
    assert_ne!(second, first);
    large.check();
    fault(&mut culprit(&mut server));
    hear_recovery(&mut server);
    large.check();
}

/// More than the rest of the device is wanted while the standby has not unmapped what was given up.
fn goes_to_whoever_needs_it() {
    const DEVICE_MIB: u64 = 4096;
    const GIVEN_UP: u64 = 256 * MIB;
    let mut small = Small::start(DEVICE_MIB, &[]);
    let server = &mut small.server;
    let mut one = Large::start(server.client(), 1);
    let mut two = server.client();
    let given_up: Vec<_> = (0..4).map(|_| one.client.grow(GIVEN_UP)).collect();
    let standby = await_mapped(server).standby_pid;
    kill(standby, Signal::STOP);
    given_up.into_iter().for_each(|grant| one.release(grant));
    let wanted = wire::Grow { size_bytes: 3600 * MIB };
    let (status, _) = std::thread::scope(|threads| {
        let asks = threads.spawn(|| two.try_call(Opcode::Grow, &[wanted.as_bytes()]));
        // So long nobody could have it, if it was asked for by now.
        std::thread::sleep(Duration::from_millis(300));
        kill(standby, Signal::CONT);
        asks.join().unwrap()
    });
    assert_eq!(status, 0, "memory that was free was refused");
    assert_eq!(server.snapshot().devices[0].standby_memory_bytes, 0, "memory is short");
    one.check();
    let mut bad = culprit(server);
    fault(&mut bad);
    hear_recovery(server);
    one.check();
}

fn of_the_lost_is_unmapped() {
    let mut server = Server::start();
    let mut idle = Large::start(server.client(), 3);
    let mut bad = culprit(&mut server);
    for _ in 0..GRANTS {
        bad.grow(GRANT_BYTES);
    }
    let standby = await_mapped(&mut server).standby_pid;
    fault(&mut bad);
    hear_recovery(&mut server);
    idle.check();
    assert_eq!(server.snapshot().devices[0].executor_pid, standby);
    wait_for("the end of what was the culprit's", || pieces_of(standby) < GRANTS as usize / 2);
    idle.check();
    // Its addresses are free for whoever comes when it has gone.
    drop(bad);
    server.await_snapshot("the end of the culprit", |now| now.clients.len() == 1);
    Large::start(server.client(), GRANTS).check();
    idle.check();
}
