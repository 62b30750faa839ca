//! Mutated commands in the ring: whoever writes them may lose its session. The executor lives,
//! nothing panics, memory stays bounded, and an innocent client's results are right throughout.
//!
//! `cargo xtask fuzz ring` goes on for longer: `OPENMPS_FUZZ_SECONDS`, and `OPENMPS_TEST_SEED` to
//! repeat a run. An input is what lies in the ring between two looks at it; one that breaks
//! something is written to a file, whose path is printed.

use super::fake_client::*;
use super::promises::compute;
use bench::hostile::raw_session::{RawSession, Sent};
use bench::hostile::{Random, commands};
use link::wire::attach::RequestedLimits;
use link::wire::command::Opcode;
use std::io::Write as _;
use std::time::{Duration, Instant};

pub(crate) const ALL: &[super::Test] =
    &[("mutated_commands_end_their_writer_at_most", mutated_commands_end_their_writer_at_most)];

const SECONDS: u64 = 5;
/// Seed of the inputs that every run begins with, and how many there are; what follows is new each
/// time.
const CORPUS: (u64, u64) = (1, 60);
/// What a hostile client may have, and what the executor may grow by for all of them.
const MEMORY_LIMIT: &str = "0=64M";
const GROWTH_BYTES: u64 = 1 << 30;
/// A client whose ring is written by hand.
struct Hostile {
    session: RawSession,
    inputs: usize,
}

impl Hostile {
    fn start(server: &mut Server) -> Self {
        let limits = RequestedLimits {
            pinned_device_mem_limit: Some(MEMORY_LIMIT.into()),
            ..Default::default()
        };
        let (connection, _) = server.attach(std::process::id(), limits).expect("a client is taken");
        Self { session: RawSession::open(connection).expect("a session"), inputs: 0 }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Resident memory of a process's children.
fn children_bytes(process: u32) -> u64 {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    let resident = |child: &str| -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{child}/statm")).ok()?;
        Some(status.split(' ').nth(1)?.parse::<u64>().ok()? * 4096)
    };
    children.unwrap_or_default().split_whitespace().filter_map(resident).sum()
}

fn mutated_commands_end_their_writer_at_most() {
    let mut server = Server::start();
    let mut good = server.client();
    compute(&mut good, 1000);
    let fresh = || std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let seed = number("OPENMPS_TEST_SEED").unwrap_or_else(fresh);
    let _ = writeln!(std::io::stderr(), "fuzz ring: OPENMPS_TEST_SEED={seed}");
    let end =
        Instant::now() + Duration::from_secs(number("OPENMPS_FUZZ_SECONDS").unwrap_or(SECONDS));
    let (mut count, mut sessions, mut before) = (0u64, 0u64, None);
    let mut hostile: Option<Hostile> = None;
    while count < CORPUS.1 || Instant::now() < end {
        let of_run = if count < CORPUS.1 { CORPUS.0 } else { seed };
        let mut random = Random(of_run ^ count.wrapping_mul(0x9e37_79b9));
        let client = hostile.get_or_insert_with(|| {
            sessions += 1;
            Hostile::start(&mut server)
        });
        client.session.refill(&mut random).expect("the region's file");
        let bytes = commands::input(&mut random, client.session.targets());
        client.inputs += 1;
        let goes_on = match client.session.send(&bytes).expect("the ring's file") {
            Sent::Taken => client.inputs < 40,
            Sent::Ended => false,
            Sent::Stuck => fail(count, &bytes, "hangs"),
        };
        if !goes_on {
            hostile = None;
        }
        if good.connection.is_closed() || good.try_call(Opcode::Ping, &[]).0 != 0 {
            fail(count, &bytes, "ends another client");
        }
        if count.is_multiple_of(100) {
            if super::server_log::text().contains("panicked") {
                fail(count, &bytes, "or one of the last hundred panics");
            }
            let now = children_bytes(server.child.id());
            let first = *before.get_or_insert(now);
            if now > first + GROWTH_BYTES {
                fail(count, &bytes, "or those before it take memory");
            }
        }
        count += 1;
    }
    drop(hostile);
    server.await_snapshot("the end of hostile clients", |snapshot| snapshot.clients.len() == 1);
    assert!(!super::server_log::text().contains("panicked"));
    good.finish(0).expect("the innocent client's work ends");
    let mut another = server.client();
    compute(&mut another, 1000);
    let _ = writeln!(std::io::stderr(), "fuzz ring: {count} inputs, {sessions} sessions");
}

fn fail(count: u64, bytes: &[u8], what: &str) -> ! {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-ring-{count}"));
    let _ = std::fs::write(&path, bytes);
    panic!("fuzz ring: input {count} {what}: {}", path.display());
}
